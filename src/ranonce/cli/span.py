"""The time a question is about: `--since` and `--until`, as instants, as a time back from now, or as days of a job."""

from __future__ import annotations

from ranonce.cli.options import Option
from ranonce.errors import UsageError
from ranonce.naming import beginning
from ranonce.survey import Span
from ranonce.timefmt import format_instant, parse_duration

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Sequence

    from ranonce.cli.options import Parsed
    from ranonce.lifecycle import ScheduleVersion

DEFAULT_SECONDS = 48 * 3600

SINCE = Option(
    "since",
    "From when on: an instant, a time back from the end, like 48h, or for one job a date or the key of a window.",
    "WHEN",
    default="48h",
)
UNTIL = Option(
    "until",
    "To when: windows that start before this instant or, for one job, before a date or a window begins.",
    "WHEN",
    default="now",
)
NOW = Option("now", "Judge what is due as if it were this instant.", "INSTANT", "instant", default="the clock")


def asked_span(parsed: Parsed, now: float, versions: Sequence[ScheduleVersion] = ()) -> Span:
    """Return the span of windows that the options name, by default the last 48 hours. Raises UsageError.

    `versions` of the schedule say when a day begins, where the question is about one job.
    """
    written = parsed.get("since")
    until = now if parsed.get("until") is None else moment("until", parsed.get("until"), versions)
    since = until - DEFAULT_SECONDS if written is None else moment("since", written, versions, back_from=until)
    return span_of(since, until, usual=written is None and parsed.get("until") is None)


def span_of(since: float, until: float, *, usual: bool = False) -> Span:
    """Return the span between two instants, in whole seconds. UsageError where it ends before it begins."""
    if since > until:
        raise UsageError(
            f"--since {format_instant(since)} is after --until {format_instant(until)}.", "Give the earlier one first."
        )
    return Span(_ceil(since), _ceil(until), usual=usual)


def moment(option: str, text: str, versions: Sequence[ScheduleVersion], *, back_from: float | None = None) -> float:
    """Return the instant that is written behind an option.

    An instant as it stands; a date or a window's key as its beginning; with `back_from`, a duration as so long before.
    """
    date = text[:4].isdigit() and text[4:5] == "-"
    try:
        return beginning(versions, text) if date or back_from is None else back_from - parse_duration(text)
    except UsageError as error:
        step = error.next_step if versions else f"{error.next_step} Only with one job may it be a date."
        raise UsageError(f"--{option}: {error.sentence}", step) from None


def _ceil(instant: float) -> int:
    return int(-(-instant // 1))
