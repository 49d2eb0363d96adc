"""An ASGI middleware that lets each request with an idempotency key through once, and repeats its answer.

A request is begun under its key before the application sees it, and its answer is kept before anybody is told. A
repeated one gets the kept answer; one that comes meanwhile gets 409, one with the same key and another content 422, one
without a key where one is required 400. An application that fails (an exception, 5xx) gives the key back: what it did
not do, the next request does.

Between the application's own commit and the keeping of its answer, this process may die. What then follows is up to
`again`. An application that settles the request in the transaction of its effect leaves no such gap: see `Reception`.

Source: draft-ietf-httpapi-idempotency-key-header-07.
"""

from __future__ import annotations

import asyncio
import json
import logging
from math import ceil

from ranonce.errors import ClaimLost, UsageError
from ranonce.inbox.answers import AGAIN, CONFLICT, FIRST, IN_FLIGHT, UNKNOWN, Answer, Received
from ranonce.inbox.connections import Pool, failures, opener, place_of
from ranonce.inbox.keys import fingerprint_of, key_of
from ranonce.inbox.renewing import Renewing
from ranonce.inbox.table import RETENTION_SECONDS, Inbox

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Iterable, MutableMapping
    from typing import Any

    Scope = MutableMapping[str, Any]
    Message = MutableMapping[str, Any]
    Receive = Callable[[], Awaitable[Message]]
    Send = Callable[[Message], Awaitable[None]]
    Application = Callable[[Scope, Receive, Send], Awaitable[None]]

RECEPTION = "ranonce.reception"  # where an application finds its `Reception` in the scope
LOG = logging.getLogger("ranonce.inbox")
MEBIBYTE = 1 << 20
#: Headers that belong to one answer on its way, or to one caller: they are not kept.
_NOT_KEPT = frozenset({b"connection", b"date", b"keep-alive", b"server", b"set-cookie", b"transfer-encoding"})
_PRUNE_EVERY = 200  # requests


class Reception:
    """One request under way, as its application sees it: `scope["ranonce.reception"]`."""

    def __init__(self, inbox: Inbox, key: str, token: str, renewing: Renewing) -> None:
        self.key = key
        self.settled = False
        self._renewing = renewing
        self._inbox = inbox
        self._token = token

    def settle(
        self, connection: object, status: int = 200, body: bytes = b"", headers: Iterable[tuple[bytes, bytes]] = ()
    ) -> None:
        """Keep the answer within the application's own transaction, where the table of keys is in the same database.

        The effect and the answer are then committed together, or neither is: a crash at any moment leaves no doubt.
        Raises ClaimLost if another request has taken over: roll back and let it pass, the middleware answers 409.
        """
        self._renewing.end(self.key, self._token)  # which would wait for the transaction: from here on that has the key
        self._inbox.settle(connection, self.key, self._token, Answer(status, tuple(headers), body))
        self.settled = True


