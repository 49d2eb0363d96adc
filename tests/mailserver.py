"""A mail server on loopback that keeps what it takes, and answers as a test tells it to."""

from __future__ import annotations

import asyncio
import ssl
import threading
from collections import defaultdict, deque
from dataclasses import dataclass, field
from email import message_from_bytes, policy
from email.message import EmailMessage
from typing import Any

import pytest

from tests.servers import free_port, missing

try:
    from aiosmtpd.smtp import SMTP, AuthResult, Envelope, LoginPassword, Session, syntax
except ImportError:
    try:
        missing("aiosmtpd")
    except pytest.skip.Exception:
        pytest.skip("aiosmtpd is not installed", allow_module_level=True)

#: Instead of an answer: the connection is cut, before or after what was sent is kept.
CUT, KEEP_AND_CUT = "cut", "keep and cut"
#: Instead of an answer: none, for as long as the client waits.
SILENCE = "silence"

#: The steps at which a test can say what is answered; `dot` is the end of a mail.
STEPS = ("greeting", "EHLO", "MAIL", "RCPT", "DATA", "dot", "RSET")


@dataclass
class Kept:
    """One mail that the server has taken in."""

    sender: str
    recipients: list[str]
    raw: bytes
    options: list[str]

    @property
    def mail(self) -> EmailMessage:
        return message_from_bytes(self.raw, policy=policy.default)  # type: ignore[return-value]


@dataclass
class MailServer:
    """Listens until it is stopped. `told` are the answers to come, step by step; a step without one is accepted."""

    encrypts: ssl.SSLContext | None = None  # when it is asked to
    encrypted: ssl.SSLContext | None = None  # from the first byte
    user: str | None = None
    password: str | None = None
    utf8: bool = False
    port: int = field(default_factory=free_port)
    kept: list[Kept] = field(default_factory=list)
    connections: int = 0
    commands: list[str] = field(default_factory=list)
    told: dict[str, deque[str]] = field(default_factory=lambda: defaultdict(deque))

    def tell(self, step: str, *answers: str) -> None:
        """Say what the next answers at a step are; an empty one is the usual one."""
        assert step in STEPS
        self.told[step].extend(answers)

    def next_of(self, step: str) -> str:
        return self.told[step].popleft() if self.told[step] else ""

    def __enter__(self) -> MailServer:
        self._thread.start()
        assert self._listens.wait(10)
        return self

    def __exit__(self, *_: object) -> None:
        self._loop.call_soon_threadsafe(self._stopped.set)
        self._thread.join(10)

    def __post_init__(self) -> None:
        self._thread = threading.Thread(target=lambda: asyncio.run(self._work()), daemon=True)
        self._listens = threading.Event()
        self._sessions: list[_Told] = []

    async def _work(self) -> None:
        self._loop, self._stopped = asyncio.get_running_loop(), asyncio.Event()
        listener = await self._loop.create_server(self._protocol, "127.0.0.1", self.port, ssl=self.encrypted)
        self._listens.set()
        await self._stopped.wait()
        listener.close()
        for session in self._sessions:
            for transport in (session.transport, session._original_transport):
                if transport is not None:
                    transport.abort()
        await asyncio.sleep(0.01)  # in which they are closed

    def _protocol(self) -> SMTP:
        login: dict[str, Any] = {}
        if self.user is not None:
            login = {
                "authenticator": server_login(self),
                "auth_required": True,
                "auth_require_tls": self.encrypts is not None,
            }
        session = _Told(
            self,
            _Keeper(self),
            hostname="mail.test",
            enable_SMTPUTF8=self.utf8,
            tls_context=self.encrypts,
            loop=self._loop,
            **login,
        )
        self._sessions.append(session)
        return session


def server_login(server: MailServer) -> Any:
    """Return what compares a login with the server's."""

    def authenticate(*asked: Any) -> AuthResult:
        given = asked[-1]
        right = isinstance(given, LoginPassword) and (given.login, given.password) == (
            (server.user or "").encode(),
            (server.password or "").encode(),
        )
        return AuthResult(success=right, handled=False)

    return authenticate


class _Told(SMTP):
    """The protocol, with the answers of the test in it."""

    def __init__(self, server: MailServer, handler: object, **settings: Any) -> None:
        self.tested = server
        super().__init__(handler, **settings)

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        if self.transport is None:
            self.tested.connections += 1
        super().connection_made(transport)

    async def push(self, status: str | bytes) -> None:
        if isinstance(status, str) and status.startswith("220 mail.test"):
            status = await self.answer("greeting") or status
        await super().push(status)

    async def answer(self, step: str) -> str:
        """Return what the test says to a step, or nothing; ends the connection where it says that."""
        said = self.tested.next_of(step)
        if said == SILENCE:
            await asyncio.sleep(3600)
        if said == CUT and self.transport is not None:
            self.transport.abort()
            await asyncio.sleep(3600)  # it is cancelled when the connection is seen to be lost
        if said.startswith("421"):
            await super().push(said)
            assert self.transport is not None
            self.transport.close()
            await asyncio.sleep(3600)
        return said

    @syntax("DATA")
    async def smtp_DATA(self, arg: str) -> None:
        self.tested.commands.append("DATA")
        said = await self.answer("DATA")
        if said:
            await self.push(said)
        else:
            await super().smtp_DATA(arg)

    @syntax("RSET")
    async def smtp_RSET(self, arg: str) -> None:
        self.tested.commands.append("RSET")
        said = await self.answer("RSET")
        if said:
            await self.push(said)
        else:
            await super().smtp_RSET(arg)


class _Keeper:
    """What is asked of each step."""

    def __init__(self, server: MailServer) -> None:
        self.server = server

    async def handle_EHLO(
        self, server: _Told, session: Session, envelope: Envelope, hostname: str, responses: list[str]
    ) -> list[str]:
        self.server.commands.append(f"EHLO {hostname}")
        said = await server.answer("EHLO")
        session.host_name = hostname
        return [said] if said else responses

    async def handle_MAIL(
        self, server: _Told, session: Session, envelope: Envelope, address: str, options: list[str]
    ) -> str:
        self.server.commands.append("MAIL")
        said = await server.answer("MAIL")
        if said:
            return said
        envelope.mail_from = address
        envelope.mail_options.extend(options)
        return "250 OK"

    async def handle_RCPT(
        self, server: _Told, session: Session, envelope: Envelope, address: str, options: list[str]
    ) -> str:
        self.server.commands.append("RCPT")
        said = await server.answer("RCPT")
        if said:
            return said
        envelope.rcpt_tos.append(address)
        return "250 OK"

    async def handle_DATA(self, server: _Told, session: Session, envelope: Envelope) -> str:
        if self.server.told["dot"] and self.server.told["dot"][0] == KEEP_AND_CUT:
            self.server.told["dot"][0] = CUT
            self._keep(envelope)
        said = await server.answer("dot")
        if said:
            return said
        self._keep(envelope)
        return f"250 2.0.0 OK: queued as {len(self.server.kept):08X}"

    def _keep(self, envelope: Envelope) -> None:
        raw = envelope.original_content
        assert raw is not None
        self.server.kept.append(
            Kept(envelope.mail_from or "", list(envelope.rcpt_tos), raw, list(envelope.mail_options))
        )
