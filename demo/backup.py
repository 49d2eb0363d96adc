"""A nightly backup, as people write them: an archive of a folder, written under another name and then renamed.

usage: backup.py FOLDER ARCHIVE EFFECTS

It knows nothing of `ranonce`. It is slow on purpose, as a polite backup is: it pauses after each file. Each start is
noted in EFFECTS, so that the demo can count what really happened and need not believe the ledger.
"""

from __future__ import annotations

import os
import sys
import tarfile
import time
from pathlib import Path

PAUSE_SECONDS = 1.5  # for the whole folder


def main(folder: Path, archive: Path, effects: Path) -> None:
    """Write the archive."""
    with effects.open("a") as file:
        file.write(f"backup {os.environ['RANONCE_WINDOW']} attempt {os.environ['RANONCE_ATTEMPT']} pid {os.getpid()}\n")
    files = sorted(path for path in folder.rglob("*") if path.is_file() and "__pycache__" not in path.parts)
    part = archive.with_name(archive.name + ".part")
    with tarfile.open(part, "w:gz") as tar:
        for path in files:
            tar.add(path, arcname=str(path.relative_to(folder.parent)))
            time.sleep(PAUSE_SECONDS / len(files))
    part.rename(archive)
    print(f"{len(files)} files of {folder}, {archive.stat().st_size} bytes")


if __name__ == "__main__":
    main(*(Path(argument) for argument in sys.argv[1:]))
