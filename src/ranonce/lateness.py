"""Does a job always start late by the same time? Then its scheduler fires it in another zone, or at another hour. Pure.

One late run says nothing: the host was off, or busy. What is the same every day is how somebody has set it up. A line
that fires in another zone than the job's is off by the difference of the two, which changes where one of them has
summer time; one that fires shortly before its tick serves the window before, and so is nearly a whole window late.
"""

from __future__ import annotations

from ranonce.errors import RanonceError
from ranonce.record import Record
from ranonce.windows import Schedule

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

#: Fewer runs are no habit.
FEWEST = 3
#: Starts that are so far apart from each other are still the same.
SPREAD_SECONDS = 10 * 60.0
#: Later than this is late: schedulers start jobs within a minute or few.
LATE_SECONDS = 15 * 60.0
#: So much of the runs must agree.
MOST = 0.75


class Habit(Record):
    """A job that always starts late. `seconds` is how late (the median); `runs` how many runs show it.

    `zone` is the zone in which its line seems to fire, if one of those that were tried fits.
    """

    seconds: float
    runs: int
    zone: str | None


def habit(schedule: Schedule, starts: Sequence[tuple[int, float]], zones: Iterable[str]) -> Habit | None:
    """Judge the starts of scheduled runs, each (its tick, when it began), both unix seconds; None: not always late.

    `zones` are names of zones in which a line could fire instead of the schedule's own, the likeliest first.
    """
    late = [began - tick for tick, began in starts]
    if len(late) < FEWEST or not _mostly(seconds > LATE_SECONDS for seconds in late):
        return None
    zone = next((zone for zone in zones if zone != schedule.tz and _fits(schedule, zone, starts)), None)
    middle = sorted(late)[len(late) // 2]
    if zone is None and not _mostly(abs(seconds - middle) <= SPREAD_SECONDS for seconds in late):
        return None
    return Habit(middle, len(late), zone)


def _fits(schedule: Schedule, zone: str, starts: Sequence[tuple[int, float]]) -> bool:
    """Say whether the runs began as the same rule would have them in another zone."""
    try:
        there = Schedule(schedule.every, zone, schedule.dialect)
        return _mostly(began - there.window_at(began + 5).start <= LATE_SECONDS for _, began in starts)
    except RanonceError:
        return False  # a zone that this machine does not know


def _mostly(facts: Iterable[bool]) -> bool:
    known = list(facts)
    return sum(known) >= MOST * len(known)
