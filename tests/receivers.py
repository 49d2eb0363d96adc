"""Small web servers on loopback that do what a test tells them, and count what arrives by its key."""

from __future__ import annotations

import contextlib
import json
import socket
import ssl
import struct
import threading
from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from types import TracebackType
from typing import Self

#: How a connection ends, if not with an answer.
RESET, CLOSED, SILENT = "reset", "closed", "silent"


@dataclass(frozen=True)
class Received:
    """A request that has arrived whole. Names of headers are in small letters."""

    method: str
    target: str
    headers: Mapping[str, str]
    body: bytes
    connection: int  # counted from 1

    @property
    def key(self) -> str:
        return self.headers.get("idempotency-key", "").strip('"')


#: What a server does with a request: bytes to answer with, and how its connection ends after them, if it does.
Act = Callable[[Received], "bytes | str | Iterable[bytes | str]"]


def answer(status: int, body: bytes | object = b"", headers: Mapping[str, str] | None = None) -> bytes:
    """Return an answer, as bytes; a body that is none is JSON."""
    content = body if isinstance(body, bytes) else json.dumps(body).encode()
    lines = [f"HTTP/1.1 {status} {'It Is So' if status != 200 else 'OK'}", f"Content-Length: {len(content)}"]
    lines += [f"{name}: {value}" for name, value in (headers or {}).items()]
    return "\r\n".join([*lines, "", ""]).encode("latin-1") + content


@dataclass
class Receiver:
    """Listens until it is closed. `requests` are those that arrived whole, `accepted` counts connections.

    `before` is how a connection ends before anything of it is read, or after its head: (place, how).
    """

    act: Act = field(default=lambda _: answer(200, b"ok"))
    tls: ssl.SSLContext | None = None
    host: str = "127.0.0.1"
    before: tuple[str, str] | None = None

    def __post_init__(self) -> None:
        self.requests: list[Received] = []
        self.accepted = 0
        self.at_once = 0  # the most requests that were worked on at the same time
        self._working = 0
        self._lock = threading.Lock()
        self._open: set[socket.socket] = set()
        self._threads: list[threading.Thread] = []
        family = socket.AF_INET6 if ":" in self.host else socket.AF_INET
        self._listener = socket.create_server((self.host, 0), family=family, backlog=128)
        self.port = int(self._listener.getsockname()[1])
        self._start(self._accept)

    @property
    def url(self) -> str:
        host = f"[{self.host}]" if ":" in self.host else self.host
        return f"http{'s' if self.tls else ''}://{host}:{self.port}/hook"

    @property
    def arrived(self) -> Counter[str]:
        """How often a message of each key has arrived whole."""
        return Counter(one.key for one in self.requests)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: type[BaseException] | BaseException | TracebackType | None) -> None:
        self.close()

    def close(self) -> None:
        """Close all connections and wait for what works on them."""
        with contextlib.suppress(OSError):
            self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()
        self.drop_connections()
        for thread in self._threads:
            thread.join(10)

    def drop_connections(self) -> None:
        """Close what is open at this moment."""
        with self._lock:
            for connection in self._open:
                with contextlib.suppress(OSError):
                    connection.shutdown(socket.SHUT_RDWR)

    def await_closed(self, connections: int) -> None:
        """Wait until the work on so many connections has ended."""
        for thread in self._threads[1 : connections + 1]:
            thread.join(10)

    def _start(self, work: Callable[..., None], *arguments: object) -> None:
        thread = threading.Thread(target=work, args=arguments, daemon=True)
        self._threads.append(thread)
        thread.start()

    def _accept(self) -> None:
        while True:
            try:
                connection, _ = self._listener.accept()
            except OSError:
                return
            with self._lock:
                self.accepted += 1
                self._open.add(connection)
            self._start(self._serve, connection, self.accepted)

    def _serve(self, connection: socket.socket, number: int) -> None:
        connection.settimeout(20)
        talking = connection
        try:
            if self.tls is not None:
                talking = self.tls.wrap_socket(connection, server_side=True)
                with self._lock:
                    self._open = {talking if one is connection else one for one in self._open}
            self._talk(talking, number)
        except (OSError, ValueError):
            pass  # the other side went away, or was sent away
        finally:
            with self._lock:
                self._open -= {talking, connection}
            talking.close()

    def _talk(self, connection: socket.socket, number: int) -> None:
        if self.before is not None and self.before[0] == "accept":
            return end(connection, self.before[1])
        with connection.makefile("rb") as incoming:
            while (request := self._read(connection, incoming, number)) is not None:
                with self._lock:
                    self.requests.append(request)
                    self._working += 1
                    self.at_once = max(self.at_once, self._working)
                try:
                    acts = self.act(request)
                finally:
                    with self._lock:
                        self._working -= 1
                for one in [acts] if isinstance(acts, (bytes, str)) else acts:
                    if isinstance(one, str):
                        return end(connection, one)
                    connection.sendall(one)
        return None

    def _read(self, connection: socket.socket, incoming: object, number: int) -> Received | None:
        first = incoming.readline().decode()  # type: ignore[attr-defined]
        if not first:
            return None
        headers = {}
        while (line := incoming.readline().decode()).strip():  # type: ignore[attr-defined]
            name, _, value = line.partition(":")
            headers[name.strip().lower()] = value.strip()
        if self.before is not None and self.before[0] == "head":
            end(connection, self.before[1])
            return None
        method, target, _ = first.split(" ")
        body = incoming.read(int(headers.get("content-length", "0")))  # type: ignore[attr-defined]
        return Received(method, target, headers, body, number)


def end(connection: socket.socket, how: str) -> None:
    """End a connection as a test wants it; silence lasts until the other side has gone."""
    if how == RESET:
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    elif how == SILENT:
        while connection.recv(65536):
            pass
    connection.close() if how == RESET else connection.shutdown(socket.SHUT_WR)
