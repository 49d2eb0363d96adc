"""Which window of a job does a person mean? One rule for every command that takes a window. Pure: no clock, no I/O.

A window is named by its key, as the ledger prints it; or by a date, where that names exactly one: the window that
begins on that day in the job's zone, or the week or month that holds the day. A date that names several is refused
with their keys, since a guess would be somebody's doubled hour.
"""

from __future__ import annotations

from ranonce.errors import UsageError
from ranonce.expectation import schedule_of, version_at
from ranonce.record import Record
from ranonce.timefmt import parse_instant, shown
from ranonce.windows import Schedule, Window

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from ranonce.lifecycle import Run, ScheduleVersion

#: So many windows of a day are listed where it holds more than one: the hours of the longest day.
LISTED = 25
_OR_DAY = "Or a date (its beginning in the job's zone), or the key of a window of the job."


class Named(Record):
    """A window that was named, and the version of the schedule that it belongs to."""

    version: ScheduleVersion
    window: Window


def one_named(versions: Sequence[ScheduleVersion], text: str, recorded: Callable[[], list[Run]] | None = None) -> Named:
    """Return the window that a text names. UsageError where it names none, or several.

    `recorded` looks up the runs with that key: what has run can be named, whatever became of its schedule since.
    """
    found = all_named(versions, text, recorded)
    if len(found) == 1:
        return found[0]
    if not found:
        raise UsageError(f"no window of the job begins on {text}.", "See which there are: ranonce status")
    keys = ", ".join(each.window.key for each in found[:LISTED])
    more = f" and {len(found) - LISTED} more" if len(found) > LISTED else ""
    raise UsageError(f"{text} holds {len(found)} windows: {keys}{more}.", "Write one of them.")


def all_named(
    versions: Sequence[ScheduleVersion], text: str, recorded: Callable[[], list[Run]] | None = None
) -> list[Named]:
    """Return the windows that a key or a date names, oldest first: none for a day on which none begins.

    UsageError for text that is neither.
    """
    wrong: UsageError | None = None
    for version in reversed(versions):
        try:
            window = schedule_of(version).window(text)
        except UsageError as error:
            wrong = wrong or error
            continue
        if version_at(versions, window.start) == version:
            return [Named(version, window)]
    for run in recorded() if recorded and versions else ():
        version = next((each for each in versions if each.number == run.schedule), versions[-1])
        return [Named(version, Window(run.key.window, run.window_start, run.window_end))]
    day = day_of(versions, text)
    if day is None:
        raise wrong or UsageError(f"{shown(text)} is a window of no schedule that was in force then.")
    if found := windows_between(versions, day.start, day.end):
        return found
    judge = version_at(versions, day.start)
    if judge is None or schedule_of(judge).is_cron:
        return []
    return [Named(judge, schedule_of(judge).window_at(day.start))]  # a week or a month holds the day


def day_of(versions: Sequence[ScheduleVersion], text: str) -> Window | None:
    """Return the day that a date means in the job's zone, or None for text that is no date."""
    if not versions or len(text) != 10:
        return None
    try:
        day = Schedule("day", versions[-1].tz).window(text)
        version = version_at(versions, day.start) or versions[0]
        return Schedule("day", version.tz).window(text)
    except UsageError:
        return None


def windows_between(versions: Sequence[ScheduleVersion], since: int, until: int) -> list[Named]:
    """Return the windows that start in [since, until), each under the version that judges it, oldest first."""
    found: list[Named] = []
    for at, version in enumerate(versions):
        begin = since if version.valid_from is None else max(since, version.valid_from)
        later = [each.valid_from for each in versions[at + 1 :] if each.valid_from is not None]
        end = min((until, *later))
        if begin < end:
            found += [Named(version, window) for window in schedule_of(version).windows(begin, end)]
    return found


def beginning(versions: Sequence[ScheduleVersion], text: str) -> int | float:
    """Return the instant that a text means as a beginning or an end: an instant, or where a day or a window begins.

    A date is that day in the job's zone. UsageError for everything else, naive times among it.
    """
    try:
        return parse_instant(text)
    except UsageError as error:
        if day := day_of(versions, text):
            return day.start
        for version in reversed(versions):
            try:
                window = schedule_of(version).window(text)
            except UsageError:
                continue
            if version_at(versions, window.start) == version:
                return window.start
        raise UsageError(error.sentence, f"{error.next_step} {_OR_DAY}" if versions else error.next_step) from None