class IdempotencyMiddleware:
    """Stands before an ASGI application. Every worker has one of its own, over the same database.

    `database` is `sqlite:////PATH` or `postgresql://…`, or returns a new connection of sqlite3 or psycopg 3; the table
    of `inbox` must be there (`Inbox.create`). Only requests with one of `methods` for which `applies` (of the scope)
    holds are looked at. `client` (of the scope) names whose key it is, where callers must not see each other's answers.
    Keys are remembered for `keep_seconds` after they were received. A request that is not heard of for `lease_seconds`
    is given up: with `again` the next one begins anew, else it gets 409 until a person has looked. `documentation` is
    the address of what callers should read.
    """

    def __init__(
        self,
        app: Application,
        database: str | Callable[[], Any],
        *,
        inbox: Inbox | None = None,
        methods: Iterable[str] = ("POST", "PATCH"),
        required: bool = True,
        header: str = "Idempotency-Key",
        applies: Callable[[Scope], bool] = lambda scope: True,
        client: Callable[[Scope], str] = lambda scope: "",
        keep_seconds: float = RETENTION_SECONDS,
        lease_seconds: float = 60.0,
        again: bool = True,
        most_body: int = MEBIBYTE,
        most_answer: int = MEBIBYTE,
        documentation: str = "about:blank",
    ) -> None:
        if not lease_seconds > 0 or not keep_seconds > lease_seconds:
            raise UsageError(
                f"keys cannot be kept for {keep_seconds:g} seconds with a lease of {lease_seconds:g}.",
                "A lease is more than 0 seconds, and keys are kept for longer than one.",
            )
        self._app = app
        self._inbox = inbox or Inbox()
        self._place = place_of(database)
        self._pool = Pool(opener(database) if isinstance(database, str) else database)
        self._methods = frozenset(method.upper() for method in methods)
        self._required = required
        self._header = header.lower().encode("ascii")
        self._header_name = header
        self._applies = applies
        self._client = client
        self._keep_seconds = keep_seconds
        self._lease_seconds = lease_seconds
        self._again = again
        self._most_body = most_body
        self._most_answer = most_answer
        self._documentation = documentation
        self._not_kept: tuple[type[Exception], ...] = (ClaimLost, *failures())
        self._renewing = Renewing(lambda key, token: self._renew(key, token), lease_seconds / 3)  # noqa: PLW0108 - as it is then
        self._count = 0

    def close(self) -> None:
        """Close the connections to the database; a server that speaks of its end (lifespan) has this done by itself."""
        self._pool.close()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Serve one connection of the server's."""
        if scope["type"] == "lifespan":
            try:
                await self._app(scope, receive, send)
            finally:
                self.close()
            return
        if scope["type"] != "http" or scope["method"] not in self._methods or not self._applies(scope):
            await self._app(scope, receive, send)
            return
        values = [value for name, value in scope["headers"] if name.lower() == self._header]
        if not values and not self._required:
            await self._app(scope, receive, send)
            return
        key = key_of(values[0]) if len(values) == 1 else None
        if key is None:
            await self._refuse_key(send, missing=not values)
            return
        try:
            body = await _whole_body(receive, self._most_body)
        except _LeftError:
            return  # nobody is there to be answered, and nobody knows what else was to come
        if body is None:
            await self._problem(send, 413, "The request is too long", f"It may have {self._most_body} bytes.")
            return
        if (client := self._client(scope)) != "":
            key = f"{client}\n{key}"
        try:
            received = await asyncio.to_thread(self._begin, key, _fingerprint(scope, body))
        except failures() as error:
            LOG.error("the inbox (%s) could not be asked: %s", self._place, error)
            await self._problem(send, 503, "Try again", "Nothing was done.", ((b"retry-after", b"5"),))
            return
        if received.kind == FIRST:
            await self._serve(scope, body, receive, send, key, received.token)
        elif received.kind == AGAIN:
            await _replay(send, received.answer or Answer(204))
        else:
            await self._refuse(send, received)

    # --- the table, in threads ---

    def _begin(self, key: str, fingerprint: str) -> Received:
        self._count += 1
        with self._pool.transaction() as connection:
            if self._count % _PRUNE_EVERY == 1:
                self._inbox.prune(connection, keep_seconds=self._keep_seconds)
            return self._inbox.begin(connection, key, fingerprint, lease_seconds=self._lease_seconds, again=self._again)

    def _renew(self, key: str, token: str) -> bool:
        with self._pool.transaction() as connection:
            return self._inbox.renew(connection, key, token, lease_seconds=self._lease_seconds)

    def _settle(self, key: str, token: str, answer: Answer) -> None:
        with self._pool.transaction() as connection:
            self._inbox.settle(connection, key, token, answer)

    def _release(self, key: str, token: str) -> None:
        with self._pool.transaction() as connection:
            self._inbox.release(connection, key, token)

    # --- the request that comes first ---

    async def _serve(self, scope: Scope, body: list[bytes], receive: Receive, send: Send, key: str, token: str) -> None:
        reception = Reception(self._inbox, key, token, self._renewing)
        answering = _Answering(send, self._most_answer, lambda answer: self._keep(reception, key, token, answer))
        self._renewing.begin(key, token)
        try:
            await self._app({**scope, RECEPTION: reception}, _after(body, receive), answering.send)
        except ClaimLost:
            await self._refuse(send, Received(IN_FLIGHT, until=1.0))
        except Exception:
            await self._give_back(key, token)
            raise
        finally:
            if answering.unkept is not None:  # by a transaction of the application's own that was open until now, say
                await self._keep(reception, key, token, answering.unkept)
            self._renewing.end(key, token)
        if not answering.complete:  # it said nothing, or not all of it: nobody can be told what it did
            await self._give_back(key, token)

    async def _keep(self, reception: Reception, key: str, token: str, answer: Answer) -> bool:
        """Keep an answer before it is sent; return whether that needs no other try. One that says that nothing was done
        gives the key back instead."""
        if reception.settled:
            return True
        if answer.status >= 500:
            await self._give_back(key, token)
            return True
        try:
            await asyncio.to_thread(self._settle, key, token, answer)
        except self._not_kept as error:  # the work is done: whoever asked for it is told so
            LOG.error("the answer to the key %s could not be kept: %s", key, error)
            return isinstance(error, ClaimLost)
        return True

    async def _give_back(self, key: str, token: str) -> None:
        try:
            await asyncio.to_thread(self._release, key, token)
        except failures() as error:  # then its lease ends
            LOG.error("the key %s could not be given back: %s", key, error)

    # --- what is refused ---

    async def _refuse_key(self, send: Send, *, missing: bool) -> None:
        what = "missing" if missing else "not readable"
        detail = f'This operation needs one {self._header_name}, a string in quotes: {self._header_name}: "…"'
        await self._problem(send, 400, f"{self._header_name} is {what}", detail)

    async def _refuse(self, send: Send, received: Received) -> None:
        if received.kind == CONFLICT:
            detail = "The key was used before, for another request. Send this one under a key of its own."
            await self._problem(send, 422, f"{self._header_name} is already used", detail)
            return
        if received.kind == UNKNOWN:
            detail = "An earlier request with this key was never heard of again. A person must see whether it was done."
            await self._problem(send, 409, "Nobody knows what became of this request", detail)
            return
        detail = "A request with the same key is being processed."
        after = str(max(1, ceil(min(received.until, 60.0)))).encode()
        title = f"A request is outstanding for this {self._header_name}"
        await self._problem(send, 409, title, detail, ((b"retry-after", after),))

    async def _problem(
        self, send: Send, status: int, title: str, detail: str, headers: tuple[tuple[bytes, bytes], ...] = ()
    ) -> None:
        """Answer with a problem. Source: RFC 9457."""
        told = {"type": self._documentation, "title": title, "status": status, "detail": detail}
        kind = ((b"content-type", b"application/problem+json"), (b"content-language", b"en"))
        await _replay(send, Answer(status, (*kind, *headers), json.dumps(told).encode()), replayed=False)


