"""Messages over HTTP: what a request holds, and what each thing that a server does means for its message."""

from __future__ import annotations

import socket
import threading
import time
from collections.abc import Iterator
from email.utils import formatdate
from pathlib import Path

import pytest
from standardwebhooks import Webhook

from ranonce.delivery.base import Sender
from ranonce.delivery.http import open_sender
from ranonce.delivery.spec import read_spec
from ranonce.errors import ConfigError
from ranonce.messages import (
    DELIVERED,
    NOT_RECEIVED,
    PENDING,
    REFUSED,
    THROTTLED,
    UNKNOWN,
    UNSURE,
    Answer,
    Message,
    settle,
)
from tests.certificates import Certificates, made_in
from tests.delivery.sending import TAKEN, emitted, sends
from tests.receivers import CLOSED, RESET, SILENT, Received, Receiver, answer
from tests.servers import free_port
from tests.world import wait_until

JSON = "application/json"
SECRET = "whsec_bXkgc2lnbmluZyBzZWNyZXQgb2YgbWFueSBieXRlcw=="
KEY = "report:2026-11-07/hook/-"


def message(key: str = KEY, body: bytes = b'{"amount": 3}', content_type: str = JSON, **changes: object) -> Message:
    return emitted("hook", body, content_type, key=key, **{**TAKEN, **changes})


class Destination:
    """A destination, and what became of what was sent there."""

    def __init__(self, table: dict[str, object], environ: dict[str, str], folder: Path) -> None:
        written = {"type": "http", "timeout": 10, **table}
        spec = read_spec("hook", written, lambda keys: ".".join(["ranonce.toml", *keys]), str(folder))
        self.route = spec.route
        self.sender: Sender = open_sender(spec, environ)

    def sends(self, *messages: Message) -> list[Answer]:
        return sends(self.sender, *messages)

    def send(self, sent: Message | None = None) -> Answer:
        return self.sends(sent or message())[0]

    def state_after(self, answered: Answer) -> str:
        """Return what becomes of a message that was answered so at once."""
        taken = message()
        move = settle(taken, taken, answered, self.route, 1_794_000_001.0, 0.0)
        assert move is not None
        return move.now.state


