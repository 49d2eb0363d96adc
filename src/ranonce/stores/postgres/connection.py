"""A connection to PostgreSQL in which nothing waits for ever, and what its errors mean for a person.

The driver (psycopg 3) connects: addresses, several hosts, passwords, encryption. Statements then go through its own
binding of libpq, since a run must not hang on a server that has stopped answering: every wait here has an end. They are
sent with their values apart, never prepared, and need nothing of the session: a pooler may give each transaction
another one.
"""

from __future__ import annotations

import re
import select
import time

from ranonce.errors import ConfigError, NotThisLedger, RanonceError, StoreUnavailable
from ranonce.names import plain
from ranonce.stores.base import LostReply
from ranonce.stores.postgres.text import escaped
from ranonce.stores.values import LOST
from ranonce.storeurl import Server, masked, server_of

TYPE_CHECKING = False
if TYPE_CHECKING:
    from psycopg.pq.abc import PGconn, PGresult

try:
    import psycopg
    from psycopg import pq
except ImportError as error:
    raise ConfigError(
        "a ledger in PostgreSQL needs the driver psycopg 3, which cannot be loaded here: "
        + " ".join(str(error).split()).rstrip(".")
        + ".",
        "Install it: pip install 'ranonce[postgres]' (from a checkout: pip install '.[postgres]')",
    ) from error

Row = tuple["str | None", ...]
Bytes = tuple["bytes | None", ...]

#: What holds unless the address says otherwise: a peer that vanished is noticed within half a minute.
SETTINGS = {
    "keepalives_idle": "10",
    "keepalives_interval": "5",
    "keepalives_count": "3",
    "tcp_user_timeout": "25000",  # milliseconds
    "fallback_application_name": "ranonce",
    "client_encoding": "UTF8",
}
#: One attempt to connect takes no longer than this, so that a host that went silent leaves time for the next attempt.
CONNECT_SECONDS = 10
#: A statement that is to be ended has this long to do so.
CANCEL_SECONDS = 5.0
FIRST_PAUSE_SECONDS = 0.05
LONGEST_PAUSE_SECONDS = 1.0

#: In a transaction names are PostgreSQL's own, whoever may make others on the role's search_path; numbers are told in
#: full. A statement by itself must name the schema of each function, and leave it to ours to tell what is a float.
PLAINLY = "SET LOCAL search_path = pg_catalog, pg_temp; SET LOCAL extra_float_digits = 1"

RACE_LOST = "RN001"  # of our own functions
OTHER_LEDGER = "RN002"
#: Another transaction was faster, or both waited for each other: decide anew.
RACES = frozenset({RACE_LOST, "40001", "40P01"})
#: SQLSTATEs by class or in full, and what they mean. Source: the PostgreSQL manual, appendix A.
MISSING = frozenset({"3F000", "42P01", "42883", "42703"})  # schema, table, function, column
DENIED = frozenset({"42501"})
REFUSED = "P0001"  # RAISE EXCEPTION; what keeps events from being changed meets nobody here
READ_ONLY = frozenset({"25006"})
DAMAGED = frozenset({"XX001", "XX002"})
LOCKED = frozenset({"55P03"})
#: What a server says while it refuses a connection that will never be accepted.
REFUSED_FOR_GOOD = (
    "password authentication failed",
    "no password supplied",
    "no pg_hba.conf entry",
    "does not exist",
    "authentication failed",
    "certificate",
    "invalid connection option",
    "not permitted to log in",
    "permission denied for database",
    "does not support SSL",
    "private key file",
    "bad value for",
)
#: The same of a value in the address.
INVALID = re.compile(r"(?:^|: )invalid (?:[\w\"]+ value|port number|integer value)\b")
#: What the driver asks after it has said what is wrong.
ASKED_BACK = re.compile(r"\s+Is the server running [^?]*\?")
#: What to do where a password is missing or wrong.
WHENCE = "give the password in RANONCE_STORE with the whole address, as ${NAME} in the configuration, or in ~/.pgpass."


FINE = frozenset({pq.ExecStatus.TUPLES_OK, pq.ExecStatus.COMMAND_OK, pq.ExecStatus.EMPTY_QUERY})


class Race(StoreUnavailable):
    """A transaction that other ones were faster than: nothing was written. Who does not decide anew says so."""

    def __init__(self, words: str) -> None:
        super().__init__(f"another transaction was faster: {words}.", "Try again.")


class Denied(ConfigError):
    """What the role of an address may not do."""


class Broken(Exception):
    """The connection is of no use any more. What was sent may have been carried out."""


