"""A PostgreSQL ledger seen through its caller's own transaction: what is written here becomes part of it, all or none.

The transaction may be of any isolation. One that sees the past (REPEATABLE READ, SERIALIZABLE) and began before the
claim is told to begin again, and never that the claim is lost: what the ledger has is asked outside of it. Nothing is
begun that the caller's connection would not begin by itself, nothing is committed, and no setting outlives the
transaction, whose commit is made to wait for the disk. Each statement stands in a savepoint of its own, so that one
that is refused leaves the transaction usable.

The claim's row is left where it is: the heartbeat can go on renewing it, however long the caller takes to commit.
"""

from __future__ import annotations

import sys
import time
from contextlib import contextmanager, suppress

from psycopg import Connection as DriverConnection
from psycopg import Error as DriverError
from psycopg import pq

from ranonce.errors import StoreUnavailable, UsageError
from ranonce.names import plain
from ranonce.stores.postgres.connection import (
    DENIED,
    LOCKED,
    MISSING,
    RACE_LOST,
    RACES,
    READ_ONLY,
    Answer,
    Broken,
    Race,
    cancel,
    execute,
)
from ranonce.stores.postgres.store import PostgresStore, told, written

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterator
    from typing import Any

    from psycopg.pq.abc import PGconn

    from ranonce.lifecycle import Decision, Event, RunKey, Snapshot
    from ranonce.stores.postgres.connection import Row

#: Where a connection leads to: the ledger there, the server since its start, and the database; how its transaction
#: sees others; whether it may write.
HERE = """
SELECT (SELECT id FROM {schema}.ledger WHERE one = 1),
       extract(epoch FROM pg_catalog.pg_postmaster_start_time()), pg_catalog.current_database(),
       pg_catalog.current_setting('transaction_isolation'), pg_catalog.current_setting('transaction_read_only')
"""
PLACE_OF_THE_CLAIM = 7  # among what `commit_decision` is told: the run whose claim is over
CANCELLED = frozenset({"57014"})
_SAVEPOINT, _KEEP = "SAVEPOINT ranonce", "RELEASE SAVEPOINT ranonce"
_TAKE_BACK = f"ROLLBACK TO SAVEPOINT ranonce; {_KEEP}"
_BEGIN = "Begin it on a connection to the ledger's own database, and commit it afterwards."
_AGAIN = "Roll back, and do the transaction again."


class InsideStore(PostgresStore):
    """The store of an open ledger as its caller's transaction sees it. It begins nothing and commits nothing."""

    def __init__(self, store: PostgresStore, connection: object) -> None:
        self.__dict__.update(store.__dict__)
        self._schedules = {}
        self._witness = None
        self._outside = store
        self._callers = _Callers(connection, store)
        self._connection = self._callers  # type: ignore[assignment]  # all of it that is used here
        ledger, *server, isolation, read_only = self.ask(HERE)[0]
        if (ledger, *server) != store.ask(HERE)[0][:3]:
            raise UsageError(
                f"the connection is to another server or database than the ledger {store.connection.shown}.",
                "One transaction has one database: keep the effect's tables in the ledger's.",
            )
        if read_only == "on":
            raise UsageError("the connection's transaction may not write.", _BEGIN)
        self._sees_the_past = isolation in ("repeatable read", "serializable")
        self._is_behind = False  # what it sees of the run is not what the ledger has

    def read(self, key: RunKey, window_start: int) -> Snapshot:
        with suppress(Race):
            self._outside.ask("SELECT {schema}.forget_ended_claims($1)", key.job)
        here = super().read(key, window_start)
        if not self._sees_the_past:
            return here
        now = self._outside.read(key, window_start)
        self._is_behind = here.run != now.run
        return now if self._is_behind else here.replace(lease=now.lease)  # which may have been renewed since

    def commit(self, decision: Decision, key: RunKey, after: int) -> tuple[Event, ...] | None:
        if self._is_behind:
            raise StoreUnavailable(f"the transaction sees the ledger as it was before {key} was claimed.", _AGAIN)
        values = list(told(decision, key, after))
        values[PLACE_OF_THE_CLAIM] = None
        try:
            rows = self._commit(decision, tuple(values))
        except Race:
            return None
        return written(decision, rows[0][0])

    def _lock_wait(self) -> None:
        """The caller's own settings say for how long a lock is waited for."""

    @property
    def transaction_id(self) -> str | None:
        """Which transaction this is, for `PostgresStore.is_open`; None for one that has written nothing."""
        return self.ask("SELECT pg_catalog.pg_current_xact_id_if_assigned()")[0][0]


