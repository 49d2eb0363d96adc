"""The table of keys, in transactions of a receiver's own."""

from __future__ import annotations

import sqlite3
import threading

import pytest

from ranonce.errors import ClaimLost, UsageError
from ranonce.inbox import Answer, Inbox

DONE = Answer(201, ((b"content-type", b"text/plain"),), b"made \xff")


def receive(receiver, key="k", fingerprint="f", effect="e"):
    """Receive a key, and do the work if it is the first time."""
    connection = receiver.connect()
    try:
        received = receiver.inbox.receive(connection, key, fingerprint)
        if received.first:
            receiver.add_effect(connection, effect)
            receiver.inbox.answer(connection, key, DONE)
        connection.commit()
        return received
    finally:
        connection.close()


def test_a_key_is_received_once_with_its_effect(receiver):
    assert receive(receiver).first
    again = receive(receiver)
    assert (again.first, again.answer) == (False, DONE)
    assert receiver.effects() == ["e"]


def test_a_key_whose_work_was_rolled_back_is_received_anew(receiver):
    connection = receiver.connect()
    assert receiver.inbox.receive(connection, "k").first
    receiver.add_effect(connection, "lost")
    connection.rollback()
    connection.close()
    assert receive(receiver).first
    assert receiver.effects() == ["e"]


def test_a_key_for_something_else_is_a_conflict(receiver):
    assert receive(receiver).first
    assert receive(receiver, fingerprint="other").conflict
    assert receiver.effects() == ["e"]


def test_without_an_answer_there_is_none_to_repeat(receiver):
    connection = receiver.connect()
    receiver.inbox.receive(connection, "k")
    connection.commit()
    again = receiver.inbox.receive(connection, "k")
    assert (again.kind, again.answer) == ("again", None)
    connection.close()


