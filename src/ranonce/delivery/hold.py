"""The messages that one worker has taken, and until when each may still begin.

A message may begin only while it is sure to come to its answer within its lease. It counts from the moment before the
store was asked, by a clock that goes on while the machine sleeps: a deliverer that was paused begins nothing more.
"""

from __future__ import annotations

from threading import Lock

from ranonce.failpoints import failpoint

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from ranonce.messages import Message, Route


#: A sender that has not answered so long after its time limit never will.
OVERTIME_SECONDS = 10.0


class Hold:
    """Thread-safe: senders ask from their own threads whether a message may begin."""

    def __init__(self, route: Route, clock: Callable[[], float], forbidden: Callable[[], bool]) -> None:
        self._route = route
        self._clock = clock
        self._forbidden = forbidden
        self._lock = Lock()
        self._begin_by: dict[str, float] = {}
        self._begun: dict[str, float] = {}
        self._held: dict[str, Message] = {}
        self.shut = False  # the destination wants to be left alone

    @property
    def renew_every(self) -> float:
        """Seconds between two renewals: three fit into the time in which a message may begin."""
        return (self._route.lease_seconds - self._route.timeout) / 3

    def take(self, messages: Iterable[Message], asked_at: float) -> None:
        """Hold messages; `asked_at` is when the store was asked how things stand, by the boot clock."""
        with self._lock:
            self.shut = False
            for message in messages:
                self._held[message.key] = message
                self._begin_by[message.key] = self._last_moment(asked_at)

    def renewed(self, messages: Iterable[Message], asked_at: float) -> None:
        """Hold these for another lease. Those that are not among them are somebody else's: they may not begin."""
        with self._lock:
            kept = {message.key: self._last_moment(asked_at) for message in messages}
            self._begin_by = kept

    def _last_moment(self, asked_at: float) -> float:
        return asked_at + self._route.lease_seconds - self._route.timeout

    def may_begin(self, message: Message) -> bool:
        """Say whether a message may begin now, and note that it has."""
        with self._lock:
            now = self._clock()
            if self.shut or self._forbidden() or now > self._begin_by.get(message.key, now - 1):
                return False
            self._begun[message.key] = now
        failpoint("deliver:before-send")
        return True

    def answered(self, message: Message) -> bool:
        """Hold a message no longer: it has its answer. Say whether it was begun."""
        with self._lock:
            self._held.pop(message.key, None)
            self._begin_by.pop(message.key, None)
            return self._begun.pop(message.key, None) is not None

    def held(self) -> list[Message]:
        """Return the messages that have no answer yet."""
        with self._lock:
            return list(self._held.values())

    @property
    def count(self) -> int:
        """How many messages have no answer yet."""
        return len(self._held)

    def has(self, message: Message) -> bool:
        """Say whether a message is held, of this take."""
        held = self._held.get(message.key)
        return held is not None and (held.tries, held.sender) == (message.tries, message.sender)

    def has_begun(self, message: Message) -> bool:
        """Say whether a message that is held was begun."""
        with self._lock:
            return message.key in self._begun

    def is_overdue(self) -> bool:
        """Say whether something was begun so long ago that no answer to it will come."""
        with self._lock:
            earliest = min(self._begun.values(), default=float("inf"))
            return self._clock() > earliest + self._route.timeout + OVERTIME_SECONDS

    def stuck(self) -> bool:
        """Say whether what was begun last was begun so long ago that no answer will come."""
        with self._lock:
            latest = max(self._begun.values(), default=float("inf"))
            return self._clock() > latest + self._route.timeout + OVERTIME_SECONDS
