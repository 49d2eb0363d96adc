"""`run.finish(connection=…)`: the effect and `done` are committed together, or not at all."""

from __future__ import annotations

import contextlib
import os
import sqlite3
import sys
import threading

import pytest

from ranonce import ClaimLost, Ledger, StoreUnavailable, UsageError, job
from tests.conftest import TODAY, wait_until
from tests.python.conftest import NOON


@pytest.fixture
def ledger(here):
    here.sql("CREATE TABLE effects (day TEXT)")
    with Ledger.open() as opened:
        yield opened


@pytest.fixture
def db(here):
    with contextlib.closing(sqlite3.connect(here.store, isolation_level=None, timeout=5)) as connection:
        yield connection


def claim(ledger, **how):
    return ledger.claim("job", **{"every": "day", "now": NOON, **how})


def effects(world):
    return world.sql("SELECT count(*) FROM effects")[0][0]


def effect(db, run):
    db.execute("BEGIN IMMEDIATE")
    db.execute("INSERT INTO effects VALUES (?)", (run.window,))
    run.finish(connection=db)


def test_effect_and_outcome_are_one_commit(ledger, here, db):
    with claim(ledger) as run:
        effect(db, run)
        assert here.state() == ("running", 1)
        assert run.receipt is None
        db.execute("COMMIT")
        assert here.state() == ("done", 1)
    assert run.receipt.event == "done"
    assert effects(here) == 1
    assert here.events() == [("start", "start", 1), ("done", None, 1)]
    assert here.journal.read_text().count('"event":"done"') == 1
    assert here.attempt_files() == []
    assert claim(ledger).reason == "done"


def test_a_connection_with_pythons_own_transactions_will_do(ledger, here):
    with contextlib.closing(sqlite3.connect(here.store)) as db:
        db.row_factory = sqlite3.Row
        with claim(ledger) as run, db:
            db.execute("INSERT INTO effects VALUES (?)", (run.window,))
            run.finish(connection=db)
    assert (effects(here), here.state(), run.receipt.event) == (1, ("done", 1), "done")


def test_rolled_back_neither_happened_and_the_receipt_says_so(ledger, here, db):
    with claim(ledger) as run:
        effect(db, run)
        db.execute("ROLLBACK")
    assert (effects(here), here.state()) == (0, ("failed", 1))
    assert (run.receipt.event, run.receipt.exit) == ("failed", 1)
    assert "rolled back" in run.receipt.reason


def test_rolled_back_it_can_be_tried_again(ledger, here, db):
    with claim(ledger) as run:
        effect(db, run)
        db.execute("ROLLBACK")
        run.check()
        effect(db, run)
        db.execute("COMMIT")
    assert (effects(here), here.state(), run.receipt.event) == (1, ("done", 1), "done")


def test_a_transaction_that_was_left_open_is_rolled_back(ledger, here, db):
    with claim(ledger) as run:
        effect(db, run)
    assert not db.in_transaction
    assert (effects(here), here.state(), run.receipt.event) == (0, ("failed", 1), "failed")


def test_a_later_transaction_of_the_callers_is_left_alone(ledger, here, db):
    with claim(ledger) as run:
        effect(db, run)
        db.execute("COMMIT")
        db.execute("BEGIN")
    assert db.in_transaction
    assert run.receipt.event == "done"


def test_an_exception_after_the_commit_does_not_undo_it(ledger, here, db):
    with pytest.raises(ValueError, match="late"), claim(ledger) as run:
        effect(db, run)
        db.execute("COMMIT")
        raise ValueError("late")
    assert (run.receipt.event, here.state()) == ("done", ("done", 1))


def test_an_exception_before_the_commit_is_the_outcome(ledger, here, db):
    with pytest.raises(ValueError, match="early"), claim(ledger) as run, db:
        effect(db, run)
        raise ValueError("early")
    assert (effects(here), here.state(), run.receipt.reason) == (0, ("failed", 1), "ValueError: early")


def test_finished_twice_in_one_transaction_is_finished_once(ledger, here, db):
    with claim(ledger) as run:
        effect(db, run)
        run.finish(connection=db)
        db.execute("COMMIT")
        with pytest.raises(UsageError, match="has ended"):
            run.finish(connection=db)
    assert [event for event, _, _ in here.events()] == ["start", "done"]
    assert run.receipt.event == "done"


