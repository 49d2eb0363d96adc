"""A web server of the drill's own on the loopback interface: it notes what comes, and answers as it is told to."""

from __future__ import annotations

import contextlib
import socket
from collections import Counter
from threading import Event, Lock, Thread

from ranonce.drill.outcome import Untried

TYPE_CHECKING = False
if TYPE_CHECKING:
    from types import TracebackType
    from typing import Self

#: What it does with a request once it has all of it: answer, hang up, or wait until `let_go` and then do either.
ANSWER, HANG_UP, WAIT_AND_ANSWER, WAIT_AND_HANG_UP = "answer", "hang up", "wait, answer", "wait, hang up"
SECONDS = 30.0
THANKS = b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\nConnection: close\r\n\r\nok"


class Receiver:
    """A context manager: the server works within it. It has each message by the key that came with it."""

    def __init__(self) -> None:
        self.came: Counter[str] = Counter()
        self.let_go = Event()
        self._does: dict[str, list[str]] = {}
        self._lock = Lock()
        self._server = socket.socket()
        try:
            self._server.bind(("127.0.0.1", 0))
            self._server.listen(64)
        except OSError as error:
            self._server.close()
            raise Untried(f"no server can be reached on this host's loopback interface: {error.strerror}") from error
        self.url = f"http://127.0.0.1:{self._server.getsockname()[1]}/"

    def expect(self, key: str, *does: str) -> None:
        """Say what is to be done with a message the first time it comes, the second, and so on; then it is answered."""
        self._does[key] = list(does)

    def __enter__(self) -> Self:
        Thread(target=self._accept, name="ranonce drill receiver", daemon=True).start()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, _: TracebackType | None) -> None:
        self.let_go.set()
        with contextlib.suppress(OSError):
            self._server.shutdown(socket.SHUT_RDWR)
        self._server.close()

    def _accept(self) -> None:
        while True:
            try:
                connection, _ = self._server.accept()
            except OSError:
                return  # it is over
            Thread(target=self._serve, args=(connection,), name="ranonce drill receiver", daemon=True).start()

    def _serve(self, connection: socket.socket) -> None:
        with connection, contextlib.suppress(OSError):  # whoever asked has died: that is what is rehearsed
            connection.settimeout(SECONDS)
            key = _key_of_request(connection)
            if key is None:
                return
            with self._lock:
                self.came[key] += 1
                todo = self._does.get(key) or [ANSWER]
                does = todo.pop(0)
            if does in (WAIT_AND_ANSWER, WAIT_AND_HANG_UP):
                self.let_go.wait(SECONDS)
            if does in (ANSWER, WAIT_AND_ANSWER):
                connection.sendall(THANKS)


def _key_of_request(connection: socket.socket) -> str | None:
    """Read a request to its end, and return its key; None where it has not come whole."""
    data = b""
    while True:
        head, whole, body = data.partition(b"\r\n\r\n")
        if whole:
            lines = head.decode("latin-1").split("\r\n")[1:]
            fields = {name.lower(): value.strip() for name, _, value in (line.partition(":") for line in lines)}
            if len(body) >= int(fields.get("content-length", "0")):
                return fields.get("idempotency-key", "").strip('"')
        piece = connection.recv(65536)
        if not piece:
            return None
        data += piece
