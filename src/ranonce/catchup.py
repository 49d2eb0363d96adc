"""Which earlier windows does a trigger offer to do first? The job's `catch_up` decides.

`stopped`: those that the job itself gave up on (a rate limit), once their time has come. `unfinished`: also those
stopped by a signal, failed with attempts left, and crashed. `all`: also those that no trigger ever came for since the
job was declared. Oldest first, no more than the job's limit. The ledger is asked per window, so a window that is done
is never offered, whatever was restarted or lost around it.
"""

from __future__ import annotations

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
        found += _missing(ledger, spec, declared, before=before, given=given)
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
    job = ledger.store.job(spec.name)
    assert job is not None, "the job was recorded before its windows are looked for"
    begin = int(max(job.declared_at, spec.since or 0))
    known = {run.window_start for run in ledger.store.runs(spec.name, begin, before)}
    stones = ledger.store.tombstones(spec.name, begin, before)
    for version, end in zip(declared.versions, [v.valid_from for v in declared.versions[1:]] + [before], strict=True):
        schedule = schedule_of(version)
        for start in schedule.expected(max(begin, version.valid_from or 0), min(end or 0, before)):
            if start not in known and not any(stone.since <= start < stone.until for stone in stones):
                window = schedule.window_at(start)
                yield Earlier(RunKey(spec.name, window.key, given), window, version.number)
