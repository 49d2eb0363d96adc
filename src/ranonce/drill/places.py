"""Places that are not what they were: a host that forgot everything, and a store that is another ledger."""

from __future__ import annotations

import os

from ranonce.drill.asking import new_owner
from ranonce.drill.looking import look
from ranonce.drill.outcome import Broken
from ranonce.drill.stage import VOLATILE, WAIT_SECONDS
from ranonce.errors import EX_CONFIG, EX_DONE, EX_TRY_LATER
from ranonce.stores import site_of

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterator

    from ranonce.drill.invoking import Host
    from ranonce.drill.outcome import Score
    from ranonce.drill.stage import Stage

#: How soon a run that was started has had its effect.
BEGINS_SECONDS = 30.0
#: Each costs two processes and more.
MOST_WIPES = 4


def wiped_host(stage: Stage, score: Score) -> str:
    """Take a host's state folder away: what is done stays done, and who works is not robbed."""
    tries = min(stage.rounds, MOST_WIPES)
    tried = "a host lost its state folder, and was triggered for what it had done and for what it was doing"
    score.begin(2 * tries, tried)
    host = stage.host("wiped")
    for day in range(tries):
        score.note(f"window {day + 1}, done before", _done_before_the_wipe(stage, host, day))
    for day in range(tries, 2 * tries):
        score.note(f"window {day + 1}, at work", _at_work_during_the_wipe(stage, host, day))
    return "what was done stayed done, what was being done stayed busy, and each had its effect once"


def _done_before_the_wipe(stage: Stage, host: Host, day: int) -> Iterator[str]:
    words = host.run_words("wiped", day)
    yield from _exits(stage, host, words, EX_DONE, "done")
    host.wipe()
    yield from _exits(stage, host, words, EX_DONE, "skipped")
    yield from look(stage.ledger(), "wiped", day).faults("done", 1)
    if (effects := host.effects("wiped", day)) != [1]:
        yield f"its effects are those of the attempts {effects}"


def _at_work_during_the_wipe(stage: Stage, host: Host, day: int) -> Iterator[str]:
    hold = os.path.join(stage.folder, "hold")
    os.close(os.open(hold, os.O_CREAT, 0o600))
    working = stage.trigger(host, *host.run_words("wiped", day, held=hold))
    try:
        if not stage.deadline.wait_until(lambda: host.effects("wiped", day), BEGINS_SECONDS):
            raise Broken(f"a run had not begun {BEGINS_SECONDS:g} s after it was started")
        host.wipe()
        yield from _exits(stage, host, host.run_words("wiped", day), EX_TRY_LATER, "skipped")
    finally:
        os.unlink(hold)
    if working.ends() != EX_DONE:
        yield f"the one at work could not finish: {working.said}"
    yield from look(stage.ledger(), "wiped", day).faults("done", 1)
    if (effects := host.effects("wiped", day)) != [1]:
        yield f"its effects are those of the attempts {effects}"


def foreign_store(stage: Stage, score: Score) -> str:
    """Let a host find another ledger, an empty one and none where its own should be: nothing is run."""
    score.begin(4, "a host found, in turn, another id, no ledger, another ledger, and an empty one with the same id")
    host = stage.host("foreign")
    url = stage.scratch()
    site = site_of(url, wait_seconds=WAIT_SECONDS)
    there = host.but(RANONCE_STORE=url)
    site.create(stage.ledger_id, volatile=VOLATILE)
    for fault in _exits(stage, there, there.run_words("foreign", 0), EX_DONE, "done"):
        raise Broken(f"before anything was wrong: {fault}")
    score.note("the id of another ledger", _refused(stage, there.but(RANONCE_LEDGER=new_owner()), 1))
    site.destroy()
    score.note("no ledger", _refused(stage, there, 2))
    site.create(new_owner(), volatile=VOLATILE)
    score.note("another ledger", _refused(stage, there, 3))
    site.destroy()
    site.create(stage.ledger_id, volatile=VOLATILE)
    score.note("a ledger that has forgotten everything", _refused(stage, there, 0, effects=[1]))
    return f"exit {EX_CONFIG} each time, and nothing was run"


def _refused(stage: Stage, host: Host, day: int, effects: list[int] | None = None) -> Iterator[str]:
    yield from _exits(stage, host, host.run_words("foreign", day), EX_CONFIG, "unavailable")
    if (seen := host.effects("foreign", day)) != (effects or []):
        yield f"it was run: its effects are those of the attempts {seen}"


def _exits(stage: Stage, host: Host, words: tuple[str, ...], status: int, event: str) -> Iterator[str]:
    run = stage.trigger(host, *words)
    if run.ends() != status or run.receipt.get("event") != event:
        yield f"`ranonce run` was to exit {status} ({event}), and it was: {run.said}"
