"""Inbox tables: each message is one row, whatever breaks on the way."""

from __future__ import annotations

import os
import signal
import sqlite3
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import psycopg
import pytest

from ranonce.delivery.batches import Batches
from ranonce.delivery.spec import FOREVER, read_spec
from ranonce.delivery.sql import open_sender
from ranonce.errors import ConfigError
from ranonce.messages import DELIVERED, NOT_BEGUN, NOT_RECEIVED, REFUSED, UNKNOWN, Answer, Message
from tests.delivery.sending import OCTETS, emitted, kinds, many, sends
from tests.proxies import SENT, Cut, Proxy
from tests.servers import PostgresServer, free_port, private_folder, started


def message(body: bytes = b"x", key: str = "report:w/inbox/-", content_type: str = OCTETS) -> Message:
    return emitted("inbox", body, content_type, key=key)


class Database:
    """Somebody's database, in which an inbox may be."""

    url: str
    make: str

    def tell(self, statement: str) -> list[tuple[Any, ...]]:
        raise NotImplementedError

    def sender(self, **settings: object) -> Batches:
        table = {"type": "sql", "url": self.url, "timeout": 10, **settings}
        self.opened.append(open_sender(read_spec("inbox", table, lambda keys: "ranonce.toml", None), os.environ))
        return self.opened[-1]

    def rows(self, table: str = "ranonce_inbox") -> list[tuple[Any, ...]]:
        return self.tell(f"SELECT key, content_type, body FROM {table} ORDER BY key")

    def __init__(self) -> None:
        self.opened: list[Batches] = []

    def __enter__(self) -> Database:
        return self

    def __exit__(self, *_: object) -> None:
        for sender in self.opened:
            sender.close()
        for thread in threading.enumerate():
            if thread.name == "ranonce loader":
                thread.join(10)


class InFile(Database):
    make = (
        "CREATE TABLE {} (key TEXT PRIMARY KEY, content_type TEXT NOT NULL, body BLOB NOT NULL CHECK (body != x'ff'),"
        ' job TEXT NOT NULL, "window" TEXT NOT NULL, emitted_at TEXT NOT NULL, received_at TEXT NOT NULL)'
    )

    def __init__(self, path: Path) -> None:
        super().__init__()
        self.path = path
        self.url = f"sqlite:///{path}"
        sqlite3.connect(path).close()

    def tell(self, statement: str) -> list[tuple[Any, ...]]:
        connection = sqlite3.connect(self.path)
        try:
            rows = connection.execute(statement).fetchall()
            connection.commit()
        finally:
            connection.close()
        return rows


class OnServer(Database):
    make = (
        "CREATE TABLE {} (key text PRIMARY KEY, content_type text NOT NULL,"
        " body bytea NOT NULL CHECK (body != '\\xff'), job text NOT NULL,"
        ' "window" text NOT NULL, emitted_at timestamptz NOT NULL, received_at timestamptz NOT NULL)'
    )

    def __init__(self, server: PostgresServer) -> None:
        super().__init__()
        self.server = server
        self.name = f"d{os.urandom(6).hex()}"
        self._tell("postgres", f"CREATE DATABASE {self.name}")
        self.url = self.address(server.port)

    def address(self, port: int) -> str:
        return f"postgresql://postgres@127.0.0.1:{port}/{self.name}"

    def tell(self, statement: str) -> list[tuple[Any, ...]]:
        return self._tell(self.name, statement)

    def _tell(self, name: str, statement: str) -> list[tuple[Any, ...]]:
        address = f"postgresql://postgres@127.0.0.1:{self.server.port}/{name}"
        with psycopg.connect(address, autocommit=True) as connection:
            cursor = connection.execute(statement)  # type: ignore[call-overload]
            return cursor.fetchall() if cursor.description else []


@pytest.fixture(params=["sqlite", "postgres"])
def bare(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Database]:
    """A database without a table."""
    made = InFile(tmp_path / "app.db") if request.param == "sqlite" else OnServer(request.getfixturevalue("postgres"))
    with made:
        yield made


@pytest.fixture
def database(bare: Database) -> Database:
    bare.tell(bare.make.format("ranonce_inbox"))
    return bare


def test_a_message_is_a_row(database):
    body = bytes(range(256))
    (answer,) = sends(database.sender(), message(body))
    assert (answer.kind, answer.words) == (DELIVERED, "inserted")
    columns = 'key, content_type, body, job, "window", emitted_at IS NULL, received_at IS NULL'
    assert database.tell(f"SELECT {columns} FROM ranonce_inbox") == [
        ("report:w/inbox/-", OCTETS, body, "report", "2026-11-07", False, False)
    ]


def test_the_same_message_again_is_there_already(database):
    sends(database.sender(), message())
    (answer,) = sends(database.sender(), message())
    assert (answer.kind, answer.words) == (DELIVERED, "already there")
    assert len(database.rows()) == 1


