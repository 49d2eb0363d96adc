"""A run that is killed between any two of its writes: no window is lost, and none is worked on more than its policy
allows.

The places come from the program itself: a run that is not killed names those it passes. After each kill two triggers
come at once, as a scheduler and a person would.
"""

from __future__ import annotations

import os

from ranonce.drill.asking import key_of, window_of
from ranonce.drill.invoking import ended, killed
from ranonce.drill.looking import look
from ranonce.drill.outcome import Broken, count
from ranonce.errors import EX_DONE, EX_PERSON_NEEDED, EX_TRY_LATER
from ranonce.ledger import outcome_of
from ranonce.liveness import unrecorded

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterator

    from ranonce.drill.invoking import Host
    from ranonce.drill.outcome import Score
    from ranonce.drill.stage import Stage
    from ranonce.ledger import OpenLedger

POLICIES = ("retry", "hold")
#: So many kills are tried at once: each is a process, and so is each trigger.
AT_ONCE = 4
#: What a killed run leaves behind has ended within this time.
SETTLES_SECONDS = 20.0
DAY = 0


def crash_anywhere(stage: Stage, score: Score) -> str:
    """Kill a run at each place it passes from its claim to its verdict, under both policies; then trigger it again."""
    host, ledger = stage.host("crashes"), stage.ledger()
    places = _places(stage, host)
    kills = [_Kill(policy, place, f"crash-{policy}-{n}") for n, place in enumerate(places) for policy in POLICIES]
    tried = f"killed at each of {count(len(places), 'place')} from claim to verdict, and triggered again, twice at once"
    score.begin(len(kills), tried)
    for first in range(0, len(kills), AT_ONCE):
        stage.deadline.check()
        some = kills[first : first + AT_ONCE]
        faults = _killed_and_triggered(stage, host, ledger, some)
        for kill in some:
            score.note(f"killed at {kill.place} (on_crash {kill.policy})", faults[kill])
    twice = sum(kill.effects == 2 for kill in kills)
    held = sum(kill.held for kill in kills)
    return (
        f"under `retry` each window was done, {twice} of them a second time, since nobody could know; under `hold` "
        f"none was done twice, and {held} wait for a person"
    )


class _Kill:
    """One place at which a run is killed, and what became of its window."""

    def __init__(self, policy: str, place: str, job: str) -> None:
        self.policy, self.place, self.job = policy, place, job
        self.effects = 0
        self.held = False

    def words(self, host: Host) -> tuple[str, ...]:
        """Return the words of the run."""
        return host.run_words(self.job, DAY, "--on-crash", self.policy, "--lease", "60s")


def _places(stage: Stage, host: Host) -> list[str]:
    """Let a run go by, and return the places that it passes, in order."""
    path = os.path.join(stage.folder, "places")
    run = stage.trigger(host, *host.run_words("crash-none", DAY, "--lease", "60s"), failpoint=path)
    if run.ends() != EX_DONE:
        raise Broken(f"a run that nobody disturbed did not go well: {run.said}")
    with open(path, encoding="utf-8") as file:
        return file.read().split()


def _killed_and_triggered(stage: Stage, host: Host, ledger: OpenLedger, kills: list[_Kill]) -> dict[_Kill, list[str]]:
    """Kill a run at each place, trigger each twice at once, and return what is wrong with each."""
    runs = {kill: stage.trigger(host, *kill.words(host), failpoint=kill.place) for kill in kills}
    faults: dict[_Kill, list[str]] = {kill: [] for kill in kills}
    for kill, run in runs.items():
        if not killed(run):
            faults[kill].append(f"it passed there when nobody killed it, and now it did not: {run.said}")
    before = {kill: (host.effects(kill.job, DAY), _is_known(host, ledger, kill)) for kill in kills}
    for kill in kills:
        faults[kill] += _triggered(stage, host, kill)
    for kill in kills:
        faults[kill] += _judged(host, ledger, kill, *before[kill])
    return faults


def _is_known(host: Host, ledger: OpenLedger, kill: _Kill) -> bool:
    """Say whether anybody knows how the killed run ended: the ledger, or the host that keeps its outcome."""
    seen = look(ledger, kill.job, DAY)
    if seen.run is not None and seen.run.status == "done":
        return True
    kept = [outcome_of(text) for _, text in unrecorded(host.state)]
    return any(outcome and outcome[0].key == key_of(kill.job, DAY) for outcome in kept)


def _triggered(stage: Stage, host: Host, kill: _Kill) -> list[str]:
    """Let two triggers come at once, and again while they are told that it is busy: a killed run ends its command."""
    told: list[str] = []

    def settled() -> bool:
        runs = [stage.trigger(host, *kill.words(host)) for _ in range(2)]
        told[:] = [run.said for run, status in zip(runs, ended(runs), strict=True) if status not in EXPECTED]
        return bool(told) or not all(run.started.process.returncode == EX_TRY_LATER for run in runs)

    if not stage.deadline.wait_until(settled, SETTLES_SECONDS):
        return [f"{SETTLES_SECONDS:g} s after the kill its window is still busy"]
    return [f"a trigger after it: {said}" for said in told]


EXPECTED = (EX_DONE, EX_TRY_LATER, EX_PERSON_NEEDED)


def _judged(host: Host, ledger: OpenLedger, kill: _Kill, before: list[int], known: bool) -> Iterator[str]:
    """Say what is wrong with a window after the triggers. `before` are its effects at the kill, `known` its outcome."""
    seen, effects = look(ledger, kill.job, DAY), host.effects(kill.job, DAY)
    run, window = seen.run, window_of(DAY).key
    kill.effects, kill.held = len(effects), run is not None and run.status == "held"
    began = [event.attempt for event in seen.named("start")]
    if run is None:
        yield f"the window {window} was lost: nobody has run it"
        return
    if sorted(set(effects)) != effects or not set(effects) <= set(began):
        yield f"the effects are those of the attempts {effects}, and the ledger tells of {began}"
    if known and effects != before:
        yield f"it was known to be done, and was worked on again: attempts {effects}"
    if kill.held and kill.policy == "hold" and not known:
        yield from seen.faults("held", 1)
    else:
        yield from seen.faults("done", len(began))
        if not effects:
            yield "it counts as done, and nobody has done it"
        if len(seen.named("done")) != 1:
            yield f"the ledger tells of {len(seen.named('done'))} verdicts that it is done"
    if len(effects) > (2 if kill.policy == "retry" else 1):
        yield f"it had its effect {len(effects)} times, by the attempts {effects}"
