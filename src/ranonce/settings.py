"""The kinds of values a setting can have, whether it stands in the file, in an option or in a check.

Each function takes what was written and returns the value in the unit the code uses (seconds, unix seconds, text), or
raises UsageError with a sentence about the value alone; the caller puts the place in front (a file and its line, or
the name of an option).
"""

from __future__ import annotations

from ranonce.errors import UsageError
from ranonce.names import check_name
from ranonce.record import Record
from ranonce.timefmt import from_datetime, parse_duration, parse_instant, shown

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterable

SHELL = ("/bin/sh", "-c")


def text(value: object) -> str:
    """Return text that is not empty and holds no control character."""
    if not isinstance(value, str):
        raise UsageError(f"{shown(value)} is not text.", "Write it in quotes.")
    if not value.strip():
        raise UsageError(f"{shown(value)} is empty.", "Give it a value, or leave it away.")
    for character in value:
        if character < " " or character == "\x7f":
            raise UsageError(f"{shown(value)} holds the control character {character!r}.", "Take it out.")
    return value


def flag(value: object) -> bool:
    """Return true or false; nothing else stands for them."""
    if not isinstance(value, bool):
        raise UsageError(f"{shown(value)} is neither true nor false.", "Write true or false, without quotes.")
    return value


def whole(value: object) -> int:
    """Return a whole number; true, 1.0 and "1" are not one."""
    if isinstance(value, bool) or not isinstance(value, int):
        raise UsageError(f"{shown(value)} is not a whole number.", "Write digits only, without quotes.")
    return value


def whole_from_text(value: str) -> int:
    """Return the whole number that stands in an argument of the command line."""
    digits = value[1:] if value[:1] == "-" else value
    if not (digits.isascii() and digits.isdigit() and len(digits) <= 18):
        raise UsageError(f"{shown(value)} is not a whole number.", "Write digits only.")
    return int(value)


def duration(value: object) -> float:
    """Return seconds, from text like "2h" or from a number of seconds."""
    if isinstance(value, str):
        return float(parse_duration(value))
    if isinstance(value, bool) or not isinstance(value, (int, float)) or value != value or abs(value) == float("inf"):
        raise UsageError(f"{shown(value)} is not a duration.", 'Write it like "30s", "5m" or "2h", or in seconds.')
    try:
        return float(value)
    except OverflowError:
        raise UsageError(f"{shown(value)} is longer than any duration.", 'Write it like "30s", "5m" or "2h".') from None


def instant(value: object) -> float:
    """Return unix seconds, from RFC 3339 text or a TOML date-time, both with an offset."""
    from datetime import datetime

    if isinstance(value, str):
        return parse_instant(value)
    if isinstance(value, datetime):
        return from_datetime(value)
    raise UsageError(f"{shown(value)} is not an instant.", "Write it like 2026-11-07T02:30:00Z, offset included.")


class When(Record):
    """A time to wait until: an instant (unix seconds), or so many seconds from the moment it is counted from."""

    at: float | None = None
    after: float | None = None

    def counted(self, now: float) -> float:
        """Return the instant that it means, counted from `now`. One in the past means now."""
        return now + self.after if self.after is not None else max(self.at or now, now)


def when(written: str) -> When:
    """Return what a duration, an instant, or what a server says in Retry-After means."""
    said = retry_after(written)
    if said is not None:
        return said
    if written.endswith(" GMT"):
        raise UsageError(f"{shown(written)} is no HTTP date.", "Write seconds, or an instant.")
    is_instant = "T" in written.upper() and "-" in written
    return When(at=parse_instant(written)) if is_instant else When(after=duration(written))


def retry_after(written: str) -> When | None:
    """Return what Retry-After says: whole seconds, or an HTTP date. None for what is neither.

    Source: RFC 9110, sections 5.6.7 and 10.2.3, also for dates in the obsolete forms, which name no offset or a wrong
    one: each is in GMT.
    """
    if written.isascii() and written.isdigit():
        return When(after=float(written))
    at = http_date(written)
    return None if at is None else When(at=at)


def http_date(written: str) -> float | None:
    """Return the unix seconds of an HTTP date, or None for what is none."""
    from datetime import UTC
    from email.utils import parsedate_to_datetime

    if not written.endswith(" GMT") and written[3:4] != " ":  # "Sun Nov  6 08:49:37 1994" is one as well
        return None
    try:
        return parsedate_to_datetime(written).replace(tzinfo=UTC).timestamp()
    except (ValueError, TypeError, IndexError, OverflowError):
        return None


def argv(value: object) -> tuple[str, ...]:
    """Return a command as its arguments. No shell is implied, so one line of text is not a command."""
    if isinstance(value, str):
        raise UsageError(
            f"{shown(value)} is one text, not a list of arguments.",
            'No shell reads it. Write a list, like ["/usr/local/bin/backup.sh", "{window}"] or ["/bin/sh", "-c", "…"].',
        )
    if not isinstance(value, (list, tuple)) or not value:
        raise UsageError(f"{shown(value)} is not a command.", "Write a list of arguments, the program first.")
    for argument in value:
        if not isinstance(argument, str):
            raise UsageError(f"{shown(argument)} is not text.", "Write each argument in quotes.")
        if "\0" in argument:
            raise UsageError(f"{shown(argument)} holds a NUL character, which no argument can.", "Take it out.")
    if not value[0].strip():
        raise UsageError("The program of the command is empty.", "Write it as the first argument.")
    return tuple(value)


def gates(value: object) -> tuple[str, ...]:
    """Return the names of gates, each once."""
    if not isinstance(value, (list, tuple)):
        raise UsageError(f"{shown(value)} is not a list of gates.", 'Write a list, like ["model-api"].')
    return tuple(dict.fromkeys(check_name("gate", name) for name in value))


def exit_codes(value: object) -> tuple[int, ...]:
    """Return exit codes of a command, each once."""
    if not isinstance(value, (list, tuple)):
        raise UsageError(f"{shown(value)} is not a list of exit codes.", "Write a list, like [75].")
    return tuple(dict.fromkeys(whole(code) for code in value))


def nearest(word: str, known: Iterable[str]) -> str:
    """Return the sentence that helps with an unknown word: the nearest known one, or all of them."""
    import difflib

    words = sorted(known)
    close = difflib.get_close_matches(word, words, n=1, cutoff=0.6)
    if close:
        return f"Did you mean {close[0]}?"
    return f"Known are {', '.join(words)}."