def take_back(store: PostgresStore, connection: object, transaction: str) -> None:
    """Roll back a transaction of the caller's that is still open. Where it cannot be, its end must be waited for.

    Also inside a block that would commit it: nothing is left there to be committed.
    """
    if not store.is_open(transaction):
        return
    with suppress(UsageError, StoreUnavailable):
        alchemy = _alchemy(connection)
        if alchemy is not None:
            with _alchemy_errors():
                alchemy.roll_back()
        else:
            _Callers(connection, store).roll_back()


# --- the caller's connection ----------------------------------------------------------------------------------------


class _Callers:
    """The caller's connection, as far as this store uses one."""

    def __init__(self, connection: object, store: PostgresStore) -> None:
        self._store = store
        self._driver = _driver_of(connection)

    def ask(self, statement: str, *values: object) -> list[Row]:
        """Return the rows of a statement that only reads, as the transaction sees them."""
        return self._apart(_SAVEPOINT, statement, values, _TAKE_BACK)

    def tell(self, statement: str, *values: object) -> list[Row]:
        """Carry out a statement that writes."""
        return self._apart(_SAVEPOINT, statement, values, _KEEP)

    def _apart(self, before: str, statement: str, values: tuple[object, ...], after: str) -> list[Row]:
        with self._in_use() as connected:
            self._open(connected)
            self._send(connected, before)
            try:
                rows = self._send(connected, statement, *values)
            except (Answer, StoreUnavailable):
                if connected.status == pq.ConnStatus.OK:
                    self._send(connected, _TAKE_BACK)
                raise
            self._send(connected, after)
            return rows

    def roll_back(self) -> None:
        """End the transaction."""
        with self._in_use() as connected:
            self._send(connected, "ROLLBACK")

    @contextmanager
    def _in_use(self) -> Iterator[PGconn]:
        """Keep other threads from the connection."""
        lock = self._driver.lock
        if not lock.acquire(timeout=self._store.wait_seconds):
            raise UsageError("the connection is busy with another statement.", "Finish that first.")
        try:
            yield self._driver.pgconn
        except Answer as error:
            raise self._said(error) from error
        except Broken as error:
            raise StoreUnavailable(f"the transaction's connection broke: {error}.", _AGAIN) from error
        finally:
            lock.release()

    def _open(self, connected: PGconn) -> None:
        """Raise UsageError for anything but an open transaction."""
        status = connected.transaction_status
        if connected.status != pq.ConnStatus.OK:
            raise UsageError("the connection cannot be used here: it is closed.", _BEGIN)
        if connected.pipeline_status != pq.PipelineStatus.OFF:
            raise UsageError("the connection is in pipeline mode.", "Leave the pipeline before the run is finished.")
        if status == pq.TransactionStatus.INERROR:
            raise UsageError("the transaction has failed already, so nothing can be finished in it.", "Roll it back.")
        if status == pq.TransactionStatus.ACTIVE:
            raise UsageError("the connection is busy with another statement.", "Finish that first.")
        if status != pq.TransactionStatus.INTRANS:
            raise UsageError("the connection is not in a transaction, so nothing could be finished with it.", _BEGIN)
        encoding = connected.parameter_status(b"client_encoding")
        if encoding != b"UTF8":
            seen = plain((encoding or b"nothing").decode("ascii", "replace"))
            raise UsageError(f"the connection's texts are in {seen}.", "Use one with client_encoding=utf8.")

    def _send(self, connected: PGconn, statement: str, *values: object) -> list[Row]:
        """Send one statement. One that takes too long, or is interrupted, is cancelled: the connection stays usable."""
        give_up = time.monotonic() + self._store.wait_seconds
        try:
            return execute(connected, statement, values, give_up)
        except BaseException as error:
            if connected.status != pq.ConnStatus.OK or connected.transaction_status != pq.TransactionStatus.ACTIVE:
                raise
            cancel(connected)
            if isinstance(error, Broken):
                raise StoreUnavailable(f"the transaction waited too long: {error}.", _AGAIN) from error
            raise

    def _said(self, error: Answer) -> Exception:
        """Return what a refused statement means to the caller of `run.finish`."""
        state, words = error.state, plain(error.words)
        if state == RACE_LOST:
            return Race(words)
        if state in RACES:
            return StoreUnavailable(f"the transaction cannot go on beside others: {words}.", _AGAIN)
        if state in LOCKED | CANCELLED:
            return StoreUnavailable(f"the transaction waited too long: {words}.", _AGAIN)
        if state in READ_ONLY:
            return UsageError("the connection's transaction may not write.", _BEGIN)
        if state in DENIED:
            return UsageError(f"the connection's role may not write to the ledger: {words}.", "Give it a job's rights.")
        if state in MISSING:
            seen = f"the connection is to another database than the ledger's, or without rights in it: {words}."
            return UsageError(seen, "One transaction has one database: keep the effect's tables in the ledger's.")
        return self._store.connection.translated(error)


