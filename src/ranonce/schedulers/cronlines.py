"""Cron lines that say when a job fires: in one clock's terms, also where that is not the clock of the job.

A cron daemon counts in its host's zone, GitHub in UTC. A rule of another zone then needs a trigger at each local time
its windows can begin at over the year: 02:30 in Berlin is 00:30 and 01:30 in UTC. Too many triggers do no harm, since
the window they meet is done already; one too few loses a window. So what is said here never leaves a time out.

Each line restricts at most one of the two day fields, because cron daemons disagree about what both together mean.
"""

from __future__ import annotations

from ranonce.cron import LONGEST_MONTH
from ranonce.timefmt import DAY

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterable

    from ranonce.cron import CronRule
    from ranonce.zones import Zone

#: How far to look ahead for the clock changes that matter; a zone's year repeats.
AHEAD = 2 * 366 * DAY
MINUTES_A_DAY = 24 * 60

Days = tuple[frozenset[int], frozenset[int], frozenset[int]]  # days of the month, months, weekdays

_ALL_DAYS = frozenset(range(1, 32))
_ALL_MONTHS = frozenset(range(1, 13))
_ALL_WEEKDAYS = frozenset(range(7))
_RANGES = ((0, 59), (0, 23), (1, 31), (1, 12), (0, 6))


def day_parts(rule: CronRule) -> list[Days]:
    """Return which days a rule takes, as parts with one restricted day field each; together they take all of them.

    Where both fields must match (`*/2 * mon`) only the stricter one is said: that names too many days.
    """
    days, months, weekdays = rule.days, rule.months, rule.weekdays
    every_day, every_weekday = days >= _ALL_DAYS, weekdays >= _ALL_WEEKDAYS
    if rule.either_day:
        if every_day or every_weekday:
            return [(_ALL_DAYS, months, _ALL_WEEKDAYS)]
        return [(days, months, _ALL_WEEKDAYS), (_ALL_DAYS, months, weekdays)]
    if len(weekdays) * 31 < len(days) * 7:
        return [(_ALL_DAYS, months, weekdays)]
    return [(days, months, _ALL_WEEKDAYS)]


def field_text(values: Iterable[int], at: int, *, starred: bool = True) -> str:
    """Print the values of a field (0 minute … 4 weekday): `*`, `*/15`, `1-5`, `0,30`.

    Without `starred` nothing begins with `*`: Debian's cron then reads the rule as fixed to the local clock.
    """
    low, high = _RANGES[at]
    ordered = sorted(values)
    if len(ordered) == high - low + 1:
        return "*" if starred else f"{low}-{high}"
    step = ordered[1] - ordered[0] if len(ordered) > 2 else 0
    if step > 1 and ordered == list(range(ordered[0], ordered[-1] + 1, step)):
        if starred and ordered[0] == low and ordered[-1] + step > high:
            return f"*/{step}"
        return f"{ordered[0]}-{ordered[-1]}/{step}"
    return ",".join(f"{a}-{b}" if b > a + 1 else f"{a},{b}" if b > a else f"{a}" for a, b in runs(ordered))


def runs(ordered: list[int]) -> list[tuple[int, int]]:
    """Return the first and last of each unbroken run of ascending numbers."""
    found: list[tuple[int, int]] = []
    for value in ordered:
        if found and found[-1][1] == value - 1:
            found[-1] = (found[-1][0], value)
        else:
            found.append((value, value))
    return found


def shifts(zone: Zone | None, clock: Zone | None, now: float) -> list[int]:
    """Return how many minutes the clock shows more than the zone, each difference there is from now on, ascending."""
    since = int(now // DAY) * DAY
    instants = {since}
    for each in (zone, clock):
        if each is not None:
            instants.update(each.changes(since, since + AHEAD))
    return sorted({((clock.offset(t) if clock else 0) - (zone.offset(t) if zone else 0)) // 60 for t in instants})


def lines(rule: CronRule, by_minutes: Iterable[int] = (0,)) -> list[str]:
    """Return cron lines (five fields) that name every local time of a rule, put off by each number of minutes.

    Weekdays are 0-6 and there are no names, which every cron daemon understands.
    """
    slots: dict[Days, set[int]] = {}
    for minutes in by_minutes:
        for second in rule.minutes:
            carry, at = divmod(second // 60 + minutes, MINUTES_A_DAY)
            for part in day_parts(rule):
                for moved in _moved(part, carry):
                    slots.setdefault(moved, set()).add(at)
    return [
        " ".join((*times, *(field_text(values, at) for at, values in enumerate(days, 2))))
        for days, named in sorted(slots.items(), key=lambda item: (min(item[1]), [sorted(each) for each in item[0]]))
        for times in _times(named, starred=rule.by_elapsed_time)
    ]


def _times(named: set[int], *, starred: bool) -> list[tuple[str, str]]:
    """Return the minute and hour fields that name just these minutes of the day, in as few pairs as is easy."""
    hours_of: dict[int, set[int]] = {}
    for at in sorted(named):
        hours_of.setdefault(at % 60, set()).add(at // 60)
    minutes_of: dict[frozenset[int], set[int]] = {}
    for minute, hours in hours_of.items():
        minutes_of.setdefault(frozenset(hours), set()).add(minute)
    return [
        (field_text(minutes, 0, starred=starred), field_text(hours, 1, starred=starred))
        for hours, minutes in sorted(minutes_of.items(), key=lambda item: (min(item[0]), min(item[1])))
    ]


def _moved(part: Days, carry: int) -> list[Days]:
    """Return a part of the days, moved by whole days."""
    days, months, weekdays = part
    if weekdays != _ALL_WEEKDAYS:
        way = (carry > 0) - (carry < 0)
        around = months | {(month - 1 + way) % 12 + 1 for month in months}
        return [(days, around, frozenset((weekday + carry) % 7 for weekday in weekdays))]
    if carry == 0 or (days >= _ALL_DAYS and months == _ALL_MONTHS):
        return [part]
    dates = {(month, day) for month in months for day in days if day <= LONGEST_MONTH[month - 1]}
    for _ in range(abs(carry)):
        dates = {moved for date in dates for moved in (_following(*date) if carry > 0 else _preceding(*date))}
    months_of: dict[frozenset[int], set[int]] = {}
    for month in {month for month, _ in dates}:
        named = frozenset(day for each, day in dates if each == month)
        if len(named) == LONGEST_MONTH[month - 1]:
            named = _ALL_DAYS
        months_of.setdefault(named, set()).add(month)
    return [(named, frozenset(found), weekdays) for named, found in months_of.items()]


def _following(month: int, day: int) -> list[tuple[int, int]]:
    """Return the dates that may follow a date: after 28 February that is one of two."""
    last = LONGEST_MONTH[month - 1]
    found = [(month, day + 1)] if day < last else []
    return [*found, (month % 12 + 1, 1)] if day == last or (month, day) == (2, 28) else found


def _preceding(month: int, day: int) -> list[tuple[int, int]]:
    if day > 1:
        return [(month, day - 1)]
    before = (month - 2) % 12 + 1
    return [(2, 28), (2, 29)] if before == 2 else [(before, LONGEST_MONTH[before - 1])]
