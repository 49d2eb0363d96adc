"""Which HTTP client delivers: POSTs of 1 KiB on kept connections to a server in another process, in one run.

    python -m benchmarks.http_clients [--requests N] [--rounds N]

`http.client` is measured as it comes and as deliveries use it (`ours`: the same reading of answers over a connection
of our own, with one deadline for the whole exchange). The others are measured where they are installed; they are no
dependency. Each line is a rate and its ratio to `http.client` with the same number in flight, the median of the ratios
within each round.
"""

from __future__ import annotations

import argparse
import asyncio
import http.client
import importlib
import importlib.util
import multiprocessing
import socket
import sys
import threading
import time
from collections.abc import Callable
from statistics import median
from typing import Any

BODY = b"x" * 1024
HEADERS = {"content-type": "application/json", "idempotency-key": '"job:2026-11-30/hook/-"'}
IN_FLIGHT = (1, 16)

Measure = Callable[[int, int, int], None]  # port, requests, in flight


# --- the server -----------------------------------------------------------------------------------------------------


class Answering(asyncio.Protocol):
    """Answers each request as soon as all of it is here, and reads no more of it than its length."""

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport: Any = transport
        self._seen = b""

    def data_received(self, data: bytes) -> None:
        self._seen += data
        while (end := self._seen.find(b"\r\n\r\n")) >= 0:
            length = int(self._seen[:end].lower().partition(b"content-length:")[2].partition(b"\r\n")[0] or 0)
            if len(self._seen) < end + 4 + length:
                return
            self._seen = self._seen[end + 4 + length :]
            self._transport.write(b"HTTP/1.1 200 OK\r\nContent-Type: text/plain\r\nContent-Length: 2\r\n\r\nok")


def serve(listener: socket.socket) -> None:
    """Answer until the process is ended."""

    async def forever() -> None:
        server = await asyncio.get_running_loop().create_server(Answering, sock=listener)
        await server.serve_forever()

    asyncio.run(forever())


# --- the clients ----------------------------------------------------------------------------------------------------


def in_threads(work: Callable[[int], None], requests: int, in_flight: int) -> None:
    """Divide requests among so many threads."""
    threads = [threading.Thread(target=work, args=(requests // in_flight,)) for _ in range(in_flight)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()


def with_http_client(port: int, requests: int, in_flight: int) -> None:
    def work(count: int) -> None:
        connection = http.client.HTTPConnection("127.0.0.1", port, timeout=30)
        for _ in range(count):
            connection.request("POST", "/hook", BODY, HEADERS)
            answer = connection.getresponse()
            assert answer.read() == b"ok" and answer.status == 200
        connection.close()

    in_threads(work, requests, in_flight)


def with_ours(port: int, requests: int, in_flight: int) -> None:
    from ranonce.delivery.httpline import Peer, request
    from ranonce.delivery.httpwire import Wire

    def work(count: int) -> None:
        wire = Wire(Peer("127.0.0.1", port))
        for _ in range(count):
            written = request("POST", "/hook", {"Host": f"127.0.0.1:{port}", **HEADERS}, BODY)
            reply = wire.exchange("POST", written, 30.0)
            assert reply.body == b"ok" and reply.status == 200
        wire.close()

    in_threads(work, requests, in_flight)


def with_urllib3(port: int, requests: int, in_flight: int) -> None:
    urllib3: Any = importlib.import_module("urllib3")
    pool = urllib3.HTTPConnectionPool("127.0.0.1", port, maxsize=in_flight, retries=False, timeout=30)

    def work(count: int) -> None:
        for _ in range(count):
            answer = pool.urlopen("POST", "/hook", body=BODY, headers=HEADERS)
            assert answer.data == b"ok" and answer.status == 200

    in_threads(work, requests, in_flight)


def with_httpx(port: int, requests: int, in_flight: int) -> None:
    httpx: Any = importlib.import_module("httpx")
    client = httpx.Client(timeout=30, limits=httpx.Limits(max_keepalive_connections=in_flight), trust_env=False)

    def work(count: int) -> None:
        for _ in range(count):
            answer = client.post(f"http://127.0.0.1:{port}/hook", content=BODY, headers=HEADERS)
            assert answer.content == b"ok" and answer.status_code == 200

    in_threads(work, requests, in_flight)
    client.close()


def with_aiohttp(port: int, requests: int, in_flight: int) -> None:
    aiohttp: Any = importlib.import_module("aiohttp")

    async def work(session: Any, count: int) -> None:
        for _ in range(count):
            async with session.post(f"http://127.0.0.1:{port}/hook", data=BODY, headers=HEADERS) as answer:
                assert await answer.read() == b"ok" and answer.status == 200

    async def everything() -> None:
        connector = aiohttp.TCPConnector(limit=in_flight)
        async with aiohttp.ClientSession(connector=connector) as session:
            await asyncio.gather(*(work(session, requests // in_flight) for _ in range(in_flight)))

    asyncio.run(everything())


CLIENTS: dict[str, Measure] = {
    "http.client": with_http_client,
    "ours": with_ours,
    "urllib3": with_urllib3,
    "httpx": with_httpx,
    "aiohttp": with_aiohttp,
}


# --- measuring ------------------------------------------------------------------------------------------------------


def rates(requests: int, rounds: int) -> dict[tuple[str, int], list[float]]:
    """Return requests a second by client and number in flight, one for each round, the clients in turn."""
    here = [name for name in CLIENTS if name == "ours" or importlib.util.find_spec(name) is not None]
    found: dict[tuple[str, int], list[float]] = {(name, count): [] for count in IN_FLIGHT for name in here}
    with socket.create_server(("127.0.0.1", 0), backlog=128) as listener:
        server = multiprocessing.get_context("spawn").Process(target=serve, args=(listener,), daemon=True)
        server.start()
        port = listener.getsockname()[1]
        try:
            for name in here:
                CLIENTS[name](port, 64, 1)  # imports, and the first steps of the server
            for _ in range(rounds):
                for name, count in found:
                    began = time.perf_counter()
                    CLIENTS[name](port, requests, count)
                    found[name, count].append(requests // count * count / (time.perf_counter() - began))
        finally:
            server.terminate()
            server.join()
    return found


def main(arguments: list[str]) -> int:
    """Measure, and print a line for each client and number in flight."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.http_clients")
    parser.add_argument("--requests", type=int, default=4_000, help="in each round, for each client")
    parser.add_argument("--rounds", type=int, default=5)
    told = parser.parse_args(arguments)
    found = rates(told.requests, told.rounds)
    for (name, count), of in found.items():
        least = found["http.client", count]
        ratio = median(its / the for its, the in zip(of, least, strict=True))
        sys.stdout.write(f"{name:<12} {count:>2} in flight {median(of):>8,.0f} /s {ratio:>6.2f}\n")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
