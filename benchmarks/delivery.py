"""Deliverers, beside the same client that sends the same messages without a ledger.

Messages are of 1 KiB; the other side is a process of its own on loopback. What is measured of a deliverer is its
worker, from the first look at the outbox to the last settled message: opening a ledger and reading a configuration are
not in it, and neither is the emitting.

HTTP: the limit is one plain loop over the messages in one thread, with the same client on one kept connection; no other
thread is there, and nobody writes anything down. One at a time to a slow receiver is the same loop.

NATS: the limits are loops with nats-py alone, as its documentation has them, with the key in `Nats-Msg-Id` as we send
it. Windowed: 100 `js.publish` at a time are gathered, then the next 100. Ack by ack: each is awaited before the next.
"""

from __future__ import annotations

import asyncio
import os
import pathlib
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from tests.servers import NatsServer, PostgresServer, private_folder

from benchmarks.claims import LEDGER_ID, declare
from benchmarks.measure import A_SECOND, Line, Sizes, beside, in_turn, subfolder
from benchmarks.servers import running
from ranonce.delivery.base import Spec
from ranonce.delivery.crew import share_the_interpreter
from ranonce.delivery.http import HttpCarrier, requests_of
from ranonce.delivery.orders import Orders
from ranonce.delivery.spec import open_sender, read_spec
from ranonce.delivery.worker import Worker
from ranonce.emission import digest_of
from ranonce.ledger import OpenLedger
from ranonce.lifecycle import Decision, RunKey
from ranonce.messages import BATCH, DELIVERED, SENT, Answer, Message
from ranonce.stores import open_store, site_of
from ranonce.stores.base import Store

BODY = b"x" * 1024
WAIT_SECONDS = 20.0
DESTINATION = "web"
SUBJECT = "bench.messages"
RECEIVER = pathlib.Path(__file__).with_name("web_receiver.py")


class _Counting:
    """Counts what was delivered, and complains about everything else."""

    def __init__(self) -> None:
        self.sent = 0

    def settled(self, message: Message, answer: Answer | None) -> None:
        """Count a message."""
        assert message.state == SENT, (message.state, message.error)
        self.sent += 1

    def trouble(self, destination: str, sentence: str, next_step: str) -> None:
        """Complain."""
        raise AssertionError(sentence)


class Delivering:
    """One outbox that is filled and delivered, again and again."""

    def __init__(self, url: str, spec: Spec) -> None:
        site_of(url, wait_seconds=WAIT_SECONDS).create(LEDGER_ID)
        self._store: Store = open_store(url, wait_seconds=WAIT_SECONDS)
        declare(OpenLedger(self._store, folder=None), "job")
        self._spec = spec
        self._emitted = 0

    def deliver(self, count: int) -> float:
        """Return messages a second."""
        key = RunKey("job", "2000-01-01T00")
        for begin in range(0, count, 1000):
            fill = made(self._emitted + begin, min(1000, count - begin))
            written = self._store.commit(Decision("fill", messages=fill, guarded=False), key, -1)
            assert written is not None
        self._emitted += count
        told = _Counting()
        sender = open_sender(self._spec, os.environ)
        turn = sys.getswitchinterval()
        share_the_interpreter()  # as `ranonce deliver` does
        began = time.perf_counter()
        Worker(self._spec.route, self._store, lambda: sender, Orders(), told, name="bench").run()
        rate = count / (time.perf_counter() - began)
        sys.setswitchinterval(turn)
        assert told.sent == count, told.sent
        return rate


class Posting:
    """The limit over HTTP: the same client sends one message after the other, and nobody writes anything down."""

    def __init__(self, spec: Spec) -> None:
        self._spec = spec
        self._sent = 1 << 40  # keys that no outbox has

    def post(self, count: int) -> float:
        """Return messages a second."""
        carrier = HttpCarrier(requests_of(self._spec, os.environ))
        messages = made(self._sent, count)
        self._sent += count
        began = time.perf_counter()
        for message in messages:
            answer = carrier.carry(message)
            assert answer.kind == DELIVERED, answer
        rate = count / (time.perf_counter() - began)
        carrier.close()
        return rate


class Publishing:
    """The limits to NATS: so many are published at a time by its own client, and all of them awaited."""

    def __init__(self, address: str, window: int) -> None:
        self._address = address
        self._window = window
        self._sent = window << 40  # keys that no outbox has, and the other limit neither

    def publish(self, count: int) -> float:
        """Return messages a second."""
        return asyncio.run(self._publish(count))

    async def _publish(self, count: int) -> float:
        import nats as driver

        connection = await driver.connect(self._address)
        streams = connection.jetstream()
        messages = made(self._sent, count)
        self._sent += count
        began = time.perf_counter()
        for begin in range(0, count, self._window):
            acknowledged = [
                streams.publish(SUBJECT, message.body or b"", headers={"Nats-Msg-Id": message.key})
                for message in messages[begin : begin + self._window]
            ]
            for one in await asyncio.gather(*acknowledged):
                assert not one.duplicate, one
        rate = count / (time.perf_counter() - began)
        await connection.close()
        return rate


