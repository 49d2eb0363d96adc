"""Named statements in files of their own: `-- name: NAME`, a sentence, then SQL up to the next name."""

from __future__ import annotations

import os


def load(filename: str) -> dict[str, str]:
    """Return the statements of a file beside this module, by name, without their comments."""
    path = os.path.join(os.path.dirname(__file__), filename)
    with open(path, encoding="utf-8") as file:
        sections = file.read().split("-- name: ")[1:]
    found = {}
    for section in sections:
        name, _, body = section.partition("\n")
        found[name] = "\n".join(line for line in body.splitlines() if not line.startswith("--")).strip()
    return found
