"""Answers on their way from the threads of a sender to the one that waits for them.

To wake a thread for each answer costs more than what it does with it, so it is woken for many at once, and never late:
when all that it waits for is there, when something was not delivered, and otherwise a moment after the first.
"""

from __future__ import annotations

from collections import deque
from queue import Empty, SimpleQueue

from ranonce.delivery.base import IDLE_SECONDS
from ranonce.messages import DELIVERED, NOT_RECEIVED, Answer

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from ranonce.delivery.base import Carrier
    from ranonce.delivery.batches import Loader
    from ranonce.messages import Message

#: No answer lies here for longer while others are awaited, and no more than so many.
GATHER_SECONDS = 0.01
MANY = 25


class Answers:
    """Put by any thread, and awaited by one. `open_ones` is how many are still awaited."""

    def __init__(self) -> None:
        self.open_ones = 0
        self._told: deque[tuple[Message, Answer]] = deque()
        self._wake: SimpleQueue[None] = SimpleQueue()
        self._sleeps = False

    def put(self, message: Message, answer: Answer) -> None:
        """Tell what became of a message."""
        told = self._told
        told.append((message, answer))
        if self._sleeps or answer.kind != DELIVERED or len(told) >= min(self.open_ones, MANY):
            self._wake.put(None)

    @property
    def wakes(self) -> int:
        """How many times whoever waits was woken, and has not noticed yet."""
        return self._wake.qsize()

    def awaited(self) -> Iterator[tuple[Message, Answer] | None]:
        """Yield each answer, and None whenever there was none for a while."""
        told = self._told
        while self.open_ones:
            while told:
                answer = told.popleft()
                self.open_ones -= 1
                yield answer
            if self.open_ones and not self._come():
                yield None

    def _come(self) -> bool:
        """Wait for an answer; say whether there is one."""
        if not self._woken(GATHER_SECONDS):
            self._sleeps = True  # from here on whoever puts one wakes us, so look once more before sleeping
            try:
                return bool(self._told) or self._woken(IDLE_SECONDS - GATHER_SECONDS)
            finally:
                self._sleeps = False
        return True

    def _woken(self, seconds: float) -> bool:
        try:
            self._wake.get(timeout=seconds)
        except Empty:
            return bool(self._told)
        return True


class Threaded:
    """What all senders have in common that send from threads of their own."""

    def __init__(self) -> None:
        self._sending: tuple[Callable[[Message], bool], Answers] | None = None

    def send(
        self, messages: Sequence[Message], may_begin: Callable[[Message], bool]
    ) -> Iterator[tuple[Message, Answer] | None]:
        """Send messages; yield each with its answer, and None whenever there was none for a while."""
        wanted = True
        answers = Answers()
        self._sending = lambda message: wanted and may_begin(message), answers
        try:
            self.add(messages)
            yield from answers.awaited()
        finally:
            wanted = False  # whoever asked has gone: what has not begun yet shall not

    def add(self, messages: Sequence[Message]) -> None:
        """Send these, too, with those that are being sent: their answers come with the others."""
        assert self._sending is not None, "there is something that is being sent"
        may_begin, answers = self._sending
        answers.open_ones += len(messages)
        problem = self._hand_out(messages, may_begin, answers)
        if problem:
            for message in messages:
                answers.put(message, Answer(NOT_RECEIVED, problem))

    def _hand_out(
        self, messages: Sequence[Message], may_begin: Callable[[Message], bool], answers: Answers
    ) -> str | None:
        """Give messages to the threads; say why there is none, if so."""
        raise NotImplementedError


def let_go(line: Carrier | Loader | None) -> None:
    """Close what carries messages and will not be used again; what it still has to say matters to no message."""
    if line is not None:
        try:
            line.close()
        except Exception:  # noqa: BLE001 - nobody is left to whom it would matter
            return