class _Answering:
    """Holds an application's answer back until it is kept: all of it, or as much as is kept of a long one."""

    def __init__(self, send: Send, most: int, keep: Callable[[Answer], Awaitable[bool]]) -> None:
        self.complete = False
        self.unkept: Answer | None = None
        self._send = send
        self._most = most
        self._keep = keep
        self._held: list[Message] = []
        self._start: Message | None = None
        self._size = 0
        self._open = False  # the answer is kept, and everything goes straight on

    async def send(self, message: Message) -> None:
        """Take one message of the application's."""
        if self._open:
            await self._pass_on(message)
            return
        self._held.append(message)
        if message["type"] == "http.response.start":
            self._start = message
        if message["type"] != "http.response.body" or self._start is None:
            return
        self._size += len(message.get("body", b""))
        more, too_long = message.get("more_body", False), self._size > self._most
        if more and not too_long:
            return
        body = None if too_long else b"".join(each.get("body", b"") for each in self._held)
        kept = tuple((name, value) for name, value in self._start.get("headers", ()) if name.lower() not in _NOT_KEPT)
        answer = Answer(self._start["status"], kept, body)
        self.unkept = None if await self._keep(answer) else answer
        self._open = True
        held, self._held = self._held, []
        for each in held:
            await self._pass_on(each)

    async def _pass_on(self, message: Message) -> None:
        if message["type"] == "http.response.body" and not message.get("more_body", False):
            self.complete = True
        await self._send(message)


class _LeftError(Exception):
    """The caller has left before the end of the request: what has come of it is not what was to be done."""


async def _whole_body(receive: Receive, most: int) -> list[bytes] | None:
    """Return the body of a request in pieces; None if it is too long. Raises _LeftError."""
    pieces: list[bytes] = []
    size = 0
    while True:
        message = await receive()
        if message["type"] != "http.request":
            raise _LeftError
        pieces.append(message.get("body", b""))
        size += len(pieces[-1])
        if size > most:
            return None
        if not message.get("more_body", False):
            return pieces


def _after(body: list[bytes], receive: Receive) -> Receive:
    """Return what gives an application the body that was read, and then what the server has to say."""
    given = False

    async def again() -> Message:
        nonlocal given
        if given:
            return await receive()
        given = True
        return {"type": "http.request", "body": b"".join(body), "more_body": False}

    return again


def _fingerprint(scope: Scope, body: list[bytes]) -> str:
    path = scope.get("raw_path") or scope["path"].encode()
    kinds = [value for name, value in scope["headers"] if name.lower() == b"content-type"]
    return fingerprint_of(scope["method"], path, scope.get("query_string", b""), b"".join(kinds[:1]), body)


async def _replay(send: Send, answer: Answer, *, replayed: bool = True) -> None:
    body = answer.body or b""
    headers = [(name, value) for name, value in answer.headers if name.lower() != b"content-length"]
    headers.append((b"content-length", str(len(body)).encode()))
    if replayed:
        headers.append((b"idempotency-replayed", b"true"))
    await send({"type": "http.response.start", "status": answer.status, "headers": headers})
    await send({"type": "http.response.body", "body": body, "more_body": False})
