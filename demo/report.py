"""A nightly report: which shells the accounts of this machine have, as JSON.

usage: report.py DATE SOURCE REPORT EFFECTS

SOURCE is a file like /etc/passwd; of any other it counts the last field of each line that has colons.
"""

from __future__ import annotations

import json
import os
import sys
from collections import Counter
from pathlib import Path


def main(date: str, source: Path, report: Path, effects: Path) -> None:
    """Write the report."""
    with effects.open("a") as file:
        file.write(f"report {date} attempt {os.environ['RANONCE_ATTEMPT']} pid {os.getpid()}\n")
    lines = source.read_text(encoding="utf-8", errors="replace").splitlines()
    shells = Counter(line.rpartition(":")[2] for line in lines if ":" in line and not line.startswith("#"))
    told = {"date": date, "source": str(source), "lines": len(lines), "shells": dict(shells.most_common())}
    report.write_text(json.dumps(told, indent=2) + "\n", encoding="utf-8")
    print(f"{len(lines)} lines of {source}, {len(shells)} shells")


if __name__ == "__main__":
    main(sys.argv[1], *(Path(argument) for argument in sys.argv[2:]))
