"""Read the lines of a hand-made ledger: by columns where a block of them is built alike, else one by one."""

from __future__ import annotations

import re
from datetime import date
from operator import itemgetter

from ranonce import jsontext as json
from ranonce.errors import UsageError
from ranonce.exchange.lines import Bad, Block, Line
from ranonce.exchange.lookup import Place
from ranonce.lifecycle import DONE, FAILED
from ranonce.record import Record
from ranonce.timefmt import format_instant, parse_instant, shown

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence
    from typing import Any

    from ranonce.exchange.lookup import Find

NAMES = ("event", "window", "ts")
#: What a line says, and how it is called here.
SAYS = {"start": "start", "done": DONE, "fail": FAILED, "failed": FAILED}
#: The other fields of a line are kept as data, up to this length.
FIELDS_BYTES = 4096
#: So many lines are looked at together.
PART_LINES = 256


class Row(Record):
    """One line that says something. `job` is None where all lines are about the same one."""

    said: str
    job: str | None
    place: Place
    at: float
    fields: dict[str, Any]
    line: int


class Columns(Record):
    """A block of lines that are built alike, and of which each says something at a time that can be."""

    said: list[str]
    windows: list[str]
    times: list[str]


class Part(Record):
    """Some lines of columns, with the starts of their windows. `in_pairs`: each window's start, then its verdict, and
    `starts` has each window once."""

    said: list[str]
    starts: Sequence[int]
    in_pairs: bool


def plain_columns(block: Block, now: float) -> Columns | None:
    """Return the columns of a block in which nothing is wrong; None where lines must be looked at one by one."""
    columns = block.columns(NAMES)
    if columns is None:
        return None
    said, windows, times = columns
    if not SAYS.keys() >= set(said) or not _plain_times(times) or max(times) > format_instant(now):
        return None
    return Columns(said, windows, times)


def in_parts(columns: Columns, find: Find) -> list[Part] | None:
    """Cut columns into parts, in most of which a start is followed by its verdict: half the windows to look up.

    None where a text names no window.
    """
    assert find.job is not None
    lookup = find.lookup(find.job)
    parts = []
    at, end = 0, len(columns.said)
    while at < end:
        length = (
            PART_LINES
            if columns.said[at] == "start" and columns.windows[at : at + 1] == columns.windows[at + 1 : at + 2]
            else 1
        )
        said, windows = columns.said[at : at + length], columns.windows[at : at + length]
        if len(said) > 1 and len(said) % 2:
            said, windows = said[:-1], windows[:-1]
        at += len(said)
        verdicts = said[1::2]
        in_pairs = (
            len(said) > 1
            and windows[0::2] == windows[1::2]
            and set(said[0::2]) == {"start"}
            and "start" not in verdicts
        )
        starts = lookup.all_starts(windows[0::2] if in_pairs else windows)
        if starts is None:
            return None
        parts.append(Part(said, starts, in_pairs))
    return parts


def _plain_times(times: list[str]) -> bool:
    """Whether all are instants written `2026-11-07T02:30:00Z`."""
    text = "".join(times).encode()
    if text.translate(_DIGITS_TO_0) != b"0000-00-00T00:00:00Z" * len(times):
        return False
    sixtieths = set(text[14::20]) | set(text[17::20])
    if not sixtieths <= _TO_5 or _NO_HOUR.search(text) is not None:
        return False
    try:
        return all(date.fromisoformat(day) for day in set(map(_DAY_OF, times)))
    except ValueError:
        return False


_DIGITS_TO_0 = bytes.maketrans(b"123456789", b"000000000")
_NO_HOUR = re.compile(rb"T(?:2[4-9]|[3-9])")
_TO_5 = set(b"012345")
_DAY_OF = itemgetter(slice(10))


def rows(block: Block, find: Find, now: float) -> Iterator[Row | Bad]:
    """Look at a block line by line."""
    for line in block.lines():
        yield line if isinstance(line, Bad) else _row(line, find, now)


def _row(line: Line, find: Find, now: float) -> Row | Bad:
    said, window, time = (line.told.get(name) for name in NAMES)
    if not isinstance(said, str) or said not in SAYS:
        return line.bad(f"event is {shown(said)}, and start, done and fail are known")
    if not isinstance(window, str):
        return line.bad(f"window is {shown(window)}" if "window" in line.told else "it names no window")
    job = line.told.get("job")
    if job is not None and not isinstance(job, str):
        return line.bad(f"job is {shown(job)}")
    found = find(window, job)
    if isinstance(found, str):
        return line.bad(found)
    if not isinstance(time, str):
        return line.bad(f"ts is {shown(time)}" if "ts" in line.told else "it has no ts")
    try:
        at = parse_instant(time)
    except UsageError as error:
        return line.bad(error.sentence.rstrip("."))
    if at > now:
        return line.bad(f"its time {format_instant(at)} is ahead of the clock")
    name, place = found
    return Row(said, name if find.job is None else None, place, at, _others(line.told), line.number)


def _others(told: dict[str, Any]) -> dict[str, Any]:
    """Return the other fields of a line, as far as they are JSON and not too long."""
    others = {name: value for name, value in told.items() if name not in NAMES and name != "job"}
    if not others:
        return others
    try:
        text = json.dumps(others)
    except (ValueError, TypeError, RecursionError):
        return {"left out": "more than can be kept"}
    if len(text) > FIELDS_BYTES or "NaN" in text or "Infinity" in text:
        return {"left out": ", ".join(others)[:200]}
    return others
