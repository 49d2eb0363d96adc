"""How answers are printed: plain text that cannot be forged by what stands in the ledger, and JSON."""

from __future__ import annotations

import json
import sys

from ranonce.names import plain
from ranonce.timefmt import format_instant

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence
    from typing import Any


def kept(output: bytes) -> str:
    """Return what a command printed, lines kept, everything else that is not plain text escaped."""
    text = output.decode("utf-8", "backslashreplace")
    return "\n".join(plain(line.replace("\t", "    ")) for line in text.split("\n"))


def write(lines: Iterable[str]) -> None:
    """Print lines; what the terminal's encoding cannot show is escaped."""
    text = "".join(f"{line}\n" for line in lines)
    encoding = getattr(sys.stdout, "encoding", None) or "utf-8"
    sys.stdout.write(text.encode(encoding, "backslashreplace").decode(encoding))


def write_json(told: Mapping[str, Any]) -> None:
    """Print one JSON object on one line, in ASCII."""
    sys.stdout.write(json.dumps(told) + "\n")


def table(head: Sequence[str], rows: Iterable[Sequence[str]]) -> list[str]:
    """Return rows in aligned columns under their head. Cells are made plain."""
    cells = [list(head), *([plain(cell) for cell in row] for row in rows)]
    widths = [max(map(len, column)) for column in zip(*cells, strict=True)]
    return ["  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip() for row in cells]


def instant(at: float | None) -> str:
    """Print an instant for people, `-` for none."""
    return "-" if at is None else format_instant(at)


def with_instants(facts: Mapping[str, Any]) -> dict[str, Any]:
    """Return facts for machines: instants (names that are `at`, or end in `_at`) as RFC 3339, no empty ones."""
    return {
        name: format_instant(value, precision="ms") if name == "at" or name.endswith("_at") else value
        for name, value in facts.items()
        if value is not None
    }
