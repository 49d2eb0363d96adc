"""HTTP/1.1 over a connection that knows whether anything of a request has left, with one deadline for an exchange.

Answers are read by `http.client`, of which nothing else is used: it waits anew at each read, sends a request in pieces,
and takes an answer that breaks off within its head for a whole one. Here every wait ends at the same deadline, and what
has no end is broken off. Redirects are answers like any other.

Sources: RFC 9110 and RFC 9112; section 9.6 of the latter for connections that are closed while a request is on its way.
"""

from __future__ import annotations

import io
import socket
import ssl
import time
from http.client import HTTPException, HTTPResponse

from ranonce.record import Record

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Mapping
    from email.message import Message as Head

#: No more of an answer's body is read.
LONGEST_ANSWER = 64 * 1024  # bytes
#: A connection that was idle for longer is not used again: many servers close theirs after five seconds.
LONGEST_IDLE_SECONDS = 4.0


class NotSentError(Exception):
    """Not one byte of the request has left, and why."""


class UnansweredError(Exception):
    """The request may have been received, and there is no answer that could be read."""


class Reply(Record):
    """An answer. `broken` says why its body is not all that was announced; one that is merely long is not broken."""

    status: int
    head: Head
    body: bytes
    broken: str | None = None


class Proxy(Record):
    """A proxy of the environment, and what it wants to hear of who asks."""

    host: str
    port: int
    authorization: str | None = None


class Peer(Record):
    """Whom a connection leads to: `tls` None is plain HTTP."""

    host: str
    port: int
    tls: ssl.SSLContext | None = None
    proxy: Proxy | None = None


def request(method: str, target: str, headers: Mapping[str, str], body: bytes) -> bytes:
    """Return a request as it goes over the wire. The caller has looked at the headers (`header_problem`)."""
    lines = [f"{method} {target} HTTP/1.1", *(f"{name}: {value}" for name, value in headers.items())]
    if body or method != "GET":
        lines.append(f"Content-Length: {len(body)}")
    return "\r\n".join([*lines, "", ""]).encode("ascii") + body


def header_problem(value: str) -> str | None:
    """Return why a text cannot be the value of a header; None if it can."""
    if not value.isascii():
        return "it is not ASCII, and a header is"
    if not value.isprintable():  # also line breaks, which would begin another header
        return "it holds control characters"
    return "it begins or ends with a blank" if value != value.strip() else None


class Wire:
    """Exchanges requests for answers with one peer. `keeps`: the connection is used again while it lives."""

    def __init__(self, peer: Peer, *, keeps: bool = True) -> None:
        self._peer = peer
        self._keeps = keeps
        self._kept: _Line | None = None
        self._kept_at = 0.0

    def exchange(self, method: str, written: bytes, seconds: float, most: int = LONGEST_ANSWER) -> Reply:
        """Send a request and return the answer with no more than so many bytes of body, all within so many seconds.

        Raises NotSentError if not one byte of it has left, and UnansweredError if some may have been received.
        """
        deadline = time.monotonic() + seconds
        line = self._living()
        if line is not None:
            try:
                return self._over(line, method, written, deadline, most)
            except NotSentError:
                pass  # it was closed after all, before anything of this request was on it
        return self._over(_opened(self._peer, deadline), method, written, deadline, most)

    def close(self) -> None:
        """Let go of the connection."""
        if self._kept is not None:
            self._kept.close()
            self._kept = None

    def _living(self) -> _Line | None:
        """Return the connection that was kept, if it is young enough and nobody has closed it."""
        line, self._kept = self._kept, None
        if line is None:
            return None
        if time.monotonic() - self._kept_at <= LONGEST_IDLE_SECONDS and line.is_quiet():
            return line
        line.close()
        return None

    def _over(self, line: _Line, method: str, written: bytes, deadline: float, most: int) -> Reply:
        keep = False
        try:
            reply, keep = _exchanged(line, method, written, deadline, most)
        finally:
            if keep and self._keeps:
                self._kept, self._kept_at = line, time.monotonic()
            else:
                line.close()
        return reply


