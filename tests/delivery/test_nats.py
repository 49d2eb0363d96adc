"""JetStream: each message is in its stream once, whatever breaks on the way."""

from __future__ import annotations

import asyncio
import os
import signal
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from ranonce.delivery.nats import DUPLICATE_WINDOW_SECONDS, NatsSender, open_sender
from ranonce.delivery.spec import read_spec
from ranonce.errors import ConfigError
from ranonce.lifecycle import RunKey
from ranonce.messages import DELIVERED, NOT_BEGUN, NOT_RECEIVED, REFUSED, THROTTLED, UNKNOWN, Answer, Message
from tests.certificates import made_in
from tests.delivery.sending import OCTETS, emitted, kinds, many, sends
from tests.proxies import Proxy
from tests.servers import NatsServer, free_port, private_folder, started

nats = pytest.importorskip("nats")

RUN = RunKey("nightly.report", "2026-11-07")


def message(body: bytes = b"x", key: str = "report:w/bus/-", **others: Any) -> Message:
    return emitted("bus", body, key=key, run=RUN, **others)


class Streams:
    """A stream and its subject, with names of the test's own, on a server."""

    def __init__(self, address: str) -> None:
        self.address = address
        self.name = f"S{os.urandom(6).hex()}"
        self.subject = f"{self.name}.{{job}}.{{destination}}"
        self.opened: list[NatsSender] = []

    def make(self, **config: Any) -> None:
        self._ask(lambda streams: streams.add_stream(name=self.name, subjects=[f"{self.name}.>"], **config))

    def remove(self) -> None:
        self._ask(lambda streams: streams.delete_stream(self.name))

    def kept(self) -> list[Any]:
        """The messages in the stream."""

        async def read(streams: Any) -> list[Any]:
            count = (await streams.stream_info(self.name)).state.messages
            subscription = await streams.pull_subscribe(f"{self.name}.>", stream=self.name)
            found: list[Any] = []
            while len(found) < count:
                for each in await subscription.fetch(min(500, count - len(found)), timeout=10):
                    await each.ack()
                    found.append(each)
            return found

        return self._ask(read)

    def keys(self) -> list[str]:
        return [each.headers["Nats-Msg-Id"] for each in self.kept()]

    def sender(self, **settings: Any) -> NatsSender:
        environ = settings.pop("environ", {})
        table = {"type": "nats", "url": self.address, "subject": self.subject, "timeout": 10, **settings}
        self.opened.append(open_sender(read_spec("bus", table, lambda keys: "ranonce.toml", "/"), environ))
        return self.opened[-1]

    def _ask(self, ask: Callable[[Any], Any]) -> Any:
        async def work() -> Any:
            client = await nats.connect(self.address)
            try:
                return await ask(client.jetstream())
            finally:
                await client.close()

        return asyncio.run(work())

    def __enter__(self) -> Streams:
        return self

    def __exit__(self, *_: object) -> None:
        for sender in self.opened:
            sender.close()
        for thread in threading.enumerate():
            if thread.name == "ranonce publisher":
                thread.join(10)


@pytest.fixture
def bare(nats_server) -> Iterator[Streams]:
    with Streams(nats_server.address) as streams:
        yield streams


@pytest.fixture
def streams(bare: Streams) -> Streams:
    bare.make()
    return bare


def test_a_message_is_in_the_stream_with_its_key(streams):
    (answer,) = sends(streams.sender(stream=streams.name), message(b"\x00body"))
    assert (answer.kind, answer.words) == (DELIVERED, f"stream={streams.name} seq=1")
    (kept,) = streams.kept()
    assert (kept.data, kept.subject) == (b"\x00body", f"{streams.name}.nightly_report.bus")
    assert (kept.headers["Nats-Msg-Id"], kept.headers["Content-Type"]) == ("report:w/bus/-", OCTETS)


def test_the_same_message_again_is_a_duplicate(streams):
    sends(streams.sender(), message())
    (answer,) = sends(streams.sender(), message())
    assert (answer.kind, answer.words) == (DELIVERED, f"stream={streams.name} seq=1 duplicate")
    assert len(streams.kept()) == 1


