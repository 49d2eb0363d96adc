"""Tables of Markdown, from what the code knows and what is told of it."""

from __future__ import annotations

from collections.abc import Iterable, Mapping


def same(what: str, known: Iterable[str], told: Mapping[str, object]) -> None:
    """Stop where what the code knows and what is told of it are not about the same."""
    if missing := set(known) - set(told):
        raise SystemExit(f"tools/ says nothing of these {what}: {', '.join(sorted(missing))}")
    if gone := set(told) - set(known):
        raise SystemExit(f"tools/ knows {what} that the code does not have: {', '.join(sorted(gone))}")


def table(head: tuple[str, ...], rows: Iterable[tuple[str, ...]]) -> str:
    """Return a table."""
    lines = [head, ("---",) * len(head), *rows]
    return "\n".join("| " + " | ".join(cell.replace("|", "\\|") for cell in line) + " |" for line in lines)