class Destinations:
    """Opens destinations, and closes them after the test."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.opened: list[Destination] = []

    def __call__(self, url: str, *, environ: dict[str, str] | None = None, **table: object) -> Destination:
        self.opened.append(Destination({"url": url, **table}, environ or {}, self.folder))
        return self.opened[-1]


@pytest.fixture
def to(tmp_path: Path) -> Iterator[Destinations]:
    destinations = Destinations(tmp_path)
    yield destinations
    for one in destinations.opened:
        one.sender.close()
    for thread in threading.enumerate():
        if thread.name == "ranonce carrier":
            thread.join(10)


@pytest.fixture
def receiver() -> Iterator[Receiver]:
    with Receiver() as receiver:
        yield receiver


# --- the request ----------------------------------------------------------------------------------------------------


def test_a_message_is_one_post_with_its_key_in_quotes(to: Destinations, receiver: Receiver) -> None:
    assert to(receiver.url).send().kind == DELIVERED
    (request,) = receiver.requests
    assert (request.method, request.target, request.body) == ("POST", "/hook", b'{"amount": 3}')
    assert request.headers["idempotency-key"] == f'"{KEY}"'
    assert request.headers["content-type"] == JSON
    assert request.headers["host"] == f"127.0.0.1:{receiver.port}"
    assert request.headers["user-agent"].startswith("ranonce/")
    assert "expect" not in request.headers and "webhook-id" not in request.headers


def test_method_headers_and_query_are_as_the_settings_say(to: Destinations, receiver: Receiver) -> None:
    headers = {"Authorization": "Bearer ${TOKEN}", "X-From": "nightly"}
    destination = to(
        f"{receiver.url}/${{ID}}?a=1", environ={"TOKEN": "hunter2", "ID": "7"}, method="put", headers=headers
    )
    assert destination.send().kind == DELIVERED
    (request,) = receiver.requests
    assert (request.method, request.target) == ("PUT", "/hook/7?a=1")
    assert (request.headers["authorization"], request.headers["x-from"]) == ("Bearer hunter2", "nightly")


def test_another_header_holds_the_key_as_it_is(to: Destinations, receiver: Receiver) -> None:
    assert to(receiver.url, key_header="X-Request-Id").send().kind == DELIVERED
    assert receiver.requests[0].headers["x-request-id"] == KEY
    assert "idempotency-key" not in receiver.requests[0].headers


def test_a_prefix_stands_before_the_key(to: Destinations, receiver: Receiver) -> None:
    assert to(receiver.url, prefix="prod").send().kind == DELIVERED
    assert receiver.arrived == {f"prod/{KEY}": 1}


def test_a_user_of_the_address_becomes_a_header(to: Destinations, receiver: Receiver) -> None:
    url = receiver.url.replace("//", "//${NAME}:${WORD}@")
    assert to(url, environ={"NAME": "ann", "WORD": "s%2Fcret"}).send().kind == DELIVERED
    assert receiver.requests[0].headers["authorization"] == "Basic YW5uOnMvY3JldA=="


def test_receivers_can_check_who_sent_it(to: Destinations, receiver: Receiver) -> None:
    assert to(receiver.url, secret="${SIGNING}", environ={"SIGNING": SECRET}).send().kind == DELIVERED
    (request,) = receiver.requests
    assert Webhook(SECRET).verify(request.body, dict(request.headers)) == {"amount": 3}
    assert request.headers["webhook-id"] == KEY
    assert abs(time.time() - int(request.headers["webhook-timestamp"])) < 60


def test_a_line_break_in_a_content_type_begins_no_header(to: Destinations, receiver: Receiver) -> None:
    answered = to(receiver.url).send(message(content_type="text/plain\r\nX-Admin: yes"))
    assert answered.kind == REFUSED and "Content-Type" in answered.words
    assert receiver.accepted == 0


# --- answers --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("status", "kind", "where_it_dedupes"),
    [
        (200, DELIVERED, DELIVERED),
        (202, DELIVERED, DELIVERED),
        (204, DELIVERED, DELIVERED),
        (301, REFUSED, REFUSED),
        (307, REFUSED, REFUSED),
        (400, REFUSED, REFUSED),
        (401, REFUSED, REFUSED),
        (403, REFUSED, REFUSED),
        (404, REFUSED, REFUSED),
        (407, REFUSED, REFUSED),
        (408, UNKNOWN, UNKNOWN),
        (409, REFUSED, UNKNOWN),
        (410, REFUSED, REFUSED),
        (422, REFUSED, REFUSED),
        (425, UNKNOWN, UNKNOWN),
        (429, THROTTLED, THROTTLED),
        (500, UNKNOWN, UNKNOWN),
        (502, UNKNOWN, UNKNOWN),
        (503, UNKNOWN, UNKNOWN),
        (600, UNKNOWN, UNKNOWN),
    ],
)
@pytest.mark.parametrize("dedupes", [False, True])
def test_what_each_status_means(
    to: Destinations, receiver: Receiver, status: int, kind: str, where_it_dedupes: str, dedupes: bool
) -> None:
    receiver.act = lambda _: answer(status, b"" if status == 204 else b"so")
    answered = to(receiver.url, dedupes=dedupes).send()
    assert answered.kind == (where_it_dedupes if dedupes else kind)
    assert str(status) in answered.words
    assert answered.answered or answered.kind in (DELIVERED, NOT_RECEIVED)


def test_a_gateways_503_is_never_sent_again_where_nobody_dedupes(to: Destinations, receiver: Receiver) -> None:
    receiver.act = lambda _: answer(503)  # whoever stands behind it has the message: it is counted
    destination = to(receiver.url)
    assert destination.state_after(destination.send()) == UNSURE
    assert receiver.arrived == {KEY: 1}
    deduping = to(receiver.url, dedupes=True)
    assert deduping.state_after(deduping.send()) == PENDING


def test_accepted_is_said_in_the_receipt_with_its_id(to: Destinations, receiver: Receiver) -> None:
    receiver.act = lambda _: answer(202, {"status": "queued", "id": "msg_42"})
    assert to(receiver.url).send() == Answer(DELIVERED, "202 accepted; id=msg_42")


def test_a_receipt_without_an_id_quotes_the_beginning(to: Destinations, receiver: Receiver) -> None:
    receiver.act = lambda _: answer(200, b"ok\n" + b"x" * 1000)
    words = to(receiver.url).send().words
    assert words.startswith("200; ok xxx") and len(words) < 300


def test_redirects_are_not_followed(to: Destinations, receiver: Receiver) -> None:
    receiver.act = lambda _: answer(307, headers={"Location": f"{receiver.url}/hunter2"})
    answered = to(receiver.url).send()
    assert answered.kind == REFUSED and "not followed" in answered.words and "hunter2" not in answered.words
    assert len(receiver.requests) == 1


def test_refused_credentials_are_named_by_their_settings(to: Destinations, receiver: Receiver) -> None:
    receiver.act = lambda _: answer(401, b"no")
    headers = {"Authorization": "Bearer ${TOKEN}", "X-From": "nightly"}
    words = to(receiver.url, headers=headers, environ={"TOKEN": "hunter2"}).send().words
    assert "headers.Authorization" in words and "X-From" not in words and "hunter2" not in words


@pytest.mark.parametrize(
    ("said", "seconds"),
    [
        ("120", 120.0),
        (" 0 ", 0.0),
        ("Thu, 05 Nov 2026 10:05:00 GMT", 300.0),
        ("Thursday, 05-Nov-26 10:05:00 GMT", 300.0),
        ("Thu Nov  5 10:05:00 2026", 300.0),
        ("Thu, 05 Nov 2026 09:00:00 GMT", 0.0),
        ("-5", None),
        ("1.5", None),
        ("soon", None),
        ("Thu, 99 Foo 2026 10:05:00 GMT", None),
        ("9" * 400, float("inf")),
    ],
)
@pytest.mark.parametrize("status", [429, 503])
def test_retry_after_is_heard_where_it_can_be_read(
    to: Destinations, receiver: Receiver, said: str, seconds: float | None, status: int
) -> None:
    headers = {"Date": "Thu, 05 Nov 2026 10:00:00 GMT", "Retry-After": said}
    receiver.act = lambda _: answer(status, headers=headers)
    assert to(receiver.url).send().retry_after == seconds


def test_a_date_without_a_date_of_the_answer_counts_from_now(to: Destinations, receiver: Receiver) -> None:
    receiver.act = lambda _: answer(429, headers={"Retry-After": formatdate(time.time() + 600, usegmt=True)})
    after = to(receiver.url).send().retry_after
    assert after is not None and 500 < after <= 600


# --- what the body must say -----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("body", "delivered"),
    [
        ({"ok": True, "n": [{"a/b": 1}]}, True),
        ({"ok": True, "n": [{"a/b": 1.0}]}, True),
        ({"ok": False, "n": [{"a/b": 1}]}, False),
        ({"ok": 1, "n": [{"a/b": 1}]}, False),
        ({"ok": True, "n": [{"a/b": True}]}, False),
        ({"ok": True, "n": []}, False),
        ({"ok": True}, False),
        (b"", False),
        (b"ok", False),
        ([], False),
    ],
)
def test_an_answer_must_say_what_is_expected(
    to: Destinations, receiver: Receiver, body: object, delivered: bool
) -> None:
    receiver.act = lambda _: answer(200, body)
    answered = to(receiver.url, expect={"/ok": True, "/n/0/a~1b": 1}).send()
    assert answered.kind == (DELIVERED if delivered else UNKNOWN)


def test_what_was_not_said_stands_in_the_words(to: Destinations, receiver: Receiver) -> None:
    receiver.act = lambda _: answer(200, {"ok": False, "error": "channel_not_found"})
    words = to(receiver.url, expect={"/ok": True}).send().words
    assert "/ok of its body is False, not True" in words and "channel_not_found" in words


# --- connections that end -------------------------------------------------------------------------------------------

HEAD = b"HTTP/1.1 200 OK\r\nContent-Length: 4\r\nX-A: b\r\n\r\n"
PLACES = {
    "before the answer": b"",
    "within its first line": HEAD[:12],
    "after its first line": HEAD[:17],
    "within its head": HEAD[:40],
    "before its body": HEAD,
    "within its body": HEAD + b"ok",
    "within its chunks": b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n5\r\nhel",
    "between its chunks": b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n5\r\nhello\r\n",
    "after 100-continue": b"HTTP/1.1 100 Continue\r\n\r\n",
}


@pytest.mark.parametrize("place", PLACES)
@pytest.mark.parametrize("how", [RESET, CLOSED, SILENT])
@pytest.mark.parametrize("dedupes", [False, True])
def test_a_receiver_that_commits_and_is_cut_off_leaves_it_unknown(
    to: Destinations, receiver: Receiver, place: str, how: str, dedupes: bool
) -> None:
    receiver.act = lambda _: [PLACES[place], how] if PLACES[place] else how
    destination = to(receiver.url, dedupes=dedupes, timeout=0.3 if how == SILENT else 10)
    answered = destination.send()
    wait_until(lambda: bool(receiver.requests))  # it is not hurried by our end of patience
    assert receiver.arrived == {KEY: 1}, "it is sent once"
    assert answered.kind == UNKNOWN
    assert destination.state_after(answered) == (PENDING if dedupes else UNSURE)


@pytest.mark.parametrize("how", [RESET, CLOSED, SILENT])
@pytest.mark.parametrize("dedupes", [False, True])
def test_a_connection_cut_within_the_request_leaves_it_unknown(to: Destinations, how: str, dedupes: bool) -> None:
    with Receiver(before=("head", how)) as receiver:
        body = b"x" * 200_000
        answered = to(receiver.url, dedupes=dedupes, timeout=0.3 if how == SILENT else 10).send(message(body=body))
        assert answered.kind == UNKNOWN and receiver.arrived == {}


def test_nobody_there_means_not_received(to: Destinations) -> None:
    destination = to(f"http://127.0.0.1:{free_port()}/hook")
    answered = destination.send()
    assert answered.kind == NOT_RECEIVED and "refused" in answered.words
    assert destination.state_after(answered) == PENDING


def test_a_name_that_is_not_found_means_not_received(to: Destinations) -> None:
    assert to("http://nowhere.invalid/hook").send().kind == NOT_RECEIVED


def test_where_nobody_accepts_the_time_ends_and_nothing_was_received(to: Destinations) -> None:
    with socket.socket() as full:
        full.bind(("127.0.0.1", 0))
        full.listen(0)
        port = full.getsockname()[1]
        waiting = [socket.socket() for _ in range(4)]  # what the queue holds
        for one in waiting:
            one.setblocking(False)
            one.connect_ex(("127.0.0.1", port))
        began = time.monotonic()
        answered = to(f"http://127.0.0.1:{port}/hook", timeout=0.3).send()
        for one in waiting:
            one.close()
        assert answered.kind == NOT_RECEIVED and time.monotonic() - began < 5


def test_an_answer_that_drips_ends_with_the_time(to: Destinations, receiver: Receiver) -> None:
    stop = threading.Event()

    def drip(_: Received) -> Iterator[bytes]:  # faster than a wait for the next byte would end
        yield b"HTTP/1.1 200 OK\r\nX-A: "
        while not stop.wait(0.02):
            yield b"x"

    receiver.act = drip
    began = time.monotonic()
    answered = to(receiver.url, timeout=0.5).send()
    stop.set()
    assert answered.kind == UNKNOWN and time.monotonic() - began < 5


@pytest.mark.parametrize(
    "said",
    [
        b"SSH-2.0-OpenSSH_9.6\r\n",
        b"HTTP/1.1 abc OK\r\n\r\n",
        b"HTTP/1.1 42 OK\r\n\r\n",
        b"HTTP/2.0 200 OK\r\n\r\n",
        b"\x00\x01\x02" * 50 + b"\r\n",
        b"x" * 100_000,
        b"HTTP/1.1 200 OK\r\n" + b"X-A: b\r\n" * 200 + b"\r\n",
        b"HTTP/1.1 200 OK\r\nX-A: " + b"b" * 100_000 + b"\r\n\r\n",
        b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\nnonsense\r\n",
        b"HTTP/1.1 101 Switching Protocols\r\nUpgrade: websocket\r\n\r\n",
    ],
)
def test_what_is_no_answer_leaves_it_unknown(to: Destinations, receiver: Receiver, said: bytes) -> None:
    receiver.act = lambda _: [said, CLOSED]
    answered = to(receiver.url).send()
    assert answered.kind == UNKNOWN and answered.words
    assert receiver.arrived == {KEY: 1}


@pytest.mark.parametrize(
    "said",
    [
        b"HTTP/1.1 100 Continue\r\n\r\nHTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok",
        b"HTTP/1.1 103 Early Hints\r\nLink: </a>\r\n\r\nHTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok",
        b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n1\r\no\r\n1\r\nk\r\n0\r\n\r\n",
        b"HTTP/1.1 200\r\nContent-Length: 2\r\n\r\nok",
        b"HTTP/1.1 200 OK\nContent-Length: 2\n\nok",
    ],
)
def test_answers_come_in_many_forms(to: Destinations, receiver: Receiver, said: bytes) -> None:
    receiver.act = lambda _: said
    assert to(receiver.url, dedupes=True).send() == Answer(DELIVERED, "200; ok")


def test_an_answer_that_ends_with_its_connection_is_whole(to: Destinations, receiver: Receiver) -> None:
    receiver.act = lambda _: [b"HTTP/1.0 200 OK\r\n\r\nok", CLOSED]
    assert to(receiver.url).send() == Answer(DELIVERED, "200; ok")


def test_a_very_long_answer_is_read_no_further_than_it_matters(to: Destinations, receiver: Receiver) -> None:
    receiver.act = lambda _: answer(200, b"x" * 10_000_000)
    destination = to(receiver.url, dedupes=True, concurrency=1)
    began = time.monotonic()
    assert [one.kind for one in destination.sends(message("a"), message("b"))] == [DELIVERED, DELIVERED]
    assert time.monotonic() - began < 8
    assert receiver.accepted == 2, "what is left of an answer is never taken for the next one"


def test_an_answer_before_all_was_sent_counts(to: Destinations) -> None:
    with Turnstile() as turnstile:
        answered = to(f"http://127.0.0.1:{turnstile.port}/hook").send(message(body=b"x" * 256 * 1024))
    assert answered.kind == REFUSED


class Turnstile:
    """Answers 413 after the first bytes, and reads no more."""

    def __enter__(self) -> Turnstile:
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.port = self._listener.getsockname()[1]
        self._thread = threading.Thread(target=self._turn)
        self._thread.start()
        return self

    def _turn(self) -> None:
        connection, _ = self._listener.accept()
        with connection:
            connection.recv(100)
            connection.sendall(answer(413))

    def __exit__(self, *_: object) -> None:
        self._thread.join(10)
        self._listener.close()


# --- kept connections -----------------------------------------------------------------------------------------------


def test_where_a_destination_dedupes_a_connection_is_kept(to: Destinations, receiver: Receiver) -> None:
    destination = to(receiver.url, dedupes=True, concurrency=1)
    assert {one.kind for one in destination.sends(*(message(str(n)) for n in range(10)))} == {DELIVERED}
    assert (receiver.accepted, len(receiver.requests)) == (1, 10)


def test_where_it_does_not_each_message_has_a_connection_of_its_own(to: Destinations, receiver: Receiver) -> None:
    destination = to(receiver.url, concurrency=1)
    destination.sends(*(message(str(n)) for n in range(5)))
    assert receiver.accepted == 5
    assert {one.headers["connection"] for one in receiver.requests} == {"close"}


def test_a_kept_connection_that_was_closed_meanwhile_is_not_written_to(to: Destinations, receiver: Receiver) -> None:
    receiver.act = lambda request: [answer(200), CLOSED] if request.key == "a" else answer(200)
    destination = to(receiver.url, dedupes=True, concurrency=1)
    assert destination.send(message("a")).kind == DELIVERED
    receiver.drop_connections()
    assert destination.send(message("b")).kind == DELIVERED
    assert receiver.arrived == {"a": 1, "b": 1}
    assert receiver.accepted == 2


def test_one_that_is_reset_right_before_the_write_is_replaced_since_nothing_has_left(
    to: Destinations, receiver: Receiver, monkeypatch: pytest.MonkeyPatch
) -> None:
    receiver.act = lambda request: [answer(200), RESET] if request.key == "a" else answer(200)
    destination = to(receiver.url, dedupes=True, concurrency=1)
    assert destination.send(message("a")).kind == DELIVERED
    receiver.await_closed(1)
    monkeypatch.setattr("ranonce.delivery.httpline.Line.is_quiet", lambda line: True)  # the look came before the reset
    assert destination.send(message("b")).kind == DELIVERED
    assert receiver.arrived == {"a": 1, "b": 1}


def test_a_connection_that_was_idle_for_long_is_not_used_again(
    to: Destinations, receiver: Receiver, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("ranonce.delivery.httpwire.LONGEST_IDLE_SECONDS", -1.0)
    destination = to(receiver.url, dedupes=True, concurrency=1)
    destination.sends(message("a"), message("b"))
    assert receiver.accepted == 2


def test_a_connection_whose_answer_did_not_end_is_not_used_again(to: Destinations, receiver: Receiver) -> None:
    receiver.act = lambda request: [HEAD + b"ok", SILENT] if request.key == "a" else answer(200)
    destination = to(receiver.url, dedupes=True, concurrency=1, timeout=1)
    assert [one.kind for one in destination.sends(message("a"), message("b"))] == [UNKNOWN, DELIVERED]


def test_a_second_answer_that_nobody_asked_for_is_not_taken_for_the_next(to: Destinations, receiver: Receiver) -> None:
    receiver.act = lambda request: answer(200, b"1") + answer(500, b"2") if request.key == "a" else answer(200, b"3")
    destination = to(receiver.url, dedupes=True, concurrency=1)
    assert destination.send(message("a")).words == "200; 1"
    assert destination.send(message("b")).words == "200; 3"


def test_a_kept_connection_that_is_cut_with_the_next_request_leaves_that_unknown(
    to: Destinations, receiver: Receiver
) -> None:
    receiver.act = lambda request: answer(200) if request.key == "a" else RESET
    destination = to(receiver.url, dedupes=True, concurrency=1)
    assert [one.kind for one in destination.sends(message("a"), message("b"))] == [DELIVERED, UNKNOWN]
    assert receiver.arrived == {"a": 1, "b": 1}, "nothing is sent twice within a try"


def test_one_more_try_under_the_same_key_has_no_second_effect_where_keys_are_heeded(
    to: Destinations, receiver: Receiver
) -> None:
    effects: set[str] = set()

    def commit_then_cut(request: Received) -> bytes | str:
        known = request.key in effects
        effects.add(request.key)
        return answer(200, b"known") if known else RESET

    receiver.act = commit_then_cut
    destination = to(receiver.url, dedupes=True)
    first = destination.send()
    assert destination.state_after(first) == PENDING
    assert destination.send().kind == DELIVERED
    assert (receiver.arrived, effects) == ({KEY: 2}, {KEY})


def test_sixteen_are_in_flight_at_once(to: Destinations, receiver: Receiver) -> None:
    together = threading.Barrier(16, timeout=20)

    def wait_for_the_others(_: Received) -> bytes:
        together.wait()
        return answer(200)

    receiver.act = wait_for_the_others
    answers = to(receiver.url, concurrency=16, dedupes=True).sends(*(message(str(n)) for n in range(32)))
    assert {one.kind for one in answers} == {DELIVERED}
    assert receiver.arrived == {str(n): 1 for n in range(32)}
    assert receiver.at_once == 16


# --- addresses and encryption ---------------------------------------------------------------------------------------


def test_the_loopback_of_ipv6_is_reached(to: Destinations) -> None:
    try:
        receiver = Receiver(host="::1")
    except OSError:
        pytest.skip("this host has no IPv6")
    with receiver:
        assert to(receiver.url).send().kind == DELIVERED
        assert receiver.requests[0].headers["host"] == f"[::1]:{receiver.port}"


@pytest.fixture(scope="module")
def certificates(tmp_path_factory: pytest.TempPathFactory) -> Certificates:
    return made_in(tmp_path_factory.mktemp("certificates"))


@pytest.fixture
def encrypted(certificates: Certificates) -> Iterator[Receiver]:
    with Receiver(tls=certificates.server_context()) as receiver:
        yield receiver


@pytest.mark.parametrize("dedupes", [False, True])
def test_an_authority_of_ones_own_is_trusted_where_it_is_named(
    to: Destinations, encrypted: Receiver, certificates: Certificates, dedupes: bool
) -> None:
    destination = to(encrypted.url, ca=str(certificates.authority), dedupes=dedupes, concurrency=1)
    assert [one.kind for one in destination.sends(message("a"), message("b"))] == [DELIVERED, DELIVERED]
    assert encrypted.accepted == (1 if dedupes else 2)


@pytest.mark.parametrize("dedupes", [False, True])
def test_a_certificate_that_is_not_trusted_means_not_received(
    to: Destinations, encrypted: Receiver, dedupes: bool
) -> None:
    answered = to(encrypted.url, dedupes=dedupes).send()
    assert answered.kind == NOT_RECEIVED
    assert answered.words.startswith("the certificate of 127.0.0.1 is not trusted: ")
    assert encrypted.arrived == {}


def test_a_certificate_of_another_host_means_not_received(
    to: Destinations, encrypted: Receiver, certificates: Certificates
) -> None:
    url = encrypted.url.replace("127.0.0.1", "127.0.0.2")
    with Receiver(tls=encrypted.tls, host="127.0.0.2") as other:
        url = other.url
        answered = to(url, ca=str(certificates.authority)).send()
    assert answered.kind == NOT_RECEIVED and "not valid for '127.0.0.2'" in answered.words


def test_encryption_with_somebody_who_has_none_means_not_received(to: Destinations, receiver: Receiver) -> None:
    answered = to(receiver.url.replace("http:", "https:")).send()
    assert answered.kind == NOT_RECEIVED and "no encrypted connection" in answered.words


@pytest.mark.parametrize("how", [RESET, CLOSED, SILENT])
def test_an_encrypted_receiver_that_is_cut_off_leaves_it_unknown(
    to: Destinations, encrypted: Receiver, certificates: Certificates, how: str
) -> None:
    encrypted.act = lambda _: [HEAD[:30], how]
    answered = to(encrypted.url, ca=str(certificates.authority), timeout=2 if how == SILENT else 10).send()
    assert (answered.kind, encrypted.arrived) == (UNKNOWN, {KEY: 1})


# --- proxies --------------------------------------------------------------------------------------------------------


class TunnelProxy:
    """Connects to one port of this host, whatever is asked for, or answers with a status. Keeps what it was asked."""

    def __init__(self, port: int, status: int = 200) -> None:
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.url = f"http://ann:s%40cret@127.0.0.1:{self._listener.getsockname()[1]}"
        self.asked: list[bytes] = []
        self._target, self._status = port, status
        self._threads = [threading.Thread(target=self._serve)]
        self._threads[0].start()

    def _serve(self) -> None:
        connection, _ = self._listener.accept()
        with connection:
            asked = b""
            while b"\r\n\r\n" not in asked:
                asked += connection.recv(65536)
            self.asked.append(asked)
            connection.sendall(b"HTTP/1.1 %d So\r\n\r\n" % self._status)
            if self._status != 200:
                return
            with socket.create_connection(("127.0.0.1", self._target)) as onward:
                back = threading.Thread(target=pump, args=(onward, connection))
                back.start()
                pump(connection, onward)
                back.join(10)

    def close(self) -> None:
        self._threads[0].join(10)
        self._listener.close()


def pump(source: socket.socket, sink: socket.socket) -> None:
    try:
        while data := source.recv(65536):
            sink.sendall(data)
        sink.shutdown(socket.SHUT_WR)
    except OSError:
        return


def test_a_proxy_of_the_environment_leads_to_an_encrypted_receiver(
    to: Destinations, encrypted: Receiver, certificates: Certificates
) -> None:
    proxy = TunnelProxy(encrypted.port)
    environ = {"HTTPS_PROXY": proxy.url}
    answered = to("https://localhost:4443/hook", environ=environ, ca=str(certificates.authority)).send()
    proxy.close()
    assert answered.kind == DELIVERED and encrypted.arrived == {KEY: 1}
    assert proxy.asked[0].startswith(b"CONNECT localhost:4443 HTTP/1.1\r\nHost: localhost:4443\r\n")
    assert b"Proxy-Authorization: Basic YW5uOnNAY3JldA==\r\n" in proxy.asked[0]


@pytest.mark.parametrize("status", [403, 407, 502])
def test_a_proxy_that_does_not_connect_has_not_received_the_message(
    to: Destinations, encrypted: Receiver, status: int
) -> None:
    proxy = TunnelProxy(encrypted.port, status)
    answered = to("https://localhost:4443/hook", environ={"https_proxy": proxy.url}).send()
    proxy.close()
    assert answered.kind == NOT_RECEIVED and str(status) in answered.words and "cret" not in answered.words
    assert encrypted.accepted == 0


def test_a_plain_request_is_handed_to_the_proxy_whole(to: Destinations, receiver: Receiver) -> None:
    environ = {"http_proxy": f"http://127.0.0.1:{receiver.port}", "HTTP_PROXY": "http://127.0.0.1:1"}
    assert to("http://receiver.example/hook?a=1", environ=environ).send().kind == DELIVERED
    (request,) = receiver.requests
    assert (request.target, request.headers["host"]) == ("http://receiver.example/hook?a=1", "receiver.example")


def test_a_host_that_is_to_be_reached_without_the_proxy_is(to: Destinations, receiver: Receiver) -> None:
    environ = {"http_proxy": "http://127.0.0.1:1", "NO_PROXY": "example.org,127.0.0.1"}
    assert to(receiver.url, environ=environ).send().kind == DELIVERED


# --- secrets and settings -------------------------------------------------------------------------------------------


@pytest.mark.parametrize("status", [200, 404, 503])
def test_no_secret_comes_back_in_the_words_of_an_answer(to: Destinations, receiver: Receiver, status: int) -> None:
    def echo(request: Received) -> bytes:
        told = [request.target, request.headers["authorization"], request.headers["x-token"], SECRET]
        return answer(status, {"filler": "x" * 120, "said": told})

    receiver.act = echo
    environ = {"ADDRESS": f"{receiver.url}/T01/B02/path+secret", "TOKEN": "hunter2-hunter2", "SIGNING": SECRET}
    destination = to(
        "${ADDRESS}",
        environ=environ,
        secret="${SIGNING}",
        headers={"Authorization": "Bearer ${TOKEN}", "X-Token": "${TOKEN}"},
    )
    words = destination.send().words
    assert "***" in words
    assert not any(secret in words for secret in ("path+secret", "T01", "hunter2", SECRET[:20]))


def test_an_error_names_no_part_of_an_address_but_its_host(to: Destinations) -> None:
    environ = {"ADDRESS": f"http://ann:hunter2@127.0.0.1:{free_port()}/services/T01/B02"}
    words = to("${ADDRESS}", environ=environ).send().words
    assert "127.0.0.1" in words and not any(secret in words for secret in ("ann", "hunter2", "T01"))


@pytest.mark.parametrize(
    ("table", "says"),
    [
        ({}, "has no url"),
        ({"url": "ftp://example.org/"}, "https:// or http://"),
        ({"url": "https://ann:hunter2@example.org/"}, "holds a password"),
        ({"url": "https://hunter2@example.org/"}, "holds a password"),
        ({"url": "https://example.org/?api_key=hunter2"}, "api_key"),
        ({"url": "https://e", "method": "GET"}, "method"),
        ({"url": "https://e", "headers": {"Authorization": "Bearer hunter2"}}, "holds a secret"),
        ({"url": "https://e", "headers": {"X-Api-Key": "hunter2"}}, "holds a secret"),
        ({"url": "https://e", "headers": {"A B": "c"}}, "name of a header"),
        ({"url": "https://e", "headers": {"A\r\nB": "c"}}, "name of a header"),
        ({"url": "https://e", "headers": {"A": "hunter2\r\nC: d"}}, "control character"),
        ({"url": "https://e/hunter2\n"}, "control character"),
        ({"url": "${HOST}/?token=hunter2"}, "token"),
        ({"url": "https://e", "headers": {"A": "b", "a": "c"}}, "twice"),
        ({"url": "https://e", "headers": {"Content-Length": "1"}}, "is not set here"),
        ({"url": "https://e", "headers": {"webhook-id": "1"}}, "is not set here"),
        ({"url": "https://e", "headers": "A: b"}, "table of headers"),
        ({"url": "https://e", "key_header": "a b"}, "name of a header"),
        ({"url": "https://e", "secret": "whsec_hunter2"}, "a secret stands in the file"),
        ({"url": "https://e", "expect": {"ok": True}}, "JSON pointer"),
        ({"url": "https://e", "expect": ["/ok"]}, "not a table"),
        ({"url": "https://e", "retries": 3}, "not known"),
    ],
)
def test_a_mistake_in_the_settings_is_named_and_no_secret_shown(
    tmp_path: Path, table: dict[str, object], says: str
) -> None:
    with pytest.raises(ConfigError) as refused:
        read_spec("hook", {"type": "http", **table}, lambda keys: ".".join(["here", *keys]), str(tmp_path))
    assert says in str(refused.value) and "hunter2" not in str(refused.value)
    assert str(refused.value).startswith("here")


@pytest.mark.parametrize(
    ("table", "environ", "says"),
    [
        ({"url": "${A}"}, {}, "A"),
        ({"url": "${A}"}, {"A": "hunter2"}, "no address"),
        ({"url": "${A}"}, {"A": "ftp://hunter2"}, "no address"),
        ({"url": "${A}"}, {"A": "https:///hunter2"}, "no address"),
        ({"url": "${A}"}, {"A": "https://e/hunter2 x"}, "no address"),
        ({"url": "${A}"}, {"A": "https://e/hunter2\r\nX: y"}, "no address"),
        ({"url": "${A}"}, {"A": "https://e/hunter2ü"}, "no address"),
        ({"url": "${A}"}, {"A": "https://[hunter2/"}, "no address"),
        ({"url": "${A}"}, {"A": "https://e:hunter2/"}, "port"),
        ({"url": "https://e", "headers": {"X": "${A}"}}, {"A": "hunter2\nY: z"}, "control characters"),
        ({"url": "https://e", "headers": {"X": "${A}"}}, {"A": "hunter2ü"}, "ASCII"),
        ({"url": "https://e", "headers": {"X": "${A}"}}, {"A": " hunter2"}, "blank"),
        ({"url": "https://e", "secret": "${A}"}, {"A": "hunter2"}, "whsec_"),
        ({"url": "https://e", "ca": "missing.pem"}, {}, "missing.pem"),
        ({"url": "https://e"}, {"HTTPS_PROXY": "socks5://h:hunter2@p:1"}, "proxy"),
        ({"url": "https://a:${A}@e", "headers": {"authorization": "${A}"}}, {"A": "hunter2"}, "both"),
        ({"url": "https://e", "key_header": "X-Id", "headers": {"x-id": "1"}}, {}, "for the key"),
        ({"url": "https://e", "prefix": "prodü"}, {}, "prefix"),
    ],
)
def test_what_the_environment_does_not_have_is_named_and_no_secret_shown(
    to: Destinations, table: dict[str, object], environ: dict[str, str], says: str
) -> None:
    with pytest.raises(ConfigError) as refused:
        to(str(table.pop("url")), environ=environ, **table)
    assert says in str(refused.value) and "hunter2" not in str(refused.value)


def test_an_authority_that_is_none_is_named(to: Destinations, tmp_path: Path) -> None:
    (tmp_path / "empty.pem").write_text("nothing")
    with pytest.raises(ConfigError, match=r"empty\.pem cannot be used: it holds no certificate"):
        to("https://e", ca="empty.pem")
