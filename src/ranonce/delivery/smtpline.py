"""One connection to a mail server: what is said on it, in which order, and what the answers mean."""

from __future__ import annotations

import smtplib
import socket
import ssl
import time
from base64 import b64encode

from ranonce.messages import DELIVERED, NOT_RECEIVED, REFUSED, THROTTLED, Answer
from ranonce.record import Record

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

    from ranonce.delivery.mail import Mail

STARTTLS, TLS, PLAIN = "starttls", "tls", "none"
#: For so long nothing is sent after a fault that a person must mend: a wrong password, say.
CLOSED_SECONDS = 600.0
#: Answers to any command that mean a login is missing or wrong, or encryption is (RFC 4954, RFC 3207).
_LOGIN_NEEDED = frozenset({530, 534, 535, 538})
#: The system takes over no more of a mail at once, so that a line that breaks in it is seen to break before its end.
_IN_FLIGHT = 32 * 1024  # bytes
_LONGEST_REPLY = 64 * 1024  # bytes, over all of its lines


class Line(Record):
    """How a server is reached. `login` is user and password."""

    host: str
    port: int
    tls: str
    context: ssl.SSLContext | None
    login: tuple[str, str] | None
    timeout: float

    @property
    def secrets(self) -> tuple[str, ...]:
        """What a server is told and nobody else may see."""
        if self.login is None:
            return ()
        user, password = self.login
        return password, _base64(password), _plain_login(user, password)


class Refusal(Exception):
    """The server has said no before the mail was sent, or to the mail; the connection is still of use."""

    def __init__(self, answer: Answer) -> None:
        super().__init__(answer.words)
        self.answer = answer


class Lost(Exception):
    """The end of a mail was sent, and no answer came."""


class Session(smtplib.SMTP):
    """One connection, on which every wait ends at `give_up` (monotonic clock)."""

    def __init__(self, line: Line, give_up: float) -> None:
        super().__init__(local_hostname="localhost", timeout=line.timeout)  # connects to nobody yet
        self._line = line
        self.give_up = give_up

    # --- how a mail is sent ---

    def begin(self) -> None:
        """Connect, encrypt and log in. Raises Refusal, OSError and SMTPException."""
        line = self._line
        self._host = line.host
        _expect(self.connect(line.host, line.port), 220)
        assert self.sock is not None
        own = self.sock.getsockname()[0]  # what a client without a name of its own says (RFC 5321, 4.1.4)
        self.local_hostname = f"[IPv6:{own}]" if ":" in own else f"[{own}]"
        self._greet()
        if line.tls == STARTTLS:
            self._encrypt()
        if line.login:
            self._log_in(*line.login)

    def hand_over(self, mail: Mail) -> None:
        """Send a mail up to the dot at its end. Raises as above: nothing has been received then."""
        options = [f"SIZE={len(mail.raw)}"] if self.has_extn("size") else []
        options += ["BODY=8BITMIME"] if self._needs(mail.eight_bit, "8bitmime", "mails that are not ASCII") else []
        options += (
            ["SMTPUTF8"] if self._needs(mail.utf8, "smtputf8", "addresses and headers that are not ASCII") else []
        )
        self.command_encoding = "utf-8" if mail.utf8 else "ascii"
        _expect(self.docmd(" ".join([f"MAIL FROM:<{mail.sender.spec}>", *options])), 250)
        _expect(self.docmd(f"RCPT TO:<{mail.recipient.spec}>"), 250, 251)
        _expect(self.docmd("DATA"), 354)
        self.send(_with_dots_doubled(mail.raw))

    def end_mail(self) -> Answer:
        """Send the dot, and return what the server says to that. Raises Lost.

        A line that broke while the system had the rest of the mail yet to send looks the same here: it is unknown, too.
        """
        try:
            self.send(b".\r\n")
            code, words = self.getreply()
        except (OSError, smtplib.SMTPException) as error:
            raise Lost(said(error)) from error
        reply = _shown_reply(code, words)
        if 200 <= code < 300:
            return Answer(DELIVERED, reply, answered=True)
        if 400 <= code < 600:
            return Answer(NOT_RECEIVED if code < 500 else REFUSED, reply, answered=True)
        raise Lost(f"the server said {reply}")

    def leave(self) -> None:
        """Say goodbye, without waiting for the answer."""
        try:
            if self.sock is not None:
                self.give_up = time.monotonic() + 1.0
                self.putcmd("QUIT")
        except (OSError, smtplib.SMTPException):
            pass  # it is closed already
        self.close()

    def _greet(self) -> None:
        code, words = self.ehlo()
        if code in (500, 502):  # a server that knows no extensions
            code, words = self.helo()
        _expect((code, words), 250)

    def _encrypt(self) -> None:
        if not self.has_extn("starttls"):
            raise Refusal(to_be_mended(f"{self._line.host} offers no STARTTLS: set tls to tls or none"))
        assert self.sock is not None
        self.sock.settimeout(self._left())
        _expect(self.starttls(context=self._line.context), 220)
        self._greet()

    def _log_in(self, user: str, password: str) -> None:
        """Log in by PLAIN (RFC 4616) or LOGIN, in UTF-8."""
        offered = self.esmtp_features.get("auth", "").upper().split()
        if "PLAIN" in offered:
            reply = self.docmd("AUTH", f"PLAIN {_plain_login(user, password)}")
        elif "LOGIN" in offered:
            reply = self.docmd("AUTH", f"LOGIN {_base64(user)}")
            if reply[0] == 334:
                reply = self.docmd(_base64(password))
        else:
            raise Refusal(to_be_mended(f"{self._line.host} offers no login by PLAIN or LOGIN: take away user"))
        code = reply[0]
        if 500 <= code < 600:
            raise Refusal(to_be_mended(f"the login was refused: {_shown_reply(*reply)}"))
        _expect(reply, 235)

    def _needs(self, needed: bool, extension: str, of_what: str) -> bool:
        """Say whether an extension is to be asked for. Raises Refusal where it is needed and not offered."""
        if needed and not self.has_extn(extension):
            raise Refusal(Answer(REFUSED, f"{self._line.host} takes no {of_what} (no {extension.upper()})"))
        return needed

    # --- how the library's session waits ---

    def _left(self) -> float:
        left = self.give_up - time.monotonic()
        if left <= 0:
            raise TimeoutError("it did not answer in time")
        return left

    def _get_socket(self, host: str, port: int, timeout: float) -> socket.socket:
        """Connect to the first of a host's addresses that answers, each of which is given its share of the time;
        encrypted at once, if so declared."""
        problem: OSError = OSError(f"{host} has no address")
        addresses = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)
        for at, (family, kind, protocol, _, where) in enumerate(addresses):
            left = self._left()
            try:
                connected = socket.socket(family, kind, protocol)
            except OSError as error:
                problem = error
                continue
            try:
                connected.settimeout(left / (len(addresses) - at))
                connected.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, _IN_FLIGHT)
                connected.connect(where)
                connected.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)  # the dot goes by itself
                connected.settimeout(self._left())
                if self._line.tls == TLS and self._line.context is not None:
                    return self._line.context.wrap_socket(connected, server_hostname=host)
                return connected
            except OSError as error:
                connected.close()
                if isinstance(error, ssl.SSLError):
                    raise
                problem = error
        raise problem

    def send(self, s: Any) -> None:
        """Send bytes or a command within the time that is left."""
        if self.sock is not None:
            self.sock.settimeout(self._left())
        super().send(s)

    def getreply(self) -> tuple[int, bytes]:
        """Return the server's next reply, within the time that is left."""
        if self.file is None and self.sock is not None:
            self.file = _Lines(self)
        return super().getreply()


