"""Read a file of JSON lines, however damaged: every record that is whole, and the place of everything that is not.

Records are parsed, never searched for: half a line is no record, a name that stands twice in an object makes it none,
and a text that looks like a record inside another stays a text. NUL bytes at either end of a line (what a power cut
leaves) are passed over, and so is a byte order mark; two whole records on one line are two records.

A file is read in blocks of whole lines, so it may be of any length. A block in which all lines are built alike, of
plain texts, is cut into columns at once: a line costs a fraction of what parsing it does, and the block is checked to
be exactly that before any of it counts. All other blocks are parsed line by line.
"""

from __future__ import annotations

import json

from ranonce.record import Record
from ranonce.timefmt import shown

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterator
    from typing import Any, BinaryIO

BLOCK_BYTES = 256 * 1024
#: A longer line is no record of anybody's.
LONGEST_LINE = 1 << 20
PRINTABLE = bytes(range(0x20, 0x7F))
_SEPARATORS = (b"\x1d", b"\x1e", b"\x1f", b"\x1c", b"\x01", b"\x02", b"\x03", b"\x04")
_ONE_SEPARATOR = bytes.maketrans(b"".join(_SEPARATORS), _SEPARATORS[0] * len(_SEPARATORS))


class Bad(Record):
    """A place of a file that could not be read, and why. `line` counts from 1, `offset` is in bytes; for a table,
    `place` names the row."""

    why: str
    line: int | None = None
    offset: int | None = None
    place: str | None = None

    def __str__(self) -> str:
        where = self.place if self.place is not None else f"line {self.line} (byte {self.offset})"
        return f"{where}: {self.why}"


class Line(Record):
    """One record: an object, and where its line begins."""

    told: dict[str, Any]
    number: int
    offset: int

    def bad(self, why: str) -> Bad:
        """Return that this line is none after all."""
        return Bad(why, self.number, self.offset)


class Block(Record):
    """Some whole lines of a file, and where the first of them begins."""

    data: bytes
    number: int
    offset: int

    def lines(self) -> Iterator[Line | Bad]:
        """Parse line by line."""
        offset = self.offset
        for number, line in enumerate(self.data.split(b"\n"), self.number):
            if line and not line.isspace():
                yield from _parsed(line, number, offset)
            offset += len(line) + 1

    def columns(self, names: tuple[str, ...]) -> list[list[str]] | None:
        """Return the values of the lines, name by name, if each line is an object of exactly these names, in this
        order and spacing, with plain ASCII texts for values. None for any other block."""
        return _columns(self.data, names)


def blocks(file: BinaryIO) -> Iterator[Block | Bad]:
    """Read a file in blocks of whole lines; a line that is far too long is passed over."""
    number, offset = 1, 0
    while data := file.read(BLOCK_BYTES):
        rest = b"" if data.endswith(b"\n") else file.readline(LONGEST_LINE)
        data += rest
        if offset == 0 and data.startswith(b"\xef\xbb\xbf"):
            offset, data = 3, data[3:]
        lines = data.count(b"\n")
        if rest and not rest.endswith(b"\n") and len(rest) == LONGEST_LINE:
            begun = data.rfind(b"\n") + 1
            yield Block(data[:begun], number, offset)
            yield Bad(f"a line of more than {LONGEST_LINE:,} bytes", number + lines, offset + begun)
            offset += len(data) + _skip_line(file)
            number += lines + 1
            continue
        yield Block(data, number, offset)
        number, offset = number + lines, offset + len(data)


def _skip_line(file: BinaryIO) -> int:
    skipped = 0
    while piece := file.readline(LONGEST_LINE):
        skipped += len(piece)
        if piece.endswith(b"\n"):
            break
    return skipped


# --- line by line ---------------------------------------------------------------------------------------------------


def _once(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    told = dict(pairs)
    if len(told) != len(pairs):
        names = [name for name, _ in pairs]
        twice = next(name for name in names if names.count(name) > 1)
        raise ValueError(f"{shown(twice)} stands twice in an object")
    return told


_DECODER = json.JSONDecoder(object_pairs_hook=_once)
_BLANK = " \t\r\n\0"


def _parsed(line: bytes, number: int, offset: int) -> Iterator[Line | Bad]:
    """Parse one line: ordinarily one object, at worst several whole ones and a rest."""
    try:
        text = line.decode("utf-8")
    except UnicodeDecodeError as error:
        yield Bad(f"it is not UTF-8 from byte {error.start} of the line on", number, offset)
        return
    if not text.strip(_BLANK):
        yield Bad(f"{len(line)} bytes of nothing (NUL)", number, offset)
        return
    at, end = len(text) - len(text.lstrip(_BLANK)), len(text.rstrip(_BLANK))
    while at < end:
        try:
            value, after = _DECODER.raw_decode(text, at)
        except json.JSONDecodeError as error:
            cut = error.pos >= end - 1 or error.msg.startswith("Unterminated string")
            torn = "it ends in the middle of a record" if cut else f"it is not JSON: {error.msg}"
            yield Bad(torn if at == 0 else f"after a whole record: {torn}", number, offset + _bytes(text[:at]))
            return
        except (ValueError, RecursionError) as error:
            nested = isinstance(error, RecursionError)
            yield Bad("it is nested too deeply" if nested else str(error), number, offset + _bytes(text[:at]))
            return
        if isinstance(value, dict):
            yield Line(value, number, offset + _bytes(text[:at]))
        else:
            yield Bad(f"it is no object: {shown(value)}", number, offset + _bytes(text[:at]))
        at = after + len(text[after:]) - len(text[after:].lstrip(_BLANK))


def _bytes(text: str) -> int:
    return len(text.encode("utf-8"))


# --- column by column -----------------------------------------------------------------------------------------------


def _columns(data: bytes, names: tuple[str, ...]) -> list[list[str]] | None:
    """Cut a block at the texts that stand between its values.

    Where nothing but printable ASCII and line ends is left, no quote and no backslash remains after all the texts that
    surround values are taken away, and these follow each other in the same order in every line, each line is exactly
    one object of plain texts.
    """
    count = data.count(b"\n")
    if not data.endswith(b"\n") or data.translate(None, PRINTABLE) != b"\n" * count:
        return None
    for colon, comma in ((b":", b","), (b": ", b", ")):
        quoted = [b'"' + name.encode() + b'"' + colon + b'"' for name in names]
        head, between = b"{" + quoted[0], [b'"' + comma + each for each in quoted[1:]]
        if data.startswith(head):
            break
    else:
        return None
    tail = b'"}\n'
    if not data.endswith(tail):
        return None
    values = data[len(head) : -len(tail)].replace(tail + head, _SEPARATORS[0])
    marks = _SEPARATORS[1 : len(names)]
    for text, mark in zip(between, marks, strict=True):
        values = values.replace(text, mark)
    if b'"' in values or b"\\" in values or b"\n" in values:
        return None
    order = (b"".join(marks) + _SEPARATORS[0]) * count
    if values.translate(None, PRINTABLE) != order[:-1]:
        return None
    cells = values.translate(_ONE_SEPARATOR).decode("ascii").split(_SEPARATORS[0].decode())
    return [cells[at :: len(names)] for at in range(len(names))]