def test_thousands_go_through_the_window(streams):
    assert kinds(sends(streams.sender(window=16), *many(2000, message))) == {DELIVERED}
    assert len(set(streams.keys())) == 2000


def test_many_on_their_way_are_faster_than_one_by_one(streams):
    one_by_one, windowed = streams.sender(window=1), streams.sender()
    sends(one_by_one, message(key="warm"))
    sends(windowed, message(key="warm"))
    times = []
    for sender, name in ((one_by_one, "a"), (windowed, "b")):
        sent = [message(b"x" * 200, f"{name} {number}") for number in range(1000)]
        began = time.perf_counter()
        sends(sender, *sent)
        times.append(time.perf_counter() - began)
    assert times[0] > 1.5 * times[1], times


def test_what_may_not_begin_is_not_published(streams):
    answers = sends(streams.sender(), *many(10, message), may_begin=lambda each: each.key != "key 3")
    assert [answer.kind for answer in answers].index(NOT_BEGUN) == 3
    assert len(streams.keys()) == 9


def test_without_a_stream_nothing_is_received(bare):
    (answer,) = sends(bare.sender(), message())
    assert answer.kind == NOT_RECEIVED
    assert f"no stream listens to the subject {bare.name}.nightly_report.bus" in answer.words


def test_a_stream_that_is_removed_receives_nothing(streams):
    sender = streams.sender()
    assert kinds(sends(sender, message())) == {DELIVERED}
    streams.remove()
    assert kinds(sends(sender, message(key="later"))) == {NOT_RECEIVED}


def test_another_stream_than_the_declared_one_takes_nothing(streams):
    (answer,) = sends(streams.sender(stream="OTHER"), message())
    assert answer.kind == NOT_RECEIVED and answer.answered
    assert streams.kept() == []


def test_a_full_stream_has_not_received_it(bare):
    bare.make(max_msgs=1, discard="new")
    first, second = sends(bare.sender(), message(key="a"), message(key="b"))
    assert (first.kind, second.kind) == (DELIVERED, NOT_RECEIVED)
    assert "maximum messages" in second.words


def test_what_is_larger_than_the_stream_takes_is_refused(bare):
    bare.make(max_msg_size=1000)
    large, small = sends(bare.sender(), message(b"x" * 2000, "large"), message(b"x", "small"))
    assert (large.kind, small.kind) == (REFUSED, DELIVERED)


def test_nobody_listening_has_received_nothing(bare):
    (answer,) = sends(bare.sender(url=f"nats://127.0.0.1:{free_port()}"), message())
    assert answer.kind == NOT_RECEIVED and "127.0.0.1" in answer.words


def test_the_second_server_is_asked_where_the_first_is_away(streams):
    sender = streams.sender(url=f"nats://127.0.0.1:{free_port()}, {streams.address}")
    assert kinds(sends(sender, message())) == {DELIVERED}


def port_of(streams: Streams) -> int:
    return int(streams.address.rpartition(":")[2])


@pytest.mark.parametrize("silent", [False, True])
def test_a_lost_acknowledgement_is_unknown_and_the_next_try_a_duplicate(silent, streams):
    with Proxy(port_of(streams)) as proxy:
        sender = streams.sender(url=f"nats://127.0.0.1:{proxy.port}", timeout=2)
        assert kinds(sends(sender, message(key="first"))) == {DELIVERED}
        proxy.cut_next_answer(silent=silent)
        (answer,) = sends(sender, message(b"second", "second"))
        assert answer.kind == UNKNOWN
        (answer,) = sends(sender, message(b"second", "second"))
        assert answer.kind == DELIVERED and answer.words.endswith("duplicate")
    assert sorted(streams.keys()) == ["first", "second"]


def test_after_the_duplicate_window_of_the_stream_nothing_doubtful_is_sent_again(bare):
    """The settings promise ten minutes; the stream keeps one second."""
    bare.make(duplicate_window=1)
    sender = bare.sender(dedupes="10m")
    (answer,) = sends(sender, message(key="doubtful", doubt_since=time.time() - 60))
    assert answer.kind == UNKNOWN and "dedupes for 1 s" in answer.words
    assert kinds(sends(sender, message(key="fresh"))) == {DELIVERED}
    assert bare.keys() == ["fresh"]


