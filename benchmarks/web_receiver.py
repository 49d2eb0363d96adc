"""A web server that answers every request at once, or after some milliseconds: `python web_receiver.py [MILLISECONDS]`.

It prints its port, and does as little as a server can: what is measured beside it is whoever asks.
"""

from __future__ import annotations

import asyncio
import sys

ANSWER = b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok"
LENGTH = b"content-length:"


class Receiver(asyncio.Protocol):
    """One connection. A request is complete with the last byte that its length announces."""

    def __init__(self, delay: float) -> None:
        self.delay = delay
        self.unread = b""

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Begin."""
        self.transport = transport

    def data_received(self, data: bytes) -> None:
        """Answer each request that is complete."""
        self.unread += data
        while (end := self.unread.find(b"\r\n\r\n")) >= 0:
            head = self.unread[:end].lower()
            at = head.find(LENGTH) + len(LENGTH)
            length = int(head[at : head.find(b"\r", at) if b"\r" in head[at:] else None])
            if len(self.unread) < end + 4 + length:
                return
            self.unread = self.unread[end + 4 + length :]
            if self.delay:
                asyncio.get_running_loop().call_later(self.delay, self.answer)
            else:
                self.answer()

    def answer(self) -> None:
        """Answer."""
        self.transport.write(ANSWER)  # type: ignore[attr-defined]


async def serve(delay: float) -> None:
    """Serve on a free port of loopback until the process is killed."""
    server = await asyncio.get_running_loop().create_server(lambda: Receiver(delay), "127.0.0.1", 0)
    print(server.sockets[0].getsockname()[1], flush=True)  # noqa: T201
    await server.serve_forever()


if __name__ == "__main__":
    asyncio.run(serve(float(sys.argv[1]) / 1000 if len(sys.argv) > 1 else 0.0))