def test_of_many_at_once_one_does_the_work(receiver):
    barrier = threading.Barrier(8)
    found = []

    def come():
        barrier.wait(20)
        found.append(receive(receiver).first)

    threads = [threading.Thread(target=come) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(40)
    assert sorted(found) == [False] * 7 + [True]
    assert receiver.effects() == ["e"]


def test_a_connection_that_commits_each_statement_by_itself_is_refused(receiver):
    connection = receiver.connect()
    if isinstance(connection, sqlite3.Connection):
        connection.isolation_level = None
    else:
        connection.autocommit = True
    with pytest.raises(UsageError, match="Begin a transaction first"):
        receiver.inbox.receive(connection, "k")
    assert receiver.rows() == 0
    connection.execute("BEGIN")
    assert receiver.inbox.receive(connection, "k").first
    connection.execute("ROLLBACK")
    assert receiver.rows() == 0
    connection.close()


def test_a_connection_of_sqlalchemy_is_received_through(receiver):
    sqlalchemy = pytest.importorskip("sqlalchemy")
    pytest.importorskip("sqlalchemy.orm")
    url = receiver.url.replace("postgresql://", "postgresql+psycopg://")
    engine = sqlalchemy.create_engine(url)
    for first in (True, False):
        with engine.connect() as connection:
            assert receiver.inbox.receive(connection, "k").first is first
            connection.commit()
    with sqlalchemy.orm.Session(engine) as session:
        assert not receiver.inbox.receive(session, "k").first
    engine.dispose()
    assert receiver.rows() == 1


def test_what_is_no_connection_is_named():
    with pytest.raises(UsageError, match="'int' is no connection"):
        Inbox().receive(1, "k")


@pytest.mark.parametrize("table", ["", "a b", "x;y", "a.b.c", "naïve", 'a"b', "k" * 64])
def test_a_name_that_would_need_quotes_is_no_name_for_a_table(table):
    with pytest.raises(UsageError, match="is no name for a table"):
        Inbox(table)


@pytest.mark.parametrize("key", ["", "a\0b"])
def test_what_no_database_holds_is_no_key(receiver, key):
    connection = receiver.connect()
    with pytest.raises(UsageError, match="is no key"):
        receiver.inbox.receive(connection, key)
    connection.close()


class Timed:
    """An inbox whose clock a test moves."""

    def __init__(self, receiver):
        self.at = 1000.0
        self.inbox = Inbox(receiver.inbox.table, now=lambda: self.at)
        self.connection = receiver.connect()

    def begin(self, key="k", fingerprint="f", **more):
        found = self.inbox.begin(self.connection, key, fingerprint, lease_seconds=60, **more)
        self.connection.commit()
        return found


@pytest.fixture
def timed(receiver):
    made = Timed(receiver)
    yield made
    made.connection.close()


def test_a_request_under_way_is_in_flight_until_its_lease_ends(timed):
    assert timed.begin().first
    timed.at += 40
    seen = timed.begin()
    assert (seen.kind, seen.until) == ("in-flight", 20.0)
    timed.at += 20
    assert timed.begin().first


def test_a_lease_that_is_renewed_does_not_end(timed):
    token = timed.begin().token
    timed.at += 50
    assert timed.inbox.renew(timed.connection, "k", token, lease_seconds=60)
    timed.at += 50
    assert timed.begin().kind == "in-flight"


def test_one_that_was_taken_over_neither_settles_nor_renews_nor_gives_back(timed):
    token = timed.begin().token
    timed.at += 61
    other = timed.begin().token
    with pytest.raises(ClaimLost, match="not this request's any more"):
        timed.inbox.settle(timed.connection, "k", token, DONE)
    assert not timed.inbox.renew(timed.connection, "k", token, lease_seconds=60)
    timed.inbox.release(timed.connection, "k", token)
    timed.inbox.settle(timed.connection, "k", other, DONE)
    timed.connection.commit()
    assert timed.begin().answer == DONE


def test_one_that_was_never_heard_of_again_may_be_left_to_a_person(timed):
    assert timed.begin(again=False).first
    timed.at += 61
    assert timed.begin(again=False).kind == "unknown"


def test_a_lease_from_a_clock_far_ahead_blocks_nobody(timed):
    timed.at += 10 * 366 * 86400
    assert timed.begin().first
    timed.at -= 10 * 366 * 86400
    assert timed.begin().first


def test_a_key_that_was_given_back_is_begun_anew(timed):
    token = timed.begin().token
    timed.inbox.release(timed.connection, "k", token)
    timed.connection.commit()
    assert timed.begin().first


def test_an_answer_is_kept_once(timed):
    token = timed.begin().token
    timed.inbox.settle(timed.connection, "k", token, DONE)
    with pytest.raises(ClaimLost):
        timed.inbox.settle(timed.connection, "k", token, Answer(500))
    timed.connection.commit()
    assert timed.begin().answer == DONE


def test_other_content_under_a_key_is_a_conflict_while_the_first_is_under_way_too(timed):
    assert timed.begin().first
    assert timed.begin(fingerprint="other").conflict


def test_keys_are_forgotten_when_they_are_old_but_not_those_that_are_worked_on(timed, receiver):
    for number in range(3):
        token = timed.begin(f"k{number}").token
        timed.inbox.settle(timed.connection, f"k{number}", token, DONE)
    timed.connection.commit()
    timed.at += 100
    assert timed.begin("young").first
    assert timed.inbox.prune(timed.connection, keep_seconds=50, limit=2) == 2
    assert timed.inbox.prune(timed.connection, keep_seconds=50) == 1
    assert timed.inbox.prune(timed.connection, keep_seconds=-1) == 0  # `young` is worked on
    timed.connection.commit()
    assert receiver.rows() == 1


def test_the_statements_that_make_the_table_are_there_for_a_migration(receiver):
    assert receiver.inbox.schema("sqlite").startswith("CREATE TABLE IF NOT EXISTS")
    assert "bytea" in receiver.inbox.schema("postgresql")
    with pytest.raises(UsageError, match="is no dialect"):
        receiver.inbox.schema("oracle")
