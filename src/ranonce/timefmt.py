"""Read and print instants and durations: the one place where text or `datetime` becomes unix seconds and back.

Instants are RFC 3339 date-times with an offset. The parser is our own, so that each Python gives the same answer
(`datetime.fromisoformat` does not). It takes `Z` or `z`, `T`, `t` or one space, offsets `+09:00` and `+0900` up to
23:59, a left-out seconds part, and a fraction of any length (cut, not rounded, to microseconds).

The written rule for what clocks do and calendars do not: `24:00` and second `60` are refused, wherever they stand.
Unix seconds have no place for a leap second, and the midnight that `24:00` means is `00:00` of the next day; in both
cases only the writer knows which instant was meant, so the writer is asked. Naive times, bare dates, words, blanks
and non-ASCII digits are refused for the same reason.
"""

from __future__ import annotations

from datetime import UTC, date, datetime, timedelta

from ranonce.errors import UsageError

# The instants that have a four-digit year in UTC: 0001-01-01T00:00:00Z up to, not including, 10000-01-01T00:00:00Z.
FIRST_INSTANT = -62_135_596_800
INSTANTS_END = 253_402_300_800

DAY = 86_400
ORDINAL_OF_1970 = 719_163
EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_NAIVE_EPOCH = EPOCH.replace(tzinfo=None)  # printed without an offset
_PRECISIONS = {"s": "seconds", "ms": "milliseconds", "min": "minutes"}
LONGEST_DURATION = 36_525 * DAY

_WANTED = "Write an instant with an offset, for example 2026-11-07T02:30:00Z or 2026-11-07T03:30+01:00."
_WANTED_DURATION = "Write a duration such as 30s, 5m, 2h, 90d, 1h30m or 250ms."

_DIGITS = "0123456789"
_UNITS = {"w": 7 * DAY, "d": DAY, "h": 3600, "m": 60, "s": 1, "ms": 0.001}


def shown(value: object) -> str:
    """Return the value as an error sentence shows it: its repr, escaped, and cut when it is long."""
    if isinstance(value, str) and len(value) > 60:
        return f"{value[:57]!r}… ({len(value)} characters)"
    try:
        text = repr(value)
    except ValueError:  # an int with more digits than Python prints
        text = f"a very large {type(value).__name__}"
    return text if len(text) <= 80 else f"{text[:77]}…"


def parse_instant(text: str) -> int | float:
    """Read an RFC 3339 instant.

    Returns unix seconds, an int when they are whole. UsageError for everything that is not one instant with an
    offset between the years 1 and 9999 of UTC. Source: RFC 3339, section 5.6, with the rules of this module.
    """
    parts = _parts(text) if isinstance(text, str) else None
    if parts is None:
        raise _not_an_instant(text)
    year, month, day, hour, minute, second, sign, offset_hours, offset_minutes, fraction = parts
    if hour == 24:
        raise UsageError(f"{shown(text)} says 24:00, which is refused.", "Write 00:00 of the next day instead.")
    if second == 60:
        raise UsageError(
            f"{shown(text)} says second 60, and unix time has no place for a leap second.",
            "Write second 59, or 00 of the next minute.",
        )
    if hour > 23 or minute > 59 or second > 60:
        raise UsageError(f"{shown(text)} is not a time of day.", _WANTED)
    try:
        days = date(year, month, day).toordinal() - ORDINAL_OF_1970
    except ValueError:
        raise UsageError(f"{shown(text)} is not a day of the calendar.", _WANTED) from None
    if offset_hours > 23 or offset_minutes > 59:
        raise UsageError(f"{shown(text)} has an offset that cannot be: it ends at 23:59.", _WANTED)
    offset = sign * (offset_hours * 3600 + offset_minutes * 60)
    seconds = days * DAY + hour * 3600 + minute * 60 + second - offset
    if not FIRST_INSTANT <= seconds < INSTANTS_END:
        raise _out_of_range(text)
    microseconds = int(fraction[:6].ljust(6, "0"))
    return seconds + microseconds / 1_000_000 if microseconds else seconds


