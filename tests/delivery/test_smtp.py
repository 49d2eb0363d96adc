"""Mails: what a message becomes, and what each thing that a server does means for it."""

from __future__ import annotations

import contextlib
import json
import socket
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from ranonce.delivery.smtp import open_sender
from ranonce.delivery.smtpline import CLOSED_SECONDS
from ranonce.delivery.spec import read_spec
from ranonce.errors import ConfigError
from ranonce.messages import DELIVERED, NOT_RECEIVED, REFUSED, THROTTLED, UNKNOWN, Answer, Message
from tests.certificates import Certificates, made_in
from tests.delivery.sending import emitted, sends
from tests.mailserver import CUT, KEEP_AND_CUT, SILENCE, MailServer
from tests.proxies import Cut, Proxy
from tests.servers import free_port

TABLE = {"type": "smtp", "host": "127.0.0.1", "from": "Jobs <jobs@example.org>", "to": "ann@example.org"}
TEXT = "text/plain; charset=utf-8"


def message(body: bytes | dict[str, object], content_type: str = "", key: str = "report:w/mail/-") -> Message:
    if isinstance(body, dict):
        body, content_type = json.dumps(body).encode(), content_type or "application/json"
    return emitted("mail", body, content_type or TEXT, key=key)


class Post:
    """A destination, and what became of what was sent there."""

    def __init__(self, settings: dict[str, object], environ: dict[str, str], folder: Path) -> None:
        spec = read_spec("mail", {**TABLE, "timeout": 10, **settings}, lambda keys: "ranonce.toml", str(folder))
        self.sender = open_sender(spec, environ)

    def sends(self, *messages: Message) -> list[Answer]:
        return sends(self.sender, *messages)

    def send(self, sent: Message) -> Answer:
        return self.sends(sent)[0]


@pytest.fixture
def server() -> Iterator[MailServer]:
    with MailServer() as server:
        yield server


