"""The outbox of a ledger in memory."""

from __future__ import annotations

from ranonce.messages import PENDING, SENDING, UNDELIVERED, Queue, Tally, Waiting
from ranonce.record import Record
from ranonce.stores.base import Exchanged

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence
    from contextlib import AbstractContextManager

    from ranonce.messages import Closing, Message, Move, Take
    from ranonce.stores.base import Wanted
    from ranonce.stores.memory.store import MemoryStore

    Lock = AbstractContextManager[object]


class _Line(Record):
    """What is known of a destination: who took last, until when it is closed and why, when its rate lets one go."""

    version: int = 0
    closed_until: float | None = None
    closed_why: str | None = None
    next_at: float = 0.0


class MemoryOutbox:
    """Messages in a dictionary by key, behind the store's lock."""

    def __init__(self, store: MemoryStore, lock: Lock) -> None:
        self._store = store
        self._lock = lock
        self._messages: dict[str, Message] = {}
        self._lines: dict[str, _Line] = {}
        self._seq = 0

    # --- what the store writes ---

    def fits(self, messages: Sequence[Message], moves: Sequence[Move]) -> bool:
        """Whether messages are new, and others as they were."""
        return not any(message.key in self._messages for message in messages) and all(map(self._as_it_was, moves))

    def add(self, message: Message) -> None:
        """Add a message, which has the next number."""
        self._seq += 1
        self._messages[message.key] = message.replace(seq=self._seq)

    def take_in(self, messages: Sequence[Message]) -> None:
        """Add those messages that are not known."""
        for message in messages:
            if message.key not in self._messages:
                self.add(message)

    def move(self, move: Move) -> None:
        """Write a move."""
        known = self._messages[move.now.key]
        self._messages[move.now.key] = move.now.replace(body=known.body)

    def _as_it_was(self, move: Move) -> bool:
        known, was = self._messages.get(move.was.key), move.was
        return known is not None and (known.state, known.tries, known.sender) == (was.state, was.tries, was.sender)

    def prune(self, message: Message) -> None:
        """Remove a message."""
        del self._messages[message.key]

    def empty(self, message: Message) -> None:
        """Remove the body of a message."""
        self._messages[message.key] = message.replace(body=None)

    def all(self) -> Iterator[Message]:
        """Go through all messages in the order of their numbers."""
        return iter(sorted(self._messages.values(), key=lambda message: message.seq or 0))

    # --- the port ---

    def queue(self, destination: str, most: int, *, sending: bool = True) -> Queue:
        with self._lock:
            there = [message for message in self.all() if message.destination == destination]
            clock, line = self._store.clock(), self._lines.get(destination, _Line())
            pending = sorted((each for each in there if each.state == PENDING), key=lambda each: each.due_at)
            due = [message for message in pending if message.due_at <= clock.wall]
            return Queue(
                destination,
                line.version,
                line.closed_until,
                line.closed_why,
                line.next_at,
                tuple(due[:most]),
                tuple(message.replace(body=None) for message in there if sending and message.state == SENDING),
                next((message.due_at for message in pending if message.due_at > clock.wall), None),
                clock.domain,
                clock.now,
                clock.wall,
            )

    def exchange(
        self, destination: str, moves: Sequence[Move] = (), *, closing: Closing | None = None, take: Take | None = None
    ) -> Exchanged:
        with self._lock:
            moved = [move for move in moves if self._as_it_was(move)]
            for move in moved:
                self.move(move)
            line = self._lines.get(destination, _Line())
            if closing is not None and (
                closing.until is None or line.closed_until is None or closing.until > line.closed_until
            ):
                line = line.replace(closed_until=closing.until, closed_why=closing.why)
            taken = take is not None and take.after == line.version and all(map(self._as_it_was, take.moves))
            if take is not None and taken:
                line = line.replace(version=line.version + 1, next_at=take.next_at)
                for move in take.moves:
                    self.move(move)
            self._lines[destination] = line
            return Exchanged(frozenset(move.was.key for move in moved), taken)

    def known(self, keys: Sequence[str]) -> dict[str, Message]:
        return {key: self._messages[key].replace(body=None) for key in keys if key in self._messages}

    def message(self, name: int | str) -> Message | None:
        return next((message for message in self.all() if name in (message.key, message.seq)), None)

    def messages(self, wanted: Wanted, *, after: int = 0, limit: int = 100) -> list[Message]:
        found = [message for message in self.all() if (message.seq or 0) > after and wanted.includes(message)]
        return [message.replace(body=None) for message in found[:limit]]

    def _undelivered(self) -> list[Message]:
        return [message for message in self.all() if message.state in UNDELIVERED]

    def destinations(self) -> list[str]:
        return sorted({message.destination for message in self._undelivered()})

    def tally(self, destination: str, late_before: float) -> list[Tally]:
        kinds: dict[tuple[str, str, bool], list[float]] = {}
        for message in self._undelivered():
            if message.destination == destination:
                late = message.state in (PENDING, SENDING) and message.created_at < late_before
                kinds.setdefault((message.run.job, message.state, late), []).append(message.created_at)
        return [
            Tally(job, destination, state, late, len(ages), min(ages))
            for (job, state, late), ages in sorted(kinds.items())
        ]

    def waiting(self, job: str, since: int, until: int) -> list[Waiting]:
        kinds: dict[tuple[int, str, str], int] = {}
        for message in self._undelivered():
            if message.run.job == job and since <= message.window_start < until:
                kind = (message.window_start, message.run.window, message.state)
                kinds[kind] = kinds.get(kind, 0) + 1
        return [Waiting(window, start, state, count) for (start, window, state), count in sorted(kinds.items())]