def _parts(text: str) -> tuple[int, int, int, int, int, int, int, int, int, str] | None:
    """Take an instant apart: year to second; sign, hours and minutes of its offset; the digits of its fraction.

    None for text of another form. By places and without `re`, which takes 3 ms to load and to compile: instants are
    read at every start of a run.
    """
    if text[4:5] + text[7:8] + text[13:14] != "--:" or text[10:11] not in ("T", "t", " "):
        return None
    second, fraction, rest = "00", "", text[16:]
    if rest[:1] == ":":
        second, rest = rest[1:3], rest[3:]
        if rest[:1] == ".":
            zone = rest[1:].lstrip(_DIGITS)
            fraction, rest = rest[1 : len(rest) - len(zone)], zone
            if not fraction:
                return None
    sign, offset = rest[:1], rest[1:3] + rest[3:].removeprefix(":")
    if rest in ("Z", "z"):
        sign, offset = "+", "0000"
    digits = text[:4] + text[5:7] + text[8:10] + text[11:13] + text[14:16] + second + offset
    if sign not in ("+", "-") or len(offset) != 4 or len(digits) != 18 or digits.strip(_DIGITS):
        return None
    year, *others = int(digits[:4]), *(int(digits[at : at + 2]) for at in range(4, 18, 2))
    month, day, hour, minute, second_, offset_hours, offset_minutes = others
    return year, month, day, hour, minute, second_, -1 if sign == "-" else 1, offset_hours, offset_minutes, fraction


def _not_an_instant(text: object) -> UsageError:
    if not isinstance(text, str):
        return UsageError(f"An instant was expected, not {shown(text)}.", _WANTED)
    if not text.strip():
        return UsageError(f"The instant {shown(text)} is empty.", _WANTED)
    if (_parts(f"{text}Z") or _parts(f"{text}T00:00Z")) is not None:
        return UsageError(f"{shown(text)} names no offset, so it is not one instant.", _WANTED)
    return UsageError(f"{shown(text)} is not an RFC 3339 instant.", _WANTED)


def _out_of_range(value: object) -> UsageError:
    return UsageError(f"{shown(value)} lies outside the years 1 to 9999 of UTC.", _WANTED)


def checked(t: float) -> float:
    """Return an instant unchanged; UsageError if it is not between the years 1 and 9999 of UTC (or not a number)."""
    if not FIRST_INSTANT <= t < INSTANTS_END:
        raise _out_of_range(t)
    return t


