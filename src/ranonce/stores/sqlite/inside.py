"""A SQLite ledger seen through its caller's own transaction: what is written here becomes part of it, all or none.

Only the ledger's own file will do. In WAL mode a transaction over two files is not atomic, so an attached one is
refused, and a connection that does not wait for the disk would promise more than it keeps.
"""

from __future__ import annotations

import os
import sqlite3

from ranonce.errors import StoreUnavailable, UsageError
from ranonce.stores.sqlite.file import translated
from ranonce.stores.sqlite.store import SqliteStore

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any, Self

FULL = 2  # of PRAGMA synchronous: a commit waits for the disk
#: Tables that a finished run is read from and written to.
TABLES = frozenset(
    {"bodies", "events", "gates", "jobs", "leases", "outbox", "runs", "schedules", "steps", "tombstones"}
)
_BEGIN = "Begin it with BEGIN IMMEDIATE, on a connection to the ledger's own file, and commit it afterwards."


class CallersConnection:
    """The caller's connection, whose ways to make rows do not matter here."""

    def __init__(self, connection: sqlite3.Connection) -> None:
        self._connection = connection

    def execute(self, statement: str, values: tuple[Any, ...] = ()) -> sqlite3.Cursor:
        """Execute one statement in a cursor of its own."""
        cursor = sqlite3.Cursor(self._connection)
        cursor.row_factory = None
        return cursor.execute(statement, values)

    @property
    def in_transaction(self) -> bool:
        """Whether the caller's transaction is open."""
        return self._connection.in_transaction


class InsideStore(SqliteStore):
    """The store of an open ledger as its caller's transaction sees it. It begins nothing and commits nothing."""

    def __init__(self, store: SqliteStore, connection: object) -> None:
        if not isinstance(connection, sqlite3.Connection):
            raise UsageError(f"{type(connection).__name__!r} is not a connection of sqlite3.", _BEGIN)
        _usable(store, connection)
        self.__dict__.update(store.__dict__)
        self._schedules = {}
        self._db = CallersConnection(connection)  # type: ignore[assignment]  # all of it that is used here
        self._take_the_write_lock()

    def transaction(self) -> _Savepoint:  # type: ignore[override]
        """Return a savepoint of the caller's transaction: released after its block, rolled back if abandoned."""
        return _Savepoint(self)

    @property
    def transaction_id(self) -> str | None:
        """A name for the transaction, which has written: a file has only one at a time that has."""
        return "the one that writes"

    def _take_the_write_lock(self) -> None:
        """Make sure that the transaction sees the present: one that read before the claim would find no claim."""
        try:
            self._db.execute("DELETE FROM main.leases WHERE 0")
        except sqlite3.Error as error:
            raise _said(error, self.path) from error

    def _begin_reading(self) -> None:
        """Read in the caller's transaction."""

    def _end_reading(self) -> None:
        """Leave it open."""


class _Savepoint:
    def __init__(self, store: InsideStore) -> None:
        self._store = store
        self._db = store._db
        self._abandoned = False

    def abandon(self) -> None:
        """Write nothing after all."""
        self._abandoned = True

    def __enter__(self) -> Self:
        self._store.same_file()
        self._db.execute("SAVEPOINT ranonce")
        return self

    def __exit__(self, kind: object, error: BaseException | None, _: object) -> None:
        try:
            if (kind is not None or self._abandoned) and self._db.in_transaction:
                self._db.execute("ROLLBACK TO ranonce")
            if self._db.in_transaction:  # a full disk has ended it already
                self._db.execute("RELEASE ranonce")
        except sqlite3.Error as failed:
            error = error or failed
        if isinstance(error, sqlite3.Error):
            raise _said(error, self._store.path) from error


def _said(error: sqlite3.Error, path: str) -> Exception:
    if getattr(error, "sqlite_errorcode", 0) == sqlite3.SQLITE_BUSY_SNAPSHOT:
        return UsageError("the transaction has read before it wrote, and another was faster.", _BEGIN)
    if getattr(error, "sqlite_errorcode", 0) & 0xFF == sqlite3.SQLITE_READONLY:
        return UsageError("the connection may not write.", _BEGIN)
    return translated(error, path)


