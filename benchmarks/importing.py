"""A hand-made ledger of JSON lines: read and probed, and imported durably; whole processes, from start to end.

The limit of reading is the way of the published probe: each line through `json.loads` into a list, then windows in
dictionaries of starts and completions, then what is missing a verdict and what has two. The limit of importing is the
same rows and events, made ready beforehand, through `executemany` in one transaction, WAL and synchronous=FULL.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta

from benchmarks.claims import LEDGER_ID
from benchmarks.installation import Installation, finished
from benchmarks.measure import MEGABYTES, SECONDS, Line, Sizes, beside, in_turn, subfolder, within
from ranonce.stores.sqlite.create import create

MOST_MEMORY = 100_000_000
FIRST = datetime(1967, 1, 1, tzinfo=UTC)

PUBLISHED_PROBE = """
import json, sys
rows = [json.loads(line) for line in open(sys.argv[1]).read().splitlines() if line.strip()]
starts, dones = {}, {}
for row in rows:
    kind = starts if row["event"] == "start" else dones if row["event"] == "done" else None
    if kind is not None:
        kind.setdefault(row["window"], []).append(row)
zombies = [window for window in starts if window not in dones]
dupes = [window for window in dones if len(dones[window]) > 1]
print(len(starts), len(zombies), len(dupes))
"""
BARE_INSERTS = """
import json, sqlite3, sys
runs, events = [], []
for number, line in enumerate(open(sys.argv[1])):
    told = json.loads(line)
    if number % 2 == 0:
        runs.append((number, told["window"], "done", told["ts"], "imported", "{}"))
    events.append((told["ts"], number // 2, told["window"], told["event"], "imported", "{}"))
db = sqlite3.connect(sys.argv[2], isolation_level=None)
db.execute("PRAGMA journal_mode = WAL")
db.execute("PRAGMA synchronous = FULL")
db.execute("CREATE TABLE runs (start INTEGER, window TEXT, status TEXT, at TEXT, owner TEXT, data TEXT,"
           " PRIMARY KEY (start, window)) WITHOUT ROWID")
db.execute("CREATE TABLE events (seq INTEGER PRIMARY KEY, at TEXT, start INTEGER, window TEXT, event TEXT, owner TEXT,"
           " data TEXT)")
db.execute("CREATE INDEX events_of_window ON events (start)")
db.execute("BEGIN")
db.executemany("INSERT INTO runs VALUES (?, ?, ?, ?, ?, ?)", runs)
db.executemany("INSERT INTO events (at, start, window, event, owner, data) VALUES (?, ?, ?, ?, ?, ?)", events)
db.execute("COMMIT")
"""


def hand_made(folder: str, sizes: Sizes) -> Iterator[Line]:
    """A script's ledger, every hour started and done, but for a few: read and probed, and imported."""
    installed = Installation(folder)
    path = _written(folder, sizes.imported_lines)
    store = os.path.join(subfolder(folder, "ledger"), "ledger.db")
    create(store, LEDGER_ID)
    environment = installed.environment(RANONCE_STORE=f"sqlite:///{store}", RANONCE_LEDGER=LEDGER_ID)
    words = [installed.ranonce, "import", path, "--job", "load", "--every", "hour"]
    rehearsal, published = [*words, "--dry-run"], [installed.python, "-c", PUBLISHED_PROBE, path]
    what = f"{sizes.imported_lines:,} JSON lines"

    def took(command: list[str]) -> float:
        return finished(command, environment).seconds

    seconds = in_turn(sizes.imports, lambda: took(rehearsal), lambda: took(published))
    yield beside(f"{what} read and probed, beside the published probe", SECONDS, *seconds, at_most=0.2)
    yield within(
        f"{what} read and probed, memory", MEGABYTES, installed.peak_memory(rehearsal, environment), MOST_MEMORY
    )
    bare = os.path.join(folder, "bare.db")
    seconds = [[took(words)], [took([installed.python, "-c", BARE_INSERTS, path, bare])]]
    yield beside(f"{what} imported, beside bare inserts of as much", SECONDS, *seconds, at_most=8)
    again = installed.peak_memory(words, environment)
    yield within(f"{what} imported again, memory", MEGABYTES, again, MOST_MEMORY)


def _written(folder: str, count: int) -> str:
    """Write a ledger of so many lines; one window in a thousand failed first, one has two completions."""
    path = os.path.join(folder, "runs.jsonl")
    written = hour = 0
    with open(path, "w", encoding="ascii") as file:
        while written < count:
            begins = FIRST + timedelta(hours=hour)
            said = ["start", "done"]
            if hour % 1000 == 500:
                said = ["start", "fail", "start", "done"]
            elif hour % 1000 == 900:
                said = ["start", "done", "done"]
            for number, event in enumerate(said):
                at = (begins + timedelta(seconds=3 + 60 * number)).strftime("%Y-%m-%dT%H:%M:%SZ")
                file.write(f'{{"event":"{event}","window":"{begins:%Y-%m-%dT%H}","ts":"{at}"}}\n')
            written += len(said)
            hour += 1
    return path
