"""The table of received keys, through a connection of the receiver's own."""

from __future__ import annotations

import json
import os
import sqlite3
import time

from ranonce.errors import ClaimLost, UsageError
from ranonce.inbox.answers import AGAIN, ANSWERED, BEGUN, CONFLICT, FIRST, IN_FLIGHT, UNKNOWN, Answer, Received
from ranonce.stores.statements import load
from ranonce.timefmt import shown

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any

SQL = load(os.path.join(os.path.dirname(__file__), "inbox.sql"))
TABLE = "ranonce_keys"
#: How long keys are remembered, if nobody says otherwise. A sender must not come back later than that.
RETENTION_SECONDS = 7 * 86400.0
#: A key that others receive and give back all the time is looked at so many times.
TRIES = 10
#: Keys that are forgotten at one go.
PRUNED_AT_ONCE = 500
LONGEST_NAME = 63


class Inbox:
    """Keys that were received, in a table of a SQLite or PostgreSQL database.

    Every method takes a connection of the caller's: of `sqlite3`, of psycopg 3, or SQLAlchemy's over one of them.
    Nothing here commits or rolls back: `receive` is part of the caller's transaction, and the key is received when that
    is committed. `now` returns unix seconds; only leases of requests in flight and pruning count by it.
    """

    def __init__(self, table: str = TABLE, *, now: Callable[[], float] = time.time) -> None:
        self.table = _checked_name(table)
        self._now = now

    # --- the table ---

    def schema(self, dialect: str) -> str:
        """Return the statements that create the table; `dialect` is sqlite or postgresql. Raises UsageError."""
        if dialect not in ("sqlite", "postgresql"):
            raise UsageError(f"{shown(dialect)} is no dialect.", "It is sqlite or postgresql.")
        index = f"{self.table.rpartition('.')[2]}_by_age"[:LONGEST_NAME]
        return "\n".join(
            SQL[name].format(table=self.table, index=index) for name in (f"create_{dialect}", "create_index")
        )

    def create(self, connection: object) -> None:
        """Create the table, if it is not there. Commit it afterwards."""
        database = Database(connection)
        for statement in self.schema(database.dialect).split(";\n"):
            if statement.strip():
                database.execute(statement)

    # --- in the receiver's own transaction ---

    def receive(self, connection: object, key: str, fingerprint: str = "") -> Received:
        """Receive a key within the caller's transaction: do the work only if the answer is `first`.

        Commit the work and the key together. Two that come at once: the second waits for the first one's end, and finds
        the key (or, rolled back, has it). `fingerprint` tells different work under one key apart. Raises UsageError for
        a connection that would commit the key by itself.
        """
        _check_key(key)
        database = Database(connection)
        database.must_not_commit_by_itself()
        now = self._now()
        if database.execute(self._sql("insert"), key, fingerprint, ANSWERED, "", now, now, now):
            return Received(FIRST)
        found = self._look(database, key)
        if found is None:  # only possible where the transaction sees a state from before it was received
            raise UsageError("the key was received by a transaction that this one cannot see.", "Do it again.")
        known, state, _, _, *answer = found
        if known != fingerprint:
            return Received(CONFLICT)
        return Received(IN_FLIGHT) if state == BEGUN else Received(AGAIN, _answer_of(*answer))

    def answer(self, connection: object, key: str, answer: Answer) -> None:
        """Keep what was answered to a key that this transaction has received, for whoever comes again."""
        self._settle(Database(connection), key, "", answer)

    def prune(self, connection: object, *, keep_seconds: float = RETENTION_SECONDS, limit: int = PRUNED_AT_ONCE) -> int:
        """Forget up to `limit` keys that were received longer ago than this; return how many. Commit it afterwards."""
        now = self._now()
        return Database(connection).execute(self._sql("prune"), now - keep_seconds, now, limit)

    # --- in steps, for requests that take their time ---

    def begin(
        self, connection: object, key: str, fingerprint: str, *, lease_seconds: float, again: bool = True
    ) -> Received:
        """Note that a request is being worked on, for as long as its lease is renewed. Commit it before the work.

        `again`: what somebody began and was never heard of again is begun anew; else it stays `unknown` until a person
        removes it.
        """
        _check_key(key)
        database = Database(connection)
        token = os.urandom(16).hex()
        for _ in range(TRIES):
            now = self._now()
            if database.execute(self._sql("insert"), key, fingerprint, BEGUN, token, now, now + lease_seconds, None):
                return Received(FIRST, token=token)
            found = self._look(database, key)
            if found is None:
                continue
            known, state, holder, until, *answer = found
            if known != fingerprint:
                return Received(CONFLICT)
            if state == ANSWERED:
                return Received(AGAIN, _answer_of(*answer))
            if now < until <= now + 10 * lease_seconds:  # else it was written under a clock far ahead
                return Received(IN_FLIGHT, until=until - now)
            if not again:
                return Received(UNKNOWN)
            if database.execute(self._sql("take_over"), token, now, now + lease_seconds, key, holder):
                return Received(FIRST, token=token)
        return Received(IN_FLIGHT, until=1.0)

    def renew(self, connection: object, key: str, token: str, *, lease_seconds: float) -> bool:
        """Say that a request is still worked on; False if somebody else has it now."""
        return bool(Database(connection).execute(self._sql("renew"), self._now() + lease_seconds, key, token))

    def settle(self, connection: object, key: str, token: str, answer: Answer) -> None:
        """Keep the answer to a request that was begun. In the transaction of its effect, both are committed or neither.

        Raises ClaimLost if somebody else has taken over: roll back then.
        """
        self._settle(Database(connection), key, token, answer)

    def release(self, connection: object, key: str, token: str) -> None:
        """Give a key back whose work was not done: whoever comes next begins it."""
        Database(connection).execute(self._sql("release"), key, token)

    def _settle(self, database: Database, key: str, token: str, answer: Answer) -> None:
        headers = json.dumps([[name.decode("latin-1"), value.decode("latin-1")] for name, value in answer.headers])
        values = (self._now(), answer.status, headers, answer.body, key, token)
        if not database.execute(self._sql("answer"), *values):
            raise ClaimLost(f"the key {shown(key)} is not this request's any more.", "Roll back: another has it.")

    def _look(self, database: Database, key: str) -> tuple[Any, ...] | None:
        return database.row(self._sql("look"), key)

    def _sql(self, name: str) -> str:
        return SQL[name].replace("{table}", self.table)


