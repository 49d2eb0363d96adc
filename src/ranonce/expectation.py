"""Which windows a job's schedule wanted in a span, judged by the version that was in force when each began. Pure.

A version is in force for windows that start in [valid_from, the next version's valid_from). Windows are numbered
through the whole span, so that a gap is two numbers, however many windows it holds.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from functools import lru_cache

from ranonce.record import Record
from ranonce.windows import Schedule, Window, due

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Sequence

    from ranonce.lifecycle import ScheduleVersion


class Era(Record):
    """The time [since, until), in unix seconds, in which one version judges. `starts` are its expected windows.

    `first` is the number of the first of them.
    """

    version: ScheduleVersion
    schedule: Schedule
    since: int
    until: int
    starts: Sequence[int]
    first: int


class Expectation:
    """The windows a job should have had in [since, until).

    Raises ConfigError or UsageError for a recorded schedule that cannot be expanded here.
    """

    def __init__(self, versions: Sequence[ScheduleVersion], since: int, until: int) -> None:
        self.versions = tuple(versions)
        self.eras: list[Era] = []
        self.total = 0
        for version, begin, end, followed in _spans(self.versions, since, until):
            starts = _expected(*_rule(version), begin, end)
            if followed and starts and schedule_of(version).window_at(starts[-1]).end > end:
                starts = starts[:-1]  # the next version began in the middle of it, so it was never to run
            self.eras.append(Era(version, schedule_of(version), begin, end, starts, self.total))
            self.total += len(starts)

    def start(self, number: int) -> int:
        """Return the start of the window with this number."""
        era = self._era_of(number)
        return era.starts[number - era.first]

    def key(self, number: int) -> str:
        """Return the key of the window with this number."""
        era = self._era_of(number)
        return era.schedule.key(era.starts[number - era.first])

    def number(self, start: int) -> int | None:
        """Return the number of the window that starts then, or None where none is expected."""
        for era in self.eras:
            if era.since <= start < era.until:
                at = _place(era.starts, start)
                return None if at is None else era.first + at
        return None

    def from_on(self, instant: float) -> int:
        """Return the number of the first window that starts at or after an instant."""
        return sum(bisect_left(era.starts, instant) for era in self.eras)

    def gaps(self, recorded: Sequence[int]) -> tuple[list[range], list[int]]:
        """Return the numbers of the windows that are not recorded, in ranges, and the starts nobody expected.

        `recorded` are starts in ascending order; they may repeat.
        """
        gaps: list[range] = []
        strange: list[int] = []
        at = 0
        for era in self.eras:
            upto = bisect_left(recorded, era.until, at)
            _gaps(era, recorded[at:upto], gaps, strange)
            at = upto
        strange.extend(recorded[at:])
        return gaps, strange

    def without(self, gaps: Sequence[range], spans: Sequence[tuple[int, int]]) -> list[range]:
        """Return what is left of gaps without the windows that start in any of the spans (ascending, unix seconds)."""
        left: list[range] = []
        cuts = [range(self.from_on(since), self.from_on(until)) for since, until in spans]
        for gap in gaps:
            begin = gap.start
            for cut in cuts:
                if cut.start < gap.stop and cut.stop > begin:
                    if begin < cut.start:
                        left.append(range(begin, cut.start))
                    begin = cut.stop
            if begin < gap.stop:
                left.append(range(begin, gap.stop))
        return left

    def due_by(self, now: float, late_after: float) -> list[range]:
        """Return the numbers of the windows that are due at an instant: those that have not run are missing."""
        parts = []
        for era in self.eras:
            count = _due_count(*_rule(era.version), era.version.offset, late_after, era.since, era.until, now)
            parts.append(range(era.first, era.first + min(count, len(era.starts))))
        return [part for part in parts if part]

    def due(self, number: int, late_after: float) -> float:
        """Return the instant from which the window with this number is missing."""
        era = self._era_of(number)
        return _due(era.schedule, era.starts[number - era.first], era.version.offset, late_after)

    def _era_of(self, number: int) -> Era:
        return self.eras[bisect_right([era.first for era in self.eras], number) - 1]


def version_at(versions: Sequence[ScheduleVersion], start: int) -> ScheduleVersion | None:
    """Return the version that judges windows starting at an instant; None where no schedule is recorded for it."""
    for version in reversed(versions):
        if version.valid_from is None or version.valid_from <= start:
            return version
    return None


def schedule_of(version: ScheduleVersion) -> Schedule:
    """Return the rule of a version. Raises ConfigError where it cannot be used on this machine."""
    return _schedule(version.every, version.tz, version.dialect)


def _spans(
    versions: tuple[ScheduleVersion, ...], since: int, until: int
) -> list[tuple[ScheduleVersion, int, int, bool]]:
    """Return the part of the span that each version judges, in order of time; and whether another one ends it."""
    spans = []
    end = until
    for version in reversed(versions):
        begin = since if version.valid_from is None else max(since, version.valid_from)
        if begin < end:
            spans.append((version, begin, end, end < until))
            end = begin
    return spans[::-1]


def _rule(version: ScheduleVersion) -> tuple[str, str, str]:
    return version.every, version.tz, version.dialect


@lru_cache(maxsize=256)
def _schedule(every: str, tz: str, dialect: str) -> Schedule:
    return Schedule(every, tz, dialect)


# Many jobs share a rule and the span of one probe, so each of these is worked out once for all of them.


@lru_cache(maxsize=32)
def _expected(every: str, tz: str, dialect: str, since: int, until: int) -> Sequence[int]:
    return _schedule(every, tz, dialect).expected(since, until)


@lru_cache(maxsize=256)
def _due_count(
    every: str, tz: str, dialect: str, offset: int, late_after: float, since: int, until: int, now: float
) -> int:
    starts = _expected(every, tz, dialect, since, until)
    schedule = _schedule(every, tz, dialect)
    # A window is due after its start, and the later one never before the earlier one.
    low, high = 0, bisect_right(starts, now - late_after)
    while low < high:
        middle = (low + high) // 2
        if _due(schedule, starts[middle], offset, late_after) <= now:
            low = middle + 1
        else:
            high = middle
    return low


def _due(schedule: Schedule, start: int, offset: int, late_after: float) -> float:
    # A cron window is due at its tick, so its end need not be looked for.
    window = schedule.window_at(start) if offset or not schedule.is_cron else Window("", start, start + 1)
    return due(schedule, window, offset, late_after)


def _place(starts: Sequence[int], start: int) -> int | None:
    if isinstance(starts, range):
        return starts.index(start) if start in starts else None
    at = bisect_left(starts, start)
    return at if at < len(starts) and starts[at] == start else None


def _gaps(era: Era, recorded: Sequence[int], gaps: list[range], strange: list[int]) -> None:
    """Walk along both rows of starts; where they part, look up where the recorded one stands among the wanted."""
    wanted = era.starts
    if recorded == wanted:
        return  # the ordinary case, and for ranges a comparison of three numbers
    done = 0  # so many of the wanted windows are dealt with
    coming = iter(recorded)
    while True:
        parted = None
        for want, start in zip(iter(wanted[done:]), coming):  # noqa: B905 - recorded ones that are left are strange
            if want != start:
                parted = start
                break
            done += 1
        if parted is None:
            break
        at = _place(wanted, parted)
        if at is None:
            strange.append(parted)
        elif at >= done:
            gaps.append(range(era.first + done, era.first + at))
            done = at + 1
    strange.extend(start for start in coming if _place(wanted, start) is None)
    if done < len(wanted):
        gaps.append(range(era.first + done, era.first + len(wanted)))
