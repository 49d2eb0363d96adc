"""Many windows of a job, oldest first: which they are, what ends the walk, and what has become of it.

The windows are worked out stretch by stretch and never kept, so that ten years of minutes are as little trouble as a
week. What is done is passed over by a look at the ledger and leaves no record: a backfill that was broken off goes on
where it was, by the same command.
"""

from __future__ import annotations

from ranonce.errors import (
    EX_DONE,
    EX_NOT_EXECUTABLE,
    EX_NOT_FOUND,
    EX_NOT_RECORDED,
    RanonceError,
)
from ranonce.expectation import schedule_of, version_at
from ranonce.lifecycle import DONE, FAILED, STOPPED
from ranonce.naming import Named
from ranonce.record import Record
from ranonce.timefmt import DAY, format_instant

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence
    from typing import Any

    from ranonce.invocation import Invocation
    from ranonce.lifecycle import Run, ScheduleVersion
    from ranonce.receipts import Receipt
    from ranonce.terms import Result
    from ranonce.windows import Schedule

#: So much time is worked out at once: two weeks of minutes are 20,000 windows.
STRETCH_SECONDS = 14 * DAY
#: So many windows that are not done are named one by one in a summary; all of them are counted.
NAMED = 100
#: Refusals that every later window would meet, too.
MET_BY_ALL = frozenset({"overlap", "gate", "early"})


class Place(Record):
    """A window on the way: its number, beginning with 1, and its run where one is recorded, or that it was pruned."""

    number: int
    named: Named
    run: Run | None
    pruned: bool = False


class Walk:
    """The windows of a job that start in [since, until), unix seconds, as its schedule and its dialect expect them.

    A window of an offset job counts from the tick on at which it is meant to be worked on: before, its data is not
    complete. `now` is that clock.
    """

    def __init__(self, versions: Sequence[ScheduleVersion], since: int, until: int, now: float) -> None:
        self.versions = tuple(versions)
        self.since = since
        self.until = min(until, _begun(self.versions, now))

    def count(self) -> int:
        """Return how many windows there are."""
        return sum(len(self._starts(*stretch)) for stretch in self._stretches())

    def windows(self) -> Iterator[list[Named]]:
        """Return the windows, oldest first, a stretch at a time."""
        for version, begin, end, era_end in self._stretches():
            starts = self._starts(version, begin, end, era_end)
            if not starts:
                continue
            wanted = starts if isinstance(starts, range) else frozenset(starts)
            windows = schedule_of(version).windows(starts[0], starts[-1] + 1)
            yield [Named(version, window) for window in windows if window.start in wanted]

    def places(self, invocation: Invocation) -> Iterator[Place]:
        """Return the windows with their runs. Reads the ledger a stretch at a time, each when it is reached."""
        number = 0
        store, job = invocation.ledger.store, invocation.spec.name
        digest = invocation.identity
        for stretch in self.windows():
            begin, end = stretch[0].window.start, stretch[-1].window.start + 1
            runs = {run.key.window: run for run in store.runs(job, begin, end) if run.key.input == digest}
            buried = store.tombstones(job, begin, end)
            for named in stretch:
                number += 1
                start, run = named.window.start, runs.get(named.window.key)
                while buried and buried[0].until <= start:
                    buried.pop(0)
                yield Place(number, named, run, run is None and bool(buried) and buried[0].since <= start)

    def _stretches(self) -> Iterator[tuple[ScheduleVersion, int, int, int | None]]:
        """Return version, beginning and end of each stretch, and where the next version begins."""
        for at, version in enumerate(self.versions):
            begin = self.since if version.valid_from is None else max(self.since, version.valid_from)
            ends = [each.valid_from for each in self.versions[at + 1 : at + 2] if each.valid_from is not None]
            end = min((self.until, *ends))
            while begin < end:
                upto = min(end, begin + STRETCH_SECONDS)
                yield version, begin, upto, ends[0] if ends else None
                begin = upto

    @staticmethod
    def _starts(version: ScheduleVersion, begin: int, end: int, followed: int | None) -> Sequence[int]:
        schedule = schedule_of(version)
        starts = schedule.expected(begin, end)
        if followed is not None and starts and schedule.window_at(starts[-1]).end > followed:
            return starts[:-1]  # the next version began in the middle of it, so it was never to run
        return starts


def _begun(versions: Sequence[ScheduleVersion], now: float) -> int:
    """Return the instant before which a window must start to be worked on by now."""
    version = version_at(versions, int(now))
    begun = int(now) + 1
    if version is None or not version.offset:
        return begun
    schedule: Schedule = schedule_of(version)
    return min(begun, schedule.shift(schedule.window_at(now), version.offset).start + 1)


