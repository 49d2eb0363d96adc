"""`run.emit`: what a run emits goes out with its outcome, once, or not at all."""

from __future__ import annotations

import contextlib
import sqlite3
import threading
from datetime import timedelta

import pytest

from ranonce import ClaimLost, ConfigError, Ledger, Stop, UsageError, job
from ranonce.messages import LONGEST_BODY, MOST_MESSAGES
from ranonce.stores.base import LostReply
from ranonce.stores.sqlite.store import SqliteStore
from tests.conftest import TODAY
from tests.outboxes import bodies, declare, messages
from tests.python.conftest import NOON


@pytest.fixture
def ledger(here):
    with Ledger.open() as opened:
        yield opened


def claim(ledger, **how):
    return ledger.claim("job", **{"every": "day", "now": NOON, **how})


@pytest.mark.every_store
def test_what_a_run_emits_goes_out_when_it_is_done(ledger, here):
    with claim(ledger) as run:
        run.emit("slack", "Grüße", key="a")
        run.emit("api", {"total": 3}, key="b", content_type="application/vnd.x+json")
        run.emit("files", b"\x00\xff")
        assert messages(here) == []
    assert run.receipt.messages == 3
    found = {message.key: (message.body, message.content_type) for message in messages(here)}
    assert found == {
        f"job:{TODAY}/slack/a": ("Grüße".encode(), "text/plain; charset=utf-8"),
        f"job:{TODAY}/api/b": (b'{"total":3}', "application/vnd.x+json"),
        f"job:{TODAY}/files/-": (b"\x00\xff", "application/octet-stream"),
    }


@pytest.mark.every_store
@pytest.mark.parametrize("end", [RuntimeError("no"), Stop("429", retry_after=60)])
def test_what_is_not_done_sends_nothing_and_says_how_much(ledger, here, end):
    with contextlib.suppress(type(end)), claim(ledger) as run:
        run.emit("slack", "hello")
        raise end
    assert messages(here) == []
    assert (run.receipt.messages, run.receipt.not_sent) == (None, 1)
    assert here.facts()[-1].data["not_sent"] == 1


def test_a_scope_says_what_a_key_is_one_of(ledger, here):
    for day in (NOON, NOON + timedelta(days=1)):
        with claim(ledger, now=day) as run:
            for scope in ("window", "job", "ledger"):
                run.emit("slack", "welcome", key="ann", scope=scope)
    assert list(bodies(here)) == [
        "job:2026-11-09/slack/ann",
        "job/slack/ann",
        "-/slack/ann",
        "job:2026-11-10/slack/ann",
    ]


class Broken:
    """Is no JSON."""


LOOP = []
LOOP.append(LOOP)


@pytest.mark.parametrize(
    "payload",
    [None, b"", "", {}, [], 3, True, {"a": float("nan")}, "\ud800", {"a": "\ud800"}, {1: "a"}, [Broken()], {"a"}, LOOP],
    ids=lambda payload: type(payload).__name__,
)
def test_nothing_to_send_fails_the_run_before_it_is_done(here, payload):
    @job("job", every="day")
    def work(run):
        run.emit("slack", payload)

    with pytest.raises(UsageError, match="payload"):
        work(now=NOON)
    assert (here.state(), messages(here)) == (("failed", 1), [])


def test_a_payload_has_no_more_than_256_kib(ledger, here):
    with claim(ledger) as run:
        run.emit("api", b"x" * LONGEST_BODY)
        with pytest.raises(UsageError, match="262145 bytes"):
            run.emit("api", b"x" * (LONGEST_BODY + 1), key="more")
    assert len(messages(here)) == 1


def test_a_thousand_messages_wait_for_an_outcome_and_no_more(ledger, here):
    with claim(ledger) as run:
        for number in range(MOST_MESSAGES):
            run.emit("api", b"x", key=str(number))
        with pytest.raises(UsageError, match="more than 1000 messages"):
            run.emit("api", b"x", key="one more")
    assert len(messages(here)) == MOST_MESSAGES


