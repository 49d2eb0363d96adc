"""Rows of a SQLite ledger and the records they stand for. A cell that nobody could have written is damage."""

from __future__ import annotations

from datetime import datetime
from functools import lru_cache

from ranonce import jsontext as json
from ranonce.errors import NotThisLedger
from ranonce.lifecycle import STATES, Event, Gate, Held, Lease, Run, RunKey, ScheduleVersion
from ranonce.stores.base import Job, Tombstone
from ranonce.stores.sqlite.file import LOST
from ranonce.timefmt import format_instant, shown

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Sequence
    from typing import Any

#: More than anybody makes; a larger number is damage.
MOST_ATTEMPTS = 1 << 53


@lru_cache(maxsize=256)
def text_of(instant: float | None) -> str | None:
    """Write an instant in the one form this store uses: UTC to the millisecond. Rows of one commit share most."""
    return None if instant is None else format_instant(instant, precision="ms")


def instant_of(text: str | None) -> float | None:
    """Read an instant that may be absent."""
    return None if text is None else read_instant(text)


def read_instant(text: str) -> float:
    """Read an instant in that form: half the work of `parse_instant`, which takes every form."""
    try:
        return datetime.fromisoformat(text).timestamp()
    except (ValueError, TypeError, OverflowError) as error:
        raise damaged(text) from error


def read_data(text: str) -> dict[str, Any]:
    """Read an event's data."""
    try:
        data = json.loads(text)
    except (ValueError, TypeError) as error:
        raise damaged(text) from error
    if not isinstance(data, dict):
        raise damaged(text)
    return data


def damaged(cell: object) -> NotThisLedger:
    """Return the error for a cell that nobody could have written."""
    return NotThisLedger(f"the ledger is damaged: it has {shown(cell)} where that cannot be.", LOST)


def starts_of(text: str) -> Sequence[int]:
    """Return starts from the text that lists them: a range where they are evenly spaced, without reading each."""
    first, last, count = int(text.partition(",")[0]), int(text.rpartition(",")[2]), text.count(",") + 1
    step, uneven = divmod(last - first, count - 1) if count > 1 else (1, 0)
    if step > 0 and not uneven and text == _listed(first, step, count):
        return range(first, last + 1, step)
    return sorted(json.loads(f"[{text}]"))


@lru_cache(maxsize=8)
def _listed(first: int, step: int, count: int) -> str:
    return ",".join(map(str, range(first, first + step * count, step)))


def run_of(row: Sequence[Any]) -> Run:
    """Return the run of a row."""
    job, window, digest, start, end, status, generation, attempt, owner, failures, schedule, trigger = row[:12]
    started, version, fingerprint, finished, resume, reason, code, late, reconciling, granted = row[12:]
    if status not in STATES or not 0 < attempt < MOST_ATTEMPTS:
        raise damaged((status, attempt))
    return Run(
        RunKey(job, window, digest),
        start,
        end,
        status,
        generation,
        attempt,
        owner,
        failures,
        schedule,
        trigger,
        read_instant(started),
        version,
        fingerprint,
        instant_of(finished),
        instant_of(resume),
        reason,
        code,
        bool(late),
        bool(reconciling),
        bool(granted),
    )


def run_row(run: Run) -> tuple[Any, ...]:
    """Return the row of a run."""
    key = run.key
    return (
        key.job,
        key.window,
        key.input,
        run.window_start,
        run.window_end,
        run.status,
        run.generation,
        run.attempt,
        run.owner,
        run.failures,
        run.schedule,
        run.trigger,
        text_of(run.started_at),
        run.version,
        run.fingerprint,
        text_of(run.finished_at),
        text_of(run.resume_at),
        run.reason,
        run.exit,
        int(run.late),
        int(run.reconciling),
        int(run.granted),
    )


def verdict_row(run: Run) -> tuple[Any, ...]:
    """Return what a verdict changes, and where."""
    key = run.key
    outcome = (run.status, run.failures, text_of(run.finished_at), text_of(run.resume_at), run.reason, run.exit)
    flags = (int(run.late), int(run.reconciling), int(run.granted))
    return (*outcome, *flags, key.job, run.window_start, key.window, key.input, run.attempt, run.owner)


def lease_row(key: RunKey, window_start: int, lease: Lease) -> tuple[Any, ...]:
    """Return the row of a lease."""
    place = (key.job, window_start, key.window, key.input)
    clock = (lease.domain, lease.expires, lease.seconds)
    return (
        *place,
        lease.owner,
        lease.attempt,
        *clock,
        lease.process,
        lease.seen_domain,
        lease.seen_at,
        lease.seen_wall,
    )


def held_of(job: str, row: tuple[Any, ...]) -> Held:
    """Return the claim of a row."""
    return Held(RunKey(job, row[0], row[1]), row[2], Lease(*row[3:]))


def gate_of(row: tuple[Any, ...]) -> Gate:
    """Return the gate of a row."""
    return Gate(row[0], read_instant(row[1]), row[2], row[3], read_instant(row[4]))


def gate_row(gate: Gate) -> tuple[Any, ...]:
    """Return the row of a gate."""
    return (gate.name, text_of(gate.until), gate.reason, gate.job, text_of(gate.closed_at))


def schedule_of(row: tuple[Any, ...]) -> ScheduleVersion:
    """Return the schedule version of a row."""
    number, every, tz, dialect, offset, valid_from, recorded_at = row
    return ScheduleVersion(number, every, tz, dialect, offset, valid_from, read_instant(recorded_at))


def schedule_row(job: str, version: ScheduleVersion) -> tuple[Any, ...]:
    """Return the row of a schedule version."""
    rule = (version.every, version.tz, version.dialect, version.offset)
    return (job, version.number, *rule, version.valid_from, text_of(version.recorded_at))


def job_of(row: tuple[Any, ...]) -> Job:
    """Return the job of a row."""
    return Job(row[0], row[1], read_instant(row[2]), row[3], row[4])


def event_of(row: tuple[Any, ...]) -> Event:
    """Return the event of a row, without its output."""
    at, job, window, digest, start, event, attempt, generation, reason, owner, trigger, version, host, data, seq = row
    return Event(
        read_instant(at),
        RunKey(job, window, digest),
        start,
        event,
        attempt,
        generation,
        reason,
        owner,
        trigger,
        version,
        host,
        read_data(data),
        None,
        seq,
    )


def tombstone_of(job: str, row: tuple[Any, ...]) -> Tombstone:
    """Return the tombstone of a row."""
    since, until, runs, failed, pruned_at = row
    return Tombstone(job, since, until, runs, failed, read_instant(pruned_at))


def event_row(event: Event, at: float, data: str) -> tuple[Any, ...]:
    """Return the row of an event, without its number; `data` is its data as JSON."""
    key = event.key
    return (
        text_of(at),
        key.job,
        event.window_start,
        key.window,
        key.input,
        event.event,
        event.reason,
        event.attempt,
        event.generation,
        event.owner,
        event.trigger,
        event.version,
        event.host,
        data,
        event.output,
    )
