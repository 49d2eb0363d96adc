"""The calendar schedules `hour`, `day`, `week` and `month`: where their windows begin on the local clock, and keys.

An hour window begins each time the local clock shows a full hour, so a repeated hour is two windows and a clock
change by half an hour makes one of 90 minutes: the instants at which cron runs `0 * * * *`. A day, week (Monday
first, ISO 8601) or month begins at the first instant that the local clock has reached its midnight: where midnight is
skipped, at the clock change; where it is repeated, at the first one; a date that is skipped whole has no window.

Local time is counted in seconds since 1970-01-01T00:00 of the local clock, as in `cron`.
"""

from __future__ import annotations

from datetime import date

from ranonce.timefmt import DAY, FIRST_INSTANT, INSTANTS_END, ORDINAL_OF_1970

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Sequence

HOUR = 3600
WEEK = 7 * DAY
MONDAY = 4 * DAY  # 1970-01-05
#: The rule of a job that was removed: it has no windows, so none is expected, and none can be claimed.
NEVER = "never"


class Calendar:
    """One calendar grain: the local instants at which its windows begin, and the text of their keys."""

    __slots__ = ("by_elapsed_time", "cron", "text")

    largest_change: float = float("inf")

    def __init__(self, text: str, cron: str) -> None:
        self.text = text
        self.cron = cron  # the rule of a scheduler that fires at the start of each window
        self.by_elapsed_time = text == "hour"

    def slots(self, since: int, until: int) -> Sequence[int]:
        """Return the beginnings in [since, until), in local seconds, ascending."""
        since, until = max(since, FIRST_INSTANT), min(until, INSTANTS_END)
        if since >= until:
            return range(0)
        if self.text == NEVER:
            return range(0)
        if self.text == "month":
            return _months(since, until)
        step, anchor = {"hour": (HOUR, 0), "day": (DAY, 0), "week": (WEEK, MONDAY)}[self.text]
        return range(since + (anchor - since) % step, until, step)

    def outnumbers(self, limit: int, since: int, until: int) -> bool:
        """Tell whether [since, until) may hold more than `limit` beginnings."""
        return (until - since) // DAY * (24 if self.text == "hour" else 1) > limit

    def key(self, local: int, offset: int | None) -> str:
        """Print the key of the window that begins at a local instant; the offset only where hours may repeat."""
        day = date.fromordinal(local // DAY + ORDINAL_OF_1970)
        if self.text == "hour":
            suffix = "" if offset is None else format_offset(offset)
            return f"{day.isoformat()}T{local % DAY // HOUR:02}{suffix}"
        if self.text == "week":
            year, week, _ = day.isocalendar()
            return f"{year:04}-W{week:02}"
        return day.isoformat() if self.text == "day" else day.isoformat()[:7]

    def local_start(self, key: str) -> int:
        """Return the local midnight that a day, week or month key means. ValueError if it means none.

        Not strict: the caller prints the key of the window it finds and compares.
        """
        if self.text == NEVER:
            raise ValueError(key)
        if self.text == "week":
            day = date.fromisocalendar(int(key[:4]), int(key[6:]), 1)
        else:
            day = date(int(key[:4]), int(key[5:7]), int(key[8:]) if self.text == "day" else 1)
        return (day.toordinal() - ORDINAL_OF_1970) * DAY


def _months(since: int, until: int) -> list[int]:
    if since > INSTANTS_END - DAY:
        return []
    first = date.fromordinal(-(-since // DAY) + ORDINAL_OF_1970)
    year, month = (first.year, first.month) if first.day == 1 else _following(first.year, first.month)
    found = []
    while year <= 9999:
        begin = (date(year, month, 1).toordinal() - ORDINAL_OF_1970) * DAY
        if begin >= until:
            break
        found.append(begin)
        year, month = _following(year, month)
    return found


def _following(year: int, month: int) -> tuple[int, int]:
    return year + month // 12, month % 12 + 1


def format_offset(offset: int) -> str:
    """Print an offset from UTC as `+02:00`; with seconds where a zone of long ago has them."""
    sign, rest = ("-", -offset) if offset < 0 else ("+", offset)
    seconds = f":{rest % 60:02}" if rest % 60 else ""
    return f"{sign}{rest // 3600:02}:{rest % 3600 // 60:02}{seconds}"


CALENDARS = {
    "hour": Calendar("hour", "0 * * * *"),
    "day": Calendar("day", "0 0 * * *"),
    "week": Calendar("week", "0 0 * * 1"),
    "month": Calendar("month", "0 0 1 * *"),
    NEVER: Calendar(NEVER, ""),
}
