"""A connection to NATS on which messages are published, many at a time, and acknowledged one by one.

It is never mended by the client: a client that connects again sends what it has kept for the old connection, when
nobody waits for that any more. A line that broke is made anew for the next messages.

Sources: NATS ADR-1 (JetStream API errors), ADR-4 (headers, status 503 for "no responders").
"""

from __future__ import annotations

import asyncio
import json
import time
from collections import deque

from nats import errors
from nats.aio.client import Client
from nats.errors import Error as NatsError

from ranonce.delivery.authority import trusting
from ranonce.delivery.nats import WINDOW, not_begun
from ranonce.messages import DELIVERED, NOT_RECEIVED, REFUSED, THROTTLED, UNKNOWN, Answer
from ranonce.record import Record

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from typing import Any

    from nats.aio.msg import Msg

    from ranonce.delivery.base import Spec
    from ranonce.messages import Message

#: Errors of a stream that mean the message, not the moment: it is larger than the stream takes, or its headers are.
_TOO_LARGE = frozenset({10054, 10097})
#: What the client says of a message that it has not even kept to be sent.
_BEFORE_IT_IS_KEPT = (
    errors.ConnectionClosedError,
    errors.ConnectionDrainingError,
    errors.OutboundBufferLimitError,
    errors.MaxPayloadError,
    errors.BadSubjectError,
    errors.BadHeaderError,
)
#: For so long nothing is sent after a login was refused: a person must mend that.
_CLOSED_SECONDS = 600.0
_CLOSE_SECONDS = 2.0
#: The stream is asked what it dedupes for no longer than this.
_ASK_SECONDS = 2.0


class Login(Record):
    """Who we are, and who vouches for the server; None where that is not said."""

    user: str | None
    password: str | None
    token: str | None
    creds: str | None
    authority: str | None


