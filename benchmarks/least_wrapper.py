"""The least a Python wrapper can be: a durable claim, a child, a durable done. The limit for `ranonce run`.

Usage: least_wrapper.py DATABASE KEY COMMAND…  Statements: BEGIN IMMEDIATE, one upsert, COMMIT; then the child; then
one update in a transaction of its own. WAL, synchronous=FULL. It exits without closing the database, as `ranonce run`
does.
"""

import os
import sqlite3
import sys
import time


def main() -> None:
    path, key, *command = sys.argv[1:]
    db = sqlite3.connect(path, isolation_level=None, timeout=30)
    db.execute("PRAGMA journal_mode=WAL")
    db.execute("PRAGMA synchronous=FULL")
    db.execute("CREATE TABLE IF NOT EXISTS runs (key TEXT PRIMARY KEY, status TEXT, started REAL, finished REAL)")
    db.execute("BEGIN IMMEDIATE")
    won = db.execute(
        "INSERT INTO runs VALUES (?, 'running', ?, NULL) ON CONFLICT (key) DO NOTHING", (key, time.time())
    ).rowcount
    db.execute("COMMIT")
    if not won:
        os._exit(0)
    pid = os.posix_spawnp(command[0], command, os.environ)
    status = os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
    db.execute("BEGIN IMMEDIATE")
    db.execute("UPDATE runs SET status = 'done', finished = ? WHERE key = ?", (time.time(), key))
    db.execute("COMMIT")
    os._exit(status)


if __name__ == "__main__":
    main()
