"""Destinations of type nats: each message is published to a JetStream stream, and the stream says that it has it.

The stream dedupes by `Nats-Msg-Id`, which is the message's key, within its duplicate window (two minutes unless it was
made with another one). Several messages are on their way at the same time; each has its own acknowledgement.

    acknowledged, as new or as a duplicate            delivered
    no stream listens to the subject                  not received
    the stream did not take it (full, no quorum)      not received
    larger than the server or the stream takes        refused
    no connection                                     not received
    no acknowledgement, or the connection was lost    unknown: tried again within the window, under the same key
"""

from __future__ import annotations

import asyncio
import os
import re
from threading import Thread

from ranonce.delivery.answers import Answers, Threaded
from ranonce.delivery.credentials import credential
from ranonce.delivery.spec import from_environment
from ranonce.errors import ConfigError, UsageError
from ranonce.messages import NOT_BEGUN, UNKNOWN, Answer
from ranonce.record import Record
from ranonce.settings import text, whole
from ranonce.timefmt import shown

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from ranonce.delivery.base import Spec
    from ranonce.delivery.natsline import Line
    from ranonce.messages import Message

#: What a stream dedupes for unless it was made with another window.
DUPLICATE_WINDOW_SECONDS = 120.0
#: So many messages are on their way at the same time.
WINDOW = 256
_TOKEN = re.compile(r"[^\s.*>{}\x00-\x20\x7f]+")


def servers(value: object) -> str:
    """Return the addresses of servers, with commas between; a password in one stands as ${NAME}."""
    from ranonce.serverurl import literal_secret

    written = text(value)
    if any(literal_secret(one.strip()) for one in written.split(",")):
        raise UsageError(
            "the address holds a user, a password or a token.",
            "Credentials come from the environment only: write ${NAME} in its place and set that variable.",
        )
    return written


def subject(value: object) -> str:
    """Return the template of a subject; {job} and {destination} are all that is replaced in it."""
    written = text(value)
    plain = written.replace("{job}", "job").replace("{destination}", "destination")
    if not all(_TOKEN.fullmatch(token) for token in plain.split(".")):
        raise UsageError(
            f"{shown(written)} is no subject to publish to.",
            "Write tokens with dots between, like events.{job}, without * and >.",
        )
    return written


def stream(value: object) -> str:
    """Return the name of a stream."""
    written = text(value)
    if not re.fullmatch(r"[^\s.*>/\\]+", written):
        raise UsageError(f"{shown(written)} is no name of a stream.", "It holds no blank, dot, slash, * or >.")
    return written


def window(value: object) -> int:
    """Return how many messages may be on their way at the same time."""
    number = whole(value)
    if not 1 <= number <= 10_000:
        raise UsageError(f"{number} is out of range.", "It is from 1 to 10000.")
    return number


KEYS = {
    "url": servers,
    "subject": subject,
    "stream": stream,
    "window": window,
    "creds": text,
    "user": text,
    "password": credential,
    "token": credential,
    "ca": text,
}
REQUIRED = ("url", "subject")


def dedupes(settings: Mapping[str, object]) -> float:
    """Return for how long a stream dedupes that was made without saying so. Where the stream says that it is less,
    that counts."""
    return DUPLICATE_WINDOW_SECONDS


def open_sender(spec: Spec, environ: Mapping[str, str]) -> NatsSender:
    """Return what publishes to a stream. Raises ConfigError."""
    try:
        from ranonce.delivery.natsline import Line, Login
    except ImportError as error:
        raise ConfigError(
            f"{spec.place}: a destination of type nats needs the client nats-py, which cannot be loaded here: {error}.",
            "Install it: pip install 'ranonce[nats]'",
        ) from error
    addresses = [one.strip() for one in (from_environment(spec, "url", environ) or "").split(",") if one.strip()]
    if not addresses:
        raise ConfigError(f"{spec.place}.url is empty.", "Name a server like nats://nats.example.org:4222.")
    login = Login(
        user=from_environment(spec, "user", environ),
        password=from_environment(spec, "password", environ),
        token=from_environment(spec, "token", environ),
        creds=_file(spec, "creds", environ),
        authority=_file(spec, "ca", environ),
    )
    return NatsSender(lambda: Line(spec, addresses, login))


def _file(spec: Spec, key: str, environ: Mapping[str, str]) -> str | None:
    written = from_environment(spec, key, environ)
    if written is None:
        return None
    path = os.path.join(spec.folder or "/", written)
    if not os.access(path, os.R_OK):
        raise ConfigError(f"{spec.place}.{key}: {path} cannot be read.", "Name a file that is there.")
    return path


class Errand(Record):
    """Messages on their way: may each still begin, and where the answers are awaited."""

    messages: tuple[Message, ...]
    may_begin: Callable[[Message], bool]
    answers: Answers


class NatsSender(Threaded):
    """Publishes from a thread of its own, in which the client's loop runs."""

    def __init__(self, open_line: Callable[[], Line]) -> None:
        super().__init__()
        self._open_line = open_line
        self._errands: asyncio.Queue[Errand | None] = asyncio.Queue()
        self._loop: asyncio.AbstractEventLoop | None = None
        self._thread: Thread | None = None

    def _hand_out(
        self, messages: Sequence[Message], may_begin: Callable[[Message], bool], answers: Answers
    ) -> str | None:
        return self._give(Errand(tuple(messages), may_begin, answers))

    def close(self) -> None:
        """Let the thread end once it has nothing to send. What is still on its way is not waited for."""
        if self._thread is not None:
            self._give(None)
            self._thread = self._loop = None

    def _give(self, errand: Errand | None) -> str | None:
        """Hand an errand to the thread, which is started if there is none; say why there is none, if so."""
        if self._loop is None:
            loop = asyncio.new_event_loop()
            thread = Thread(target=self._work, args=(loop,), name="ranonce publisher", daemon=True)
            try:
                thread.start()
            except RuntimeError as error:
                loop.close()
                return f"nothing was sent: {error}"
            self._loop, self._thread = loop, thread
        self._loop.call_soon_threadsafe(self._errands.put_nowait, errand)
        return None

    def _work(self, loop: asyncio.AbstractEventLoop) -> None:
        with asyncio.Runner(loop_factory=lambda: loop) as runner:
            runner.run(self._carry_out())

    async def _carry_out(self) -> None:
        line = self._open_line()
        while (errand := await self._errands.get()) is not None:
            open_ones = {message.key: message for message in errand.messages}

            def answer(message: Message, of_it: Answer, open_ones: dict[str, Message] = open_ones) -> None:
                if open_ones.pop(message.key, None) is not None:
                    errand.answers.put(message, of_it)

            failure = Answer(UNKNOWN, "nothing was said of it")
            try:
                await line.publish(errand.messages, errand.may_begin, answer)
            except Exception as error:  # noqa: BLE001 - a mistake of ours; whatever it is, somebody waits for an answer
                failure = Answer(UNKNOWN, f"sending it went wrong here: {type(error).__name__}: {error}")
                await line.close()
            for message in list(open_ones.values()):
                answer(message, failure)
        await line.close()


def not_begun() -> Answer:
    """Return the answer for a message that may not begin any more."""
    return Answer(NOT_BEGUN, "there was no time left for it")