class Database:
    """A connection of the caller's, in the two ways of speaking to one."""

    def __init__(self, connection: object) -> None:
        found = connection
        if callable(getattr(found, "connection", None)):  # a session of SQLAlchemy's
            found = found.connection()  # type: ignore[attr-defined]
        if hasattr(found, "exec_driver_sql"):  # a connection of SQLAlchemy's, which commits only what it has begun
            found.exec_driver_sql("SELECT 1")
            found = found.connection.driver_connection  # type: ignore[attr-defined]
        self._connection: Any = found
        if isinstance(found, sqlite3.Connection):
            self.dialect = "sqlite"
        elif type(found).__module__.partition(".")[0] == "psycopg" and not hasattr(found, "__aenter__"):
            self.dialect = "postgresql"
        else:
            raise UsageError(
                f"{type(connection).__name__!r} is no connection that an inbox can use.",
                "It is one of sqlite3, or of psycopg 3 that is not async.",
            )

    def execute(self, statement: str, *values: object) -> int:
        """Carry out a statement; return how many rows it wrote."""
        return int(self._cursor(statement, values).rowcount)

    def row(self, statement: str, *values: object) -> tuple[Any, ...] | None:
        """Return the one row of a question, or None."""
        return self._cursor(statement, values).fetchone()  # type: ignore[no-any-return]

    def _cursor(self, statement: str, values: tuple[object, ...]) -> Any:
        if self.dialect == "sqlite":
            cursor = sqlite3.Cursor(self._connection)
            cursor.row_factory = None
            return cursor.execute(statement, values)
        from psycopg.rows import tuple_row

        return self._connection.cursor(row_factory=tuple_row).execute(statement.replace("?", "%s"), values)

    def must_not_commit_by_itself(self) -> None:
        """Raise UsageError where each statement is a transaction of its own."""
        connection = self._connection
        if self.dialect == "sqlite":
            alone = not connection.in_transaction and (
                connection.isolation_level is None or getattr(connection, "autocommit", -1) is True
            )
        else:
            from psycopg.pq import TransactionStatus

            alone = connection.autocommit and connection.info.transaction_status == TransactionStatus.IDLE
        if alone:
            raise UsageError(
                "this connection commits each statement by itself: the key would be received before the work is done.",
                "Begin a transaction first, and commit it when the work is done.",
            )


def _answer_of(status: int | None, headers: str | None, body: bytes | None) -> Answer | None:
    if status is None:
        return None
    told = tuple((name.encode("latin-1"), value.encode("latin-1")) for name, value in json.loads(headers or "[]"))
    return Answer(status, told, None if body is None else bytes(body))


def _check_key(key: str) -> None:
    if not isinstance(key, str) or not key or "\0" in key:
        raise UsageError(f"{shown(key)} is no key.", "A key is text that is not empty.")


def _checked_name(table: str) -> str:
    """Return the name of a table, of a schema perhaps, that needs no quotes. Raises UsageError."""
    parts = table.split(".")
    if len(parts) > 2 or not all(
        part.isidentifier() and part.isascii() and len(part) <= LONGEST_NAME for part in parts
    ):
        raise UsageError(f"{shown(table)} is no name for a table.", "Write letters, digits and _, like ranonce_keys.")
    return table
