"""Say what a file holds, by looking at it: names and endings of files lie."""

from __future__ import annotations

import os
import stat

from ranonce.errors import UsageError
from ranonce.exchange.lines import Bad, Line, blocks
from ranonce.timefmt import shown

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import BinaryIO

#: The formats, and what each is.
FORMATS = {
    "export": "an export of a ranonce ledger",
    "journal": "the journal of a host",
    "receipts": "receipts of ranonce, as JSON lines",
    "lines": "a script's start, done and fail lines",
    "runs": "a script's SQLite table runs",
    "receipts-table": "a script's SQLite table receipts",
}
SQLITE = b"SQLite format 3\0"
#: Files of other kinds that people have, by how they begin, and what to do with them first.
PACKED = {
    b"\x1f\x8b": ("packed (gzip)", "gunzip"),
    b"\x28\xb5\x2f\xfd": ("packed (zstd)", "unzstd"),
    b"BZh": ("packed (bzip2)", "bunzip2"),
    b"PK\x03\x04": ("packed (zip)", "unzip"),
    b"\xff\xfe": ("UTF-16 text", "iconv -f UTF-16 -t UTF-8"),
    b"\xfe\xff": ("UTF-16 text", "iconv -f UTF-16 -t UTF-8"),
}
#: So many lines are looked at for one that says what they are.
LOOKED_AT = 1000


def open_plain(path: str) -> BinaryIO:
    """Open a regular file to read from its beginning. UsageError for anything else."""
    try:
        fd = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    except OSError as error:
        raise UsageError(f"{path!r} cannot be read: {error.strerror}.", "Nothing was imported.") from error
    if not stat.S_ISREG(os.fstat(fd).st_mode):
        os.close(fd)
        raise UsageError(f"{path!r} is no regular file.", "Nothing was imported; name a file.")
    return open(fd, "rb")


def recognise(path: str) -> str:
    """Return the format of a file. UsageError where it has none of ours."""
    with open_plain(path) as file:
        begin = file.read(16)
        if begin == SQLITE:
            from ranonce.exchange.tables import kind_of

            return "runs" if kind_of(path) == "runs" else "receipts-table"
        for magic, (what, unpack) in PACKED.items():
            if begin.startswith(magic):
                raise UsageError(f"{path!r} is {what}.", f"Nothing was imported. First: {unpack}")
        file.seek(0)
        first: Bad | None = None
        looked = 0
        for block in blocks(file):
            for line in [block] if isinstance(block, Bad) else block.lines():
                if isinstance(line, Line) and (found := _format_of(line)) is not None:
                    return found
                first = first or (line if isinstance(line, Bad) else line.bad(f"it says {shown(line.told)}"))
                looked += 1
                if looked >= LOOKED_AT:
                    break
            if looked >= LOOKED_AT:
                break
    why = f"; {first}" if first is not None else ": it is empty"
    raise UsageError(f"{path!r} is no ledger that can be recognised{why}.", f"Say what it is: --as {'|'.join(FORMATS)}")


def _format_of(line: Line) -> str | None:
    names = line.told.keys()
    if line.told.get("ranonce") == "export":
        return "export"
    if names >= {"len", "crc", "fact"}:
        return "journal"
    if names >= {"event", "job", "exit", "window"}:
        return "receipts"
    return "lines" if names >= {"event", "window"} else None