@pytest.mark.parametrize("other", [message(b"y"), message(content_type="text/plain")])
def test_another_body_under_a_key_is_refused(other, database):
    sends(database.sender(), message())
    (answer,) = sends(database.sender(), other)
    assert answer.kind == REFUSED and "another body" in answer.words
    assert database.rows() == [("report:w/inbox/-", OCTETS, b"x")]


def test_hundreds_of_messages_go_in_whole_batches(database):
    sent = many(250, message)
    assert kinds(sends(database.sender(), *sent)) == {DELIVERED}
    assert sorted(database.rows()) == sorted((each.key, OCTETS, each.body) for each in sent)


def test_a_row_that_the_table_forbids_does_not_touch_the_others(database):
    sent = [*many(5, message), message(b"\xff", "poison"), *[message(b"y", f"later {number}") for number in range(5)]]
    answers = sends(database.sender(), *sent)
    assert [answer.kind for answer in answers] == [*[DELIVERED] * 5, REFUSED, *[DELIVERED] * 5]
    assert "CHECK" in answers[5].words or "check" in answers[5].words
    assert len(database.rows()) == 10


def test_new_rows_old_ones_and_conflicts_are_told_apart_in_one_batch(database):
    sender = database.sender()
    sends(sender, message(b"old", "old"), message(b"first", "conflict"))
    answers = sends(sender, message(b"new", "new"), message(b"old", "old"), message(b"second", "conflict"))
    assert [answer.kind for answer in answers] == [DELIVERED, DELIVERED, REFUSED]


def test_without_a_table_nothing_is_received_and_the_words_say_how_to_make_it(bare):
    (answer,) = sends(bare.sender(), message())
    assert answer.kind == NOT_RECEIVED
    statement = answer.words[answer.words.index("CREATE TABLE") :]
    bare.tell(statement)
    assert kinds(sends(bare.sender(), message())) == {DELIVERED}


def test_a_table_without_a_key_takes_nothing(bare):
    bare.tell(bare.make.format("ranonce_inbox").replace(" PRIMARY KEY", ""))
    (answer,) = sends(bare.sender(), message())
    assert answer.kind == NOT_RECEIVED and "CREATE TABLE" in answer.words
    assert bare.rows() == []


def test_a_table_has_the_name_that_it_is_given(bare):
    bare.tell(bare.make.format('"Inbox_2"'))
    assert kinds(sends(bare.sender(table="Inbox_2"), message())) == {DELIVERED}
    assert len(bare.rows('"Inbox_2"')) == 1


def test_what_may_not_begin_is_not_inserted(database):
    answers = sends(database.sender(), *many(10, message), may_begin=lambda each: each.key != "key 3")
    assert [answer.kind for answer in answers].index(NOT_BEGUN) == 3
    assert len(database.rows()) == 9


def test_two_deliverers_insert_each_row_once(database):
    sent = many(300, message)
    senders = [database.sender(), database.sender()]
    found: list[list[Answer]] = []
    threads = [threading.Thread(target=lambda sender=sender: found.append(sends(sender, *sent))) for sender in senders]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    assert [kinds(answers) for answers in found] == [{DELIVERED}, {DELIVERED}]
    assert len(database.rows()) == 300
    assert sum(answer.words == "inserted" for answers in found for answer in answers) == 300


# --- SQLite ---------------------------------------------------------------------------------------------------------


@pytest.fixture
def in_file(tmp_path: Path) -> Iterator[InFile]:
    with InFile(tmp_path / "app.db") as made:
        made.tell(made.make.format("ranonce_inbox"))
        yield made


def test_a_file_that_is_not_there_is_not_made(tmp_path):
    with InFile(tmp_path / "app.db") as database:
        database.path.unlink()
        (answer,) = sends(database.sender(), message())
    assert answer.kind == NOT_RECEIVED and not database.path.exists()


def test_a_file_that_was_replaced_gets_the_next_rows(in_file):
    sender = in_file.sender()
    sends(sender, message(key="before"))
    in_file.path.rename(in_file.path.with_suffix(".old"))
    in_file.tell(in_file.make.format("ranonce_inbox"))
    sends(sender, message(key="after"))
    assert [row[0] for row in in_file.rows()] == ["after"]


def test_a_locked_file_has_received_nothing(in_file):
    holder = sqlite3.connect(in_file.path, isolation_level=None)
    holder.execute("BEGIN IMMEDIATE")
    (answer,) = sends(in_file.sender(timeout=0.3), message())
    holder.close()
    assert answer.kind == NOT_RECEIVED and "locked" in answer.words
    assert kinds(sends(in_file.sender(), message())) == {DELIVERED}


def test_a_trigger_that_rolls_back_loses_no_answer(in_file):
    in_file.tell(
        "CREATE TRIGGER no BEFORE INSERT ON ranonce_inbox WHEN NEW.key = 'key 3'"
        " BEGIN SELECT RAISE(ROLLBACK, 'no'); END"
    )
    answers = sends(in_file.sender(), *many(6, message))
    delivered = [each.key for each, answer in zip(many(6, message), answers, strict=True) if answer.kind == DELIVERED]
    assert delivered == [row[0] for row in in_file.rows()]
    assert len(delivered) == 5 and answers[3].kind == REFUSED


