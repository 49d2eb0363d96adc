"""What a drill asks of its scratch ledger: windows of a job that runs daily, long ago. Used by both ends of a pipe."""

from __future__ import annotations

import os

from ranonce.lifecycle import Ask, Policy, RunKey
from ranonce.stores.base import Job
from ranonce.windows import Schedule, Window

TYPE_CHECKING = False
if TYPE_CHECKING:
    from ranonce.ledger import OpenLedger

DAILY = Schedule("day")
FIRST_DAY = 978_307_200  # 2001-01-01T00:00Z
NOON = 43_200.0


def window_of(day: int) -> Window:
    """Return the window of a day, the first being 0."""
    return DAILY.shift(DAILY.window_at(FIRST_DAY), day)


def key_of(job: str, day: int) -> RunKey:
    """Return the key of the run of a day."""
    return RunKey(job, window_of(day).key)


def new_owner() -> str:
    """Return a new owner id."""
    return os.urandom(16).hex()


def declare(ledger: OpenLedger, job: str) -> None:
    """Let the ledger know a daily job."""
    ledger.declare(Job(job, 0, float(FIRST_DAY), 3600.0, 1_000_000), DAILY, 0, now=float(FIRST_DAY), change=False)


def ask(job: str, day: int, owner: str, lease: float, *, now: float | None = None, process: str = "") -> Ask:
    """Return the request for a day's run; `now` is what chooses, noon of that day unless it is given."""
    window = window_of(day)
    return Ask(
        key=RunKey(job, window.key),
        window=window,
        schedule=1,
        owner=owner,
        lease_seconds=lease,
        now=window.start + NOON if now is None else now,
        served_from=window.start,
        trigger="schedule",
        policy=Policy(max_attempts=1_000_000, overlap="allow"),
        process=process,
    )
