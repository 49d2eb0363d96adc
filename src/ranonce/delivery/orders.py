"""What the workers of one deliverer share: is it told to end, how many messages may it still begin, and who listens."""

from __future__ import annotations

from random import random
from threading import Event, Lock

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Protocol

    from ranonce.messages import Answer, Message
else:
    Protocol = object

POLL_SECONDS = 1.0
#: For so long answers wait for a store that is away, where a deliverer goes once; they are never asked for again.
OUTAGE_SECONDS = 60.0
#: The same, where it is told to end.
LEAVING_SECONDS = 10.0


def spread(seconds: float) -> float:
    """Return between half of a pause and all of it, by chance: many do not come back in the same moment."""
    return seconds * (0.5 + random() / 2)  # noqa: S311 - no secret


class Listener(Protocol):
    """Who is told what happens. Called from any thread, after it is written."""

    def settled(self, message: Message, answer: Answer | None) -> None:
        """A message has come to another state; without an answer it was given up by somebody else."""

    def trouble(self, destination: str, sentence: str, next_step: str) -> None:
        """Something that a person should know."""


class Orders:
    """How a deliverer goes about it. `watch`: it goes on when nothing is left. Durations in seconds."""

    def __init__(
        self,
        *,
        watch: bool = False,
        poll: float = POLL_SECONDS,
        limit: int | None = None,
        outage: float = OUTAGE_SECONDS,
        leaving: float = LEAVING_SECONDS,
    ) -> None:
        self.watch = watch
        self.poll = poll
        self.outage = outage
        self.leaving = leaving
        self._left = limit
        self._lock = Lock()
        self._over = Event()

    @property
    def stopped(self) -> bool:
        """Whether nothing more may be taken or begun."""
        return self._over.is_set()

    def stop(self) -> None:
        """Let nothing more be taken or begun."""
        self._over.set()

    def sleep(self, seconds: float) -> bool:
        """Sleep, and say whether it was told to end meanwhile."""
        return self._over.wait(max(seconds, 0.0))

    @property
    def spent(self) -> bool:
        """Whether as many messages were begun as may be."""
        with self._lock:
            return self._left == 0

    def reserve(self, most: int) -> int:
        """Return how many of so many messages may still be begun; they are counted as begun until given back."""
        with self._lock:
            if self._left is None:
                return most
            granted = min(most, self._left)
            self._left -= granted
            return granted

    def give_back(self, count: int) -> None:
        """Take back messages that were not begun."""
        with self._lock:
            if self._left is not None:
                self._left += count