# --- PostgreSQL -----------------------------------------------------------------------------------------------------


@pytest.fixture
def on_server(postgres) -> Iterator[OnServer]:
    with OnServer(postgres) as made:
        made.tell(made.make.format("ranonce_inbox"))
        yield made


def test_a_table_may_lie_in_a_schema(on_server):
    on_server.tell("CREATE SCHEMA app")
    on_server.tell(on_server.make.format("app.inbox"))
    assert kinds(sends(on_server.sender(table="app.inbox"), message())) == {DELIVERED}
    assert len(on_server.rows("app.inbox")) == 1


@pytest.mark.parametrize("silent", [False, True])
def test_a_lost_reply_is_unknown_and_the_next_try_finds_the_row(silent, on_server):
    with Proxy(on_server.server.port) as proxy:
        sender = on_server.sender(url=on_server.address(proxy.port), timeout=2)
        assert kinds(sends(sender, message(key="first"))) == {DELIVERED}
        proxy.cut_next_answer(silent=silent)
        (answer,) = sends(sender, message(b"second", "second"))
        assert answer.kind == UNKNOWN
        (answer,) = sends(sender, message(b"second", "second"))
        assert (answer.kind, answer.words) == (DELIVERED, "already there")
    assert len(on_server.rows()) == 2


def test_a_line_cut_at_any_byte_of_what_is_sent_loses_and_doubles_nothing(on_server):
    with Proxy(on_server.server.port) as whole:
        sends(on_server.sender(url=on_server.address(whole.port)), message(key="whole"))
        length = whole.passed[SENT]
    for after in range(1, length, 61):
        with Proxy(on_server.server.port, Cut(after=after)) as proxy:
            sender = on_server.sender(url=on_server.address(proxy.port))
            key = f"cut {after}"
            first, *_ = sends(sender, message(key=key))
            there = [row for row in on_server.rows() if row[0] == key]
            assert first.kind in (DELIVERED, UNKNOWN, NOT_RECEIVED)
            assert there if first.kind == DELIVERED else not (there and first.kind == NOT_RECEIVED)
            assert kinds(sends(sender, message(key=key))) == {DELIVERED}
            assert len([row for row in on_server.rows() if row[0] == key]) == 1


def test_nobody_listening_has_received_nothing(on_server):
    (answer,) = sends(on_server.sender(url=on_server.address(free_port()), timeout=0.5), message())
    assert answer.kind == NOT_RECEIVED


def test_a_server_that_crashes_and_starts_again_has_each_row_once(tmp_path):
    for server in started(lambda: PostgresServer(private_folder(tmp_path / "postgres"))):
        assert isinstance(server, PostgresServer)
        with OnServer(server) as database:
            database.tell(database.make.format("ranonce_inbox"))
            sender, sent = database.sender(timeout=5), many(1000, message)
            answers: dict[str, Answer] = {}
            crashed = False
            for settled in sender.send(sent, lambda _: True):
                if settled is not None:
                    answers[settled[0].key] = settled[1]
                if len(answers) >= 100 and not crashed:
                    crashed = True
                    server.stop(signal.SIGQUIT)  # at once, without tidying up: it recovers when it starts
                    server.start()
            assert len(answers) == 1000
            delivered = {key for key, answer in answers.items() if answer.kind == DELIVERED}
            there = {row[0] for row in database.rows()}
            assert delivered <= there
            again = [each for each in sent if each.key not in delivered]
            assert kinds(sends(sender, *again)) <= {DELIVERED}
            assert len(database.rows()) == 1000


# --- settings -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        ({"url": "postgresql://me:secret@host/db"}, "holds a password"),
        ({"url": "redis://host:6379/0"}, "SQLite or PostgreSQL"),
        ({"url": "memory:"}, "SQLite or PostgreSQL"),
        ({"url": "postgresql://me@host/db?schema=app"}, "stands with its table"),
        ({"url": "postgresql://me:${NOT_SET}@host/db"}, "NOT_SET"),
        ({"table": "inbox; DROP TABLE x"}, "no name of a table"),
        ({"table": 'a"b'}, "no name of a table"),
        ({"table": "a.b.c"}, "no name of a table"),
    ],
)
def test_a_mistake_in_the_settings_is_a_sentence(settings, words, tmp_path):
    with pytest.raises(ConfigError) as caught:
        InFile(tmp_path / "app.db").sender(**settings)
    assert words in str(caught.value)
    assert "secret" not in str(caught.value)


def test_an_inbox_dedupes_for_ever():
    table = {"type": "sql", "url": "sqlite:////x.db"}
    assert read_spec("inbox", table, lambda keys: "", None).route.dedupes == FOREVER
