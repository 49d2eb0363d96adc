"""A line between a store and its clients that a test cuts after any byte, in either direction."""

from __future__ import annotations

import contextlib
import selectors
import socket
import struct
import threading
from collections.abc import Callable
from dataclasses import dataclass

#: The two directions of a line, as the client sees them.
SENT, ANSWERED = "sent", "answered"


@dataclass
class Cut:
    """Where a line is cut: after so many bytes of one direction, over all connections; None is nowhere, yet.

    `silent`: nobody is told, and all stay connected; else both ends are reset. `for_good`: later connections meet the
    same end at once; else they get through.
    """

    after: int | None = None
    of: str = SENT
    silent: bool = False
    for_good: bool = False


class Proxy:
    """Listens on loopback and passes everything on to a server until it is cut. `passed` counts bytes by direction."""

    def __init__(self, server_port: int, cut: Cut | None = None) -> None:
        self.passed = {SENT: 0, ANSWERED: 0}
        self.was_cut = False
        self._cut = cut or Cut()
        self._server_port = server_port
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.port = int(self._listener.getsockname()[1])
        self._other_end: dict[socket.socket, socket.socket] = {}
        self._silenced: list[socket.socket] = []
        self._orders, self._told = socket.socketpair()
        self._order: Callable[[], None] | None = None
        self._obeyed = threading.Event()
        self._selector = selectors.DefaultSelector()
        self._selector.register(self._listener, selectors.EVENT_READ, self._accept)
        self._selector.register(self._told, selectors.EVENT_READ, self._obey)
        self._thread = threading.Thread(target=self._work, daemon=True)

    def __enter__(self) -> Proxy:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._orders.close()
        self._thread.join(10)
        for end in (self._listener, self._told, *self._silenced, *self._other_end):
            end.close()
        self._selector.close()

    def cut(self, *, silent: bool = False) -> None:
        """Cut it now and for all connections to come, until it is mended."""

        def order() -> None:
            self._cut = Cut(silent=silent, for_good=True)
            self._end_all()

        self._give(order)

    def cut_next_answer(self, *, silent: bool = False) -> None:
        """Cut it when the server says something again, before any of that comes through; later connections do."""

        def order() -> None:
            self._cut, self.was_cut = Cut(after=self.passed[ANSWERED], of=ANSWERED, silent=silent), False

        self._give(order)

    def mend(self) -> None:
        """Let new connections through."""

        def order() -> None:
            self._cut, self.was_cut = Cut(), False
            self._reset(self._silenced)
            self._silenced.clear()

        self._give(order)

    # --- in the thread of its own ---

    def _give(self, order: Callable[[], None]) -> None:
        self._order = order
        self._obeyed.clear()
        self._orders.send(b"!")
        assert self._obeyed.wait(10)

    def _obey(self, told: socket.socket) -> None:
        if told.recv(1) and self._order:
            self._order()
            self._obeyed.set()
        else:
            raise EOFError

    def _work(self) -> None:
        with contextlib.suppress(EOFError):
            while True:
                for key, _ in self._selector.select():
                    if key.fileobj in (self._listener, self._told) or key.fileobj in self._other_end:
                        key.data(key.fileobj)

    def _accept(self, listener: socket.socket) -> None:
        client, _ = listener.accept()
        if self.was_cut and self._cut.for_good:
            if self._cut.silent:
                self._silenced.append(client)
            else:
                self._reset([client])
            return
        try:
            server = socket.create_connection(("127.0.0.1", self._server_port), 5)
        except OSError:
            self._reset([client])
            return
        for end, other, direction in ((client, server, SENT), (server, client, ANSWERED)):
            end.settimeout(20)
            end.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            self._other_end[end] = other
            self._selector.register(end, selectors.EVENT_READ, self._passer(direction))

    def _passer(self, direction: str) -> Callable[[socket.socket], None]:
        def pass_on(source: socket.socket) -> None:
            try:
                chunk = source.recv(65536)
                limited = not self.was_cut and self._cut.after is not None and direction == self._cut.of
                passing = chunk[: (self._cut.after or 0) - self.passed[direction]] if limited else chunk
                self._other_end[source].sendall(passing)
            except OSError:
                chunk, passing = b"", b""
            self.passed[direction] += len(passing)
            if not chunk:
                self._hang_up(source)
            elif limited and self.passed[direction] == self._cut.after:
                self._end_all()

        return pass_on

    def _hang_up(self, end: socket.socket) -> None:
        for each in (end, self._other_end[end]):
            del self._other_end[each]
            self._selector.unregister(each)
            each.close()

    def _end_all(self) -> None:
        self.was_cut = True
        ends = list(self._other_end)
        for end in ends:
            self._selector.unregister(end)
        self._other_end.clear()
        if self._cut.silent:
            self._silenced += ends
        else:
            self._reset(ends)

    @staticmethod
    def _reset(ends: list[socket.socket]) -> None:
        for end in ends:
            end.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
            end.close()
