"""An inbox table in PostgreSQL."""

from __future__ import annotations

from hashlib import sha256

from ranonce.delivery.sql import COLUMNS, INSERTED, OTHER_BODY, THERE, not_received, without_table
from ranonce.errors import RanonceError, StoreUnavailable
from ranonce.messages import NOT_RECEIVED, REFUSED, UNKNOWN, Answer
from ranonce.stores.base import LostReply
from ranonce.stores.postgres.connection import MISSING
from ranonce.stores.postgres.connection import Answer as Refused
from ranonce.stores.postgres.connection import Connection as Session
from ranonce.timefmt import format_instant

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from ranonce.delivery.base import Spec
    from ranonce.messages import Message

#: A row as it stands in the statement, its parameters numbered.
_ROW = "(${}::text, ${}::text, ${}::bytea, ${}::text, ${}::text, ${}::timestamptz, pg_catalog.now())"
_PARAMETERS = 6
#: SQLSTATEs, by class or in full, of what a table forbids: values that do not fit, and constraints.
_FORBIDDEN = ("22", "23")
#: A trigger of the receiver's says no (RAISE EXCEPTION).
_RAISED = "P0001"
#: The columns are of other types, or no unique index is on the key.
_UNLIKE = MISSING | {"42804", "42P10"}


class No(StoreUnavailable):
    """The server refused a statement."""

    def __init__(self, state: str, words: str) -> None:
        super().__init__(words, "")
        self.state = state


class _Connection(Session):
    """The ledger's way to a server, on which every wait ends; but this table is none of the ledger's."""

    def translated(self, error: Refused) -> RanonceError:
        """Return what a refused statement means: what the server said."""
        return No(error.state, error.words)


class ServerInbox:
    """Inserts messages, as many as it is given, in one statement."""

    def __init__(self, spec: Spec, url: str, table: str) -> None:
        self._spec = spec
        self._table = table
        self._connection = _Connection(url, spec.route.timeout)

    def load(self, messages: Sequence[Message]) -> Iterator[tuple[Message, Answer]]:
        """Insert messages; yield each with its answer; the first that is said of one counts."""
        try:
            yield from self._insert(messages)
        except No as error:
            if not self._is_of_one(error):
                yield from ((message, self._of(error)) for message in messages)
            elif len(messages) == 1:
                yield messages[0], Answer(REFUSED, f"the table forbids it: {error.sentence}", answered=True)
            else:
                yield from self._each_alone(messages)
        except LostReply as error:
            yield from ((message, Answer(UNKNOWN, error.sentence)) for message in messages)
        except RanonceError as error:
            yield from ((message, Answer(NOT_RECEIVED, error.sentence)) for message in messages)

    def close(self) -> None:
        """Let go of the connection."""
        self._connection.close()

    def _each_alone(self, messages: Sequence[Message]) -> Iterator[tuple[Message, Answer]]:
        """Insert messages one by one, since one of them is forbidden: the others go in."""
        for message in messages:
            yield from self.load([message])

    def _insert(self, messages: Sequence[Message]) -> Iterator[tuple[Message, Answer]]:
        rows = [
            _ROW.format(*range(start, start + _PARAMETERS))
            for start in range(1, len(messages) * _PARAMETERS + 1, _PARAMETERS)
        ]
        values = [value for message in messages for value in self._values(message)]
        inserted = {
            row[0]
            for row in self._connection.tell(
                f"INSERT INTO {self._table} ({COLUMNS}) VALUES {', '.join(rows)} "  # noqa: S608 - a name of ours
                "ON CONFLICT (key) DO NOTHING RETURNING key",
                *values,
            )
        }
        old = [message for message in messages if self._spec.key(message) not in inserted]
        yield from ((message, INSERTED) for message in messages if self._spec.key(message) in inserted)
        there = self._there([self._spec.key(message) for message in old])
        for message in old:
            digest = sha256(message.body or b"").hexdigest()
            same = there.get(self._spec.key(message)) in (None, (message.content_type, digest))
            yield message, THERE if same else OTHER_BODY

    def _there(self, keys: Sequence[str]) -> dict[str | None, tuple[str | None, str | None]]:
        """Return content type and digest of the rows that were there; one that is taken away since has been."""
        if not keys:
            return {}
        places = ", ".join(f"${number}" for number in range(1, len(keys) + 1))
        rows = self._connection.ask(
            "SELECT key, content_type, pg_catalog.encode(pg_catalog.sha256(body), 'hex') "  # noqa: S608 - as above
            f"FROM {self._table} WHERE key IN ({places})",
            *keys,
        )
        return {row[0]: (row[1], row[2]) for row in rows}

    def _values(self, message: Message) -> tuple[str, ...]:
        return (
            self._spec.key(message),
            message.content_type,
            "\\x" + (message.body or b"").hex(),
            message.run.job,
            message.run.window,
            format_instant(message.created_at, precision="ms"),
        )

    def _is_of_one(self, error: No) -> bool:
        return error.state[:2] in _FORBIDDEN or error.state == _RAISED

    def _of(self, error: No) -> Answer:
        words = f"{self._connection.shown}: {error.sentence}"
        if error.state in _UNLIKE:
            return without_table(self._table, words, body="bytea", instant="timestamptz")
        return not_received(words)
