"""A way to a server that loses one of its answers: what was asked has happened, and whoever asked does not hear of it.

It passes bytes on and understands none of them, so it serves every server, and encrypted connections as well. It works
while the drill waits for a worker, in the same thread.
"""

from __future__ import annotations

import contextlib
import socket
import struct
import time
from urllib.parse import unquote

from ranonce.drill.outcome import Untried
from ranonce.readable import readable
from ranonce.serverurl import Parts, parts_of

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Mapping
    from typing import Self

LOOPBACK = "127.0.0.1"
CONNECT_SECONDS = 5.0
POSTGRESQL_PORT = "5432"
#: Options of an address that say where its server is: then its host alone does not.
WHERE = frozenset({"host", "hostaddr", "port", "service"})


class Relay:
    """Listens on loopback and passes everything on to a server; a context manager. `url` leads through it."""

    def __init__(self, url: str, environ: Mapping[str, str]) -> None:
        parts = parts_of(url)
        assert parts is not None
        self._server = _server(parts, environ)
        self._listener = socket.create_server((LOOPBACK, 0))
        self.url = str(_through(parts, self._server[0], int(self._listener.getsockname()[1])))
        self._other_end: dict[socket.socket, socket.socket] = {}
        self._clients: set[socket.socket] = set()
        self._to_lose: int | None = None
        self.lost = False

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        for end in (self._listener, *self._other_end):
            end.close()

    def lose(self, number: int | None) -> None:
        """Lose the answer with this number, counted from now on, and cut its connection; None: lose none."""
        self._to_lose, self.lost = number, False

    def carry_until(self, awaited: int, give_up: float) -> None:
        """Pass on what comes until a descriptor has something to read, or it is too late."""
        while (left := give_up - time.monotonic()) > 0:
            ends = {end.fileno(): end for end in (self._listener, *self._other_end)}
            ready = readable([awaited, *ends], left)
            for end in (ends[fd] for fd in ready if fd != awaited):
                if end is self._listener:
                    self._accept()
                elif end in self._other_end:  # else it was cut with the other one
                    self._pass_on(end)
            if awaited in ready:
                return

    def _accept(self) -> None:
        client, _ = self._listener.accept()
        try:
            server = socket.create_connection(self._server, CONNECT_SECONDS)
        except OSError:
            client.close()
            return
        for end, other in ((client, server), (server, client)):
            end.settimeout(CONNECT_SECONDS)
            end.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            self._other_end[end] = other
        self._clients.add(client)

    def _pass_on(self, end: socket.socket) -> None:
        try:
            chunk = end.recv(65536)
            if chunk and end not in self._clients and self._loses():
                chunk = b""
            self._other_end[end].sendall(chunk)
        except OSError:
            chunk = b""
        if not chunk:
            self._cut(end)

    def _loses(self) -> bool:
        """Count an answer of the server; say whether it is the one that is to be lost."""
        if self._to_lose is None:
            return False
        self._to_lose -= 1
        if self._to_lose > 0:
            return False
        self._to_lose, self.lost = None, True
        return True

    def _cut(self, end: socket.socket) -> None:
        """End a connection at both ends, without a farewell."""
        for each in (end, self._other_end[end]):
            del self._other_end[each]
            self._clients.discard(each)
            with contextlib.suppress(OSError):
                each.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
            each.close()


def _server(parts: Parts, environ: Mapping[str, str]) -> tuple[str, int]:
    """Return host and port of the one server that an address names. Raises Untried where it names none, or several."""
    if parts.scheme == "rediss":
        raise Untried("the connection is encrypted for the server's own name, which nothing between can have")
    host, colon, port = parts.hosts.rpartition(":")
    if not colon or port.endswith("]"):
        host, port = parts.hosts, ""
    host = unquote(host.strip("[]"))
    if "," in parts.hosts or any(name in WHERE for name, _ in parts.options):
        raise Untried("the address names more than one server, or not by its host")
    if not host or host.startswith(("/", "@")):
        raise Untried("the server is reached by a socket of this host, which cannot be cut from outside")
    return host, int(port or environ.get("PGPORT") or POSTGRESQL_PORT)


def _through(parts: Parts, host: str, port: int) -> Parts:
    """Return the same address by way of a port of this host."""
    if parts.scheme != "postgresql":
        return parts.replace(hosts=f"{LOOPBACK}:{port}")
    # The server keeps its name, which passwords and certificates go by, and gets another address.
    name = f"[{host}]" if ":" in host else host
    return parts.replace(hosts=f"{name}:{port}", options=(("hostaddr", LOOPBACK), *parts.options))
