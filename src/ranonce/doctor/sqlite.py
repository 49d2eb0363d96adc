"""A ledger in a SQLite file: where it lies, how it is written, and whether it is whole. Asked of SQLite itself."""

from __future__ import annotations

import os
import sqlite3
import time
from contextlib import closing, suppress

from ranonce.doctor import locks, places
from ranonce.doctor.finding import RESTORE, Check
from ranonce.errors import RanonceError
from ranonce.names import plain, shown_path
from ranonce.stores.sqlite.file import quoted
from ranonce.stores.sqlite.store import SqliteStore
from ranonce.storeurl import sqlite_path

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterator

    from ranonce.doctor.finding import Finding
    from ranonce.doctor.kinds import Step
    from ranonce.stores.base import Store

RESTORE_OLDER = "restore the ledger from a backup of before that (ranonce backup), and see who may write the file"
#: Up to this size a file is checked as a whole in an instant; a larger one only with --deep.
SMALL_BYTES = 64 << 20
#: Without --deep, a large file is looked through for so long.
PLAIN_SECONDS = 5.0
#: The WAL is written back every 200 pages, or every 1000; one this large is held open by a reader that does not end.
LARGE_WAL_BYTES = 64 << 20
#: What cannot stand in the tables, as sentences: they keep accounts of each other.
CONTRADICTIONS = """
SELECT 'events of the job ' || job || ' may be removed at any time: the door that only pruning opens was left open'
FROM pruning
UNION ALL
SELECT 'it says that events up to ' || pruned_seq || ' were pruned, and there are none after '
    || (SELECT coalesce(max(seq), 0) FROM events) || ': what is lost would not be missed'
FROM ledger WHERE pruned_seq > (SELECT coalesce(max(seq), 0) FROM events)
UNION ALL
SELECT 'it is in epoch ' || ledger.epoch || ', and the last loss that was accepted began epoch '
    || (SELECT coalesce(max(epoch), 1) FROM epochs)
FROM ledger WHERE ledger.epoch <> (SELECT coalesce(max(epoch), 1) FROM epochs)
UNION ALL
SELECT 'the job ' || job || ' should have ' || schedules || ' versions of its schedule, and has '
    || (SELECT count(*) FROM schedules AS kept WHERE kept.job = jobs.job)
FROM jobs WHERE schedules <> (SELECT count(*) FROM schedules AS kept WHERE kept.job = jobs.job)
UNION ALL
SELECT 'the job ' || job || ' has a schedule, and is none of the jobs'
FROM schedules WHERE job NOT IN (SELECT job FROM jobs)
"""


def before(url: str, accepted: str | None) -> Iterator[Finding]:
    """Look at the file's folder. `accepted` is why a place that may be lost was accepted, if it was."""
    path = sqlite_path(url)
    assert path is not None
    above = os.path.dirname(path)
    if not os.path.isdir(above):
        return
    yield from places.file_system(above, "store-place", accepted=accepted)
    yield from places.owners([above, path], "store-owner", private=True)
    yield locks.contest(above, "store-locks", database=True)


def steps(store: Store, *, deep: bool) -> list[Step]:
    """Return what is looked at in the open file."""
    assert isinstance(store, SqliteStore)
    return [
        ("durability", lambda: settings(store)),
        ("tables", lambda: schema(store)),
        ("integrity", lambda: integrity(store, deep=deep)),
    ]


def let_go(store: Store) -> None:
    """Close the store. Whoever closes a SQLite file as the last one writes its log back into it, and one that may be
    damaged is to stay as it was found: so the last one here is one that can only read."""
    if not isinstance(store, SqliteStore) or not _has_log(store.path):
        store.close()
        return
    with closing(sqlite3.connect(f"file:{quoted(store.path)}?mode=ro", uri=True)) as reader:
        with suppress(sqlite3.Error):
            reader.execute("SELECT count(*) FROM sqlite_schema").fetchone()
        store.close()


def _has_log(path: str) -> bool:
    try:
        return os.stat(path + "-wal").st_size > 0
    except OSError:
        return False


def settings(store: SqliteStore) -> Iterator[Finding]:
    """See that what makes a commit durable is really on."""
    check = Check("durability", "asked SQLite how it writes")
    mode = str(store.ask("PRAGMA journal_mode")[0][0])
    synchronous = int(store.ask("PRAGMA synchronous")[0][0])
    if mode != "wal":
        step = "stop the jobs and set it back: sqlite3 FILE 'PRAGMA journal_mode = WAL'"
        yield check.problem(f"journal_mode is {mode}, not wal", step)
    if synchronous < 2:
        yield check.problem(f"synchronous is {synchronous}, not FULL: a power cut may lose commits", "report this")
    if mode == "wal" and synchronous >= 2:
        yield check.ok("WAL, and every commit is synced (synchronous=FULL)")
    yield from _beside(check, store.path)