def _driver_of(connection: object) -> DriverConnection[Any]:
    """Return the driver's connection, in which a transaction has begun unless it is one that begins none by itself."""
    alchemy = _alchemy(connection)
    if alchemy is not None:
        with _alchemy_errors():
            connection = alchemy.driver()
    if not isinstance(connection, DriverConnection):
        raise UsageError(
            f"{type(connection).__name__!r} is not a connection of psycopg 3.",
            "Give one that is not async, or SQLAlchemy's of postgresql+psycopg://.",
        )
    if _is_idle(connection) and not connection.autocommit:
        try:
            connection.execute("SELECT 1", prepare=False)  # the driver begins as it is set to
        except DriverError as error:
            raise StoreUnavailable(f"the connection cannot be used: {_one_line(error)}.", _AGAIN) from error
    return connection


def _is_idle(connection: object) -> bool:
    return isinstance(connection, DriverConnection) and (
        connection.pgconn.transaction_status == pq.TransactionStatus.IDLE
    )


def _one_line(error: Exception) -> str:
    return plain(" ".join(str(error).split())).rstrip(".")


# --- SQLAlchemy's -----------------------------------------------------------------------------------------------------


class _Alchemy:
    """A connection or a session of SQLAlchemy. It must know of the transaction, or it would never commit it."""

    def __init__(self, connection: Any, *, session: bool) -> None:
        self._connection = connection
        self._is_session = session

    def driver(self) -> object:
        """Return the driver's connection in which it has begun."""
        connection = self._connection.connection() if self._is_session else self._connection
        driver: object = connection.connection.driver_connection
        if _is_idle(driver):
            connection.exec_driver_sql("SELECT 1")
        return driver

    def roll_back(self) -> None:
        """Roll back the whole transaction."""
        if self._is_session:
            self._connection.rollback()
        elif (transaction := self._connection.get_transaction()) is not None:
            transaction.rollback()


def _alchemy(connection: object) -> _Alchemy | None:
    """Return what SQLAlchemy made, where it is in use here."""
    engine, orm = sys.modules.get("sqlalchemy.engine"), sys.modules.get("sqlalchemy.orm")
    if orm is not None and isinstance(connection, (orm.Session, orm.scoped_session)):
        return _Alchemy(connection, session=True)
    if engine is not None and isinstance(connection, engine.Connection):
        return _Alchemy(connection, session=False)
    return None


@contextmanager
def _alchemy_errors() -> Iterator[None]:
    from sqlalchemy.exc import DBAPIError, SQLAlchemyError

    try:
        yield
    except DBAPIError as error:
        raise StoreUnavailable(f"the connection cannot be used: {_one_line(error.orig or error)}.", _AGAIN) from error
    except SQLAlchemyError as error:
        raise UsageError(f"the connection cannot be used here: {_one_line(error)}.", _BEGIN) from error