class Line:
    """Publishes from the loop that it is used in."""

    def __init__(self, spec: Spec, addresses: Sequence[str], login: Login) -> None:
        self._spec = spec
        self._addresses = addresses
        self._login = login
        self._window = int(str(spec.settings.get("window", WINDOW)))
        self._client: Client | None = None
        self._inbox = ""
        self._number = 0
        self._on_way: dict[str, tuple[Message, float]] = {}  # by token, the longest on its way first
        self._acknowledged: Callable[[Message, Answer], None] = _nobody
        self._moved = asyncio.Event()
        self._deduped = spec.route.dedupes
        self._made_at = 0.0  # when the stream was made; unix seconds

    async def publish(
        self,
        messages: Sequence[Message],
        may_begin: Callable[[Message], bool],
        answer: Callable[[Message, Answer], None],
    ) -> None:
        """Publish messages and answer each, as soon as something is known of it."""
        waiting = deque(messages)
        self._acknowledged = answer
        problem = await self._connect()
        if self._client is not None and any(message.doubt_since is not None for message in messages):
            await self._ask(self._client)  # the stream may be another one by now
        while waiting:
            if self._client is None or not self._client.is_connected:
                lost = Answer(NOT_RECEIVED, "the connection to NATS was lost before this was sent")
                while waiting:
                    answer(waiting.popleft(), problem or lost)
                break
            if len(self._on_way) >= self._window:
                await self._wait()
                continue
            message = waiting.popleft()
            refusal = self._refusal(message)
            if refusal is not None:
                answer(message, refusal)
            elif not may_begin(message):
                answer(message, not_begun())
            else:
                await self._begin(self._client, message, answer)
        while self._on_way:
            await self._wait()

    async def close(self) -> None:
        """Let go of the connection."""
        client, self._client = self._client, None
        if client is not None:
            await _close(client)

    # --- one message ---

    async def _begin(self, client: Client, message: Message, answer: Callable[[Message, Answer], None]) -> None:
        self._number += 1
        token = f"{self._number:x}"
        self._on_way[token] = message, time.monotonic() + self._spec.route.timeout
        try:
            await client.publish(
                self._subject(message), message.body or b"", reply=self._inbox + token, headers=self._headers(message)
            )
        except (NatsError, OSError) as error:
            if self._on_way.pop(token, None):
                kind = NOT_RECEIVED if isinstance(error, _BEFORE_IT_IS_KEPT) else UNKNOWN
                answer(message, Answer(kind, _said(error)))

    def _subject(self, message: Message) -> str:
        """Return where a message goes; a dot in a name would make two tokens of it."""
        job = message.run.job.replace(".", "_")
        destination = message.destination.replace(".", "_")
        template = str(self._spec.settings["subject"])
        return template.replace("{job}", job).replace("{destination}", destination)

    def _headers(self, message: Message) -> dict[str, str]:
        headers = {"Nats-Msg-Id": self._spec.key(message), "Content-Type": message.content_type}
        stream = self._spec.settings.get("stream")
        return {**headers, "Nats-Expected-Stream": str(stream)} if stream else headers

    def _refusal(self, message: Message) -> Answer | None:
        """Return why a message is not published at all."""
        assert self._client is not None
        size = len(message.body or b"") + sum(len(f"{k}: {v}\r\n") for k, v in self._headers(message).items()) + 12
        if size > self._client.max_payload:
            return Answer(REFUSED, f"it has {size} bytes, and the server takes {self._client.max_payload}")
        since = message.doubt_since
        if since is not None and time.time() + self._spec.route.timeout - since > self._deduped:
            return Answer(
                UNKNOWN,
                f"it was not sent again: the stream dedupes for {self._deduped:g} s, and an earlier try may have been"
                f" received. Set dedupes to {self._deduped:g}, or make the stream's duplicate window longer",
            )
        if since is not None and since < self._made_at:
            return Answer(UNKNOWN, "it was not sent again: the stream was made anew since, and knows no earlier try")
        return None

    # --- what comes back ---

    async def _answered(self, reply: Msg) -> None:
        found = self._on_way.pop(reply.subject[len(self._inbox) :], None)
        self._moved.set()
        if found is not None:
            self._acknowledged(found[0], self._of(found[0], reply))

    def _of(self, message: Message, reply: Msg) -> Answer:
        if reply.headers and reply.headers.get("Status") == "503":
            return Answer(NOT_RECEIVED, f"no stream listens to the subject {self._subject(message)}", answered=True)
        try:
            said: dict[str, Any] = json.loads(reply.data)
            error = said.get("error")
            if error:
                words = f"the stream did not take it: {error.get('description')} (error {error.get('err_code')})"
                kind = REFUSED if error.get("err_code") in _TOO_LARGE else NOT_RECEIVED
                return Answer(kind, words, answered=True)
            again = " duplicate" if said.get("duplicate") else ""
            return Answer(DELIVERED, f"stream={said['stream']} seq={said['seq']}{again}", answered=True)
        except (ValueError, KeyError, AttributeError):
            return Answer(
                UNKNOWN, f"what listens to {self._subject(message)} is no stream: it said {reply.data[:80]!r}"
            )

    async def _wait(self) -> None:
        """Wait until something has moved, or the longest on its way has been so for too long."""
        if self._client is None or not self._client.is_connected:
            self._give_up("the connection to NATS was lost before it was acknowledged", all_of_them=True)
            return
        _, until = next(iter(self._on_way.values()))
        self._moved.clear()
        try:
            await asyncio.wait_for(self._moved.wait(), max(0.0, until - time.monotonic()))
        except TimeoutError:
            self._give_up("no acknowledgement came in time", all_of_them=False)
            if not self._on_way:
                await self.close()  # it may be silent for good

    def _give_up(self, words: str, *, all_of_them: bool) -> None:
        now = time.monotonic()
        for token, (message, until) in list(self._on_way.items()):
            if all_of_them or until <= now:
                del self._on_way[token]
                self._acknowledged(message, Answer(UNKNOWN, words))

    # --- the connection ---

    async def _connect(self) -> Answer | None:
        """Connect unless that is so already; return the answer to every message where that is not possible."""
        if self._client is not None and self._client.is_connected:
            return None
        await self.close()
        problem = Answer(NOT_RECEIVED, "no server is named")
        give_up = time.monotonic() + self._spec.route.timeout
        for address in self._addresses:
            client = Client()
            try:
                async with asyncio.timeout(max(0.05, give_up - time.monotonic())):
                    await client.connect(address, **self._options())
                    self._inbox = f"{client.new_inbox()}."
                    await client.subscribe(f"{self._inbox}*", cb=self._answered)
                    await self._ask(client)
            except (NatsError, OSError, TimeoutError, ValueError) as error:
                reason = client.last_error if isinstance(error, errors.NoServersError) else None
                words = f"{_without_login(address)}: {_said(reason or error)}"
                problem = Answer(NOT_RECEIVED, words)
                if isinstance(error, errors.AuthorizationError) or "uthorization" in words:
                    problem = Answer(THROTTLED, words, retry_after=_CLOSED_SECONDS, answered=True)
                await _close(client)
            else:
                self._client = client
                return None
        return problem

    def _options(self) -> dict[str, Any]:
        login = self._login
        options: dict[str, Any] = {
            "name": "ranonce",
            "allow_reconnect": False,
            "max_reconnect_attempts": 1,  # at one address; the next one is ours to ask
            "reconnect_time_wait": 0,
            "connect_timeout": max(1, int(self._spec.route.timeout)),
            "error_cb": _ignore,
            "closed_cb": self._lost,
            "user": login.user,
            "password": login.password,
            "token": login.token,
            "user_credentials": login.creds,
        }
        if login.authority:
            options["tls"] = trusting(login.authority)
        return options

    async def _lost(self) -> None:
        self._moved.set()

    async def _ask(self, client: Client) -> None:
        """Ask the stream for how long it dedupes, and since when; one that may not be asked dedupes as the settings
        say."""
        streams = client.jetstream(timeout=min(_ASK_SECONDS, self._spec.route.timeout))
        name = self._spec.settings.get("stream")
        self._deduped, self._made_at = self._spec.route.dedupes, 0.0
        try:
            if not name:
                pattern = str(self._spec.settings["subject"]).replace("{job}", "*").replace("{destination}", "*")
                name = await streams.find_stream_name_by_subject(pattern)
            told = await streams.stream_info(str(name))
        except NatsError:
            return
        if told.config.duplicate_window is not None:
            self._deduped = min(self._deduped, told.config.duplicate_window)
        self._made_at = told.created.timestamp() if told.created is not None else 0.0


async def _close(client: Client) -> None:
    """Close a client. After a handshake that failed it waits for the end of its connection for ever: not so here."""
    if client.is_closed:
        return
    try:
        async with asyncio.timeout(_CLOSE_SECONDS):
            await client.close()
    except (NatsError, OSError, TimeoutError):
        return  # nobody will use it again


def _nobody(message: Message, answer: Answer) -> None:
    """Nobody waits for an answer."""


async def _ignore(error: Exception) -> None:
    """What went wrong is seen where something is awaited."""


def _said(error: Exception) -> str:
    if isinstance(error, TimeoutError):
        return "it did not answer in time"
    if isinstance(error, OSError) and error.strerror:
        return error.strerror
    return str(error).removeprefix("nats: ") or type(error).__name__


def _without_login(address: str) -> str:
    scheme, separator, rest = address.rpartition("://")
    return f"{scheme}{separator}{rest.rpartition('@')[2]}"