class Answer(Exception):
    """The server refused a statement; SQLSTATE and its words."""

    def __init__(self, state: str, words: str) -> None:
        super().__init__(words)
        self.state = state
        self.words = words


class _Driver(psycopg.Connection[tuple[object, ...]]):
    """The driver's connection. To end without closing it is no fault: what was answered is durable."""

    def __del__(self, *_: object) -> None:
        """Say nothing."""


class Connection:
    """A connection that is made when it is needed, and made again when it has broken. For one thread."""

    def __init__(self, url: str, wait_seconds: float) -> None:
        server = server_of(url)
        assert server is not None
        self.server: Server = server
        self.shown = masked(url)
        self.wait_seconds = wait_seconds
        self._driver: _Driver | None = None
        self._open: Transaction | None = None
        self._conninfo = _conninfo(server.address, self.shown)

    # --- statements ---

    def ask(self, statement: str, *values: object) -> list[Row]:
        """Return the rows of a statement that only reads. Where the connection breaks, or where others are in its way
        (SERIALIZABLE; a standby that replays), it is asked again until the wait is over. Inside a transaction it is
        part of that one, which ends with its connection."""
        if self._open is not None:
            return self._open.execute(statement, *values)
        return _read_rows(self._ask(statement, values, binary=False))

    def fetch(self, statement: str, *values: object) -> list[Bytes]:
        """Return the same in the server's own form, of a statement that tells only texts, JSON and bytes; outside of
        transactions."""
        return self._ask(statement, values, binary=True)

    def _ask(self, statement: str, values: tuple[object, ...], *, binary: bool) -> list[Bytes]:
        give_up = time.monotonic() + self.wait_seconds
        pause = FIRST_PAUSE_SECONDS
        while True:
            try:
                return send(self._connected(give_up), statement, values, give_up, binary=binary)
            except Broken as error:
                self.close()
                if time.monotonic() + pause > give_up:
                    raise self.unavailable(str(error)) from error
            except Answer as error:
                if error.state not in RACES or time.monotonic() + pause > give_up:
                    self._refuse(error, give_up, pause)
            time.sleep(pause)
            pause = min(pause * 2, LONGEST_PAUSE_SECONDS)

    def tell(self, statement: str, *values: object) -> list[Row]:
        """Carry out a statement that writes, as a transaction of its own; return its rows.

        It is sent once. Raises LostReply where nobody knows what became of it, and Race where others were faster.
        """
        give_up = time.monotonic() + self.wait_seconds
        pause = FIRST_PAUSE_SECONDS
        while True:
            connected = self._connected(give_up)
            try:
                return self._execute(connected, statement, values, give_up)
            except Broken as error:
                self.close()
                raise LostReply(
                    f"the connection to {self.shown} broke before the answer came: {error}.", "Try again later."
                ) from error
            except Answer as error:
                self._refuse(error, give_up, pause)  # it was answered, so it was not carried out
            time.sleep(pause)
            pause = min(pause * 2, LONGEST_PAUSE_SECONDS)

    def begin(self, how: str = "BEGIN ISOLATION LEVEL READ COMMITTED") -> Transaction:
        """Return a transaction of several statements: committed after its block, rolled back if left by an error."""
        return Transaction(self, how)

    def ask_apart(self, statement: str, *values: object) -> list[Row]:
        """Return the rows of a question that is too long to name the schema of all it uses, as a transaction of its
        own."""
        with self.begin() as transaction:
            return transaction.execute(statement, *values)

    def _refuse(self, error: Answer, give_up: float, pause: float) -> None:
        """Raise what an answer means, unless it may be another one in a moment."""
        if error.state in RACES:
            raise Race(error.words) from error
        if _passes(error.state):
            self.close()  # a server that shuts down, or a standby behind a pooler
            if time.monotonic() + pause <= give_up:
                return
        raise self.translated(error) from error

    # --- the connection ---

    def _connected(self, give_up: float) -> PGconn:
        """Return a connection that was usable when it was looked at last."""
        if self._driver is not None and self._driver.pgconn.status == pq.ConnStatus.OK:
            return self._driver.pgconn
        self.close()
        pause = FIRST_PAUSE_SECONDS
        while True:
            try:
                self._driver = self._connect(give_up - time.monotonic())
                return self._driver.pgconn
            except psycopg.Error as error:
                said = _said(error)
                if INVALID.search(said) or any(words in said for words in REFUSED_FOR_GOOD):
                    step = WHENCE if "password" in said else "mend the address or the server."
                    raise ConfigError(f"{self.shown} cannot be used: {said}.", f"Nothing was run; {step}") from error
                if time.monotonic() + pause > give_up:
                    raise self.unavailable(said) from error
            time.sleep(pause)
            pause = min(pause * 2, LONGEST_PAUSE_SECONDS)

    def _connect(self, seconds: float) -> _Driver:
        limit = max(2, min(CONNECT_SECONDS, int(seconds)))  # the driver knows no less than two seconds
        return _Driver.connect(self._conninfo, autocommit=True, connect_timeout=limit)

    @property
    def current(self) -> PGconn | None:
        """The connection as it is now, if there is one."""
        return self._driver.pgconn if self._driver is not None else None

    def close(self) -> None:
        """Let go of the connection; the next statement makes another."""
        driver, self._driver = self._driver, None
        if driver is not None:
            driver.close()

    def _execute(self, connected: PGconn, statement: str, values: tuple[object, ...], give_up: float) -> list[Row]:
        return execute(connected, statement, values, give_up)

    # --- errors ---

    def unavailable(self, why: str) -> StoreUnavailable:
        """Return the error for a server that gave no answer in time."""
        return StoreUnavailable(f"{self.shown} could not be reached in time: {why}.", "Nothing was started.")

    def translated(self, error: Answer) -> RanonceError:
        """Return what a refused statement means: what a person must mend is 78, what may pass is 69."""
        state, words = error.state, plain(error.words)
        if state == OTHER_LEDGER:
            return NotThisLedger(f"{self.shown} holds another ledger now: {words}.", LOST)
        if state in MISSING:
            return NotThisLedger(
                f"there is no whole ledger at {self.shown}: {words}.",
                f"{LOST}. If it lies elsewhere, correct schema= in the address.",
            )
        if state in DAMAGED or state.startswith("23"):
            return NotThisLedger(f"the ledger at {self.shown} is damaged: {words}.", LOST)
        if state == REFUSED:
            return ConfigError(
                f"{self.shown} refused this: {words}.",
                "A trigger there that is not ours says so: look at those of the ledger's tables (ranonce doctor) and of"
                " the database.",
            )
        if state in DENIED:
            return Denied(
                f"{self.shown} does not permit this: {words}.",
                "ranonce doctor says which rights its role lacks to run jobs; more than that is for the role that owns"
                " the ledger.",
            )
        if state in READ_ONLY:
            return StoreUnavailable(f"{self.shown} is read-only (a standby?): {words}.", "Name the server that writes.")
        if state in LOCKED:
            return StoreUnavailable(
                f"{self.shown} was locked by another transaction until the wait was over.",
                "Nothing was started; look for what holds it (pg_stat_activity).",
            )
        return StoreUnavailable(f"{self.shown} cannot be used: {words}.", "Nothing was started.")


