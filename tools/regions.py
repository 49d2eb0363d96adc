"""Fill the generated regions of a Markdown file, or say that they are out of date.

A region stands between `<!-- generated: NAME -->` and `<!-- end: NAME -->`. Everything around it is written by hand.
"""

from __future__ import annotations

import difflib
import re
import sys
from collections.abc import Mapping
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
REGION = re.compile(r"<!-- generated: (?P<name>\S+) -->\n.*?<!-- end: (?P=name) -->", re.DOTALL)


def fill(page: str, regions: Mapping[str, str]) -> str:
    """Return the page with its regions filled. KeyError for a region nobody writes, ValueError for one it lacks."""
    found: list[str] = []

    def written(match: re.Match[str]) -> str:
        name = match["name"]
        found.append(name)
        return f"<!-- generated: {name} -->\n\n{regions[name].strip()}\n\n<!-- end: {name} -->"

    filled = REGION.sub(written, page)
    if missing := regions.keys() - set(found):
        raise ValueError(f"the page has no region {', '.join(sorted(missing))}")
    return filled


def write_or_check(path: Path, regions: Mapping[str, str], *, check: bool) -> int:
    """Write the page with its regions filled, or with `check` only compare; return the exit status."""
    before = path.read_text(encoding="utf-8")
    after = fill(before, regions)
    if before == after:
        return 0
    if not check:
        path.write_text(after, encoding="utf-8")
        print(f"{path.relative_to(ROOT)} is written again.")
        return 0
    name = str(path.relative_to(ROOT))
    sys.stdout.writelines(
        difflib.unified_diff(before.splitlines(True), after.splitlines(True), name, f"{name} as the code says")
    )
    print(f"{name} is out of date. Write it again: make docs")
    return 1
