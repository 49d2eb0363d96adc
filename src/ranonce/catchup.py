"""Which earlier windows does a trigger offer to do first? The job's `catch_up` decides.

`stopped`: those that the job itself gave up on (a rate limit), once their time has come. `unfinished`: also those
stopped by a signal, failed with attempts left, and crashed. `all`: also those that no trigger ever came for since the
job was declared. Oldest first, no more than the job's limit. The ledger is asked per window, so a window that is done
is never offered, whatever was restarted or lost around it.
"""

from __future__ import annotations

from itertools import islice

from ranonce.ledger import schedule_of
from ranonce.lifecycle import FAILED, STOPPED, RunKey, attempts_left
from ranonce.record import Record
from ranonce.windows import Window

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterator

    from ranonce.jobspec import JobSpec
    from ranonce.ledger import Declared, OpenLedger
    from ranonce.lifecycle import Run

#: How many unfinished runs are looked at; a backlog longer than this is a person's business.
LOOK_AT = 1000


class Earlier(Record):
    """An earlier window to be done first, and the schedule version it belongs to."""

    key: RunKey
    window: Window
    schedule: int


def earlier_windows(
    ledger: OpenLedger, spec: JobSpec, declared: Declared, *, before: int, now: float, given: str = ""
) -> list[Earlier]:
    """Return the windows to do before the one that starts at `before` (unix seconds), oldest first.

    `given` is the digest of the input at hand where other input is other work: work on another cannot be done with it.
    """
    if spec.catch_up == "none":
        return []
    if spec.catch_up == "stopped":
        runs = [run for run in ledger.store.stopped(spec.name, before) if run.reason != "signal" and _due(run, now)]
    else:
        runs = list(_unfinished(ledger, spec, before=before, now=now))
    found = [_again(run) for run in runs if run.key.input == given]
    if spec.catch_up == "all":
        missing = _missing(ledger, spec, declared, before=before, given=given)
        found += islice(missing, spec.catch_up_limit)
    return sorted(found, key=lambda earlier: earlier.window.start)[: spec.catch_up_limit]


def _due(run: Run, now: float) -> bool:
    return run.resume_at is None or run.resume_at <= now


def _again(run: Run) -> Earlier:
    return Earlier(run.key, Window(run.key.window, run.window_start, run.window_end), run.schedule)


def _unfinished(ledger: OpenLedger, spec: JobSpec, *, before: int, now: float) -> Iterator[Run]:
    for run in ledger.store.unfinished(spec.name, before, LOOK_AT):
        if run.status == STOPPED and _due(run, now):
            yield run
        if run.status == FAILED and attempts_left(run, spec.max_attempts):
            ended = run.finished_at or run.started_at
            if spec.retry_delay == 0 or ended + spec.retry_delay <= now:
                yield run
    for held in ledger.store.leases(spec.name):
        if held.window_start < before and (crashed := ledger.crashed(held.key, held.window_start)):
            yield crashed


def _missing(ledger: OpenLedger, spec: JobSpec, declared: Declared, *, before: int, given: str) -> Iterator[Earlier]:
    """Return the windows that no trigger ever came for, oldest first; the runs there are come in outline only."""
    from ranonce.expectation import Expectation, version_at

    store, job = ledger.store, ledger.store.job(spec.name)
    assert job is not None, "the job was recorded before its windows are looked for"
    begin = int(max(job.declared_at, spec.since or 0))
    wanted = Expectation(declared.versions, begin, before)
    absent, _ = wanted.gaps(store.outline(spec.name, begin, before).starts)
    stones = [(stone.since, stone.until) for stone in store.tombstones(spec.name, begin, before)] if absent else []
    for gap in wanted.without(absent, stones):
        for number in gap:
            start = wanted.start(number)
            version = version_at(declared.versions, start)
            assert version is not None, "a window that is wanted has a version that wants it"
            window = schedule_of(version).window_at(start)
            yield Earlier(RunKey(spec.name, window.key, given), window, version.number)