class Transaction:
    """Several statements, committed together or not at all."""

    def __init__(self, connection: Connection, how: str) -> None:
        self._connection = connection
        self._how = how
        self._pg: PGconn | None = None
        self._abandoned = False

    def __enter__(self) -> Transaction:
        self._connection.ask(f"{self._how}; {PLAINLY}")  # until there is a connection in which it has begun
        self._pg = self._connection.current
        self._connection._open = self
        return self

    def execute(self, statement: str, *values: object) -> list[Row]:
        """Carry out one statement of it. Raises Race where it cannot go on beside others."""
        if self._pg is None:
            raise self._connection.unavailable("the connection broke")
        give_up = time.monotonic() + self._connection.wait_seconds
        try:
            return self._connection._execute(self._pg, statement, values, give_up)
        except Broken as error:
            self._connection.close()
            self._pg = None
            raise self._connection.unavailable(str(error)) from error
        except Answer as error:
            if error.state in RACES:
                raise Race(error.words) from error
            raise self._connection.translated(error) from error

    def abandon(self) -> None:
        """Write nothing after all."""
        self._abandoned = True

    def __exit__(self, kind: object, error: BaseException | None, _: object) -> None:
        self._connection._open = None
        if self._pg is None:
            return
        give_up = time.monotonic() + self._connection.wait_seconds
        last = "COMMIT" if kind is None and not self._abandoned else "ROLLBACK"
        try:
            self._connection._execute(self._pg, last, (), give_up)
        except Broken as broken:
            self._connection.close()
            if last == "COMMIT":
                raise LostReply(
                    f"the connection to {self._connection.shown} broke while it was being written to: {broken}.",
                    "Try again later.",
                ) from broken
        except Answer as answer:
            if answer.state in RACES:
                raise Race(answer.words) from answer
            raise self._connection.translated(answer) from answer


