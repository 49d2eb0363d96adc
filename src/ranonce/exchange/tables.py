"""Read the SQLite ledgers that scripts keep: `runs` with an `outbox`, or `receipts`. Never written to, never trusted.

Only real tables are read, row by row, whatever stands in them: SQLite keeps any type in any column, and a view could
be made to do anything. A row whose run was claimed and has no end is a crash, or still at work: it is held. A receipt
says only that a window was claimed; since its script never does that window again, it counts as done.
"""

from __future__ import annotations

import os
import sqlite3
from contextlib import closing

from ranonce.errors import StoreUnavailable, UsageError
from ranonce.exchange.lines import Bad
from ranonce.lifecycle import DONE, FAILED, HELD, Event, Run, RunKey
from ranonce.merging import Told, folded, state_of
from ranonce.record import Record
from ranonce.timefmt import checked, parse_instant, shown

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterator
    from typing import Any

    from ranonce.exchange.lookup import Find, Place

OWNER = "imported"
RUNS = ("idem_key", "status", "owner", "attempts", "started_at", "finished_at")
RECEIPTS = ("key", "claimed_at")
OUTBOX = ("idem_key", "sent_at")
WAL_MODE = b"\x02\x02"  # bytes 18 and 19 of the file. Source: sqlite.org/fileformat.html
BUSY_SECONDS = 5.0
LONGEST_TEXT = 200  # of what is kept as data


class _Row(Record):
    """One row that tells of a window."""

    place: Place
    job: str
    status: str
    began: float
    ended: float
    data: dict[str, Any]


class Tables:
    """A SQLite file of a script. `unsent` counts its messages that were never sent."""

    def __init__(self, path: str, find: Find, now: float, *, unfinished: str = HELD) -> None:
        self.path = path
        self.find = find
        self.now = now
        self.unfinished = unfinished
        self.unsent = 0

    def read(self, kind: str) -> Iterator[Told | Bad]:
        """Yield the stories of the table `kind` (runs or receipts), window after window, and rows that are none."""
        with closing(open_foreign(self.path)) as db:
            rows = self._runs(db) if kind == "runs" else self._receipts(db)
            job_and_start, story = None, list[_Row]()
            try:
                for row in rows:
                    if isinstance(row, Bad):
                        yield row
                        continue
                    where = (row.job, row.place.window.start)
                    if where != job_and_start and story:
                        yield self._told(story)
                        story = []
                    job_and_start = where
                    story.append(row)
            except sqlite3.Error as error:
                yield Bad(f"the file is damaged from here on: {error}", place=f"table {kind}")
            if story:
                yield self._told(story)

    def _runs(self, db: sqlite3.Connection) -> Iterator[_Row | Bad]:
        unsent = self._outbox(db)
        query = f"SELECT {', '.join(RUNS)} FROM runs ORDER BY idem_key, started_at"  # noqa: S608 - names of our own
        for number, (key, status, owner, attempts, started, finished) in enumerate(db.execute(query), 1):
            where = f"row {number} of runs ({shown(_text(key))})"
            try:
                job, place, digest = self._place(key)
                if status not in (b"done", b"failed", b"running"):
                    raise UsageError(f"status is {shown(_text(status))}")
                began = self._instant("started_at", started)
                ended = began if finished is None else self._instant("finished_at", finished)
                if status == b"done" and finished is None:
                    raise UsageError("it is done, and finished_at is empty")
            except UsageError as error:
                yield Bad(error.sentence.rstrip("."), place=where)
                continue
            data = {"owner": _short(_text(owner)), "attempts": attempts if isinstance(attempts, int) else None}
            if digest:
                data["digest"] = digest
            if _text(key) in unsent:
                data["outbox"] = "never sent"
            yield _Row(place, job, status.decode(), began, max(began, ended), {"imported": "runs", "fields": data})

    def _outbox(self, db: sqlite3.Connection) -> set[str | None]:
        """Return the keys of the messages that were never sent."""
        if not _has(db, "outbox", OUTBOX):
            return set()
        unsent = {_text(key) for (key,) in db.execute("SELECT idem_key FROM outbox WHERE sent_at IS NULL")}
        self.unsent = len(unsent)
        return unsent

    def _receipts(self, db: sqlite3.Connection) -> Iterator[_Row | Bad]:
        for number, (key, claimed) in enumerate(db.execute("SELECT key, claimed_at FROM receipts ORDER BY key"), 1):
            try:
                job, place, digest = self._place(key)
                at = self._instant("claimed_at", claimed)
            except UsageError as error:
                where = f"row {number} of receipts ({shown(_text(key))})"
                yield Bad(error.sentence.rstrip("."), place=where)
                continue
            data = {"claimed": True, **({"digest": digest} if digest else {})}
            yield _Row(place, job, DONE, at, at, {"imported": "receipts-table", "fields": data})

    def _place(self, key: object) -> tuple[str, Place, str | None]:
        text = _text(key)
        if text is None:
            raise UsageError(f"its key is {shown(key)}")
        found = self.find(text)
        if isinstance(found, str):
            raise UsageError(found)
        job, place = found
        digest = text.rpartition(":")[2] if text.count(":") > 1 else ""
        return job, place, _short(digest) if digest and not digest.strip("0123456789abcdefABCDEF") else None

    def _instant(self, name: str, value: object) -> float:
        if isinstance(value, (int, float)):
            at = float(checked(value))
        elif (text := _text(value)) is not None:
            at = _seconds(text) or float(parse_instant(text))
        else:
            raise UsageError(f"{name} is {shown(value)}")
        if at > self.now:
            raise UsageError(f"{name} is ahead of the clock")
        return at

    def _told(self, rows: list[_Row]) -> Told:
        """Tell of one window: its rows are attempts, in the order they began. Done once, it stays done."""
        first = rows[0]
        rows = sorted(rows, key=lambda row: row.began)
        window = first.place.window
        key = RunKey(first.job, window.key)
        events: list[Event] = []

        def add(event: str, at: float, attempt: int, reason: str | None, data: dict[str, Any]) -> None:
            events.append(Event(at, key, window.start, event, attempt, 1, reason, OWNER, "import", data=data))

        done = False
        for attempt, row in enumerate(rows, 1):
            source = {"imported": row.data["imported"]}
            add("start", row.began, attempt, "imported", source)
            if row.status == "running":
                add("expired", row.ended, attempt, "no verdict", source)
                if not done:
                    add(self.unfinished, row.ended, attempt, "crashed", row.data)
            else:
                add(DONE if row.status == DONE else FAILED, row.ended, attempt, None, row.data)
            if done and row.status != DONE:
                add("released", row.ended, attempt, "it was done before", {**source, "as": "done", "by": "import"})
            done = done or row.status == DONE
        bare = Run(key, window.start, window.end, "", 1, 1, OWNER, 0, first.place.schedule, "import", 0.0)
        return Told(state_of(folded(events), bare), tuple(events))


