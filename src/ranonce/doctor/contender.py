"""One of two processes that want the same locks: a program of its own, so that the locks are those of two processes.

    python contender.py FOLDER [database]

Each line on its input is a request, answered by one line: `take` tries the locks without waiting and says which it
got; `look` says how many rows it sees. Ends, with all its locks, when its input does.
"""

from __future__ import annotations

import fcntl
import os
import sqlite3
import sys


def main(folder: str, *, database: bool) -> None:
    """Answer until the input ends."""
    contender = _Contender(folder) if database else None
    line = os.open(os.path.join(folder, "line"), os.O_RDWR | os.O_CREAT, 0o600)
    for request in sys.stdin:
        if request.strip() == "take":
            got = [*(["flock"] if _take(line) else []), *(["database"] if contender and contender.take() else [])]
            answer = " ".join(got) or "nothing"
        else:
            answer = str(contender.look()) if contender else "0"
        sys.stdout.write(answer + "\n")
        sys.stdout.flush()


def _take(line: int) -> bool:
    try:
        fcntl.flock(line, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


class _Contender:
    """Wants SQLite's write lock. Touches the file at its first request only: by then the other one is through."""

    def __init__(self, folder: str) -> None:
        self._path = os.path.join(folder, "scratch.db")
        self._db: sqlite3.Connection | None = None

    def _opened(self) -> sqlite3.Connection:
        if self._db is None:
            self._db = sqlite3.connect(self._path, timeout=0, isolation_level=None)
            self._db.execute("PRAGMA journal_mode = WAL")
            self._db.execute("CREATE TABLE IF NOT EXISTS seen (one INTEGER)")
        return self._db

    def take(self) -> bool:
        try:
            db = self._opened()
            db.execute("INSERT INTO seen VALUES (1)")
            db.execute("BEGIN IMMEDIATE")
        except sqlite3.OperationalError as error:
            if error.sqlite_errorcode & 0xFF not in (sqlite3.SQLITE_BUSY, sqlite3.SQLITE_LOCKED):
                raise
            return False
        return True

    def look(self) -> int:
        return int(self._opened().execute("SELECT count(*) FROM seen").fetchone()[0])


if __name__ == "__main__":
    main(sys.argv[1], database=sys.argv[2:] == ["database"])
