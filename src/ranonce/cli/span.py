"""The time a question is about: `--since` and `--until`, as instants or as a time back from now."""

from __future__ import annotations

from ranonce.cli.options import Option
from ranonce.errors import UsageError
from ranonce.survey import Span
from ranonce.timefmt import format_instant, parse_duration, parse_instant

TYPE_CHECKING = False
if TYPE_CHECKING:
    from ranonce.cli.options import Parsed

DEFAULT_SECONDS = 48 * 3600

SINCE = Option("since", "From when on: a time back from the end, like 48h, or an instant.", "WHEN", default="48h")
UNTIL = Option("until", "To when: windows that start before this instant.", "INSTANT", "instant", default="now")
NOW = Option("now", "Judge what is due as if it were this instant.", "INSTANT", "instant", default="the clock")


def asked_span(parsed: Parsed, now: float) -> Span:
    """Return the span of windows that the options name, by default the last 48 hours. Raises UsageError."""
    until = parsed.get("until", now)
    written = parsed.get("since")
    since = until - DEFAULT_SECONDS if written is None else _since(written, until)
    if since > until:
        raise UsageError(
            f"--since {format_instant(since)} is after --until {format_instant(until)}.", "Give the earlier one first."
        )
    return Span(_ceil(since), _ceil(until), usual=written is None and "until" not in parsed.options)


def _since(written: str, until: float) -> float:
    """Return the beginning: an instant as it stands, or so long before the end."""
    instant = written[:4].isdigit() and written[4:5] == "-"
    try:
        return parse_instant(written) if instant else until - parse_duration(written)
    except UsageError as error:
        raise UsageError(f"--since: {error.sentence}", error.next_step) from None


def _ceil(instant: float) -> int:
    return int(-(-instant // 1))