def _exchanged(line: _Line, method: str, written: bytes, deadline: float, most: int) -> tuple[Reply, bool]:
    """Return the answer to a request over a connection, and whether that can be used again."""
    line.begin(deadline)
    unsent: str | None = None
    try:
        line.send(written)
    except OSError as error:
        if not line.began:
            raise NotSentError(f"the connection was lost before anything was sent: {said(error)}") from None
        unsent = f"the connection was lost while it was sent: {said(error)}"  # there may be an answer all the same
    try:
        response = HTTPResponse(line, method=method)  # type: ignore[arg-type]
        response.begin()
        while 100 < response.status < 200 and response.status != 101:  # early hints, and what else is no answer yet
            response = HTTPResponse(line, method=method)  # type: ignore[arg-type]
            response.begin()
    except (OSError, HTTPException, ValueError) as error:
        raise UnansweredError(unsent or _no_answer(error)) from None
    body, broken = _body(response, most)
    ended = broken is None and response.isclosed() and unsent is None
    return Reply(response.status, response.headers, body, broken), ended and not response.will_close


def _body(response: HTTPResponse, most: int) -> tuple[bytes, str | None]:
    """Return what is read of a body, and why it is not whole, if so."""
    body = b""
    try:
        while len(body) < most:
            piece = response.read(min(16 * 1024, most - len(body)))
            if not piece:
                cut = response.length not in (None, 0)
                return body, "it closed the connection within its answer" if cut else None
            body += piece
            if response.isclosed():
                return body, None
    except (OSError, HTTPException, ValueError) as error:
        return body, _no_answer(error)
    return body, None


def _no_answer(error: Exception) -> str:
    if isinstance(error, TimeoutError):
        return "there was no whole answer in time"
    if isinstance(error, _BrokenOffError):
        return str(error)
    if isinstance(error, OSError):
        return f"the connection was lost before there was a whole answer: {said(error)}"
    return f"what it answered is not HTTP: {type(error).__name__}"


def said(error: Exception) -> str:
    """Return what an error of the system says, without its number."""
    if isinstance(error, TimeoutError):
        return "no answer in time"
    if isinstance(error, ssl.SSLError):
        return (error.reason or "").replace("_", " ").lower() or type(error).__name__
    return (isinstance(error, OSError) and error.strerror) or str(error) or type(error).__name__


# --- connections ----------------------------------------------------------------------------------------------------


class _BrokenOffError(ConnectionError):
    """The other side has closed the connection where a line should have ended."""


class _Line:
    """A connection, as `http.client` wants one: each wait ends at one deadline. `began`: something of the request that
    was begun last may have left."""

    def __init__(self, connected: socket.socket) -> None:
        self._socket = connected
        self._encrypted = isinstance(connected, ssl.SSLSocket)
        self._deadline = 0.0
        self._reader = _Reader(_Incoming(self), 16 * 1024)
        self.began = False

    def begin(self, deadline: float) -> None:
        self._deadline, self.began = deadline, False

    def send(self, data: bytes) -> None:
        left = memoryview(data)
        while left:
            self._await()
            self.began = self.began or self._encrypted  # who knows what an encrypted write has written when it fails
            sent = self._socket.send(left)
            self.began = True
            left = left[sent:]

    def receive_into(self, buffer: memoryview) -> int:
        self._await()
        return self._socket.recv_into(buffer)

    def makefile(self, mode: str) -> io.BufferedReader:
        """Return the one reader: what it has read ahead belongs to the next answer, too."""
        assert mode == "rb"
        return self._reader

    def is_quiet(self) -> bool:
        """Say whether the other side has neither closed the connection nor said anything that nobody asked for."""
        self._deadline = float("-inf")
        try:
            self._reader.peek(1)
        except (BlockingIOError, ssl.SSLWantReadError):
            return True
        except OSError:
            return False
        return False

    def close(self) -> None:
        self._socket.close()

    def _await(self) -> None:
        """Let the next step of the socket wait until the deadline, or not at all where there is none."""
        left = self._deadline - time.monotonic()
        if left == float("-inf"):
            self._socket.settimeout(0)
        elif left <= 0:
            raise TimeoutError("there is no time left")
        else:
            self._socket.settimeout(left)