def kind_of(path: str) -> str:
    """Return which of the tables a SQLite file has: `runs` or `receipts`. UsageError for any other file."""
    try:
        with closing(open_foreign(path)) as db:
            if db.execute("PRAGMA application_id").fetchone()[0] == 0x72616E6F:
                raise UsageError(
                    f"{path!r} is a ranonce ledger.", f"Export it there: ranonce export --store sqlite://{path} -o FILE"
                )
            if _has(db, "runs", RUNS):
                return "runs"
            if _has(db, "receipts", RECEIPTS):
                return "receipts"
            found = [row[0].decode("utf-8", "replace") for row in db.execute("SELECT name FROM sqlite_schema LIMIT 9")]
    except sqlite3.Error as error:
        raise UsageError(f"{path!r} cannot be read: {error}.", "Nothing was imported.") from error
    wanted = "neither a table runs (idem_key, status …) nor receipts (key, claimed_at)"
    raise UsageError(f"{path!r} has {wanted}; it has {', '.join(map(repr, found)) or 'nothing'}.", "")


def open_foreign(path: str) -> sqlite3.Connection:
    """Open a SQLite file that must not change, with what its log still holds.

    Without a log nobody has it open in WAL mode, and it is read as it is, so that no file is made beside it. Source:
    sqlite.org/wal.html, read-only databases.
    """
    from ranonce.stores.sqlite.file import quoted

    try:
        with open(path, "rb") as file:
            header = file.read(100)
        log = path + "-wal"
        quiet = header[18:20] == WAL_MODE and (not os.path.exists(log) or os.path.getsize(log) == 0)
    except OSError as error:
        raise UsageError(f"{path!r} cannot be read: {error.strerror}.", "Nothing was imported.") from error
    how = "immutable=1" if quiet else "mode=ro"
    absolute = quoted(os.path.abspath(path))
    try:
        db = sqlite3.connect(f"file:{absolute}?{how}", uri=True, isolation_level=None, timeout=BUSY_SECONDS)
    except sqlite3.Error as error:
        raise StoreUnavailable(f"{path!r} cannot be opened: {error}.", "Nothing was imported.") from error
    db.text_factory = bytes
    db.execute("PRAGMA trusted_schema = OFF")
    db.execute("PRAGMA query_only = ON")
    db.execute("PRAGMA cell_size_check = ON")
    return db


def _has(db: sqlite3.Connection, table: str, columns: tuple[str, ...]) -> bool:
    """Whether there is a real table of this name with these columns: no view, nothing virtual."""
    found = db.execute("SELECT type, sql FROM sqlite_schema WHERE name = ?", (table,)).fetchone()
    if found is None or found[0] != b"table" or not isinstance(found[1], bytes):
        return False
    if found[1].lstrip().upper().startswith(b"CREATE VIRTUAL"):
        return False
    names = {row[1].decode("utf-8", "replace") for row in db.execute(f"PRAGMA table_info({table})")}
    return names >= set(columns)


def _seconds(text: str) -> float | None:
    """Return unix seconds that stand in a column of text, or None: no year is that long."""
    whole, _, fraction = text.partition(".")
    digits = whole + fraction
    return float(checked(float(text))) if len(whole) in (10, 11) and digits.isascii() and digits.isdigit() else None


def _short(text: str | None) -> str | None:
    """Return a text as it is kept: nobody's owner or digest is that long."""
    return text if text is None or len(text) <= LONGEST_TEXT else f"{text[:LONGEST_TEXT]}…"


def _text(value: object) -> str | None:
    if not isinstance(value, bytes):
        return None
    try:
        return value.decode("utf-8")
    except UnicodeDecodeError:
        return None
