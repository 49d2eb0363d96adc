"""Several deliverers at one outbox, some of them killed anywhere: nothing vanishes, and nothing is received twice where
that would be a second effect.

The places at which they are killed come from the program itself: a deliverer that is not killed names those it passes.
The receiver is a file of the drill's own, with a line for each receipt.
"""

from __future__ import annotations

import os
import random
import time
from collections import Counter

from ranonce.drill.invoking import ended, killed
from ranonce.drill.outboxes import emit, is_open, key_at, let_time_pass, messages_to, process_of
from ranonce.drill.outcome import Broken, count
from ranonce.errors import EX_DONE, EX_PERSON_NEEDED, EX_TRY_LATER
from ranonce.messages import SENDING, SENT, UNSURE

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from ranonce.drill.invoking import Triggered
    from ranonce.drill.outcome import Score
    from ranonce.drill.stage import Stage
    from ranonce.messages import Message

JOB = "deliverers"
#: One that knows a message again by its key, and one that does not.
DEDUPES, FORGETS = "dedupes", "forgets"
DESTINATIONS = (DEDUPES, FORGETS)
#: Messages to each destination, for each place; and how many of them one may begin that is not killed there.
MESSAGES, LEFT_TO_OTHERS = 8, 3
#: A deliverer that is killed anywhere has this long to get there.
KILLED_WITHIN_SECONDS = 0.5
#: Each kill counts against the attempts of what it leaves, which is left by many here.
MOST_ATTEMPTS = 1000
SETTLES_SECONDS = 20.0
EXPECTED = (EX_DONE, EX_TRY_LATER, EX_PERSON_NEEDED)
#: Receives a message: one line with its key, appended at once, in the drill's own folder. It needs but the shell.
RECEIVE = """printf '%s\\\\n' \\"$RANONCE_MESSAGE_KEY\\" >> received-"""


def two_deliverers(stage: Stage, score: Score) -> str:
    """Let several deliverers work at once, kill some of them anywhere, and let others go on until all is settled."""
    plan = _Plan(stage)
    places = plan.places()
    where = count(len(places), "place")
    tried = (
        f"of 3 deliverers at once two were killed at each of {where}, and one anywhere; one more came, then 3 went on"
    )
    score.begin(len(places), tried)
    faults = {place: plan.killed_at(day, place) for day, place in enumerate(places, 1)}
    stage.deadline.check()
    open_still = plan.goes_on()
    received = plan.received()
    if strange := list(plan.strangers(len(places), received)):
        score.note("the receivers", strange)
    for day, place in enumerate(places, 1):
        score.note(f"killed at {place}", [*faults[place], *open_still, *plan.judged(day, received)])
        open_still = []
    return plan.summary(received)


