"""An inbox table in a SQLite file."""

from __future__ import annotations

import os
import sqlite3
from urllib.parse import quote

from ranonce.delivery.sql import COLUMNS, INSERTED, OTHER_BODY, THERE, not_received, without_table
from ranonce.messages import REFUSED, UNKNOWN, Answer
from ranonce.timefmt import format_instant

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from ranonce.delivery.base import Spec
    from ranonce.messages import Message

#: After these a COMMIT has not happened (the SQLite manual, "Response To Errors Within A Transaction"); after others,
#: such as an error of the disk, nobody knows.
_NOT_COMMITTED = frozenset({sqlite3.SQLITE_BUSY, sqlite3.SQLITE_LOCKED, sqlite3.SQLITE_FULL, sqlite3.SQLITE_CONSTRAINT})


class _RolledBack(Exception):
    """A row is forbidden in a way that has undone those before it, too (a trigger's RAISE(ROLLBACK))."""


class FileInbox:
    """Inserts messages, as many as it is given, in one transaction."""

    def __init__(self, spec: Spec, path: str, table: str) -> None:
        self._spec = spec
        self._path = path
        self._table = table
        self._connection: sqlite3.Connection | None = None
        self._file: tuple[int, int] | None = None

    def load(self, messages: Sequence[Message]) -> Iterator[tuple[Message, Answer]]:
        """Insert messages; yield each with its answer."""
        answers: dict[str, Answer] = {}
        try:
            connection = self._connected()
            connection.execute("BEGIN IMMEDIATE")
            for message in messages:
                answers[message.key] = self._insert(connection, message)
            whole = self._commit(connection)
        except _RolledBack as error:  # by the table, because of one of them: the others go in
            if len(messages) > 1:
                for message in messages:
                    yield from self.load([message])
                return
            whole = Answer(REFUSED, f"the table forbids it: {error}", answered=True)
        except (OSError, sqlite3.Error) as error:
            self.close()  # which rolls back
            whole = self._of(error)
        for message in messages:
            yield message, whole if whole and answers.get(message.key, INSERTED) is INSERTED else answers[message.key]

    def close(self) -> None:
        """Let go of the file."""
        connection, self._connection = self._connection, None
        if connection is not None:
            connection.close()

    def _insert(self, connection: sqlite3.Connection, message: Message) -> Answer:
        key = self._spec.key(message)
        row = (
            key,
            message.content_type,
            message.body,
            message.run.job,
            message.run.window,
            format_instant(message.created_at, precision="ms"),
        )
        try:
            if connection.execute(
                f"INSERT INTO {self._table} ({COLUMNS}) VALUES (?, ?, ?, ?, ?, ?, "  # noqa: S608 - a name of ours
                "strftime('%Y-%m-%dT%H:%M:%fZ', 'now')) ON CONFLICT (key) DO NOTHING",
                row,
            ).rowcount:
                return INSERTED
            there = connection.execute(
                f"SELECT content_type, CAST(body AS BLOB) FROM {self._table} WHERE key = ?",  # noqa: S608
                (key,),
            ).fetchone()
        except (sqlite3.IntegrityError, sqlite3.DataError) as error:
            if not connection.in_transaction:
                raise _RolledBack(str(error)) from error
            return Answer(REFUSED, f"the table forbids it: {error}", answered=True)
        return THERE if there == (message.content_type, message.body) else OTHER_BODY

    def _commit(self, connection: sqlite3.Connection) -> Answer | None:
        """Commit; return what became of every row instead, where it failed."""
        try:
            connection.execute("COMMIT")
        except sqlite3.Error as error:
            self.close()
            if (getattr(error, "sqlite_errorcode", 0) & 0xFF) in _NOT_COMMITTED:
                return self._of(error)
            return Answer(UNKNOWN, f"the commit was not answered: {error}")
        return None

    def _of(self, error: Exception) -> Answer:
        words = f"{self._path}: {getattr(error, 'strerror', None) or error}"
        if "no such table" in str(error) or "has no column" in str(error) or "ON CONFLICT" in str(error):
            return without_table(self._table, words, body="blob", instant="text")
        return not_received(words)

    def _connected(self) -> sqlite3.Connection:
        """Return a connection to the file that lies there now: one that was replaced would take rows to nowhere."""
        seen = os.stat(self._path)
        if self._connection is None or self._file != (seen.st_dev, seen.st_ino):
            self.close()
            self._file = seen.st_dev, seen.st_ino
            self._connection = sqlite3.connect(
                f"file:{quote(self._path)}?mode=rw", uri=True, timeout=self._spec.route.timeout, isolation_level=None
            )
            self._connection.execute("PRAGMA synchronous = FULL")
        return self._connection