class _Lines:
    """The lines that a server sends, read within the time that its session has left."""

    def __init__(self, session: Session) -> None:
        self._session = session
        self._buffer = b""
        self._total = 0

    def readline(self, limit: int) -> bytes:
        """Return the next line; what there is of it, where the connection ends or it is too long."""
        while b"\n" not in self._buffer and len(self._buffer) < limit:
            assert self._session.sock is not None
            self._session.sock.settimeout(self._session._left())
            chunk = self._session.sock.recv(4096)
            if not chunk:
                break
            self._buffer += chunk
        end = self._buffer.find(b"\n") + 1 or len(self._buffer)
        line, self._buffer = self._buffer[: min(end, limit)], self._buffer[min(end, limit) :]
        self._total = self._total + len(line) if line[3:4] == b"-" else 0
        if self._total > _LONGEST_REPLY:
            raise OSError("its reply has no end")
        return line

    def close(self) -> None:
        """Nothing is to be closed: the socket is the session's."""


def _expect(reply: tuple[int, bytes], *good: int) -> None:
    """Raise Refusal unless a reply is one of those that were asked for."""
    code, words = reply
    if code in good:
        return
    said = _shown_reply(code, words)
    if code in _LOGIN_NEEDED:
        raise Refusal(to_be_mended(f"the server said {said}"))
    if 500 <= code < 600:
        raise Refusal(Answer(REFUSED, said, answered=True))
    if 400 <= code < 500:
        raise Refusal(Answer(NOT_RECEIVED, said, answered=True))
    raise smtplib.SMTPServerDisconnected(f"the server said {said}, which is no answer")


def to_be_mended(words: str) -> Answer:
    """Return the answer where each message would meet the same fault until a person has mended it: none is given up
    for it, and the destination is left alone for a while."""
    return Answer(THROTTLED, words, retry_after=CLOSED_SECONDS, answered=True)


def _with_dots_doubled(raw: bytes) -> bytes:
    """Return a mail as it is sent: a dot at the front of a line would end it (RFC 5321, 4.5.2)."""
    doubled = raw.replace(b"\r\n.", b"\r\n..")
    return b"." + doubled if doubled.startswith(b".") else doubled


def _plain_login(user: str, password: str) -> str:
    return _base64(f"\0{user}\0{password}")


def _base64(text: str) -> str:
    return b64encode(text.encode()).decode()


def _shown_reply(code: int, words: bytes) -> str:
    said = " ".join(words.decode("utf-8", "replace").split())
    return f"{code} {said}".strip() if code >= 0 else f"something that is not SMTP: {said[:80]!r}"


def said(error: Exception) -> str:
    """Return what an error of the system says, without its number."""
    if isinstance(error, socket.gaierror):
        return "the host's name is not known"
    if isinstance(error, OSError) and error.strerror:
        return error.strerror
    return str(error) or type(error).__name__
