"""Five-field cron rules as Debian's cron reads them: which minutes of the local clock a rule names.

Fields are minute, hour, day of month, month, day of week: lists, ranges, steps (`*/15`, `10-40/5`), names `jan`-`dec`
and `sun`-`sat`, 7 for Sunday. When neither day field starts with `*`, a day matches if either of them does; else both
must. A rule whose minute or hour field starts with `*` runs by elapsed time, any other is fixed to the local clock:
what that means when the clock changes is decided in `zones`. Source: crontab(5) of Debian's cron 3.0pl1-162 and its
behaviour.

Local time is counted here in seconds since 1970-01-01T00:00 of the local clock, as if it had no offset.
"""

from __future__ import annotations

from datetime import date
from functools import lru_cache
from itertools import islice

from ranonce.errors import ConfigError
from ranonce.timefmt import DAY, FIRST_INSTANT, INSTANTS_END, ORDINAL_OF_1970, shown

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

ALIASES = {
    "@hourly": "0 * * * *",
    "@daily": "0 0 * * *",
    "@midnight": "0 0 * * *",
    "@weekly": "0 0 * * 0",
    "@monthly": "0 0 1 * *",
    "@yearly": "0 0 1 1 *",
    "@annually": "0 0 1 1 *",
}
MONTH_NAMES = ("jan", "feb", "mar", "apr", "may", "jun", "jul", "aug", "sep", "oct", "nov", "dec")
DAY_NAMES = ("sun", "mon", "tue", "wed", "thu", "fri", "sat")
LONGEST_MONTH = (31, 29, 31, 30, 31, 30, 31, 31, 30, 31, 30, 31)

# name, lowest and highest value, and the names that stand for values from the lowest on
_FIELDS: tuple[tuple[str, int, int, tuple[str, ...]], ...] = (
    ("minute", 0, 59, ()),
    ("hour", 0, 23, ()),
    ("day-of-month", 1, 31, ()),
    ("month", 1, 12, MONTH_NAMES),
    ("day-of-week", 0, 7, DAY_NAMES),
)
_EXAMPLE = 'Write five fields: minute, hour, day of month, month, day of week, for example "30 2 * * mon-fri".'


# Debian's cron treats a local clock change of less than three hours as a change of the zone, a larger one as a jump.
LARGEST_CHANGE = 3 * 3600


