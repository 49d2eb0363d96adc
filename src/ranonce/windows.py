"""Schedules, their windows and keys, and which window a trigger is for. Pure: no clock is read here.

A schedule yields ticks; a window is the half-open time from one tick to the next, and its key is the tick as text.
UTC schedules are expanded by arithmetic; named zones by arithmetic between clock changes (`zones`), where cron rules
follow Debian's cron. The dialect says which scheduler really fires the job: it changes what `fires` and `expected`
say, never the windows, so each instant at which any scheduler fires a slot lies in the same window.

All instants are unix seconds.
"""

from __future__ import annotations

from ranonce.calendars import CALENDARS, NEVER, Calendar
from ranonce.errors import ConfigError, UsageError
from ranonce.record import Record
from ranonce.timefmt import DAY, FIRST_INSTANT, INSTANTS_END, checked, format_instant, parse_instant, shown

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from ranonce.cron import CronRule
    from ranonce.zones import Zone

DIALECTS = ("debian", "systemd", "kubernetes")
UTC_NAMES = ("UTC", "Etc/UTC", "UCT", "Etc/UCT", "Zulu", "Etc/Zulu", "Universal", "Etc/Universal")

# How far to look for the tick before or after an instant, nearest first. 29 February on a given weekday comes back
# after 40 years at most, so a rule without a tick in the last of these has none before the ends of time.
_REACH = (DAY // 12, 2 * DAY, 40 * DAY, 400 * DAY, 41 * 366 * DAY)
_MOST_TICKS = 5_000_000
_FARTHEST_SHIFT = 10_000
_AN_INSTANT = 1_794_018_600  # 2026-11-07T02:30:00Z, for the examples in sentences


class Window(Record):
    """A half-open interval [start, end) in unix seconds, from one tick of a schedule to the next, and its key."""

    key: str
    start: int
    end: int


class Schedule:
    """When a job's windows begin: `hour`, `day`, `week`, `month` or a cron rule, in UTC or a named zone.

    A value: two schedules are equal when they mean the same (`0 2 * * sun` is `0 2 * * 7`). ConfigError for a rule,
    zone or dialect that cannot be used.
    """

    __slots__ = ("_rule", "_zone", "dialect", "every", "tz")

    def __init__(self, every: str, tz: str = "UTC", dialect: str = "debian") -> None:
        if dialect not in DIALECTS:
            raise ConfigError(f"{shown(dialect)} is not a dialect.", f"Known are {', '.join(DIALECTS)}.")
        self.dialect = dialect
        self._rule = _parse_rule(every)
        self.every = self._rule.text
        self._zone, self.tz = _parse_zone(tz)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Schedule) and (self._rule, self.tz, self.dialect) == (
            other._rule,
            other.tz,
            other.dialect,
        )

    def __hash__(self) -> int:
        return hash((self._rule, self.tz, self.dialect))

    def __repr__(self) -> str:
        return f"Schedule({self.every!r}, tz={self.tz!r}, dialect={self.dialect!r})"

    @property
    def is_cron(self) -> bool:
        """Whether windows run from one cron tick to the next, rather than over an hour, day, week or month."""
        return not isinstance(self._rule, Calendar)

    # ticks

    def starts(self, since: float, until: float) -> Sequence[int]:
        """Return the ticks in [since, until), ascending: a range where they are evenly spaced in UTC.

        UsageError outside the years 1 to 9999, or for more than five million ticks that are no range.
        """
        lo, hi = self._span(since, until)
        return self._ticks(lo, hi) if lo < hi else range(0)

    def _span(self, since: float, until: float) -> tuple[int, int]:
        """Return the whole seconds of a span, if the ticks in it are not too many to be listed."""
        lo, hi = _whole(since), _whole(until)
        is_range = self._zone is None and isinstance(self._rule.slots(0, 1), range)
        if not is_range and self._rule.outnumbers(_MOST_TICKS, lo, hi):
            raise UsageError(
                f"From {format_instant(lo)} to {format_instant(hi - 1)} there are more than {_MOST_TICKS:,}"
                f" windows of {shown(self.every)}.",
                "Ask for a shorter time.",
            )
        return lo, hi

    def _ticks(self, since: int, until: int) -> Sequence[int]:
        rule, zone = self._rule, self._zone
        if zone is None:
            return rule.slots(since, until)
        from ranonce.zones import every_pass, first_pass

        if rule.by_elapsed_time:
            return every_pass(zone, rule.slots, since, until)
        return first_pass(zone, rule.slots, since, until, limit=rule.largest_change)

    def _tick_at(self, t: int) -> int:
        """Return the last tick at or before t."""
        if self.every == NEVER:
            raise UsageError(
                "the job was removed, so it has no window now.", "Declare it again: ranonce add … --every RULE"
            )
        for reach in _REACH:
            ticks = self._ticks(max(t - reach, FIRST_INSTANT), t + 1)
            if ticks:
                return ticks[-1]
        raise UsageError(f"No window of {shown(self.every)} begins at or before {format_instant(t)}.")

    def _tick_after(self, t: int) -> int:
        """Return the first tick after t."""
        for reach in _REACH:
            ticks = self._ticks(t + 1, min(t + 1 + reach, INSTANTS_END))
            if ticks:
                return ticks[0]
        raise UsageError(f"The window of {shown(self.every)} at {format_instant(t)} ends after the year 9999.")

    # windows

    def window_at(self, t: float) -> Window:
        """Return the window that holds an instant. UsageError where it would cross the ends of the years 1 to 9999."""
        start = self._tick_at(int(checked(t) // 1))
        return Window(self.key(start), start, self._tick_after(start))

    def windows(self, since: float, until: float) -> list[Window]:
        """Return the windows that start in [since, until), ascending."""
        starts = self.starts(since, until)
        if not starts:
            return []
        ends = [*starts[1:], self._tick_after(starts[-1])]
        return [Window(self.key(start), start, end) for start, end in zip(starts, ends, strict=True)]

    def before(self, window: Window) -> Window:
        """Return the window before this one."""
        return self.window_at(window.start - 1)

    def after(self, window: Window) -> Window:
        """Return the window after this one."""
        return self.window_at(window.end)

    def shift(self, window: Window, n: int) -> Window:
        """Return the window n places later, or earlier for a negative n. UsageError beyond 10,000 places."""
        if abs(n) > _FARTHEST_SHIFT:
            raise UsageError(f"The offset {n} is beyond {_FARTHEST_SHIFT:,} windows.", "Give the window by its key.")
        for _ in range(abs(n)):
            window = self.after(window) if n > 0 else self.before(window)
        return window

    # keys

    def key(self, start: int) -> str:
        """Print the key of the window that begins at this tick."""
        if not isinstance(self._rule, Calendar):
            return format_instant(start, precision="s" if start % 60 else "min")
        if self._zone is None:
            return self._rule.key(start, None)
        offset = self._zone.offset(start)
        return self._rule.key(start + offset, offset)

    def window(self, key: str) -> Window:
        """Return the window with this key.

        The key must be written exactly as `key` prints it, and be a window of this schedule; else UsageError, with
        the key of a real window as the example.
        """
        start = self._start_near(key) if isinstance(key, str) and len(key) <= 40 else None
        if start is not None and self.key(start) == key and self._ticks(start, start + 1):
            return Window(key, start, self._tick_after(start))
        if self.every == NEVER:
            raise UsageError(f"{shown(key)} is not a window: the job was removed before.", "Declare it: ranonce add")
        zone = "" if self.tz == "UTC" else f" in {self.tz}"
        raise UsageError(f"{shown(key)} is not a window of {shown(self.every)}{zone}.", self._wanted(start))

    def _start_near(self, key: str) -> int | None:
        """Return the start of the window with this key if there is one, else an instant near it, or None."""
        try:
            if not isinstance(self._rule, Calendar):
                return int(parse_instant(key) // 1)
            if self._rule.text == "hour":
                start = int(parse_instant(f"{key[:13]}:00{key[13:19] or 'Z'}"))
                return start - int(f"{key[13]}{key[20:]}") if key[20:] else start
            start = self._rule.local_start(key)
        except (ValueError, UsageError):
            return None
        if self._zone is None:
            return start
        ticks = self._ticks(max(start - 3 * DAY, FIRST_INSTANT), min(start + 3 * DAY, INSTANTS_END))
        return next((tick for tick in ticks if self.key(tick) == key), start)

    def _wanted(self, near: int | None) -> str:
        try:
            example = self.window_at(_AN_INSTANT if near is None else near).key
        except UsageError:
            example = self.window_at(_AN_INSTANT).key
        form = "the UTC instant of a tick" if self.is_cron else f"its {self.every}"
        return f"Write {form} as the ledger prints it, for example {example}."

    # the scheduler that fires the job

    def fires(self, since: float, until: float) -> list[int]:
        """Return the instants in [since, until) at which the dialect's scheduler fires, ascending.

        For an hour, day, week or month: a scheduler set to fire when the window begins.
        """
        lo, hi = self._span(since, until)
        if self.every == NEVER:
            return []
        rule = _cron_rule(self._rule.cron) if isinstance(self._rule, Calendar) else self._rule
        if lo >= hi:
            return []
        if self.dialect == "debian":
            return list(self._ticks(lo, hi))
        from ranonce.dialects import kubernetes_fires, kubernetes_rule, systemd_fires

        if self._zone is None:
            return list((kubernetes_rule(rule) if self.dialect == "kubernetes" else rule).slots(lo, hi))
        fires = systemd_fires if self.dialect == "systemd" else kubernetes_fires
        return fires(rule, self._zone, lo, hi)

    def expected(self, since: float, until: float) -> Sequence[int]:
        """Return the starts in [since, until) of the windows in which the dialect's scheduler fires, ascending.

        Every day, week and month is expected: whatever time of day the scheduler is set to, it can fire in each.
        """
        starts = self.starts(since, until)
        if not starts or self.dialect == "debian" or self.every in ("day", "week", "month"):
            return starts
        if self._zone is None and not self.is_cron:
            return starts
        from bisect import bisect_right

        end = self._tick_after(starts[-1])
        return sorted({starts[bisect_right(starts, fire) - 1] for fire in self.fires(starts[0], end)})


def _whole(t: float) -> int:
    """Return the first whole second at or after an instant, which may be the end of time itself."""
    return INSTANTS_END if t == INSTANTS_END else int(-(-checked(t) // 1))


def _parse_rule(every: str) -> Calendar | CronRule:
    if not isinstance(every, str):
        raise ConfigError(f"A schedule was expected, not {shown(every)}.", _SCHEDULE_WANTED)
    word = every.strip(" ").lower()
    if word in CALENDARS:
        return CALENDARS[word]
    if not word.startswith("@") and len(word.split()) < 2:
        raise ConfigError(f"{shown(every)} is not a schedule.", _SCHEDULE_WANTED)
    return _cron_rule(every.strip(" "))


def _cron_rule(text: str) -> CronRule:
    from ranonce.cron import parse_cron

    return parse_cron(text)


_SCHEDULE_WANTED = 'Write hour, day, week, month or a cron rule such as "30 2 * * *".'


def _parse_zone(tz: str) -> tuple[Zone | None, str]:
    if not isinstance(tz, str):
        raise ConfigError(f"A time zone was expected, not {shown(tz)}.", "Write UTC or a name such as Europe/Berlin.")
    if tz in UTC_NAMES:
        return None, "UTC"
    from ranonce.zones import load_zone

    return load_zone(tz), tz


class Chosen(Record):
    """The window a trigger is for, and the rule that chose it.

    `chosen_by` is `window`, `scheduled-at`, `systemd`, `kubernetes` or `clock`.
    """

    window: Window
    chosen_by: str


def choose(
    schedule: Schedule,
    *,
    now: float,
    early: float = 5,
    offset: int = 0,
    window_key: str | None = None,
    scheduled_at: float | None = None,
    environ: Mapping[str, str] | None = None,
) -> Chosen:
    """Say which window a trigger is for: the first rule that applies.

    A key that was given; the instant it was scheduled at; what systemd or Kubernetes say in `environ`, if it lies in
    the current window or the one before (an older value was exported once and forgotten); the clock, where a timer
    may be `early` by some seconds. All but a given key are then shifted by `offset` windows.
    """
    if window_key is not None:
        return Chosen(schedule.window(window_key), "window")
    if scheduled_at is not None:
        return Chosen(schedule.shift(schedule.window_at(scheduled_at), offset), "scheduled-at")
    current = schedule.window_at(now + early)
    for said_by, instant in _hints(environ or {}):
        hinted = _hinted_window(schedule, current, instant)
        if hinted is not None:
            return Chosen(schedule.shift(hinted, offset), said_by)
    return Chosen(schedule.shift(current, offset), "clock")


def _hinted_window(schedule: Schedule, current: Window, instant: float) -> Window | None:
    if current.start <= instant < current.end:
        return current
    if instant >= current.end:
        return None
    before = schedule.before(current)
    return before if instant >= before.start else None


def _hints(environ: Mapping[str, str]) -> list[tuple[str, float]]:
    """Return who says which instant this trigger was scheduled for; what cannot be read says nothing."""
    hints: list[tuple[str, float]] = []
    microseconds = environ.get("TRIGGER_TIMER_REALTIME_USEC", "")
    if _is_count(microseconds):
        hints.append(("systemd", int(microseconds) / 1_000_000))
    scheduled = _instant_or_none(environ.get("CRONJOB_SCHEDULED_TIMESTAMP", ""))
    if scheduled is not None:
        hints.append(("kubernetes", scheduled))
    if "KUBERNETES_SERVICE_HOST" in environ:
        # A pod of a CronJob is called NAME-MINUTES-XXXXX, the minutes counted from 1970.
        name, _, minutes = environ.get("HOSTNAME", "").rpartition("-")[0].rpartition("-")
        if name and _is_count(minutes):
            hints.append(("kubernetes", int(minutes) * 60))
    return hints


def _instant_or_none(text: str) -> float | None:
    try:
        return parse_instant(text)
    except UsageError:  # absent, or a template that nobody filled in
        return None


def _is_count(text: str) -> bool:
    return text.isascii() and text.isdigit() and len(text) <= 18


def due(schedule: Schedule, window: Window, offset: int, late_after: float) -> float:
    """Return the instant from which a window that has not run is missing.

    The trigger for it comes with window i − offset: a cron window is due at that one's tick, a calendar window at
    that one's end, both `late_after` seconds later.
    """
    served_in = schedule.shift(window, -offset) if offset else window
    return (served_in.start if schedule.is_cron else served_in.end) + late_after