def is_done(place: Place, fingerprint: str | None) -> bool:
    """Say whether a window may be passed over: done, and not with another input, which is a conflict to be named.

    So is one that was pruned: nobody knows its input any more, and it is never claimed again.
    """
    if place.pruned:
        return True
    run = place.run
    if run is None or run.status != DONE:
        return False
    return None in (run.fingerprint, fingerprint) or run.fingerprint == fingerprint


def ends_the_walk(place: Place, result: Result, *, overlap: str) -> bool:
    """Say whether what a window met would be met by every later one, too: then the walk ends there.

    The job stopped itself (a rate limit), a gate is closed, another window is at work, the store is away, or the
    command cannot be started. A window that failed, or that waits for a person, concerns only itself.
    """
    receipt = result.receipt
    if receipt.event in ("stopped", "unavailable") or result.exit == EX_NOT_RECORDED:
        return True
    if receipt.event == FAILED:
        return result.exit in (EX_NOT_FOUND, EX_NOT_EXECUTABLE)
    if receipt.event != "skipped":
        return False
    if receipt.reason == "busy":
        return overlap == "forbid"
    if receipt.reason == "waiting":
        return place.run is not None and place.run.status == STOPPED
    return receipt.reason in MET_BY_ALL


class Tally:
    """What has become of the windows of one walk."""

    def __init__(self, job: str, walk: Walk, total: int) -> None:
        self.job = job
        self.walk = walk
        self.total = total
        self.done = 0
        self.done_before = 0
        self.failed = 0
        self.refused = 0
        self.exit = EX_DONE
        self.ended_at: str | None = None
        self.ended_by: str | None = None
        # Several windows at once do not end in their order, and are told of in it all the same.
        self._problems: list[tuple[int, dict[str, Any]]] = []
        self._first_problem = self._first_end = total + 1

    @property
    def left(self) -> int:
        """How many windows were not reached."""
        return self.total - self.done - self.done_before - self.failed - self.refused

    @property
    def problems(self) -> list[dict[str, Any]]:
        """The windows that are not done, oldest first, as far as they are named."""
        return [told for _, told in sorted(self._problems, key=lambda each: each[0])]

    def add(self, place: Place, result: Result) -> None:
        """Count what became of a window."""
        receipt = result.receipt
        if receipt.event == DONE and result.exit == EX_DONE:
            self.done += 1
            return
        if receipt.event == "skipped" and receipt.reason in ("done", "pruned"):
            self.done_before += 1
            return
        if receipt.event == "skipped":
            self.refused += 1
        else:
            self.failed += 1
        if place.number < self._first_problem and result.exit:
            self.exit, self._first_problem = result.exit, place.number
        if len(self._problems) < NAMED:
            told = {"window": place.named.window.key, "event": receipt.event, "reason": receipt.reason}
            self._problems.append((place.number, {**told, "exit": result.exit}))

    def end(self, place: Place, receipt: Receipt) -> None:
        """Note where and why the walk ended before its end."""
        if place.number > self._first_end:
            return
        self._first_end = place.number
        self.ended_at = place.named.window.key
        self.ended_by = receipt.sentence or receipt.reason or receipt.event

    def break_off(self, error: RanonceError) -> None:
        """Note that an error ended the walk between two windows."""
        self.exit = self.exit or error.exit_status
        self.ended_by = error.sentence

    def as_dict(self) -> dict[str, Any]:
        """Return the summary for machines, without what does not apply."""
        told = {
            "job": self.job,
            "since": format_instant(self.walk.since),
            "until": format_instant(self.walk.until),
            "windows": self.total,
            "done": self.done,
            "done_before": self.done_before,
            "failed": self.failed,
            "refused": self.refused,
            "left": self.left,
            "exit": self.exit,
            "problems": self.problems,
            "ended_at": self.ended_at,
            "ended_by": self.ended_by,
        }
        return {name: value for name, value in told.items() if value is not None}

    def as_sentence(self) -> str:
        """Return the summary for a person: what was done, what was not, and how to go on."""
        counts = (
            (self.done, "done now"),
            (self.done_before, "done before"),
            (self.failed, "not done"),
            (self.refused, "refused"),
            (self.left, "not reached"),
        )
        parts = ", ".join(f"{count} {what}" for count, what in counts if count) or "nothing to do"
        text = f"backfill of {self.job}: {self.total} window{'' if self.total == 1 else 's'}: {parts}."
        if self.problems:
            names = [f"{each['window']} ({each['reason'] or each['event']})" for each in self.problems[:5]]
            more = self.failed + self.refused - len(names)
            text += f" Not done: {', '.join(names)}{f' and {more} more' if more > 0 else ''}."
        if self.ended_by is not None:
            text += f" It ended{f' at {self.ended_at}' if self.ended_at else ''}: {self.ended_by.rstrip('.')}."
        if self.left:
            text += " The same command goes on from there."
        return text
