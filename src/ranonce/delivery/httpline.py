"""Connections that HTTP is spoken over: each wait ends at one deadline, and what has left is counted.

Encryption and the tunnels of proxies are made here, before anything of a request is shown to anybody.
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


class NotSentError(Exception):
    """Not one byte of the request has left, and why."""


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


def no_answer(error: Exception) -> str:
    """Say why a request has no whole answer."""
    if isinstance(error, TimeoutError):
        return "there was no whole answer in time"
    if isinstance(error, BrokenOffError):
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


class BrokenOffError(ConnectionError):
    """The other side has closed the connection where a line should have ended."""


class Line:
    """A connection, as `http.client` wants one: each wait ends at one deadline. `began`: something of the request that
    was begun last may have left."""

    def __init__(self, connected: socket.socket) -> None:
        self._socket = connected
        self._encrypted = isinstance(connected, ssl.SSLSocket)
        self._deadline = 0.0
        self._reader = _Reader(_Incoming(self), 16 * 1024)
        self.began = False

    def begin(self, deadline: float) -> None:
        """Begin a request: nothing of it has left, and its answer is waited for until a deadline."""
        self._deadline, self.began = deadline, False

    def send(self, data: bytes) -> None:
        """Write all of it."""
        left = memoryview(data)
        while left:
            self._await()
            self.began = self.began or self._encrypted  # who knows what an encrypted write has written when it fails
            sent = self._socket.send(left)
            self.began = True
            left = left[sent:]

    def receive_into(self, buffer: memoryview) -> int:
        """Read what has come, and return how many bytes; 0 at the end."""
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
        """Close the connection."""
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

    def __init__(self, line: Line) -> None:
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
            raise BrokenOffError(f"it closed the connection {'within its' if line else 'without an'} answer")
        return line

    def read(self, size: int | None = -1, /) -> bytes:
        if size is None or size < 0:  # of a chunk that is to have less than nothing: whatever comes would be read
            raise HTTPException("the length of something is less than nothing")
        return super().read(size)

    def close(self) -> None:
        """Stay open: the connection is closed by its owner."""


def opened(peer: Peer, deadline: float) -> Line:
    """Return a new connection. Raises NotSentError."""
    first = peer.proxy or peer
    connected = _connected(first.host, first.port, deadline)
    if peer.tls is None:
        return Line(connected)
    try:
        if peer.proxy is not None:
            _tunnelled(connected, peer, peer.proxy, deadline)
        connected.settimeout(max(deadline - time.monotonic(), 0.001))
        return Line(peer.tls.wrap_socket(connected, server_hostname=peer.host))
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
    line = Line(connected)
    line.begin(deadline)
    try:
        line.send(request("CONNECT", place, headers, b"").replace(b"Content-Length: 0\r\n", b""))
        response = HTTPResponse(line, method="CONNECT")  # type: ignore[arg-type]
        response.begin()
    except (OSError, HTTPException, ValueError) as error:
        raise NotSentError(f"the proxy {proxy.host} did not connect to {peer.host}: {no_answer(error)}") from None
    if not 200 <= response.status < 300:
        raise NotSentError(f"the proxy {proxy.host} did not connect to {peer.host}: it answered {response.status}")
