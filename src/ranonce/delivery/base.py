"""What every kind of destination has, and what a deliverer asks of it.

A module of a kind (`http`, `smtp` …) has

    KEYS        its settings, each with what reads the value; those that every destination has are in `spec`
    REQUIRED    which of them cannot be left away
    dedupes     for how long a destination with these settings dedupes by its nature, in seconds
    open_sender what sends to it

The rules of what an answer means stand in `messages`. A sender says what it saw, no more: `not-received` only if the
first byte of the message never left, or the destination said that it did not take it in; `unknown` for all that may
have been received.
"""

from __future__ import annotations

from ranonce.record import Record

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence
    from typing import Protocol

    from ranonce.messages import Answer, Message, Route
else:
    Protocol = object

#: A deliverer looks at its leases and signals this often while a sender has nothing to say.
IDLE_SECONDS = 0.25


class Spec(Record):
    """One declared destination: its settings as read, `${NAME}` still in them, and how its messages are handled.

    `place` stands at the front of every complaint about it; relative paths are relative to `folder`. `prefix` is put
    before each key on its way, so that two ledgers share a destination without sharing keys.
    """

    name: str
    type: str
    route: Route
    settings: Mapping[str, object]
    place: object
    folder: str | None = None
    prefix: str = ""

    def key(self, message: Message) -> str:
        """Return the key by which the destination knows a message."""
        return f"{self.prefix}/{message.key}" if self.prefix else message.key


class Sender(Protocol):
    """Sends to one destination, for one deliverer."""

    def send(
        self, messages: Sequence[Message], may_begin: Callable[[Message], bool]
    ) -> Iterator[tuple[Message, Answer] | None]:
        """Send messages, several at a time and in any order; yield each with its answer as soon as there is one.

        Yields None whenever nothing has come for `IDLE_SECONDS`. `may_begin` is asked right before the first byte of
        each: one that may not begin any more is answered as not begun. It may be asked from several threads. Every
        message is answered, whatever goes wrong.
        """

    def close(self) -> None:
        """Let go of connections."""


class Carrier(Protocol):
    """Sends one message at a time; each belongs to one thread, and keeps its connection."""

    def carry(self, message: Message) -> Answer:
        """Send a message and return what became of it. Raises nothing for what the network or the other side does."""

    def close(self) -> None:
        """Let go of the connection."""