def test_the_same_again_is_there_already(ledger, here):
    with claim(ledger) as run:
        run.emit("slack", "hello", key="a")
        run.emit("slack", "hello", key="a")
    assert (run.receipt.messages, run.receipt.warnings) == (1, None)
    assert len(messages(here)) == 1


def test_a_second_payload_for_a_key_is_refused_at_once_and_noted(ledger, here):
    with claim(ledger) as run:
        run.emit("slack", "hello")
        with pytest.raises(UsageError, match="another payload"):
            run.emit("slack", "bye")
    assert bodies(here) == {f"job:{TODAY}/slack/-": b"hello"}
    assert "stands for another body" in run.receipt.warnings[0]
    assert [event for event, *_ in here.events()] == ["start", "done", "noted"]


@pytest.mark.every_store
def test_a_key_that_an_earlier_window_used_for_something_else_is_a_conflict(ledger, here):
    with claim(ledger) as run:
        run.emit("slack", "hello", key="a", scope="job")
    with claim(ledger, now=NOON + timedelta(days=1)) as later:
        later.emit("slack", "bye", key="a", scope="job")
        later.emit("slack", "new", key="b", scope="job")
    assert bodies(here) == {"job/slack/a": b"hello", "job/slack/b": b"new"}
    assert (later.receipt.messages, len(later.receipt.warnings)) == (1, 1)
    assert here.facts(window="2026-11-10")[-1].event == "noted"


def test_a_rerun_sends_nothing_again_unless_it_is_asked_to(here):
    program = here.root / "work" / "emit.sh"
    program.write_text('echo "hello" | $RANONCE emit slack\n')
    here.ranonce("run", "job", "--every", "day", "--now", "2026-11-09T12:00:00Z", "--", "/bin/sh", str(program))
    again = ("rerun", "job", TODAY, "--every", "day", "--reason", "again")
    assert here.ranonce(*again, "--", "/bin/sh", str(program)).receipt["messages"] == 0
    assert len(messages(here)) == 1
    assert here.ranonce(*again, "--resend", "--", "/bin/sh", str(program)).receipt["messages"] == 1
    assert list(bodies(here)) == [f"job:{TODAY}/slack/-", f"job:{TODAY}/slack/-#3"]


def test_a_destination_that_the_file_does_not_declare_is_refused(here):
    declare(here, "[destinations.slack]", 'type = "http"', 'url = "https://example.org/"')

    @job("job", every="day")
    def work(run):
        run.emit("slakc", "hello")

    with pytest.raises(ConfigError, match=r"'slakc' is declared. Did you mean slack\?"):
        work(now=NOON)
    assert here.state() == ("failed", 1)


def test_mail_has_one_message_for_each_recipient(here):
    declare(here, "[destinations.post]", 'type = "smtp"')
    with Ledger.open() as ledger, claim(ledger) as run:
        run.emit("post", {"to": ["a@example.org", "b@example.org"], "text": "hi"}, key="report")
    assert bodies(here) == {
        f"job:{TODAY}/post/report/a@example.org": b'{"to":"a@example.org","text":"hi"}',
        f"job:{TODAY}/post/report/b@example.org": b'{"to":"b@example.org","text":"hi"}',
    }