class _Plan:
    """The destinations, who is sent to deliver there, and what came of it."""

    def __init__(self, stage: Stage) -> None:
        self._stage = stage
        self._ledger = stage.declared(JOB)
        self._files = {name: os.path.join(stage.folder, f"received-{name}") for name in DESTINATIONS}
        self._host = stage.host("deliverers", destinations="".join(map(self._declared, DESTINATIONS)))
        self._dead: set[str] = set()
        self._keys = [f"m{number}" for number in range(MESSAGES)]

    def _declared(self, name: str) -> str:
        dedupes = "true" if name == DEDUPES else "false"
        command = f'["/bin/sh", "-c", "{RECEIVE}{name}"]'
        return (
            f'[destinations.{name}]\ntype = "command"\ncommand = {command}\ndedupes = {dedupes}\n'
            f"max_attempts = {MOST_ATTEMPTS}\n"
        )

    def _start(self, *words: str, failpoint: str | None = None) -> Triggered:
        return self._stage.trigger(self._host, "deliver", *words, failpoint=failpoint)

    # --- what is tried ---

    def places(self) -> list[str]:
        """Let a deliverer go by, and return the places that it passes, each once, in order."""
        emit(self._ledger, JOB, 0, DESTINATIONS, self._keys)
        path = os.path.join(self._stage.folder, "delivery-places")
        run = self._start(FORGETS, failpoint=path)
        if run.ends() != EX_DONE:
            raise Broken(f"a deliverer that nobody disturbed did not go well: {run.said}")
        with open(path, encoding="utf-8") as file:
            passed = dict.fromkeys(file.read().split())
        return [place for place in passed if place.endswith(":1") or _is_with_answers(place)]

    def killed_at(self, day: int, place: str) -> list[str]:
        """Emit, let three deliver at once, of which two are killed at a place and one anywhere, and let one more come
        while the leases of the dead ones run; say what is wrong."""
        self._stage.deadline.check()
        emit(self._ledger, JOB, day, DESTINATIONS, self._keys)
        armed = [self._start(name, failpoint=place) for name in DESTINATIONS]
        victim = self._start("--limit", str(LEFT_TO_OTHERS), *DESTINATIONS)
        time.sleep(random.uniform(0.0, KILLED_WITHIN_SECONDS))  # noqa: S311 - no secret
        victim.started.process.kill()
        faults = [
            f"it passed there when nobody killed it, and now it did not: {run.said}" for run in armed if not killed(run)
        ]
        if victim.ends() not in (-9, *EXPECTED):
            faults.append(f"one that was to be killed anywhere: {victim.said}")
        self._dead |= {str(run.started.process.pid) for run in (*armed, victim) if run.started.process.returncode == -9}
        return [*faults, *self._next_one_comes(), *self._time_passes()]

    def _next_one_comes(self) -> list[str]:
        """Let a deliverer come while the leases of dead ones run; say what it has taken of theirs."""
        held = {name: self._sending(name) for name in DESTINATIONS}
        came = self._start(*DESTINATIONS)
        faults = [] if came.ends() in EXPECTED else [f"the next one that came: {came.said}"]
        for name, messages in held.items():
            now = messages_to(self._ledger, name)
            faults += [
                f"{key} was taken from a dead deliverer while its lease ran"
                for key, message in messages.items()
                if key in now and now[key].tries != message.tries
            ]
        return faults

    def _sending(self, name: str) -> dict[str, Message]:
        """Return what deliverers have of a destination's messages."""
        return {key: message for key, message in messages_to(self._ledger, name).items() if message.state == SENDING}

    def _time_passes(self) -> list[str]:
        """Let time pass when no deliverer is at work; say what those have kept that were not killed."""
        faults = []
        for name in DESTINATIONS:
            faults += [
                f"{key} is kept by a deliverer that ended by itself"
                for key, message in self._sending(name).items()
                if process_of(message) not in self._dead
            ]
            let_time_pass(self._ledger, name)
        return faults

    def goes_on(self) -> list[str]:
        """Let three deliver until all is settled; say what is wrong if it never is."""
        told: list[str] = []

        def settled() -> bool:
            runs = [self._start(*DESTINATIONS) for _ in range(3)]
            told[:] = [run.said for run, status in zip(runs, ended(runs), strict=True) if status not in EXPECTED]
            told.extend(self._time_passes())
            return bool(told) or not any(
                is_open(message) for name in DESTINATIONS for message in messages_to(self._ledger, name).values()
            )

        if not self._stage.deadline.wait_until(settled, SETTLES_SECONDS):
            return [f"{SETTLES_SECONDS:g} s after the last kill there are still messages that wait"]
        return [f"one that went on: {said}" for said in told]

    # --- what is seen ---

    def received(self) -> dict[str, Counter[str]]:
        """Return how often each key has come to each destination."""
        return {name: Counter(_lines(path)) for name, path in self._files.items()}

    def judged(self, day: int, received: Mapping[str, Counter[str]]) -> Iterator[str]:
        """Say what is wrong with the messages of a day."""
        for name in DESTINATIONS:
            messages, came = messages_to(self._ledger, name), received[name]
            for own_key in self._keys:
                key = key_at(JOB, day, name, own_key)
                yield from _wrong(key, messages.get(key), came[key], dedupes=name == DEDUPES)

    def strangers(self, days: int, received: Mapping[str, Counter[str]]) -> Iterator[str]:
        """Say what was received that nobody has emitted."""
        for name in DESTINATIONS:
            known = {key_at(JOB, day, name, own_key) for day in range(days + 1) for own_key in self._keys}
            yield from (f"{key} was received, and nobody has emitted it" for key in received[name] if key not in known)

    def summary(self, received: Mapping[str, Counter[str]]) -> str:
        """Say what became of all messages."""
        again = sum(times > 1 for times in received[DEDUPES].values())
        unsure = sum(message.state == UNSURE for message in messages_to(self._ledger, FORGETS).values())
        all_of = sum(len(messages_to(self._ledger, name)) for name in DESTINATIONS)
        return (
            f"{count(len(self._dead), 'process was', 'processes were')} killed, and of {count(all_of, 'message')} none "
            f"was lost: where the destination dedupes each was sent, {again} of them again under the same key; where "
            f"it does not none was received twice, and {unsure} are unsure"
        )


def _is_with_answers(place: str) -> bool:
    """Say whether a deliverer brings answers there: the second time that it writes to the store."""
    return place.startswith("exchange:") and place.endswith(":2")


def _wrong(key: str, message: Message | None, times: int, *, dedupes: bool) -> Iterator[str]:
    """Say what is wrong with one message that was received so many times."""
    if message is None:
        yield f"{key} was emitted, and has vanished from the outbox"
        return
    if message.state == SENT and not times:
        yield f"{key} counts as sent, and was never received"
    if message.state not in ((SENT,) if dedupes else (SENT, UNSURE)):
        yield f"{key} is {message.state}: {message.error}"
    elif not dedupes and times > 1:
        yield f"{key} was received {times} times by a destination that does not dedupe"


def _lines(path: str) -> list[str]:
    try:
        with open(path, encoding="utf-8") as file:
            return file.read().splitlines()
    except FileNotFoundError:
        return []