class CronRule:
    """The local minutes that a cron rule names. Compares by meaning, so `7` and `sun` are the same."""

    __slots__ = ("_fields", "_steps_evenly", "_takes_every_day", "by_elapsed_time", "either_day", "minutes", "text")

    largest_change: float = LARGEST_CHANGE

    def __init__(self, text: str, fields: tuple[frozenset[int], ...], by_elapsed_time: bool, either_day: bool) -> None:
        minutes, hours, days, months, weekdays = self._fields = fields
        self.text = text
        self.by_elapsed_time = by_elapsed_time
        self.either_day = either_day
        # Seconds of the day at which the rule runs, ascending.
        self.minutes = tuple(h * 3600 + m * 60 for h in sorted(hours) for m in sorted(minutes))
        whole = (len(days) == 31, len(weekdays) == 7)
        self._takes_every_day = len(months) == 12 and (any(whole) if either_day else all(whole))
        step, first = DAY // len(self.minutes), self.minutes[0]
        self._steps_evenly = self._takes_every_day and self.minutes == tuple(range(first, first + DAY, step))

    @property
    def months(self) -> frozenset[int]:
        """The months that the rule names."""
        return self._fields[3]

    @property
    def days(self) -> frozenset[int]:
        """The days of the month that the rule names."""
        return self._fields[2]

    @property
    def weekdays(self) -> frozenset[int]:
        """The days of the week that the rule names; 0 is Sunday."""
        return self._fields[4]

    @property
    def _identity(self) -> tuple[object, ...]:
        return (self._fields, self.by_elapsed_time, self.either_day)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, CronRule) and self._identity == other._identity

    def __hash__(self) -> int:
        return hash(self._identity)

    def reading_days(self, *, either: bool) -> CronRule:
        """Return the rule read so that a day matches when either day field does, or only when both do."""
        return CronRule(self.text, self._fields, self.by_elapsed_time, either)

    def matches_day(self, day: int, weekday: int) -> bool:
        """Tell whether a day of a month the rule names matches. Weekday 0 is Sunday."""
        if self.either_day:
            return day in self._fields[2] or weekday in self._fields[4]
        return day in self._fields[2] and weekday in self._fields[4]

    def slots(self, since: int, until: int) -> Sequence[int]:
        """Return the local minutes in [since, until) that the rule names, in local seconds, ascending."""
        since, until = max(since, FIRST_INSTANT), min(until, INSTANTS_END)
        if since >= until:
            return range(0)
        if self._steps_evenly:
            step = DAY // len(self.minutes)
            return range(since + (self.minutes[0] - since) % step, until, step)
        from bisect import bisect_left  # not needed for the schedules that most jobs have

        slots: list[int] = []
        for day in self._matching_days(since // DAY, (until - 1) // DAY):
            midnight = day * DAY
            begin, end = bisect_left(self.minutes, since - midnight), bisect_left(self.minutes, until - midnight)
            slots.extend([midnight + at for at in self.minutes[begin:end]])
        return slots

    def outnumbers(self, limit: int, since: int, until: int) -> bool:
        """Tell whether [since, until) may hold more than `limit` slots."""
        if (until - since) // DAY * len(self.minutes) <= limit:
            return False
        days = self._matching_days(since // DAY, (until - 1) // DAY)
        return next(islice(days, limit // len(self.minutes), None), None) is not None

    def _matching_days(self, first: int, last: int) -> Iterator[int]:
        """Yield the matching days from first to last, counted from 1970-01-01, whole months at a stride."""
        if self._takes_every_day:
            yield from range(first, last + 1)
            return
        start = date.fromordinal(first + ORDINAL_OF_1970)
        year, month = start.year, start.month
        begin = first - start.day + 1
        while begin <= last:
            following = (year + month // 12, month % 12 + 1)
            end = date(*following, 1).toordinal() - ORDINAL_OF_1970 if following[0] <= 9999 else last + 1
            if month in self.months:
                for day in range(max(begin, first), min(end, last + 1)):
                    if self.matches_day(day - begin + 1, (day + 4) % 7):
                        yield day
            begin, (year, month) = end, following


@lru_cache(maxsize=1024)
def parse_cron(text: str) -> CronRule:
    """Read a five-field cron rule or `@hourly` to `@annually`. ConfigError with a sentence for anything else."""
    if text.lower() == "@reboot":
        raise ConfigError("'@reboot' names no time, so it has no windows.", _EXAMPLE)
    if text.startswith("@") and text.lower() not in ALIASES:
        raise ConfigError(f"{shown(text)} is not a rule known here.", f"Known are {' '.join(ALIASES)}.")
    normal = ALIASES.get(text.lower(), text)
    if not normal.isascii() or not normal.replace("\t", " ").isprintable():
        raise ConfigError(f"{shown(text)} is not a cron rule: it holds characters that cron does not know.", _EXAMPLE)
    words = normal.lower().split()
    if len(words) != 5:
        more = " Seconds and years are not supported." if len(words) in (6, 7) else ""
        raise ConfigError(f"{shown(text)} has {len(words)} fields where a cron rule has five.{more}", _EXAMPLE)
    fields = [_parse_field(word, at, text) for at, word in enumerate(words)]
    fields[4] = frozenset(weekday % 7 for weekday in fields[4])
    starred = [word.startswith("*") for word in words]
    either_day = not (starred[2] or starred[4])
    if not either_day and all(min(fields[2]) > LONGEST_MONTH[month - 1] for month in fields[3]):
        raise ConfigError(
            f"{shown(text)} never matches: no month it names has a day {min(fields[2])}.", "Correct the day or month."
        )
    return CronRule(" ".join(words), tuple(fields), starred[0] or starred[1], either_day)


def _parse_field(word: str, at: int, text: str) -> frozenset[int]:
    name, low, high, _ = _FIELDS[at]

    def refuse(why: str) -> ConfigError:
        return ConfigError(f"The {name} field {shown(word)} of {shown(text)} {why}.", _EXAMPLE)

    values: set[int] = set()
    for part in word.split(","):
        span, slash, step_text = part.partition("/")
        first_text, dash, last_text = span.partition("-")
        if slash and not (_is_number(step_text) and 0 < int(step_text) <= high - low + 1):
            raise refuse(f"has a step that is not a number from 1 to {high - low + 1}")
        if span == "*":
            first, last = low, high
        else:
            first = _value(first_text, at)
            last = _value(last_text, at) if dash else first
            if slash and not dash:
                raise refuse(f"has a step after a single value; write a range such as {shown(f'{span}-{high}/…')}")
        if not (low <= first <= high and low <= last <= high):
            raise refuse(f"has a value that is not one of {low}-{high}{' or a name' if _FIELDS[at][3] else ''}")
        if first > last:
            raise refuse("has a range that runs backwards" + ("; Sunday at the end is 7" if at == 4 else ""))
        values.update(range(first, last + 1, int(step_text) if slash else 1))
    return frozenset(values)


def _value(text: str, at: int) -> int:
    """Return a field's number or name as its value, -1 if it is neither."""
    _, low, _, names = _FIELDS[at]
    if text in names:
        return names.index(text) + low
    return int(text) if _is_number(text) else -1


def _is_number(text: str) -> bool:
    return text.isascii() and text.isdigit() and len(text) <= 4
