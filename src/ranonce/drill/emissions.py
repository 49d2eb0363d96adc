"""Messages and the work that they come from are one: both or neither, wherever the process dies, and nothing of an
attempt that failed or lost its run."""

from __future__ import annotations

import os

from ranonce.drill.asking import key_of, new_owner, window_of
from ranonce.drill.crew import settled
from ranonce.drill.invoking import ended
from ranonce.drill.looking import look
from ranonce.drill.outboxes import messages_of
from ranonce.drill.outcome import Broken, count
from ranonce.errors import EX_DONE

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterator

    from ranonce.drill.crew import Answer, Member
    from ranonce.drill.invoking import Host, Triggered
    from ranonce.drill.outcome import Score
    from ranonce.drill.stage import Stage
    from ranonce.ledger import OpenLedger

JOB, STALE_JOB = "emissions", "stale-emissions"
DESTINATION = "nobody"
ITEM, FIRST, LAST = "item", "first", "last"
#: What a run does: a step that emits, and then it emits itself; or it emits twice. The step alone is killed at the
#: place $0, if that is one. `$@` are the words that start `ranonce`.
SCRIPT = f"""
unset RANONCE_FAILPOINT
case "$0" in
run) printf 1 | "$@" emit {DESTINATION} --key {FIRST} || exit;;
*) (
    case "$0" in *:*) RANONCE_FAILPOINT=$0; export RANONCE_FAILPOINT;; esac
    exec "$@" step {ITEM} -- /bin/sh -c 'printf 2 | "$@" emit {DESTINATION}' sh "$@"
) || exit;;
esac
printf 3 | "$@" emit {DESTINATION} --key {LAST}
"""
RUN, STEP = "run", "step"
#: How many messages each has at its outcome.
OF_ITS_OUTCOME = {RUN: 2, STEP: 1}
#: A run's claim is committed at its first places; it has something to emit only after it.
BEGUN = "run:child-started:1"
AT_ONCE = 4
STALE_TRIES = 3
SHORT_LEASE_SECONDS, LONG_LEASE_SECONDS = 1.0, 300.0
SETTLES_SECONDS = 20.0


def atomic_emit(stage: Stage, score: Score) -> str:
    """Kill runs and steps that emit wherever they commit, and let attempts emit that failed or lost their run."""
    ledger, host = stage.ledger(), stage.host("emissions")
    kills = [_Kill(day, *place) for day, place in enumerate(_places(stage, host), 1)]
    tries = min(stage.rounds, STALE_TRIES)
    tried = (
        f"killed at each of {count(len(kills), 'place')} from a step's end to the verdict, and triggered again; "
        "and attempts emitted that failed, or had lost their run"
    )
    score.begin(len(kills) + 2 * tries, tried)
    for first in range(0, len(kills), AT_ONCE):
        stage.deadline.check()
        some = kills[first : first + AT_ONCE]
        for kill, faults in zip(some, _killed_and_triggered(stage, host, ledger, some), strict=True):
            score.note(f"{kill.of} killed at {kill.place}", faults)
    _failed_and_stale(stage, score, tries)
    return "each outcome and each step stood with all of its messages, or none did; what had lost its run sent nothing"


class _Kill:
    """One place at which a run or its step is killed."""

    def __init__(self, day: int, of: str, place: str) -> None:
        self.day, self.of, self.place = day, of, place


def _start(stage: Stage, host: Host, day: int, of: str, place: str | None) -> Triggered:
    """Start a run that emits; `of` is who comes to the place: the run or its step."""
    words = (*stage.processes.words, "ranonce")
    window = ("--window", window_of(day).key, "--every", "day", "--overlap", "allow", "--receipt", "all")
    return stage.trigger(
        host,
        *("run", JOB, *window, "--lease", "60s", "--max-attempts", "1000", "--", "/bin/sh", "-c", SCRIPT),
        *(place if place and of == STEP else of, *words),
        failpoint=place if of == RUN else None,
    )


def _places(stage: Stage, host: Host) -> list[tuple[str, str]]:
    """Let a run go by, and return the places that its step passes and those that it passes itself once it works."""
    found = []
    for of in (STEP, RUN):
        path = os.path.join(stage.folder, f"emission:places-of-{of}")
        run = _start(stage, host, -1 if of == STEP else 0, of, path)
        if run.ends() != EX_DONE:
            raise Broken(f"a run that nobody disturbed did not go well: {run.said}")
        with open(path, encoding="utf-8") as file:
            passed = file.read().split()
        found += [(of, place) for place in passed[passed.index(BEGUN) + 1 if of == RUN else 0 :]]
    return found


