"""Slow, simple cron to test the real one against: every minute is looked at, one after the other."""

from __future__ import annotations

from datetime import date, datetime, timedelta
from functools import cache
from zoneinfo import ZoneInfo

RANGES = ((0, 59), (0, 23), (1, 31), (1, 12), (0, 7))
MINUTES_OF_A_DAY = 1440


@cache
def named(field: str, whole: tuple[int, int]) -> frozenset[int]:
    """Return the values of a field of plain numbers, lists, ranges and steps."""
    values: set[int] = set()
    for part in field.split(","):
        span, _, step = part.partition("/")
        first, _, last = span.partition("-")
        low, high = whole if span == "*" else (int(first), int(last or first))
        values |= set(range(low, high + 1, int(step or 1)))
    return frozenset(values)


@cache
def matches_date(days: str, months: str, weekdays: str, day: date) -> bool:
    in_month = day.day in named(days, RANGES[2])
    in_week = bool({day.isoweekday(), day.isoweekday() % 7} & named(weekdays, RANGES[4]))
    either = not (days.startswith("*") or weekdays.startswith("*"))
    return day.month in named(months, RANGES[3]) and (in_month or in_week if either else in_month and in_week)


def matches(rule: str, minute: int) -> bool:
    """Tell whether a rule names this minute of the local clock, counted from 1970-01-01T00:00 of that clock."""
    minutes, hours, *days = rule.split()
    if minute % 60 not in named(minutes, RANGES[0]) or minute // 60 % 24 not in named(hours, RANGES[1]):
        return False
    return matches_date(*days, date(1970, 1, 1) + timedelta(days=minute // MINUTES_OF_A_DAY))


def utc_ticks(rule: str, since: int, until: int) -> list[int]:
    """Return the whole minutes in [since, until) that match in UTC, in unix seconds."""
    return [minute * 60 for minute in range(-(-since // 60), -(-until // 60)) if matches(rule, minute)]


class LocalMinutes:
    """The local clock of a zone, minute by minute, over some days."""

    def __init__(self, zone: str, since: int, until: int) -> None:
        info = ZoneInfo(zone)
        self.minutes = [
            (t, (t + datetime.fromtimestamp(t, info).utcoffset() // timedelta(seconds=1)) // 60)
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
            fixed = range(virtual + 1, minute + 1) if 1 < ahead <= 180 else [minute]
            if -180 < ahead <= 0:
                fixed = []
            else:
                virtual = minute
            if any(matches(rule, at) for at in ([minute] if by_elapsed_time else fixed)):
                ticks.append(t)
        return ticks
