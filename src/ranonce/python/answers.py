"""What a claim answers when it is refused, and what a job raises to give up on purpose."""

from __future__ import annotations

import time
from datetime import datetime, timedelta

from ranonce.cli.stop import LONGEST_REASON, LONGEST_STOP_SECONDS, until_when
from ranonce.errors import UsageError
from ranonce.lifecycle import Refusal as Refused
from ranonce.record import Record
from ranonce.settings import When, duration, gates
from ranonce.timefmt import from_datetime, shown, to_datetime

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterable
    from typing import Literal


class Refusal(Record):
    """Why a claim was refused. It is false, so `if run := ledger.claim(…)` asks whether there is work to do.

    `reason` is one of done, busy, overlap, waiting, exhausted, held, gate, conflict, early, late, pruned and
    superseded. `holder` is the owner id (or the job, for a gate) that stands in the way, `until` an aware UTC datetime,
    `pid` a process of this host that still works on it.
    """

    reason: str
    sentence: str
    holder: str | None = None
    until: datetime | None = None
    pid: int | None = None

    def __bool__(self) -> Literal[False]:
        return False


def public(refusal: Refused) -> Refusal:
    """Return a refusal of the ledger as Python callers see it."""
    until = None if refusal.until is None else to_datetime(refusal.until)
    return Refusal(refusal.reason, refusal.sentence, refusal.holder, until, refusal.pid)


class Stop(Exception):
    """Raise it inside a job to give up on purpose, for a rate limit, say: the run is `stopped`, and costs no attempt.

    `retry_after` is the time to resume not before: seconds, a timedelta, an aware datetime, or text: "34h", or what a
    server's Retry-After header says (whole seconds, an HTTP date). Without one the next trigger resumes it. `gate`
    names a resource (or several) that is closed until then for every job that uses it. UsageError for a naive or far
    time, and for a gate without a time.
    """

    def __init__(
        self,
        reason: str,
        *,
        retry_after: float | str | timedelta | datetime | None = None,
        gate: str | Iterable[str] = (),
    ) -> None:
        self.reason = said(reason) or "stopped"  # what a server answers may be empty, and is no failure of the job
        self.gates = gates([gate] if isinstance(gate, str) else gate)
        self.when = None if retry_after is None else _when(retry_after)
        if self.gates and self.when is None:
            raise UsageError("a gate is closed until a time.", "Say which: Stop(…, retry_after=…, gate=…).")
        super().__init__(reason)


def plain(words: str) -> str:
    """Return a reason that can be recorded: bounded, and without what is not text."""
    return words[:LONGEST_REASON].encode("utf-8", "backslashreplace").decode()


def said(words: object) -> str:
    """Return what a job says in words of its own (or another's: a server's answer, an error's text) to be recorded."""
    if not isinstance(words, str):
        raise UsageError(f"{shown(words)} is not text.", "Write str(…).")
    return plain(words).strip()


def _when(retry_after: float | str | timedelta | datetime) -> When | None:
    """Return the time to resume at. Absurd values are refused."""
    if isinstance(retry_after, str):
        return until_when("retry_after", retry_after)
    if isinstance(retry_after, datetime):
        when = When(at=from_datetime(retry_after))
    else:
        when = When(after=seconds(retry_after))
    now = time.time()
    if when.counted(now) > now + LONGEST_STOP_SECONDS:
        raise UsageError(f"retry_after={shown(retry_after)} is more than a year away.", "Name a time within a year.")
    return when


def seconds(value: float | str | timedelta) -> float:
    """Return a duration in seconds: a number of them, a timedelta, or text such as "5m"."""
    return value.total_seconds() if isinstance(value, timedelta) else duration(value)