def test_threads_emit_for_the_outcome(ledger, here):
    with claim(ledger) as run:
        threads = [threading.Thread(target=run.emit, args=("api", b"x"), kwargs={"key": str(n)}) for n in range(20)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    assert len(messages(here)) == 20


def test_what_lost_its_claim_emits_nothing(ledger, here):
    with pytest.raises(ClaimLost), claim(ledger) as run:
        here.sql("UPDATE runs SET attempt = 2, owner = ?", "f" * 32)
        run.emit("slack", "hello")
        with pytest.raises(ClaimLost):
            run.check()
        for call in (
            lambda: run.emit("slack", "hello"),
            lambda: run.step("a", lambda: 1),
            lambda: list(run.items(["a"])),
        ):
            with pytest.raises(ClaimLost):
                call()
    assert messages(here) == []
    assert here.facts()[-1].data["not_sent"] == 1
    assert (run.receipt.messages, run.receipt.not_sent) == (None, 1)


# --- in a transaction of the caller's ---------------------------------------------------------------------------------


@pytest.fixture
def db(here):
    with contextlib.closing(sqlite3.connect(here.store, isolation_level=None, timeout=5)) as connection:
        yield connection


def test_messages_are_part_of_the_callers_transaction(ledger, here, db):
    with claim(ledger) as run:
        run.emit("slack", "hello")
        db.execute("BEGIN IMMEDIATE")
        run.finish(connection=db)
        assert messages(here) == []
        db.execute("COMMIT")
        assert len(messages(here)) == 1
    assert (here.state(), run.receipt.messages) == (("done", 1), 1)


def test_rolled_back_there_is_no_message(ledger, here, db):
    with claim(ledger) as run:
        run.emit("slack", "hello")
        db.execute("BEGIN IMMEDIATE")
        run.finish(connection=db)
        db.execute("ROLLBACK")
    assert (here.state(), messages(here)) == (("failed", 1), [])
    assert run.receipt.not_sent == 1


def test_finished_again_after_a_rollback_they_go_out_with_what_came_since(ledger, here, db):
    with claim(ledger) as run:
        run.emit("slack", "hello")
        db.execute("BEGIN IMMEDIATE")
        run.finish(connection=db)
        with pytest.raises(UsageError, match="finished in a transaction"):
            run.emit("slack", "more", key="more")
        db.execute("ROLLBACK")
        run.emit("slack", "more", key="more")
        db.execute("BEGIN IMMEDIATE")
        run.finish(connection=db)
        db.execute("COMMIT")
    assert (here.state(), len(messages(here)), run.receipt.messages) == (("done", 1), 2, 2)


def test_a_conflict_does_not_keep_the_transaction_from_being_committed(ledger, here, db):
    with claim(ledger) as run:
        run.emit("slack", "hello", key="a", scope="job")
    with claim(ledger, now=NOON + timedelta(days=1)) as later:
        later.emit("slack", "bye", key="a", scope="job")
        db.execute("BEGIN IMMEDIATE")
        later.finish(connection=db)
        db.execute("COMMIT")
    assert bodies(here) == {"job/slack/a": b"hello"}
    assert later.receipt.messages == 0
    assert "stands for another body" in later.receipt.warnings[0]


# --- a reply that is lost ---------------------------------------------------------------------------------------------


@pytest.fixture
def one_lost_reply(monkeypatch):
    """Let the reply to the next commit that has messages be lost, once it is committed."""
    commit = SqliteStore.commit
    lost = []

    def losing(store, decision, key, after):
        written = commit(store, decision, key, after)
        if decision.messages and not lost:
            lost.append(decision)
            raise LostReply("the connection broke.", "")
        return written

    monkeypatch.setattr(SqliteStore, "commit", losing)
    return lost


def test_after_a_lost_reply_the_receipt_counts_what_was_committed(ledger, here, one_lost_reply):
    with claim(ledger) as run:
        run.emit("slack", "hello")
    assert len(one_lost_reply) == 1
    assert (run.receipt.event, run.receipt.messages, len(messages(here))) == ("done", 1, 1)


def test_after_a_lost_reply_an_item_is_done_once(ledger, here, one_lost_reply):
    with claim(ledger) as run:
        for item in run.items(["a", "b"]):
            run.emit("slack", item)
    assert len(one_lost_reply) == 1
    assert run.receipt.warnings is None
    assert list(bodies(here).values()) == [b"a", b"b"]