def _split(t: float) -> tuple[int, int]:
    """Return whole seconds and microseconds of an instant; floats are read as the nearest microsecond."""
    whole = int(checked(t) // 1)
    microseconds = round((t - whole) * 1_000_000)
    if microseconds == 1_000_000:
        whole, microseconds = int(checked(whole + 1)), 0
    return whole, microseconds


def format_instant(t: float, *, precision: str = "s") -> str:
    """Print unix seconds as RFC 3339 in UTC.

    `precision` is `s` (`2026-11-07T02:30:00Z`), `ms` (`…:00.123Z`) or `min` (`2026-11-07T02:30Z`); what it leaves
    out is cut, never rounded up. UsageError outside the years 1 to 9999.
    """
    if precision not in _PRECISIONS:
        raise ValueError(f"unknown precision {precision!r}")
    try:
        moment = _NAIVE_EPOCH + timedelta(0, checked(t))
    except OverflowError:  # nearer to the year 10000 than to the last microsecond before it
        raise _out_of_range(t) from None
    return f"{moment.isoformat(timespec=_PRECISIONS[precision])}Z"


def from_datetime(moment: datetime) -> int | float:
    """Turn an aware datetime into unix seconds, an int when they are whole. UsageError for a naive one."""
    if not isinstance(moment, datetime):
        raise UsageError(f"A datetime was expected, not {shown(moment)}.", "Pass an aware datetime.")
    if moment.utcoffset() is None:
        raise UsageError(
            f"{shown(moment)} is naive, so it is not one instant.", "Pass datetime.now(UTC), or give it a zone."
        )
    since = moment - EPOCH
    seconds = since.days * DAY + since.seconds
    if not FIRST_INSTANT <= seconds < INSTANTS_END:
        raise _out_of_range(moment)
    return seconds + since.microseconds / 1_000_000 if since.microseconds else seconds


def to_datetime(t: float) -> datetime:
    """Turn unix seconds into an aware datetime in UTC. UsageError outside the years 1 to 9999."""
    whole, microseconds = _split(t)
    return EPOCH + timedelta(seconds=whole, microseconds=microseconds)


def parse_duration(text: str) -> int | float:
    """Read a duration such as `5m`, `2h`, `90d`, `1h30m`, `250ms` or `0`.

    Units are w d h m s ms, the larger first, each at most once; a number may have up to six decimals. Returns
    seconds, an int when they are whole. UsageError otherwise, and for more than 100 years.
    """
    if not isinstance(text, str):
        raise UsageError(f"A duration was expected, not {shown(text)}.", _WANTED_DURATION)
    if text == "0":
        return 0
    parts = _amounts(text)
    if not parts:
        hint = "A number alone has no unit. " if text and not text.strip(_DIGITS) else ""
        raise UsageError(f"{shown(text)} is not a duration.", hint + _WANTED_DURATION)
    order = [list(_UNITS).index(unit) for _, unit in parts]
    if order != sorted(set(order)):
        raise UsageError(f"{shown(text)} does not go from larger to smaller units.", _WANTED_DURATION)
    seconds = sum(round(float(number) * _UNITS[unit] * 1_000_000) for number, unit in parts) / 1_000_000
    if seconds > LONGEST_DURATION:
        raise UsageError(f"{shown(text)} is longer than 100 years.", _WANTED_DURATION)
    return int(seconds) if seconds == int(seconds) else seconds


def _amounts(text: str) -> list[tuple[str, str]] | None:
    """Take a duration apart into numbers and their units; None where there is anything else."""
    amounts: list[tuple[str, str]] = []
    while text:
        rest = text.lstrip(_DIGITS + ".")
        number = text[: len(text) - len(rest)]
        unit = "ms" if rest.startswith("ms") else rest[:1]
        whole, point, decimals = number.partition(".")
        well_made = 1 <= len(whole) <= 9 and len(decimals) <= 6 and bool(point) == bool(decimals)
        if not well_made or "." in decimals or unit not in _UNITS:
            return None
        amounts.append((number, unit))
        text = rest[len(unit) :]
        if text[:1] == " " and text[1:]:
            text = text[1:]
    return amounts


def duration_text(seconds: float) -> str:
    """Print a duration so that `parse_duration` reads the same again: `90s`, `2d 30.5s`."""
    days, rest = divmod(round(seconds * 1_000_000), DAY * 1_000_000)
    whole, millionths = divmod(rest, 1_000_000)
    decimals = f".{millionths:06}".rstrip("0") if millionths else ""
    return " ".join([*([f"{days}d"] if days else []), *([f"{whole}{decimals}s"] if rest or not days else [])])


def format_duration(seconds: float) -> str:
    """Print a duration for people in its two largest units, cut: `2h 5m`, `3d`, `12s`, `1.2s`, `250ms`."""
    if not abs(seconds) < float("inf"):
        raise UsageError(f"{shown(seconds)} is not a duration.", _WANTED_DURATION)
    if seconds < 0:
        return f"-{format_duration(-seconds)}"
    if 0 < seconds < 1:
        return f"{int(seconds * 1000)}ms"
    if seconds < 10 and seconds != int(seconds):
        return f"{int(seconds * 10) / 10:g}s"
    rest = int(seconds)
    parts = []
    for unit in ("d", "h", "m", "s"):
        count, rest = divmod(rest, int(_UNITS[unit]))
        parts.append((count, unit))
    largest = next((at for at, (count, _) in enumerate(parts) if count), 3)
    return " ".join(f"{count}{unit}" for count, unit in parts[largest : largest + 2] if count or largest == 3)