def _killed_and_triggered(stage: Stage, host: Host, ledger: OpenLedger, kills: list[_Kill]) -> list[list[str]]:
    """Kill at each place, look, trigger again, look again; return what is wrong with each."""
    runs = [_start(stage, host, kill.day, kill.of, kill.place) for kill in kills]
    statuses = ended(runs)
    faults: list[list[str]] = []
    for kill, run, status in zip(kills, runs, statuses, strict=True):
        missed = status == EX_DONE
        faults.append([f"it passed there when nobody killed it, and now it did not: {run.said}"] if missed else [])
        faults[-1] += _torn(ledger, kill)
    told: list[str] = []

    def done() -> bool:
        again = [_start(stage, host, kill.day, kill.of, None) for kill in kills]
        told[:] = [run.said for run, status in zip(again, ended(again), strict=True) if status != EX_DONE]
        return not told

    if not stage.deadline.wait_until(done, SETTLES_SECONDS):
        faults[0].append(f"{SETTLES_SECONDS:g} s after the kill triggers still end otherwise: {told[0]}")
    for number, kill in enumerate(kills):
        seen = look(ledger, JOB, kill.day)
        faults[number] += [*_torn(ledger, kill), *seen.faults("done", len(seen.named("start")))]
    return faults


def _torn(ledger: OpenLedger, kill: _Kill) -> Iterator[str]:
    """Say where work stands without its messages, or messages without their work."""
    day = kill.day
    run = look(ledger, JOB, day).run
    messages = messages_of(ledger, JOB, day)
    step = ledger.store.step(key_of(JOB, day), window_of(day).start, run.generation, ITEM) if run else None
    of_step = [message.attempt for message in messages if message.item]
    if of_step != ([step.attempt] if step else []):
        yield f"its step is {f'done by attempt {step.attempt}' if step else 'not done'}, with messages of {of_step}"
    done = run is not None and run.status == "done"
    whole = [run.attempt] * OF_ITS_OUTCOME[kill.of] if done and run is not None else []
    of_run = [message.attempt for message in messages if not message.item]
    if of_run != whole:
        state = f"{run.status} at attempt {run.attempt}" if run else "unknown"
        yield f"it is {state}, with messages of its attempts {of_run} and not {whole}"


# --- attempts whose messages are nobody's ---------------------------------------------------------------------------


def _failed_and_stale(stage: Stage, score: Score, tries: int) -> None:
    ledger, host = stage.declared(STALE_JOB), stage.host("stale-emissions")
    first, second = stage.members(2, host)
    failed, taken = range(tries), range(tries, 2 * tries)
    for day in failed:
        _claimed(first, day, LONG_LEASE_SECONDS)
        _told(first, "finish", day, outcome="failed", emits=[FIRST, LAST])
        score.note(f"window {day + 1}, whose attempt failed", _but(ledger, day, 1, 0))
    for day in taken:
        _claimed(first, day, SHORT_LEASE_SECONDS)
    over = max(held.lease.expires for held in ledger.store.leases(STALE_JOB))
    stage.deadline.sleep(over - ledger.store.clock().now + 0.01)
    for day in taken:
        _claimed(second, day, LONG_LEASE_SECONDS)
        faults = []
        if _told(first, "mark", day, item=ITEM, emits=[ITEM]).get("marked"):
            faults.append("an attempt that had lost its run could still mark an item")
        faults += _but(ledger, day, 2, 0)
        late = {"emits": [FIRST, LAST]}
        if _told(first, "finish", day, **late).get("finished"):
            faults.append("an attempt that had lost its run could still finish it")
        faults += _but(ledger, day, 2, 0)
        _told(second, "finish", day, **late)
        _told(first, "finish", day, **late)
        faults += _but(ledger, day, 2, 2)
        score.note(f"window {day + 1}, whose run was taken over", faults)


def _claimed(member: Member, day: int, lease: float) -> None:
    answer = settled(member, member.ask("claim", job=STALE_JOB, day=day, owner=new_owner(), lease=lease))
    if not answer["won"]:
        raise Broken(f"window {day + 1} was free, and could not be claimed: {answer['sentence']}")


def _told(member: Member, do: str, day: int, **more: object) -> Answer:
    return settled(member, member.ask(do, job=STALE_JOB, day=day, destination=DESTINATION, **more))


def _but(ledger: OpenLedger, day: int, attempt: int, number: int) -> Iterator[str]:
    """Say which messages there are besides so many of an attempt."""
    found = [message.attempt for message in messages_of(ledger, STALE_JOB, day)]
    if found != [attempt] * number:
        yield f"there are messages of the attempts {found}, and not {[attempt] * number}"