class Posts:
    """Opens destinations, and closes them after the test."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.opened: list[Post] = []

    def __call__(self, *, environ: dict[str, str] | None = None, **settings: object) -> Post:
        post = Post({"concurrency": 1, **settings}, environ or {}, self.folder)
        self.opened.append(post)
        return post


@pytest.fixture
def opened(tmp_path: Path) -> Iterator[Posts]:
    posts = Posts(tmp_path)
    yield posts
    for post in posts.opened:
        post.sender.close()


@pytest.fixture
def post(server: MailServer, opened: Posts) -> Post:
    return opened(port=server.port)


# --- what a message becomes -----------------------------------------------------------------------------------------


def test_a_text_goes_to_the_recipient_of_the_destination(server, post):
    answer = post.send(message("Grüße\n.\nund mehr\n".encode()))
    assert (answer.kind, answer.words) == (DELIVERED, "250 2.0.0 OK: queued as 00000001")
    (kept,) = server.kept
    assert (kept.sender, kept.recipients) == ("jobs@example.org", ["ann@example.org"])
    assert kept.mail["Subject"] == "report 2026-11-07"
    assert kept.mail.get_content().replace("\r\n", "\n") == "Grüße\n.\nund mehr\n"


def test_a_message_says_to_whom_it_goes_and_what_about(server, opened):
    post = opened(port=server.port, subject="{job}: {window}")
    fields = {"to": "Bö <bo@example.org>", "subject": "Übersicht " * 30, "text": "plain", "html": "<b>ü</b>"}
    assert post.send(message(fields)).kind == DELIVERED
    (kept,) = server.kept
    assert kept.recipients == ["bo@example.org"]
    assert kept.mail["To"].addresses[0].display_name == "Bö"
    assert kept.mail["Subject"].strip() == ("Übersicht " * 30).strip()
    assert kept.mail.get_body(("plain",)).get_content().strip() == "plain"
    assert kept.mail.get_body(("html",)).get_content().strip() == "<b>ü</b>"
    assert kept.raw.isascii() and not kept.options[1:]


def test_a_whole_mail_goes_as_it_is_with_what_it_lacks(server, post):
    mail = b"To: Bo\n <bo@example.org>\nSubject: signed\nDKIM-Signature: x;\n\ty\n\nhello\n.\n"
    assert post.send(message(mail, "message/rfc822")).kind == DELIVERED
    (kept,) = server.kept
    assert kept.recipients == ["bo@example.org"]
    assert kept.raw.endswith(mail.replace(b"\n", b"\r\n"))
    assert kept.mail["From"] == "Jobs <jobs@example.org>" and kept.mail["Message-ID"]
    assert len(kept.mail.get_all("To")) == 1


def test_every_try_is_the_same_mail_and_every_message_another(server, post):
    both = {"text": "x", "html": "<b>x</b>"}
    post.sends(message(both))
    post.sends(message(both))
    post.sends(message(both, key="report:w/mail/other"))
    first, again, other = server.kept
    assert first.raw == again.raw
    assert first.mail["Message-ID"] != other.mail["Message-ID"]
    assert first.mail["Message-ID"].endswith("@example.org>")
    assert first.mail["Date"].datetime.timestamp() == 1_794_000_000
    assert first.mail["Auto-Submitted"] == "auto-generated"
    assert first.mail["X-Ranonce-Key"] == "report:w/mail/-"


def test_the_prefix_of_a_ledger_is_in_the_id(server, opened):
    opened(port=server.port).send(message(b"x"))
    opened(port=server.port, prefix="second").send(message(b"x"))
    assert len({kept.mail["Message-ID"] for kept in server.kept}) == 2


NO_MAILS = {
    "line break in the subject": ({"subject": "a\r\nBcc: eve@example.org", "text": "x"}, "line breaks"),
    "line feed in the recipient": ({"to": "ann@example.org\nBcc: eve@example.org", "text": "x"}, "no mail address"),
    "encoded line break": ({"to": "a b@c d <ann@example.org>", "text": "x"}, "no mail address"),
    "two recipients in a text": ({"to": "a@example.org, b@example.org", "text": "x"}, "more than one address"),
    "list of recipients": ({"to": ["a@example.org", "b@example.org"], "text": "x"}, "emit one message for each"),
    "unknown field": ({"cc": "a@example.org", "text": "x"}, "'cc'"),
    "no text": ({"subject": "x"}, "no `text`"),
    "text that is none": ({"text": 1}, "`text` is not text"),
    "half a character": ({"text": "\ud800"}, "half a character"),
}


@pytest.mark.parametrize("case", NO_MAILS)
def test_what_is_no_mail_to_one_recipient_is_refused(case, server, post):
    fields, words = NO_MAILS[case]
    answer = post.send(message(fields))
    assert answer.kind == REFUSED and words in answer.words
    assert server.connections == 0


@pytest.mark.parametrize(
    ("body", "content_type", "words"),
    [
        (b"[1]", "application/json", "no object"),
        (b"{", "application/json", "no JSON"),
        (b"[" * 200_000, "application/json", "no JSON"),
        (b"\xff", TEXT, "not in utf-8"),
        (b"x", "text/plain; charset=klingon", "klingon"),
        (b"x", "application/octet-stream", "no mail"),
        (b"To: a@example.org\nBcc: b@example.org\n\nx", "message/rfc822", "more recipients"),
        (b"To: a@example.org, b@example.org\n\nx", "message/rfc822", "more than one address"),
        (b"no headers at all", "message/rfc822", "headers"),
        (b"Subject: x\n\na\0b", "message/rfc822", "NUL"),
    ],
)
def test_a_body_that_is_no_mail_is_refused(body, content_type, words, post):
    answer = post.send(message(body, content_type))
    assert answer.kind == REFUSED and words in answer.words


def test_words_that_look_encoded_put_nothing_into_the_headers(server, post):
    evil = "=?utf-8?q?a=0D=0ABcc=3A_eve=40example.org?="
    post.send(message({"subject": evil, "to": f"{evil} <ann@example.org>", "text": "x"}))
    (kept,) = server.kept
    assert kept.recipients == ["ann@example.org"]
    assert kept.mail["Bcc"] is None
    assert kept.mail["Subject"] == evil


def test_an_address_that_is_not_ascii_needs_a_server_that_knows_such(server, post, opened):
    fields = {"to": "bö@example.org", "text": "x"}
    answer = post.send(message(fields))
    assert answer.kind == REFUSED and "SMTPUTF8" in answer.words
    with MailServer(utf8=True) as knowing:
        willing = opened(port=knowing.port)
        assert willing.send(message(fields)).kind == DELIVERED
        assert willing.send(message({"to": "bo@exämple.org", "text": "x"}, key="k2")).kind == DELIVERED
        first, second = knowing.kept
        assert "SMTPUTF8" in first.options and first.recipients == ["bö@example.org"]
        assert "SMTPUTF8" not in second.options and second.recipients == ["bo@xn--exmple-cua.org"]


# --- what a server does, and what it means --------------------------------------------------------------------------


BEFORE_THE_DOT = [
    ("greeting", "554 5.3.2 not today", NOT_RECEIVED),
    ("EHLO", "451 later", NOT_RECEIVED),
    ("MAIL", "451 4.3.0 later", NOT_RECEIVED),
    ("MAIL", "553 5.1.8 who are you", REFUSED),
    ("MAIL", "530 5.7.0 Authentication required", THROTTLED),
    ("RCPT", "451 4.7.1 Greylisted, try again", NOT_RECEIVED),
    ("RCPT", "550 5.1.1 nobody of that name", REFUSED),
    ("RCPT", "421 4.3.2 shutting down", NOT_RECEIVED),
    ("DATA", "452 4.3.1 disk full", NOT_RECEIVED),
    ("DATA", "554 5.6.0 no", REFUSED),
    ("dot", "451 4.7.1 Greylisted, try again", NOT_RECEIVED),
    ("dot", "552 5.3.4 too big", REFUSED),
]


@pytest.mark.parametrize(("step", "said", "kind"), BEFORE_THE_DOT)
def test_the_answer_to_each_step_says_what_became_of_the_mail(step, said, kind, server, post):
    server.tell(step, said)
    answer = post.send(message(b"x"))
    assert answer.kind == kind and said in answer.words and answer.answered
    assert not server.kept
    assert post.send(message(b"x")).kind == DELIVERED
    assert len(server.kept) == 1


@pytest.mark.parametrize("step", ["greeting", "EHLO", "MAIL", "RCPT", "DATA"])
@pytest.mark.parametrize("end", [CUT, SILENCE])
def test_what_is_lost_before_the_dot_was_not_received(step, end, server, opened):
    post = opened(port=server.port, timeout=0.5 if end == SILENCE else 10)
    server.tell(step, end)
    began = time.monotonic()
    assert post.send(message(b"x")).kind == NOT_RECEIVED
    assert time.monotonic() - began < 5
    assert post.send(message(b"x")).kind == DELIVERED


@pytest.mark.parametrize(("end", "kept"), [(KEEP_AND_CUT, 1), (CUT, 0)])
def test_what_is_lost_after_the_dot_may_have_been_received(end, kept, server, post):
    server.tell("dot", end)
    answer = post.send(message(b"x"))
    assert answer.kind == UNKNOWN and "no answer came after the end of the mail" in answer.words
    assert len(server.kept) == kept


def test_no_answer_to_the_dot_is_unknown_when_the_time_is_over(server, opened):
    post = opened(port=server.port, timeout=0.5)
    server.tell("dot", SILENCE)
    assert post.send(message(b"x")).kind == UNKNOWN


def test_a_mail_whose_end_cannot_be_sent_was_not_received(opened):
    """The server stops reading in the middle of a mail that is longer than what the system takes over."""
    listener = socket.socket()
    listener.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
    listener.bind(("127.0.0.1", 0))
    listener.listen()
    ended = threading.Event()

    def begin_to_read() -> None:
        connected, _ = listener.accept()
        with connected:
            connected.sendall(b"220 mail.test\r\n")
            for answer in (b"250 mail.test\r\n", b"250 OK\r\n", b"250 OK\r\n", b"354 go on\r\n"):
                connected.recv(1024)
                connected.sendall(answer)
            ended.wait(10)

    thread = threading.Thread(target=begin_to_read)
    thread.start()
    mail = b"Subject: x\n\n" + b"." * 70 + b"\n" + b"..........\n" * 20_000
    answer = opened(port=listener.getsockname()[1], timeout=1).send(message(mail, "message/rfc822"))
    ended.set()
    thread.join()
    listener.close()
    assert answer.kind == NOT_RECEIVED


def test_a_mail_cut_at_any_byte_is_never_called_sent_or_not_received_wrongly(server, opened):
    """The line is cut after each byte of what the client says, in turn."""
    with Proxy(server.port) as whole:
        post = opened(port=whole.port)
        assert post.send(message(b"x")).kind == DELIVERED
        post.sender.close()
        length = whole.passed["sent"]
    server.kept.clear()
    for after in range(1, length, 7):
        with Proxy(server.port, Cut(after=after)) as proxy:
            answer = opened(port=proxy.port).send(message(b"x"))
        if answer.kind == NOT_RECEIVED:
            assert not server.kept, after
        else:
            assert answer.kind in (UNKNOWN, DELIVERED), after
        server.kept.clear()


def test_nobody_listening_is_not_received(opened):
    answer = opened(port=free_port()).send(message(b"x"))
    assert answer.kind == NOT_RECEIVED and "Connection refused" in answer.words


def test_an_address_that_does_not_answer_leaves_time_for_the_next_one(server, opened, monkeypatch):
    resolve = socket.getaddrinfo
    with contextlib.ExitStack() as stack:
        deaf = stack.enter_context(socket.socket())
        deaf.bind(("127.0.0.1", 0))
        deaf.listen(0)
        for _ in range(3):  # as many as its queue holds: whoever comes now is not heard
            waiting = stack.enter_context(socket.socket())
            waiting.setblocking(False)
            waiting.connect_ex(deaf.getsockname())

        def both(host: str, port: int, **how: object) -> list[object]:
            return [*resolve(*deaf.getsockname(), **how), *resolve(host, port, **how)]

        post = opened(port=server.port, timeout=3)
        monkeypatch.setattr(socket, "getaddrinfo", both)
        assert post.send(message(b"x")).kind == DELIVERED


def test_a_server_that_drips_is_left_when_the_time_is_over(opened):
    """Each byte comes in time, the reply never does."""
    listener = socket.create_server(("127.0.0.1", 0))
    ended = threading.Event()

    def drip() -> None:
        connected, _ = listener.accept()
        with connected:
            while not ended.wait(0.1):
                try:
                    connected.sendall(b"2")
                except OSError:
                    return

    thread = threading.Thread(target=drip)
    thread.start()
    began = time.monotonic()
    answer = opened(port=listener.getsockname()[1], timeout=0.6).send(message(b"x"))
    took = time.monotonic() - began
    ended.set()
    thread.join()
    listener.close()
    assert answer.kind == NOT_RECEIVED and took < 3


def test_what_does_not_speak_smtp_has_received_nothing(opened):
    listener = socket.create_server(("127.0.0.1", 0))

    def web() -> None:
        connected, _ = listener.accept()
        with connected:
            connected.sendall(b"HTTP/1.1 400 Bad Request\r\n\r\n")

    thread = threading.Thread(target=web)
    thread.start()
    answer = opened(port=listener.getsockname()[1]).send(message(b"x"))
    thread.join()
    listener.close()
    assert answer.kind == NOT_RECEIVED


def test_a_connection_is_kept_from_mail_to_mail(server, post):
    sent = [message(b"x", key=f"k{number}") for number in range(5)]
    assert {answer.kind for answer in post.sends(*sent)} == {DELIVERED}
    assert server.connections == 1


def test_a_refused_mail_does_not_touch_the_next_one(server, post):
    server.tell("RCPT", "550 no", "")
    first, second = post.sends(message(b"a", key="a"), message(b"b", key="b"))
    assert (first.kind, second.kind) == (REFUSED, DELIVERED)
    assert [kept.recipients for kept in server.kept] == [["ann@example.org"]]
    assert server.connections == 1


@pytest.mark.parametrize("closed", [CUT, "421 4.4.2 idle for too long"])
def test_a_kept_connection_that_was_closed_is_made_again(closed, server, post):
    post.send(message(b"x", key="a"))
    server.tell("RSET", closed)
    assert post.send(message(b"x", key="b")).kind == DELIVERED
    assert (server.connections, len(server.kept)) == (2, 2)


def test_a_server_that_was_started_again_is_no_failure(opened):
    with MailServer() as server:
        post = opened(port=server.port)
        assert post.send(message(b"x")).kind == DELIVERED
    with MailServer(port=server.port) as again:
        assert post.send(message(b"y")).kind == DELIVERED
        assert len(again.kept) == 1


# --- encryption and login -------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def certificates(tmp_path_factory: pytest.TempPathFactory) -> Certificates:
    return made_in(tmp_path_factory.mktemp("certificates"))


LOGIN = {"user": "jobs", "password": "${MAIL_PASSWORD}"}


def test_a_login_is_encrypted_by_default(certificates, opened):
    with MailServer(encrypts=certificates.server_context(), user="jobs", password="pässword") as server:
        settings = {"port": server.port, "ca": str(certificates.authority), **LOGIN}
        assert opened(environ={"MAIL_PASSWORD": "pässword"}, **settings).send(message(b"x")).kind == DELIVERED


def test_a_connection_can_be_encrypted_from_its_first_byte(certificates, opened):
    with MailServer(encrypted=certificates.server_context()) as server:
        post = opened(port=server.port, tls="tls", ca=str(certificates.authority))
        assert post.send(message(b"x")).kind == DELIVERED


def test_a_wrong_password_closes_the_destination_and_gives_up_no_message(certificates, opened):
    with MailServer(encrypts=certificates.server_context(), user="jobs", password="right") as server:
        settings = {"port": server.port, "ca": str(certificates.authority), **LOGIN}
        answer = opened(environ={"MAIL_PASSWORD": "wrong"}, **settings).send(message(b"x"))
        assert (answer.kind, answer.retry_after, answer.answered) == (THROTTLED, CLOSED_SECONDS, True)
        assert "535" in answer.words and "wrong" not in answer.words.replace("invalid", "")


@pytest.mark.parametrize("tls", ["starttls", "tls"])
def test_a_server_that_nobody_vouches_for_gets_nothing(tls, certificates, opened):
    context = certificates.server_context()
    with MailServer(**{"encrypts" if tls == "starttls" else "encrypted": context}) as server:
        answer = opened(port=server.port, tls=tls).send(message(b"x"))
        assert answer.kind == THROTTLED and "does not prove who it is" in answer.words
        assert not server.kept


def test_a_server_without_encryption_gets_no_password(opened):
    with MailServer() as server:
        answer = opened(port=server.port, environ={"MAIL_PASSWORD": "x"}, **LOGIN).send(message(b"x"))
        assert answer.kind == THROTTLED and "offers no STARTTLS" in answer.words


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        ({"password": "secret"}, "a secret stands in the file"),
        ({"from": "nobody"}, "no mail address"),
        ({"to": "a@example.org, b@example.org"}, "more than one address"),
        ({"subject": "{date}"}, "nothing is put in for {date}"),
        ({"tls": "ssl"}, "no way to encrypt"),
        ({"port": 70000}, "no port"),
        ({"user": "jobs"}, "a user or a password is missing"),
        ({"tls": "tls", "ca": "nowhere.pem"}, "nowhere.pem"),
    ],
)
def test_a_mistake_in_the_settings_is_a_sentence(settings, words, opened):
    with pytest.raises(ConfigError) as caught:
        opened(**settings)
    assert words in str(caught.value) and "secret'" not in str(caught.value)


def test_an_address_from_the_environment_cannot_smuggle_a_header_in(opened):
    with pytest.raises(ConfigError):
        opened(environ={"WHO": "ann@example.org\r\nBcc: eve@example.org"}, to="${WHO}")
