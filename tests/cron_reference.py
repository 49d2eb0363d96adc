"""Slow, simple cron to test the real one against: every minute is looked at, one after the other."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from zoneinfo import ZoneInfo

RANGES = ((0, 59), (0, 23), (1, 31), (1, 12), (0, 7))


def matches(rule: str, local: datetime) -> bool:
    """Tell whether a rule of plain numbers, lists, ranges and steps names this minute of the local clock."""
    fields = rule.split()
    values = (local.minute, local.hour, local.day, local.month, local.isoweekday() % 7)
    hit = [
        value in named or (at == 4 and value == 0 and 7 in named)
        for at, (value, named) in enumerate(zip(values, map(_named, fields, RANGES), strict=True))
    ]
    day = hit[2] and hit[4] if "*" in (fields[2][0], fields[4][0]) else hit[2] or hit[4]
    return hit[0] and hit[1] and hit[3] and day


def _named(field: str, whole: tuple[int, int]) -> set[int]:
    named: set[int] = set()
    for part in field.split(","):
        span, _, step = part.partition("/")
        first, _, last = span.partition("-")
        low, high = whole if span == "*" else (int(first), int(last or first))
        named |= set(range(low, high + 1, int(step or 1)))
    return named


def utc_ticks(rule: str, since: int, until: int) -> list[int]:
    """Return the whole minutes in [since, until) that match in UTC."""
    first = -(-since // 60) * 60
    return [t for t in range(first, until, 60) if matches(rule, datetime.fromtimestamp(t, UTC))]


class LocalMinutes:
    """The local clock of a zone, minute by minute, over some days."""

    def __init__(self, zone: str, since: int, until: int) -> None:
        self.since, self.until = since, until
        info = ZoneInfo(zone)
        self.minutes = [
            (t, (t + round(datetime.fromtimestamp(t, info).utcoffset() / timedelta(seconds=1))) // 60)
            for t in range(since, until, 60)
        ]

    def debian_ticks(self, rule: str) -> list[int]:
        """Return the minutes in which Debian's cron starts the job: a real clock, and a virtual one that runs after.

        In step, everything that matches runs. Ahead by less than three hours, jobs by elapsed time run for the
        present minute and fixed ones for each minute that was missed. Behind by up to three hours, only jobs by
        elapsed time run, until the real clock has caught up. Farther apart, the virtual clock jumps.
        """
        by_elapsed_time = any(field.startswith("*") for field in rule.split()[:2])
        ticks = []
        virtual = self.minutes[0][1] - 1
        for t, minute in self.minutes:
            ahead = minute - virtual
            present, missed = [minute], [minute]
            if 1 < ahead <= 180:
                missed = list(range(virtual + 1, minute + 1))
            if -180 < ahead <= 0:
                missed = []
            else:
                virtual = minute
            if any(matches(rule, _clock(at)) for at in (present if by_elapsed_time else missed)):
                ticks.append(t)
        return ticks


def _clock(minute: int) -> datetime:
    return datetime(1970, 1, 1) + timedelta(minutes=minute)  # noqa: DTZ001 - a local clock without a zone