def _beside(check: Check, path: str) -> Iterator[Finding]:
    """Look at the files that SQLite keeps beside the ledger."""
    try:
        owner = os.stat(path).st_uid
        beside = {
            suffix: os.stat(path + suffix) for suffix in ("-wal", "-shm", "-line") if os.path.exists(path + suffix)
        }
    except OSError:
        return  # gone meanwhile
    for suffix, about in beside.items():
        if about.st_uid != owner:
            seen = f"{shown_path(path + suffix)} belongs to uid {about.st_uid}, the ledger to uid {owner}"
            yield check.problem(f"{seen}, who may not be able to use it", f"chown {owner} {shown_path(path + suffix)}")
    if "-wal" in beside and beside["-wal"].st_size > LARGE_WAL_BYTES:
        size = beside["-wal"].st_size >> 20
        step = f"look for a program that has the file open and reads for ever (fuser {shown_path(path)})"
        yield check.note(f"{shown_path(path)}-wal has grown to {size} MiB", step)


def schema(store: SqliteStore) -> Iterator[Finding]:
    """See that the tables, and the triggers that keep events from being changed, are those of this version."""
    check = Check("tables", "compared tables, indexes and triggers with those of this version")
    wanted, found = _described(_fresh()), _described(store.connection)
    missing = [f"the {kind} {name} is missing" for kind, name in wanted if (kind, name) not in found]
    changed = [
        f"the {kind} {name} is not what it should be"
        for (kind, name), text in wanted.items()
        if (kind, name) in found and found[kind, name] != text
    ]
    foreign = [
        f"there is a trigger {name} that is not ours"
        for kind, name in found
        if kind == "trigger" and (kind, name) not in wanted
    ]
    contradictions = () if missing or changed else [sentence for (sentence,) in store.ask(CONTRADICTIONS)]
    for seen in (*missing, *changed, *foreign, *contradictions):
        yield check.problem(
            plain(seen), "somebody has changed the tables by hand: see who may write the file; " + RESTORE
        )
    if not (missing or changed or foreign or contradictions):
        yield check.ok("they are")


def _fresh() -> sqlite3.Connection:
    from ranonce.stores.sqlite.create import read_schema

    db = sqlite3.connect(":memory:")
    db.executescript(read_schema())
    return db


def _described(db: sqlite3.Connection) -> dict[tuple[str, str], str]:
    """Return each table by its columns, each index and trigger by its text."""
    told: dict[tuple[str, str], str] = {}
    rows = db.execute("SELECT type, name, sql FROM sqlite_schema WHERE name NOT LIKE 'sqlite_%'").fetchall()
    for kind, name, text in rows:
        if kind == "table":
            columns = db.execute('SELECT name, type, "notnull", pk FROM pragma_table_info(?)', (name,)).fetchall()
            told[kind, name] = repr(sorted(columns))
        else:
            told[kind, name] = " ".join(str(text).split())
    return told


def integrity(store: SqliteStore, *, deep: bool) -> Iterator[Finding]:
    """Let SQLite check the file: small ones wholly; large ones, without `deep`, as far as a short time goes."""
    size = os.stat(store.path).st_size
    whole = deep or size <= SMALL_BYTES
    how = "the whole file and every index" if whole else "the pages of the file, not its indexes"
    check = Check("integrity", f"checked {how} ({size / (1 << 20):.1f} MiB)")
    try:
        with _TimeLimit(store, None if whole else PLAIN_SECONDS) as limit:
            found = store.upkeep().problems(deep=whole)
    except RanonceError as error:
        if limit.over:
            yield check.note(f"nothing wrong in the first {PLAIN_SECONDS:g} seconds", "ranonce doctor --deep")
        else:
            yield check.problem(error.sentence, RESTORE)
        return
    for line in found:
        yield check.problem(plain(line), RESTORE)
    if not found:
        yield check.ok("nothing is wrong" + ("" if whole else "; --deep looks at the indexes too"))


class _TimeLimit:
    """Interrupts what SQLite does in its block after so many seconds; `over` says whether it did."""

    def __init__(self, store: SqliteStore, seconds: float | None) -> None:
        self._db = store.connection
        self._seconds = seconds
        self.over = False

    def __enter__(self) -> _TimeLimit:
        if self._seconds is not None:
            give_up = time.monotonic() + self._seconds
            self._db.set_progress_handler(lambda: self._look(give_up), 100_000)
        return self

    def _look(self, give_up: float) -> int:
        self.over = self.over or time.monotonic() > give_up
        return int(self.over)

    def __exit__(self, *_: object) -> None:
        self._db.set_progress_handler(None, 0)