def take_back(store: SqliteStore, connection: object, *, wrote: bool) -> None:
    """Roll the caller's transaction back, if it is still open: one that was written to, or else that is on the ledger's
    file, where no outcome could be recorded while it is.

    One that cannot be used here is another thread's, and left to it; if that thread has ended, it ends with us.
    """
    if not isinstance(connection, sqlite3.Connection):
        return
    try:
        if not (connection.in_transaction and (wrote or _is_on(connection, store.path))):
            return
        if getattr(connection, "autocommit", None) is True:  # then rollback() does nothing
            sqlite3.Cursor(connection).execute("ROLLBACK")
        else:
            sqlite3.Connection.rollback(connection)
    except sqlite3.Error:
        return  # closed by its owner, and so rolled back


def _is_on(connection: sqlite3.Connection, path: str) -> bool:
    rows = CallersConnection(connection).execute("PRAGMA database_list").fetchall()
    files = [os.fsdecode(file) for *_, file in rows if file]
    return any(os.path.exists(file) and os.path.samefile(file, path) for file in files)


def _usable(store: SqliteStore, connection: sqlite3.Connection) -> None:
    """Raise UsageError for anything but an open transaction on the ledger's own file that will be durable."""
    ask = CallersConnection(connection).execute
    try:
        if not connection.in_transaction:
            raise UsageError("the connection is not in a transaction, so nothing could be finished with it.", _BEGIN)
        if connection.text_factory is not str:
            raise UsageError("the connection has a text_factory of its own.", "Use one that returns text as str.")
        files = {name: path for _, name, path in ask("PRAGMA database_list").fetchall() if name != "temp"}
        temporary = {name for (name,) in ask("SELECT name FROM temp.sqlite_master WHERE type IN ('table', 'view')")}
        durable = ask("PRAGMA synchronous").fetchone()[0] >= FULL
    except sqlite3.ProgrammingError as error:  # closed, or another thread's
        raise UsageError(f"the connection cannot be used here: {str(error).rstrip('.')}.", _BEGIN) from error
    except sqlite3.Error as error:
        raise StoreUnavailable(f"the connection cannot be used: {error}.", "Nothing was recorded.") from error
    if not _same(files["main"], store.path):
        raise UsageError(
            f"the connection is to {files['main'] or 'no file'!r}, and the ledger is {store.path!r}.",
            "One transaction has one file: keep the effect's tables in the ledger's file.",
        )
    if shadows := sorted(name for name in temporary if name.lower() in TABLES):
        raise UsageError(
            f"the connection has a temporary table {', '.join(shadows)}, which hides the ledger's own.",
            "Give it another name.",
        )
    if len(files) > 1:
        attached = ", ".join(sorted(files.keys() - {"main"}))
        raise UsageError(f"the connection has attached {attached}.", "A transaction over two files is not atomic.")
    if not durable:
        raise UsageError("the connection does not wait for the disk.", "Set PRAGMA synchronous = FULL before BEGIN.")
    if not _reads_as_written(connection):
        raise UsageError(
            "the connection makes other values of what it reads (detect_types).",
            "Use one that has no converter for TEXT, INTEGER or REAL.",
        )


def _reads_as_written(connection: sqlite3.Connection) -> bool:
    try:
        found = CallersConnection(connection).execute("SELECT job, version, late_after FROM main.jobs LIMIT 1")
        return all([type(value) for value in row] == [str, int, float] for row in found.fetchall())
    except sqlite3.Error as error:
        raise StoreUnavailable(f"the connection cannot be used: {error}.", "Nothing was recorded.") from error
    except Exception:  # noqa: BLE001 - whatever a converter of the caller's raises
        return False


def _same(path: str, other: str) -> bool:
    """Whether two names are one database. Another hard link to the file would have a write-ahead log of its own."""
    try:
        return bool(path) and os.path.samefile(path, other) and os.path.samefile(path + "-wal", other + "-wal")
    except OSError:
        return False
