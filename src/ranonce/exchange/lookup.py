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
    from collections.abc import Callable, Sequence

    from ranonce.lifecycle import ScheduleVersion

#: Windows of so many days are found together.
DAYS_AHEAD = 90
#: So many are remembered.
REMEMBERED = 50_000
#: Windows that follow each other are looked for in rows of so many at least, and after so many vain attempts no more.
LEAST_ROW = 8
ROWS_TRIED = 20
#: No longer text is a key, or an instant.
LONGEST_KEY = 40
HOUR = 3600
HOURS = tuple(f"T{hour:02}" for hour in range(24))


class Place(Record):
    """A window that was found, and the number of the schedule version that it belongs to."""

    window: Window
    schedule: int


class Lookup:
    """The windows of one job, by what another ledger calls them. Windows that begin after `now` are none.

    Hours and days of UTC are found ahead, with no more than their starts: a ledger has them in order.
    """

    def __init__(self, versions: Sequence[ScheduleVersion], now: float) -> None:
        self.versions = tuple(versions)
        self.now = now
        self.starts: dict[str, int] = {}
        self._places: dict[str, Place | str] = {}
        self._step = 0
        self._keys: list[str] = []  # of windows that follow each other, from `_begin` on
        self._begin = 0
        self._rows = ROWS_TRIED  # while this is left, it is worth while to look for windows in a row
        if len(self.versions) == 1 and (self.versions[0].tz, self.versions[0].valid_from) == ("UTC", None):
            self._step = {"hour": HOUR, "day": DAY}.get(schedule_of(self.versions[0]).every, 0)

    def __call__(self, text: str) -> Place | str:
        """Return the place of a window, or why the text names none."""
        start = self.starts.get(text)
        if start is not None:
            return Place(Window(text, start, start + self._step), self.versions[0].number)
        if len(text) > LONGEST_KEY:
            return f"{shown(text)} is no key of a window"
        place = self._places.get(text)
        if place is None:
            place = self._find(text)
            if self._step and isinstance(place, Place) and place.window.key == text:
                self._look_ahead(place.window.start)
            else:
                if len(self._places) > REMEMBERED:
                    self._places.clear()
                self._places[text] = place
        return place

    def all_starts(self, texts: list[str]) -> Sequence[int] | None:
        """Return the starts of windows, or None where one of the texts names none: a range where each is the next."""
        if self._step and self._rows > 0 and texts:
            each = list(dict.fromkeys(texts))  # a start, and its verdict
            if (row := self._in_a_row(each)) is not None:
                plain = len(each) == len(texts)
                return row if plain else list(map(dict(zip(each, row, strict=True)).__getitem__, texts))
            if len(texts) >= LEAST_ROW:
                middle = len(texts) // 2
                first = self.all_starts(texts[:middle])
                second = None if first is None else self.all_starts(texts[middle:])
                return None if first is None or second is None else [*first, *second]
        found: list[int | None] = list(map(self.starts.get, texts)) if self._step else [None] * len(texts)
        while None in found:
            at = found.index(None)
            place = self(texts[at])
            if isinstance(place, str):
                return None
            if texts[at] not in self.starts:
                return self._one_by_one(texts)
            found[at:] = map(self.starts.get, texts[at:])  # those after it were found with it
        return found  # type: ignore[return-value]

    def _in_a_row(self, texts: list[str]) -> range | None:
        """Return the starts of windows that follow each other, as they do in most ledgers, or None where these do not:
        to compare two lists costs a fraction of looking each text up."""
        text, step = texts[0], self._step
        try:
            day = date.fromisoformat(text[:10]).toordinal() - ORDINAL_OF_1970
            start = day * DAY + (int(text[11:13]) * HOUR if step == HOUR else 0)
        except ValueError:
            return None
        begin, end = start // step - self._begin // step, start // step - self._begin // step + len(texts)
        if not 0 <= begin < end <= len(self._keys):
            self._find_keys(day)
            self._rows -= 1
            begin, end = (start - self._begin) // step, (start - self._begin) // step + len(texts)
        if start + (len(texts) - 1) * step > self.now or self._keys[begin:end] != texts:
            return None
        self._rows += 1
        return range(start, start + len(texts) * step, step)

    def _find_keys(self, day: int) -> None:
        """Print the keys of this day's windows, and of those after it."""
        days = range(day, min(day + DAYS_AHEAD, date.max.toordinal() - ORDINAL_OF_1970))
        dates = [date.fromordinal(each + ORDINAL_OF_1970).isoformat() for each in days]
        self._keys = dates if self._step == DAY else [key + hour for key in dates for hour in HOURS]
        self._begin = day * DAY

    def _one_by_one(self, texts: list[str]) -> list[int] | None:
        starts = []
        for text in texts:
            place = self(text)
            if isinstance(place, str):
                return None
            starts.append(place.window.start)
        return starts

    def _find(self, text: str) -> Place | str:
        try:
            place = self._named(text)
        except RanonceError as error:
            return error.sentence.rstrip(".")
        if place.window.start > self.now:
            return f"the window {place.window.key} has not begun"
        return place

    def _named(self, text: str) -> Place:
        if not text:
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

    def _look_ahead(self, start: int) -> None:
        """Find this window and those after it."""
        if len(self.starts) > REMEMBERED:
            self.starts.clear()
        first = start // DAY
        last = int(min(first + DAYS_AHEAD, self.now / DAY))  # `now` may be without end
        for day in range(first, last + 1):
            key, begin = date.fromordinal(day + ORDINAL_OF_1970).isoformat(), day * DAY
            if self._step == DAY:
                self.starts[key] = begin
            elif begin + DAY <= self.now:
                self.starts.update(zip([key + hour for hour in HOURS], range(begin, begin + DAY, HOUR), strict=True))
            else:
                self.starts.update(
                    (key + hour, begin + n * HOUR) for n, hour in enumerate(HOURS) if begin + n * HOUR <= self.now
                )


def _instant(text: str) -> int | None:
    try:
        instant = parse_instant(text)
    except UsageError:
        return None
    return int(instant) if instant == int(instant) else None


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

    def lookup(self, job: str) -> Lookup:
        """Return the windows of a job."""
        if job not in self._lookups:
            self._lookups[job] = Lookup(self.versions(job), self.now)
        return self._lookups[job]
