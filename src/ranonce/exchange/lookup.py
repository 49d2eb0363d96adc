"""Find the windows that texts of another ledger name, a million of them quickly.

A key must be one that the job's schedule prints. Two more ways of writing one are taken where they leave no doubt: for
a cron rule the date, where exactly one window begins on that day, and an instant at which a window begins.
"""

from __future__ import annotations

from datetime import date

from ranonce.errors import RanonceError, UsageError
from ranonce.expectation import schedule_of, version_at
from ranonce.names import check_job_name
from ranonce.naming import one_named
from ranonce.record import Record
from ranonce.timefmt import DAY, ORDINAL_OF_1970, parse_instant, shown
from ranonce.windows import Window

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from ranonce.lifecycle import ScheduleVersion
    from ranonce.windows import Schedule

#: Windows that follow one another are found together, so many days at a time.
DAYS_AHEAD = 90
#: So many are remembered.
REMEMBERED = 50_000
HOURS = tuple(f"T{hour:02}" for hour in range(24))


class Place(Record):
    """A window that was found, and the number of the schedule version that it belongs to."""

    window: Window
    schedule: int


class Lookup:
    """The windows of one job, by what another ledger calls them. Windows that begin after `now` are none."""

    def __init__(self, versions: Sequence[ScheduleVersion], now: float) -> None:
        self.versions = tuple(versions)
        self.now = now
        self._places: dict[str, Place | str] = {}

    def __call__(self, text: str) -> Place | str:
        """Return the place of a window, or why the text names none."""
        place = self._places.get(text)
        if place is None:
            if len(self._places) > REMEMBERED:
                self._places.clear()
            place = self._places[text] = self._find(text)
            if isinstance(place, Place) and len(self.versions) == 1:
                self._look_ahead(place.window)
        return place

    def _find(self, text: str) -> Place | str:
        try:
            place = self._named(text)
        except RanonceError as error:
            return error.sentence.rstrip(".")
        if place.window.start > self.now:
            return f"the window {place.window.key} has not begun"
        return place

    def _named(self, text: str) -> Place:
        if not 0 < len(text) <= 40:
            raise UsageError(f"{shown(text)} is no key of a window.")
        wrong: UsageError | None = None
        for version in reversed(self.versions):
            try:
                return self._judged(schedule_of(version).window(text), version)
            except UsageError as error:
                wrong = wrong or error
        if (start := _instant(text)) is not None:
            version = version_at(self.versions, start) or self.versions[0]
            window = schedule_of(version).window_at(start)
            if window.start == start:
                return Place(window, version.number)
        if any(schedule_of(version).is_cron for version in self.versions) and len(text) == 10:
            named = one_named(self.versions, text)
            return Place(named.window, named.version.number)
        raise wrong or UsageError(f"{shown(text)} is no window of the job.")

    def _judged(self, window: Window, version: ScheduleVersion) -> Place:
        if version_at(self.versions, window.start) != version:
            raise UsageError(f"{window.key} is a window of a schedule that was not in force then.")
        return Place(window, version.number)

    def _look_ahead(self, window: Window) -> None:
        """Remember the windows after this one, where their keys are cheap to tell: a ledger has them in order."""
        version = self.versions[0]
        for key, start, end in _following(schedule_of(version), window):
            if start > self.now:
                break
            self._places[key] = Place(Window(key, start, end), version.number)


def _instant(text: str) -> int | None:
    try:
        instant = parse_instant(text)
    except UsageError:
        return None
    return int(instant) if instant == int(instant) else None


def _following(schedule: Schedule, window: Window) -> Iterator[tuple[str, int, int]]:
    """Yield (key, start, end) of hours and days of UTC that follow a window; nothing for other schedules."""
    if schedule.tz != "UTC" or schedule.every not in ("hour", "day"):
        return
    first = window.start // DAY
    for day in range(first, first + DAYS_AHEAD):
        key, start = date.fromordinal(day + ORDINAL_OF_1970).isoformat(), day * DAY
        if schedule.every == "day":
            yield key, start, start + DAY
            continue
        for hour, suffix in enumerate(HOURS):
            yield key + suffix, start + hour * 3600, start + hour * 3600 + 3600


class Find:
    """The window that a key means, in the jobs of an import.

    `job` is the job that all keys are about; None where each names its own, as `job:window` or apart. `versions` gives
    the schedule of a job, and raises where nobody knows one.
    """

    def __init__(
        self, versions: Callable[[str], Sequence[ScheduleVersion]], now: float, *, job: str | None = None
    ) -> None:
        self.versions = versions
        self.now = now
        self.job = job
        self._lookups: dict[str, Lookup] = {}

    def __call__(self, key: str, job: str | None = None) -> tuple[str, Place] | str:
        """Return the job and the place of a window, or why the key names none."""
        job = self.job or job
        prefix, colon, rest = key.partition(":")
        if job is None:
            if not colon:
                return f"{shown(key)} names no job (--job)"
            job, key = prefix, rest
        try:
            check_job_name(job)
        except UsageError as error:
            return error.sentence.rstrip(".")
        lookup = self.lookup(job)
        place = lookup(key)
        if isinstance(place, str) and ":" in key:
            # A digest of the input may follow the window, and where the job is given, a prefix may stand before it.
            inner = [lookup(part) for part in (key.partition(":")[0], rest, rest.partition(":")[0]) if part]
            place = next((found for found in inner if isinstance(found, Place)), place)
        return place if isinstance(place, str) else (job, place)

    def known(self, key: str) -> Place | None:
        """Return the place of a window of the one job that all keys are about; None where the key names none."""
        assert self.job is not None
        place = self.lookup(self.job)(key)
        return None if isinstance(place, str) else place

    def lookup(self, job: str) -> Lookup:
        """Return the windows of a job."""
        if job not in self._lookups:
            self._lookups[job] = Lookup(self.versions(job), self.now)
        return self._lookups[job]