def execute(connected: PGconn, statement: str, values: tuple[object, ...], give_up: float) -> list[Row]:
    """Send one statement and return its rows as text. Raises Answer for one that is refused, Broken else."""
    return _read_rows(send(connected, statement, values, give_up))


def _read_rows(rows: list[Bytes]) -> list[Row]:
    return [tuple(None if value is None else value.decode() for value in row) for row in rows]


def send(
    connected: PGconn, statement: str, values: tuple[object, ...], give_up: float, *, binary: bool = False
) -> list[Bytes]:
    """Send one statement and return its rows, in the server's own form where that is asked for. Bytes among the values
    are sent as they are.

    `give_up` is an instant of the monotonic clock. A connection that did not answer by then is closed: nobody may take
    a late answer for that of the next statement.
    """
    try:
        if values:
            formats = [pq.Format.BINARY if isinstance(value, bytes) else pq.Format.TEXT for value in values]
            connected.send_query_params(
                statement.encode(),
                [_sent(value) for value in values],
                param_formats=formats,
                result_format=pq.Format.BINARY if binary else pq.Format.TEXT,
            )
        else:  # may be several statements
            connected.send_query(statement.encode())
        _flush(connected, give_up)
        results = _results(connected, give_up)
    except (OSError, psycopg.Error) as error:
        raise Broken(_said(error)) from error
    if not results:
        raise Broken(_words(connected.error_message) or "the server closed the connection")
    result = results[-1]
    if result.status in FINE:
        return [
            tuple(result.get_value(row, column) for column in range(result.nfields)) for row in range(result.ntuples)
        ]
    state = (result.error_field(pq.DiagnosticField.SQLSTATE) or b"").decode()
    said = _words(result.error_field(pq.DiagnosticField.MESSAGE_PRIMARY) or result.error_message)
    if connected.status != pq.ConnStatus.OK or not state or _ends_the_session(state):
        raise Broken(said or "the connection was closed")
    raise Answer(state, said)


def cancel(connected: PGconn) -> None:
    """End the statement that is under way, and take the answer to it; a connection that gives none is closed."""
    try:
        connected.get_cancel().cancel()
        _results(connected, time.monotonic() + CANCEL_SECONDS)
    except (OSError, psycopg.Error):
        connected.finish()


def _ends_the_session(state: str) -> bool:
    """Whether the server ended the session with this answer: what it was doing may have been done."""
    return state.startswith(("57P", "08"))


def _flush(connected: PGconn, give_up: float) -> None:
    while connected.flush():
        if _wait(connected, select.POLLIN | select.POLLOUT, give_up) & select.POLLIN:
            connected.consume_input()


def _results(connected: PGconn, give_up: float) -> list[PGresult]:
    results: list[PGresult] = []
    while True:
        while connected.is_busy():
            _wait(connected, select.POLLIN, give_up)
            connected.consume_input()
        result = connected.get_result()
        if result is None:
            return results
        results.append(result)


def _wait(connected: PGconn, events: int, give_up: float) -> int:
    poll = select.poll()
    poll.register(connected.socket, events)
    left = give_up - time.monotonic()
    ready = poll.poll(max(0.0, left) * 1000)
    if not ready:
        raise TimeoutError("it did not answer in time")
    return ready[0][1]


def _sent(value: object) -> bytes | None:
    if value is None:
        return None
    if isinstance(value, bytes):
        return value
    if isinstance(value, bool):
        return b"true" if value else b"false"
    return escaped(value).encode("utf-8", "backslashreplace") if isinstance(value, str) else str(value).encode()


def _words(message: bytes) -> str:
    return plain(" ".join(message.decode("utf-8", "replace").split())).rstrip(".")


def _said(error: Exception) -> str:
    said = ASKED_BACK.sub("", str(error))
    return _words(said.encode("utf-8", "replace")) or type(error).__name__


def _passes(state: str) -> bool:
    """Whether another answer is likely in a moment: too many connections, a shutdown, a standby."""
    return state.startswith(("53", "57P")) or state in READ_ONLY


def _conninfo(address: str, shown: str) -> str:
    """Return the connection string of an address, with what holds unless it says otherwise."""
    from psycopg.conninfo import conninfo_to_dict, make_conninfo

    try:
        told = conninfo_to_dict(address)
        return make_conninfo("", **{**SETTINGS, **told})
    except psycopg.Error as error:
        raise ConfigError(f"{shown} is not an address of PostgreSQL: {_said(error)}.", "Mend it.") from error
