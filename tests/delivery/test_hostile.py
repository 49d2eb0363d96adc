"""Receivers and settings that do what nobody expects."""

from __future__ import annotations

import signal
import socket
import sqlite3
import threading
import time
from base64 import b64encode
from collections import Counter
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest

from ranonce.delivery import httpline
from ranonce.delivery.spec import read_spec
from ranonce.errors import ConfigError
from ranonce.messages import NOT_RECEIVED, REFUSED, UNKNOWN
from tests.delivery.outboxes import declare, fill, received, states
from tests.delivery.outboxes import receiver as to_file
from tests.delivery.test_http import Destinations, message, to
from tests.delivery.test_smtp import Posts
from tests.delivery.test_smtp import message as mail
from tests.receivers import Receiver, answer
from tests.world import World, wait_until

__all__ = ["to"]
MEGABYTE = 1 << 20


@pytest.fixture
def receiver() -> Iterator[Receiver]:
    with Receiver() as receiver:
        yield receiver


@pytest.fixture
def posts(tmp_path: Path) -> Iterator[Posts]:
    posts = Posts(tmp_path)
    yield posts
    for one in posts.opened:
        one.sender.close()


# --- answers --------------------------------------------------------------------------------------------------------


def test_a_chunk_of_less_than_nothing_is_no_way_to_fill_our_memory(to: Destinations, receiver: Receiver) -> None:
    taken = [0]

    def act(_: object) -> Iterator[bytes]:
        yield b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n-1\r\n"
        for _ in range(64):
            yield bytes(MEGABYTE)
            taken[0] += 1

    receiver.act = act
    assert to(receiver.url).send().kind == UNKNOWN
    receiver.await_closed(1)
    assert taken[0] < 32


def test_a_receiver_that_wants_credentials_as_if_it_were_a_proxy_is_not_asked_again(
    to: Destinations, receiver: Receiver
) -> None:
    receiver.act = lambda _: answer(407)
    assert to(receiver.url).send().kind == REFUSED
    other = f"http://127.0.0.1:{receiver.port}"
    through = to("http://nowhere.invalid/hook", environ={"http_proxy": other})
    assert through.send().kind == NOT_RECEIVED