def test_any_other_connection_is_refused_with_a_sentence(ledger, here, tmp_path):
    other = tmp_path / "other.db"
    with claim(ledger) as run:

        def refused(match, *statements, path=here.store, **how):
            with contextlib.closing(sqlite3.connect(path, isolation_level=None, **how)) as connection:
                for statement in statements:
                    connection.execute(statement)
                with pytest.raises(UsageError, match=match):
                    run.finish(connection=connection)

        refused("not in a transaction")
        refused("and the ledger is", "BEGIN IMMEDIATE", path=other)
        refused("no file", "BEGIN IMMEDIATE", path=":memory:")
        refused("attached side", f"ATTACH '{other}' AS side", "BEGIN IMMEDIATE")
        refused("may not write", "BEGIN", "PRAGMA query_only = ON")
        refused("wait for the disk", "PRAGMA synchronous = NORMAL", "BEGIN IMMEDIATE")
        with pytest.raises(UsageError, match="not a connection"):
            run.finish(connection="sqlite:///")
        with contextlib.closing(sqlite3.connect(here.store, isolation_level=None)) as connection:
            connection.execute("BEGIN IMMEDIATE")
            connection.text_factory = bytes
            with pytest.raises(UsageError, match="text_factory"):
                run.finish(connection=connection)
    assert here.state() == ("done", 1)


def test_another_outcome_in_the_same_transaction_is_refused_and_loses_no_claim(ledger, here, db):
    with claim(ledger) as run:
        db.execute("BEGIN IMMEDIATE")
        run.finish("failed", "first", connection=db)
        with pytest.raises(UsageError, match="failed in this transaction"):
            run.finish(connection=db)
        db.execute("ROLLBACK")
        effect(db, run)
        db.execute("COMMIT")
    assert (effects(here), run.receipt.event) == (1, "done")


def test_a_transaction_that_could_not_be_finished_in_keeps_no_outcome_from_being_recorded(ledger, here, db):
    db.text_factory = bytes
    with pytest.raises(UsageError, match="text_factory"), claim(ledger) as run:
        effect(db, run)
    assert not db.in_transaction
    assert (effects(here), here.state(), run.receipt.event) == (0, ("failed", 1), "failed")


def test_a_transaction_on_another_file_is_its_owners(ledger, here, tmp_path):
    with contextlib.closing(sqlite3.connect(tmp_path / "other.db", isolation_level=None)) as other:
        other.execute("BEGIN IMMEDIATE")
        with pytest.raises(UsageError, match="and the ledger is"), claim(ledger) as run:
            run.finish(connection=other)
        assert other.in_transaction
    assert here.state() == ("failed", 1)


def test_a_closed_connection_is_refused_with_a_sentence(ledger, here):
    closed = sqlite3.connect(here.store)
    closed.close()
    with claim(ledger) as run, pytest.raises(UsageError, match="cannot be used here"):
        run.finish(connection=closed)
    assert here.state() == ("done", 1)


def test_a_transaction_that_is_older_than_the_claim_is_refused_and_takes_nothing_away(ledger, here, db):
    db.execute("BEGIN")
    db.execute("SELECT * FROM effects").fetchall()
    with claim(ledger) as run:
        with pytest.raises(UsageError, match="BEGIN IMMEDIATE"):
            run.finish(connection=db)
        db.execute("ROLLBACK")
        run.check()
    assert run.receipt.event == "done"


@pytest.mark.parametrize("kind", ["TABLE events (day TEXT)", "VIEW Runs AS SELECT 1"])
def test_a_temporary_table_in_front_of_one_of_the_ledgers_is_refused(ledger, here, db, kind):
    db.execute(f"CREATE TEMP {kind}")
    with claim(ledger) as run:
        db.execute("BEGIN IMMEDIATE")
        with pytest.raises(UsageError, match=r"temporary table (events|Runs)"):
            run.finish(connection=db)
        db.execute("ROLLBACK")
    assert here.state() == ("done", 1)


def test_another_hard_link_to_the_file_has_another_wal_and_is_refused(ledger, here):
    other = here.store.parent / "other.db"
    with claim(ledger) as run:
        os.link(here.store, other)
        with contextlib.closing(sqlite3.connect(other, isolation_level=None)) as linked:
            linked.execute("BEGIN IMMEDIATE")
            with pytest.raises(UsageError, match="and the ledger is"):
                run.finish(connection=linked)
    assert here.state() == ("done", 1)
    assert here.sql("PRAGMA integrity_check") == [("ok",)]


def test_a_symbolic_link_to_the_ledger_is_the_ledger(ledger, here, tmp_path):
    link = tmp_path / "link.db"
    link.symlink_to(here.store)
    with contextlib.closing(sqlite3.connect(link, isolation_level=None)) as linked, claim(ledger) as run:
        effect(linked, run)
        linked.execute("COMMIT")
    assert (effects(here), run.receipt.event) == (1, "done")


def test_a_connection_that_makes_other_values_of_what_it_reads_is_refused(ledger, here, monkeypatch):
    monkeypatch.setitem(sqlite3.converters, "TEXT", lambda found: found)
    how = {"isolation_level": None, "detect_types": sqlite3.PARSE_DECLTYPES}
    with contextlib.closing(sqlite3.connect(here.store, **how)) as own, claim(ledger) as run:
        own.execute("BEGIN IMMEDIATE")
        with pytest.raises(UsageError, match="detect_types"):
            run.finish(connection=own)
        own.execute("ROLLBACK")
    assert here.state() == ("done", 1)