class _Incoming(io.RawIOBase):
    """What comes in over a connection."""

    def __init__(self, line: _Line) -> None:
        self._line = line

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: memoryview) -> int:  # type: ignore[override]
        return self._line.receive_into(buffer)


class _Reader(io.BufferedReader):
    """Stays open from answer to answer. A line that has no end is none: `http.client` would take it for the last."""

    def readline(self, size: int | None = -1, /) -> bytes:
        line = super().readline(size)
        if not line.endswith(b"\n") and not (size and 0 < size <= len(line)):
            raise _BrokenOffError(f"it closed the connection {'within its' if line else 'without an'} answer")
        return line

    def close(self) -> None:
        """Stay open: the connection is closed by its owner."""


def _opened(peer: Peer, deadline: float) -> _Line:
    """Return a new connection. Raises NotSentError."""
    first = peer.proxy or peer
    connected = _connected(first.host, first.port, deadline)
    if peer.tls is None:
        return _Line(connected)
    try:
        if peer.proxy is not None:
            _tunnelled(connected, peer, peer.proxy, deadline)
        connected.settimeout(max(deadline - time.monotonic(), 0.001))
        return _Line(peer.tls.wrap_socket(connected, server_hostname=peer.host))
    except ssl.SSLCertVerificationError as error:
        raise NotSentError(f"the certificate of {peer.host} is not trusted: {error.verify_message}") from None
    except (OSError, ValueError) as error:
        raise NotSentError(f"no encrypted connection to {peer.host} port {peer.port}: {said(error)}") from None
    finally:
        connected.close()  # where it is encrypted, another object has it


def _connected(host: str, port: int, deadline: float) -> socket.socket:
    """Connect to the first address that answers; each of them is given its share of the time."""
    try:
        addresses = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)
    except (OSError, UnicodeError) as error:
        raise NotSentError(f"the address of {host} was not found: {said(error)}") from None
    why = "there is no time left"
    for at, (family, kind, protocol, _, address) in enumerate(addresses):
        left = deadline - time.monotonic()
        if left <= 0:
            break
        try:
            connecting = socket.socket(family, kind, protocol)
        except OSError as error:
            why = said(error)
            continue
        try:
            connecting.settimeout(left / (len(addresses) - at))
            connecting.connect(address)
            connecting.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        except OSError as error:
            connecting.close()
            why = said(error)
        else:
            return connecting
    raise NotSentError(f"no connection to {host} port {port}: {why}")


def _tunnelled(connected: socket.socket, peer: Peer, proxy: Proxy, deadline: float) -> None:
    """Have a proxy connect to the peer. Raises NotSentError: nothing of a request is shown to it."""
    place = f"{f'[{peer.host}]' if ':' in peer.host else peer.host}:{peer.port}"
    headers = {"Host": place}
    if proxy.authorization is not None:
        headers["Proxy-Authorization"] = proxy.authorization
    line = _Line(connected)
    line.begin(deadline)
    try:
        line.send(request("CONNECT", place, headers, b"").replace(b"Content-Length: 0\r\n", b""))
        response = HTTPResponse(line, method="CONNECT")  # type: ignore[arg-type]
        response.begin()
    except (OSError, HTTPException, ValueError) as error:
        raise NotSentError(f"the proxy {proxy.host} did not connect to {peer.host}: {_no_answer(error)}") from None
    if not 200 <= response.status < 300:
        raise NotSentError(f"the proxy {proxy.host} did not connect to {peer.host}: it answered {response.status}")