def made(first: int, count: int) -> tuple[Message, ...]:
    """Return messages that are due, with keys of their own."""
    now = time.time() - 1
    digest = digest_of("text/plain", BODY)
    run = RunKey("job", "2000-01-01T00")
    return tuple(
        Message(
            f"job:2000-01-01T00/{DESTINATION}/{number}",
            run,
            946_684_800,
            DESTINATION,
            "text/plain",
            digest,
            BODY,
            1,
            1,
            "",
            now,
            now,
        )
        for number in range(first, first + count)
    )


def _spec(**settings: object) -> Spec:
    return read_spec(DESTINATION, settings, "/".join, None)


@contextmanager
def receiver(milliseconds: int = 0) -> Iterator[str]:
    """Run a web server in a process of its own; yield its address."""
    process = subprocess.Popen([sys.executable, "-I", str(RECEIVER), str(milliseconds)], stdout=subprocess.PIPE)
    try:
        assert process.stdout is not None
        yield f"http://127.0.0.1:{int(process.stdout.readline())}/"
    finally:
        process.kill()
        process.wait()
        process.stdout.close()  # type: ignore[union-attr]


def http(folder: str, sizes: Sizes) -> Iterator[Line]:
    """Measure delivery over HTTP: to a receiver that answers at once, and to one that takes 10 ms."""
    with receiver() as url, running(PostgresServer(_servers_folder(folder, "server"))) as postgres:
        spec = _spec(type="http", url=url, dedupes="24h", concurrency=1)
        sides: list[Callable[[], float]] = []
        for address in (_sqlite(folder, "at-once"), postgres.url("deliver")):
            delivering = Delivering(address, spec)
            sides.append(lambda delivering=delivering: delivering.deliver(sizes.messages))  # type: ignore[misc]
        plain = Posting(spec)
        limit, sqlite, server = in_turn(sizes.rounds, lambda: plain.post(sizes.messages), *sides)
    yield beside("deliver, HTTP, batches of 100, SQLite", A_SECOND, sqlite, limit, at_least=0.8)
    yield beside("deliver, HTTP, batches of 100, PostgreSQL", A_SECOND, server, limit, at_least=0.65)
    with receiver(10) as url:
        many = Delivering(_sqlite(folder, "many"), _spec(type="http", url=url, dedupes="24h", concurrency=16))
        single = Posting(_spec(type="http", url=url, dedupes="24h", concurrency=1))
        few = max(sizes.messages // 20, 4)
        one, sixteen = in_turn(sizes.rounds, lambda: single.post(few), lambda: many.deliver(sizes.messages))
    name = "deliver, HTTP, 16 in flight to a receiver of 10 ms / one at a time"
    yield beside(name, A_SECOND, sixteen, one, at_least=10)


def nats(folder: str, sizes: Sizes) -> Iterator[Line]:
    """Measure delivery to NATS JetStream: beside the same windowed publishing, and beside ack by ack."""
    with running(NatsServer(_servers_folder(folder, "server"))) as server:  # type: ignore[arg-type]
        _make_stream(server.address)
        spec = _spec(type="nats", url=server.address, subject=SUBJECT, window=BATCH)
        delivering = Delivering(_sqlite(folder, "nats"), spec)
        windowed, by_ack = Publishing(server.address, BATCH), Publishing(server.address, 1)
        few = max(sizes.messages // 5, 4)
        limit, ours, slow = in_turn(
            sizes.rounds,
            lambda: windowed.publish(sizes.messages),
            lambda: delivering.deliver(sizes.messages),
            lambda: by_ack.publish(few),
        )
    yield beside("deliver, NATS, batches of 100, SQLite / windowed publishing", A_SECOND, ours, limit, at_least=0.6)
    yield beside("deliver, NATS, batches of 100, SQLite / ack by ack", A_SECOND, ours, slow, at_least=3.5)


def _sqlite(folder: str, name: str) -> str:
    return f"sqlite:///{subfolder(folder, name)}/ledger.db"


def _servers_folder(folder: str, name: str) -> pathlib.Path:
    for above in (folder, os.path.dirname(folder)):
        os.chmod(above, 0o711)  # noqa: S103 - for a server that does not run as root
    return private_folder(pathlib.Path(folder) / name)


def _make_stream(address: str) -> None:
    """Make a stream that keeps its messages in files, and dedupes."""
    import nats as driver

    async def make() -> None:
        connection = await driver.connect(address)
        await connection.jetstream().add_stream(name="BENCH", subjects=[SUBJECT])
        await connection.close()

    asyncio.run(make())