@pytest.mark.skipif(sys.version_info < (3, 12), reason="sqlite3 has no autocommit attribute before Python 3.12")
@pytest.mark.parametrize("autocommit", [True, False])
def test_a_transaction_that_was_left_open_is_rolled_back_whoever_begins_it(ledger, here, autocommit):
    with contextlib.closing(sqlite3.connect(here.store, autocommit=autocommit, timeout=5)) as own:
        with claim(ledger) as run:
            if autocommit:
                own.execute("BEGIN IMMEDIATE")
            own.execute("INSERT INTO effects VALUES ('left open')")
            run.finish(connection=own)
        own.commit()
    assert (effects(here), here.state(), run.receipt.event) == (0, ("failed", 1), "failed")


def test_another_threads_connection_is_refused(ledger, here, db):
    said = []
    with claim(ledger) as run:
        db.execute("BEGIN IMMEDIATE")

        def elsewhere():
            try:
                run.finish(connection=db)
            except UsageError as error:
                said.append(error.sentence)

        thread = threading.Thread(target=elsewhere)
        thread.start()
        thread.join(10)
        db.execute("ROLLBACK")
    assert "cannot be used here" in said[0]


def test_a_callers_busy_error_is_no_lost_lease(ledger, here, db):
    with claim(ledger) as run:
        with contextlib.closing(sqlite3.connect(here.store, isolation_level=None, timeout=0)) as late:
            late.execute("BEGIN")
            late.execute("SELECT * FROM effects").fetchall()
            db.execute("INSERT INTO effects VALUES ('another')")
            with pytest.raises(UsageError, match="BEGIN IMMEDIATE"):
                run.finish(connection=late)
            late.execute("ROLLBACK")
            late.execute("BEGIN")
            db.execute("BEGIN IMMEDIATE")
            with pytest.raises(StoreUnavailable):
                run.finish(connection=late)
            db.execute("ROLLBACK")
        run.check()
        effect(db, run)
        db.execute("COMMIT")
    assert run.receipt.event == "done"


def test_a_long_transaction_of_the_callers_does_not_stop_the_heartbeat_or_lose_the_claim(ledger, here, db, monkeypatch):
    monkeypatch.setattr("ranonce.python.holder.RENEW_WAIT_SECONDS", 0.05)
    with claim(ledger, lease=0.3) as run:
        effect(db, run)
        wait_until(lambda: run._heartbeat.last_error is not None)
        db.execute("COMMIT")
        (expires,) = [run._heartbeat._confirmed]
        wait_until(lambda: run._heartbeat._confirmed > expires)  # it asked again, and was told that this is finished
        assert run._holder.why is None
    assert run.receipt.event == "done"


def test_one_that_lost_its_claim_has_no_effect(ledger, here, db):
    run = claim(ledger)
    here.sql("UPDATE runs SET attempt = 2, owner = 'another'")
    with pytest.raises(ClaimLost), run, db:
        effect(db, run)
    assert effects(here) == 0
    assert here.events()[-1][0] == "lost"


def test_a_job_can_be_finished_in_its_own_transaction(here, db):
    here.sql("CREATE TABLE effects (day TEXT)")

    @job("job", every="day")
    def work(run):
        with db:
            effect(db, run)

    assert work(now=NOON).event == "done"
    assert effects(here) == 1


KILLED = """
    @job("job", every="day")
    def work(run):
        db = sqlite3.connect(sys.argv[1], isolation_level=None)
        db.execute("BEGIN IMMEDIATE")
        db.execute("INSERT INTO effects VALUES (?)", (run.window,))
        if sys.argv[2] == "before":
            os.kill(os.getpid(), 9)
        run.finish(connection=db)
        if sys.argv[2] == "between":
            os.kill(os.getpid(), 9)
        db.execute("COMMIT")
        if sys.argv[2] == "after":
            os.kill(os.getpid(), 9)
    work(now=NOON)
"""


@pytest.mark.parametrize("point", ["before", "between", "after"])
def test_a_kill_at_any_moment_leaves_as_many_effects_as_there_are_done(programs, here, point):
    here.sql("CREATE TABLE effects (day TEXT)")
    assert programs.run(KILLED, str(here.store), point).exit == -9
    done = here.sql("SELECT count(*) FROM runs WHERE status = 'done'")[0][0]
    assert effects(here) == done == (1 if point == "after" else 0)
    again = programs.run(KILLED, str(here.store), "never")
    assert again.exit == 0
    assert here.state(window=TODAY)[0] == "done"
    assert effects(here) == 1