def test_a_stream_that_was_made_anew_is_sent_nothing_doubtful_again(streams):
    """It knows no key that the stream before it had."""
    sender = streams.sender()
    assert kinds(sends(sender, message(key="doubtful"))) == {DELIVERED}
    since = time.time() - 1
    streams.remove()
    streams.make()
    (answer,) = sends(sender, message(key="doubtful", doubt_since=since))
    assert answer.kind == UNKNOWN and "made anew" in answer.words
    assert kinds(sends(sender, message(key="fresh"))) == {DELIVERED}
    assert streams.keys() == ["fresh"]


def test_what_a_stream_dedupes_for_is_two_minutes_unless_it_is_said():
    table = {"type": "nats", "url": "nats://127.0.0.1", "subject": "a"}
    assert read_spec("bus", table, lambda keys: "", None).route.dedupes == DUPLICATE_WINDOW_SECONDS


def test_a_server_that_is_killed_and_started_again_has_each_key_once(tmp_path: Path):
    for server in started(lambda: NatsServer(private_folder(tmp_path / "nats"))):
        assert isinstance(server, NatsServer)
        with Streams(server.address) as streams:
            streams.make(storage="file")
            sender, sent = streams.sender(timeout=5), many(5000, message)
            answers: dict[str, Answer] = {}
            for settled in sender.send(sent, lambda _: True):
                if settled is not None:
                    answers[settled[0].key] = settled[1]
                if len(answers) == 1000 and server.process is not None:
                    server.stop(signal.SIGKILL)
            assert kinds(list(answers.values())) - {DELIVERED}  # whether one was on its way just then is chance
            server.start()
            delivered = {key for key, answer in answers.items() if answer.kind == DELIVERED}
            again = [each for each in sent if each.key not in delivered]
            assert kinds(sends(sender, *again)) == {DELIVERED}
            keys = streams.keys()
            assert len(keys) == len(set(keys)) == 5000


def test_a_wrong_password_closes_the_destination(tmp_path: Path):
    options = ("--user", "jobs", "--pass", "right")
    for server in started(lambda: NatsServer(private_folder(tmp_path / "nats"), options=options)):
        assert isinstance(server, NatsServer)
        with Streams(server.address) as streams:
            login = {"user": "jobs", "password": "${BUS_PASSWORD}"}
            (answer,) = sends(streams.sender(**login, environ={"BUS_PASSWORD": "wrong"}), message())
            assert answer.kind == THROTTLED and answer.retry_after and "wrong" not in answer.words
            (answer,) = sends(streams.sender(**login, environ={"BUS_PASSWORD": "right"}), message())
            assert "no stream listens" in answer.words


def test_a_connection_is_encrypted_where_the_settings_name_who_vouches_for_the_server(tmp_path: Path):
    folder = private_folder(tmp_path / "nats")
    certificates = made_in(folder)
    options = ("--tls", "--tlscert", str(certificates.certificate), "--tlskey", str(certificates.key))
    for server in started(lambda: NatsServer(folder, options=options)):
        assert isinstance(server, NatsServer)
        with Streams(server.address) as streams:
            (answer,) = sends(streams.sender(ca=str(certificates.authority)), message())
            assert "no stream listens" in answer.words
            (answer,) = sends(streams.sender(url=server.address.replace("nats:", "tls:")), message())
            assert answer.kind == NOT_RECEIVED and "certificate" in answer.words


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        ({"url": "nats://me:secret@host:4222"}, "password"),
        ({"password": "secret"}, "a secret stands in the file"),
        ({"subject": "events.*"}, "no subject to publish to"),
        ({"subject": "events..x"}, "no subject to publish to"),
        ({"subject": "events.{window}"}, "no subject to publish to"),
        ({"window": 0}, "out of range"),
        ({"creds": "/nowhere.creds"}, "/nowhere.creds"),
        ({"token": "${NOT_SET}"}, "NOT_SET"),
    ],
)
def test_a_mistake_in_the_settings_is_a_sentence(settings, words):
    with pytest.raises(ConfigError) as caught:
        Streams("nats://127.0.0.1:4222").sender(**settings)
    assert words in str(caught.value)
    assert "secret@" not in str(caught.value)
