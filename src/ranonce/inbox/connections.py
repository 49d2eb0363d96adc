"""Connections of the middleware's own, to the database that has its keys: one for each question that is under way."""

from __future__ import annotations

import sqlite3
from _thread import allocate_lock
from contextlib import contextmanager, suppress

from ranonce.errors import ConfigError

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from typing import Any

SQLITE = "sqlite:///"
WAIT_SECONDS = 10.0


def opener(url: str) -> Callable[[], Any]:
    """Return what opens a connection to a database: `sqlite:////PATH` (which must exist), or `postgresql://…`.

    Raises ConfigError for another address, or without the driver.
    """
    if url.startswith(SQLITE + "/"):
        path = url[len(SQLITE) :]
        return lambda: _sqlite(path)
    if url.startswith(("postgresql://", "postgres://")):
        try:
            import psycopg
        except ImportError:
            raise ConfigError("psycopg is not installed.", "Install it: pip install 'ranonce[postgres]'") from None
        return lambda: psycopg.connect(url, connect_timeout=int(WAIT_SECONDS), application_name="ranonce inbox")
    raise ConfigError("this is no address of a database.", "Write sqlite:////PATH or postgresql://….")


def place_of(database: object) -> str:
    """Return where the keys are, for a log: a path, or the address of a server without anything secret."""
    if not isinstance(database, str):
        return "a connection of the application's"
    if database.startswith(SQLITE):
        return database[len(SQLITE) :]
    from ranonce.storeurl import masked

    return masked(database)


def _sqlite(path: str) -> sqlite3.Connection:
    quoted = path.replace("%", "%25").replace("?", "%3f").replace("#", "%23")
    connection = sqlite3.connect(
        f"file:{quoted}?mode=rw", uri=True, isolation_level=None, timeout=WAIT_SECONDS, check_same_thread=False
    )
    connection.execute("PRAGMA synchronous = FULL")
    return connection


def failures() -> tuple[type[Exception], ...]:
    """Return what a database, or the way to it, may raise."""
    try:
        import psycopg
    except ImportError:
        return (sqlite3.Error, OSError)
    return (sqlite3.Error, OSError, psycopg.Error)


class Pool:
    """Idle connections, lent to one thread at a time. One that failed is closed, not lent again."""

    def __init__(self, connect: Callable[[], Any]) -> None:
        self._connect = connect
        self._idle: list[Any] = []
        self._lock = allocate_lock()
        self._closed = 0  # how often: what was lent before is closed when it comes back

    @contextmanager
    def transaction(self) -> Iterator[Any]:
        """Lend a connection for one transaction: committed after the block, rolled back if it is left by an error."""
        with self._lock:
            connection, closed = (self._idle.pop() if self._idle else None), self._closed
        if connection is None:
            connection = self._connect()
        try:
            if isinstance(connection, sqlite3.Connection) and not connection.in_transaction:
                connection.execute("BEGIN IMMEDIATE")
            yield connection
            connection.commit()
        except BaseException:
            with suppress(*failures()):
                connection.close()  # which takes back what was not committed
            raise
        with self._lock:
            if closed == self._closed:
                self._idle.append(connection)
                return
        connection.close()

    def close(self) -> None:
        """Close what is idle, and what is lent as soon as it comes back."""
        with self._lock:
            idle, self._idle = self._idle, []
            self._closed += 1
        for connection in idle:
            connection.close()
