"""A sender made of several carriers, each in a thread of its own that keeps its connection from message to message.

Whatever a carrier does, every message comes back with an answer: one that raises is a mistake of ours, and says nothing
about what the destination has received.
"""

from __future__ import annotations

from queue import SimpleQueue
from threading import Thread

from ranonce.delivery.answers import Answers, Threaded, let_go
from ranonce.errors import RanonceError
from ranonce.messages import NOT_BEGUN, NOT_RECEIVED, UNKNOWN, Answer
from ranonce.record import Record

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from ranonce.delivery.base import Carrier
    from ranonce.messages import Message


class _Errand(Record):
    """One message on its way through a thread: may it still begin, and where its answer is awaited."""

    message: Message
    may_begin: Callable[[Message], bool]
    answers: Answers


class Pool(Threaded):
    """Sends up to `concurrency` messages at the same time. `open_carrier` is called in the thread that uses it."""

    def __init__(self, open_carrier: Callable[[], Carrier], concurrency: int) -> None:
        super().__init__()
        self._open_carrier = open_carrier
        self._concurrency = concurrency
        self._errands: SimpleQueue[_Errand | None] = SimpleQueue()
        self._threads: list[Thread] = []

    def _hand_out(
        self, messages: Sequence[Message], may_begin: Callable[[Message], bool], answers: Answers
    ) -> str | None:
        problem = self._grow(answers.open_ones)
        if problem is None:
            for message in messages:
                self._errands.put(_Errand(message, may_begin, answers))
        return problem

    def close(self) -> None:
        """Let the threads end once they have nothing to carry. What is still on its way is not waited for."""
        for _ in self._threads:
            self._errands.put(None)
        self._threads = []

    def _grow(self, messages: int) -> str | None:
        """Start the threads that are missing; say why there is none, if so."""
        while len(self._threads) < min(messages, self._concurrency):
            thread = Thread(target=self._work, name="ranonce carrier", daemon=True)
            try:
                thread.start()
            except RuntimeError as error:  # the system has no more: fewer will do
                return None if self._threads else f"nothing was sent: {error}"
            self._threads.append(thread)
        return None

    def _work(self) -> None:
        carrier: Carrier | None = None
        while (errand := self._errands.get()) is not None:
            answer: Answer
            try:
                if not errand.may_begin(errand.message):
                    answer = Answer(NOT_BEGUN, "there was no time left for it")
                else:
                    if carrier is None:
                        carrier, answer = self._opened()
                    if carrier is not None:
                        answer = carrier.carry(errand.message)
            except Exception as error:  # noqa: BLE001 - whatever it is, somebody waits for an answer
                answer = Answer(UNKNOWN, f"sending it went wrong here: {type(error).__name__}: {error}")
                let_go(carrier)
                carrier = None
            errand.answers.put(errand.message, answer)
        let_go(carrier)

    def _opened(self) -> tuple[Carrier | None, Answer]:
        """Return a new carrier, or what to answer where there is none: nothing was sent then."""
        try:
            return self._open_carrier(), Answer(NOT_BEGUN)
        except RanonceError as error:
            return None, Answer(NOT_RECEIVED, str(error))
        except Exception as error:  # noqa: BLE001 - as above
            return None, Answer(NOT_RECEIVED, f"nothing was sent: {type(error).__name__}: {error}")
