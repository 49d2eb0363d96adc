"""A sender that hands over several messages at a time, in one thread of its own that keeps its connection."""

from __future__ import annotations

from queue import SimpleQueue
from threading import Thread

from ranonce.delivery.answers import Answers, Threaded, let_go
from ranonce.errors import RanonceError
from ranonce.messages import NOT_BEGUN, NOT_RECEIVED, UNKNOWN, Answer
from ranonce.record import Record

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence
    from typing import Protocol

    from ranonce.messages import Message
else:
    Protocol = object

#: No more is handed over at a time.
MOST_MESSAGES = 100
MOST_BYTES = 4 * 1024 * 1024


class Loader(Protocol):
    """Hands messages over, several at a time. It belongs to one thread."""

    def load(self, messages: Sequence[Message]) -> Iterator[tuple[Message, Answer]]:
        """Hand messages over and yield each with its answer. Raises nothing for what the other side does."""

    def close(self) -> None:
        """Let go of the connection."""


class _Errand(Record):
    """Messages on their way through the thread: may each still begin, and where the answers are awaited."""

    messages: tuple[Message, ...]
    may_begin: Callable[[Message], bool]
    answers: Answers


class Batches(Threaded):
    """Sends by a loader, which is opened in the thread that uses it."""

    def __init__(self, open_loader: Callable[[], Loader]) -> None:
        super().__init__()
        self._open_loader = open_loader
        self._errands: SimpleQueue[_Errand | None] = SimpleQueue()
        self._thread: Thread | None = None

    def _hand_out(
        self, messages: Sequence[Message], may_begin: Callable[[Message], bool], answers: Answers
    ) -> str | None:
        problem = self._start()
        if problem is None:
            self._errands.put(_Errand(tuple(messages), may_begin, answers))
        return problem

    def close(self) -> None:
        """Let the thread end once it has nothing to hand over. What is still on its way is not waited for."""
        if self._thread is not None:
            self._errands.put(None)
            self._thread = None

    def _start(self) -> str | None:
        """Start the thread if there is none; say why there is none, if so."""
        if self._thread is None:
            thread = Thread(target=self._work, name="ranonce loader", daemon=True)
            try:
                thread.start()
            except RuntimeError as error:
                return f"nothing was sent: {error}"
            self._thread = thread
        return None

    def _work(self) -> None:
        loader: Loader | None = None
        while (errand := self._errands.get()) is not None:
            for batch in _batches(errand.messages):
                begun: list[Message] = []
                for message in batch:
                    if errand.may_begin(message):
                        begun.append(message)
                    else:
                        errand.answers.put(message, Answer(NOT_BEGUN, "there was no time left for it"))
                if begun:
                    loader = self._hand_over(loader, begun, errand.answers)
        let_go(loader)

    def _hand_over(self, loader: Loader | None, begun: Sequence[Message], answers: Answers) -> Loader | None:
        """Answer every message of a batch, whatever goes wrong; return the loader for the next batch."""
        open_ones = {message.key: message for message in begun}
        failure = Answer(UNKNOWN, "nothing was said of it")
        try:
            if loader is None:
                failure = Answer(NOT_RECEIVED, "nothing was sent")
                loader = self._open_loader()
            failure = Answer(UNKNOWN, "nothing was said of it")
            for message, answer in loader.load(begun):
                if open_ones.pop(message.key, None) is not None:
                    answers.put(message, answer)
        except RanonceError as error:
            failure = failure.replace(words=str(error))
            let_go(loader)
            loader = None
        except Exception as error:  # noqa: BLE001 - a mistake of ours; whatever it is, somebody waits for an answer
            failure = failure.replace(words=f"sending it went wrong here: {type(error).__name__}: {error}")
            let_go(loader)
            loader = None
        for message in open_ones.values():
            answers.put(message, failure)
        return loader


def _batches(messages: Sequence[Message]) -> Iterator[list[Message]]:
    batch: list[Message] = []
    size = 0
    for message in messages:
        length = len(message.body or b"")
        if batch and (len(batch) == MOST_MESSAGES or size + length > MOST_BYTES):
            yield batch
            batch, size = [], 0
        batch.append(message)
        size += length
    if batch:
        yield batch