def test_a_success_before_the_whole_request_has_left_proves_nothing(
    to: Destinations, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It has read the head only, says that all is well, and is gone."""
    listener = socket.socket()
    listener.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
    listener.bind(("127.0.0.1", 0))
    listener.listen()

    def serve() -> None:
        connection, _ = listener.accept()
        with connection:
            connection.recv(100)
            connection.sendall(answer(200))
            time.sleep(0.2)  # and ends with what has come unread, which breaks the connection

    server = threading.Thread(target=serve)
    server.start()
    connect = httpline._connected

    def with_little_room(*arguments: object) -> socket.socket:
        connected = connect(*arguments)  # type: ignore[arg-type]
        connected.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 4096)
        return connected

    monkeypatch.setattr(httpline, "_connected", with_little_room)
    answered = to(f"http://127.0.0.1:{listener.getsockname()[1]}/hook").send(message(body=bytes(256 * 1024)))
    server.join(10)
    listener.close()
    assert (answered.kind, "200" in answered.words) == (UNKNOWN, True)


@pytest.mark.parametrize("said", ["token=s3cret-query", "no such hook: XXXXsegmentXXXX", "T0000/XXXXsegmentXXXX"])
def test_no_part_of_an_address_that_is_a_secret_is_kept(to: Destinations, receiver: Receiver, said: str) -> None:
    receiver.act = lambda _: answer(404, said.encode())
    address = f"http://127.0.0.1:{receiver.port}/services/T0000/XXXXsegmentXXXX?token=s3cret-query&v=1"
    answered = to("${HOOK}", environ={"HOOK": address}).send()
    assert "segment" not in answered.words and "s3cret" not in answered.words


# --- several deliverers ---------------------------------------------------------------------------------------------


def test_all_deliverers_leave_a_destination_alone_that_one_of_them_was_told_to(
    tmp_path: Path, receiver: Receiver
) -> None:
    """Both have taken many messages when one is told to wait: the other hears of it while it sends."""
    told: list[float] = []
    came: list[float] = []

    def act(_: object) -> bytes:
        came.append(time.monotonic())
        if len(came) >= 30 and not told:
            told.append(time.monotonic())
            return answer(429, headers={"Retry-After": "60"})
        time.sleep(0.25)
        return answer(200)

    receiver.act = act
    world = World(tmp_path)
    world.init()
    declare(world, type="http", url=receiver.url, dedupes="1h", timeout="5s", concurrency=2)
    with world.opened() as store:
        fill(store, [f"k{number:03}" for number in range(200)])
    deliverers = [world.start("deliver") for _ in range(2)]
    try:
        assert [each.ends().exit for each in deliverers] == [75, 75]
        assert not [at for at in came if at > told[0] + 2.5]
        with world.opened() as store:
            assert states(store).keys() == {"sent", "pending"}
    finally:
        world.end()


@pytest.mark.parametrize("dedupes", [False, True])
def test_a_ledger_that_goes_back_under_a_deliverer_has_nothing_sent_twice(tmp_path: Path, dedupes: bool) -> None:
    """An older copy is restored into the ledger while somebody watches: what it says that waits may have been sent."""
    world = World(tmp_path)
    world.init()
    try:
        file = to_file(world, dedupes=dedupes)
        with world.opened() as store:
            fill(store, ["a", "b", "c"])
        with closing(sqlite3.connect(world.store)) as ledger, closing(sqlite3.connect(tmp_path / "copy")) as copy:
            ledger.backup(copy)
        deliverer = world.start("deliver", "--watch", "--poll", "50ms")
        wait_until(lambda: len(received(file)) == 3 and standing(world) == {"sent": 3})
        with closing(sqlite3.connect(world.store)) as ledger, closing(sqlite3.connect(tmp_path / "copy")) as copy:
            copy.backup(ledger)
        wait_until(lambda: standing(world) == {"sent" if dedupes else "unsure": 3})
        with world.opened() as store:
            fill(store, ["d"], day=1)
        wait_until(lambda: standing(world).get("sent", 0) == (4 if dedupes else 1))
        deliverer.signal(signal.SIGTERM)
        assert "went back" in deliverer.ends().err
        assert Counter(received(file)).most_common(1)[0][1] == (2 if dedupes else 1)
    finally:
        world.end()


def standing(world: World) -> dict[str, int]:
    with world.opened() as store:
        return states(store)


# --- mail -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("content_type", "body"),
    [
        ("text/plain; charset=undefined", b"a"),
        ("text/html; charset=unicode_escape", b"\\ud800"),
        ("text/plain; charset=utf-7", b"+2AA-"),
        ('text/plain; charset="a\0b"', b"a"),
    ],
)
def test_text_in_no_characters_is_refused_before_anybody_is_asked(posts: Posts, content_type: str, body: bytes) -> None:
    assert posts().send(mail(body, content_type)).kind == REFUSED


def test_a_mail_server_that_repeats_what_it_was_told_gives_no_password_away(posts: Posts) -> None:
    plain = b64encode(b"\0jobs\0hunter2-pass").decode()
    with socket.create_server(("127.0.0.1", 0)) as listener:

        def serve() -> None:
            connection, _ = listener.accept()
            with connection, connection.makefile("rb") as lines:
                connection.sendall(b"220 so\r\n")
                for line in lines:
                    said = (
                        b"250-so\r\n250 AUTH PLAIN"
                        if line.startswith(b"ehlo")
                        else b"535 hunter2-pass: " + line.strip()
                    )
                    if line.startswith(b"QUIT"):
                        return
                    connection.sendall(said + b"\r\n")

        server = threading.Thread(target=serve)
        server.start()
        login = {"user": "jobs", "password": "${WORD}", "tls": "none", "port": listener.getsockname()[1]}
        answered = posts(environ={"WORD": "hunter2-pass"}, **login).send(mail(b"text", "text/plain"))
        posts.opened[-1].sender.close()
        server.join(10)
    assert "535" in answered.words
    assert "hunter2" not in answered.words and plain not in answered.words


# --- settings -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("key", ["dedupes", "rate", "timeout", "late_after"])
def test_a_number_beyond_all_numbers_is_refused_in_a_sentence(key: str) -> None:
    table = {"type": "http", "url": "https://example.org/", key: 10**400}
    with pytest.raises(ConfigError, match=f"{key}: "):
        read_spec("hook", table, lambda keys: ".".join(["ranonce.toml", *keys]), None)
