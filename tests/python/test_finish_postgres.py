"""`run.finish(connection=…)` on PostgreSQL: the effect and `done` are committed together, at every isolation level."""

from __future__ import annotations

import contextlib
import os
import threading
import time
from collections import Counter
from collections.abc import Iterator
from datetime import timedelta

import psycopg
import pytest
from psycopg import IsolationLevel

from ranonce import ClaimLost, Ledger, StoreUnavailable, UsageError, job
from ranonce.ledger import OpenLedger
from ranonce.stores import open_store, site_of
from ranonce.storeurl import server_of
from tests.conftest import TODAY, wait_until
from tests.contract.acting import ask
from tests.outboxes import messages
from tests.proxies import Proxy
from tests.python.conftest import NOON
from tests.servers import PgBouncer, PostgresServer, private_folder, started

LEVELS = [IsolationLevel.READ_COMMITTED, IsolationLevel.REPEATABLE_READ, IsolationLevel.SERIALIZABLE]
STRICT = LEVELS[1:]


@pytest.fixture
def store_kind():
    return "postgres"


@pytest.fixture
def ledger(here, table):
    with Ledger.open() as opened:
        yield opened


@pytest.fixture
def address(here):
    return server_of(here.url).address


@pytest.fixture
def schema(here):
    return server_of(here.url).namespace


@pytest.fixture
def admin(address) -> Iterator[psycopg.Connection]:
    with psycopg.connect(address, autocommit=True) as connection:
        yield connection


@pytest.fixture
def table(admin) -> Iterator[str]:
    name = f"effects_{os.urandom(6).hex()}"
    admin.execute(f"CREATE TABLE {name} (day text)")
    yield name
    admin.execute(f"DROP TABLE {name}")


@pytest.fixture(params=LEVELS, ids=["committed", "repeatable", "serializable"])
def db(request, address) -> Iterator[psycopg.Connection]:
    """A connection of the job's own, at each isolation level."""
    with contextlib.closing(psycopg.connect(address)) as connection:
        connection.isolation_level = request.param
        yield connection


@pytest.fixture(params=STRICT, ids=["repeatable", "serializable"])
def strict(request, address) -> Iterator[psycopg.Connection]:
    """One whose transactions see the past."""
    with contextlib.closing(psycopg.connect(address)) as connection:
        connection.isolation_level = request.param
        yield connection


def claim(ledger, **how):
    return ledger.claim("job", **{"every": "day", "now": NOON, **how})


@pytest.fixture
def effects(admin, table):
    return lambda: admin.execute(f"SELECT count(*) FROM {table}").fetchone()[0]


@pytest.fixture
def effect(table):
    """Make the effect, and finish the run with it."""

    def make(db, run):
        db.execute(f"INSERT INTO {table} VALUES (%s)", (run.window,))
        run.finish(connection=db)

    return make


# --- committed together, or not at all ------------------------------------------------------------------------------


def test_effect_and_outcome_are_one_commit(ledger, here, db, effect, effects):
    with claim(ledger) as run:
        effect(db, run)
        assert here.state() == ("running", 1)
        assert run.receipt is None
        db.commit()
        assert here.state() == ("done", 1)
    assert run.receipt.event == "done"
    assert effects() == 1
    assert here.events() == [("start", "start", 1), ("done", None, 1)]
    assert here.journal.read_text().count('"event":"done"') == 1
    assert here.attempt_files() == []
    assert here.leases() == []
    assert claim(ledger).reason == "done"


def test_what_the_run_emits_goes_out_with_the_effect_and_the_outcome(ledger, here, db, effect, effects):
    with claim(ledger) as run:
        run.emit("crm", "paid", key="a")
        effect(db, run)
        assert messages(here) == []
        db.commit()
        assert [message.body for message in messages(here)] == [b"paid"]
    assert (run.receipt.event, run.receipt.messages, effects()) == ("done", 1, 1)


def test_rolled_back_no_message_goes_out_until_it_is_tried_again(ledger, here, db, effect, effects):
    with claim(ledger) as run:
        run.emit("crm", "paid", key="a")
        effect(db, run)
        db.rollback()
        assert messages(here) == []
        effect(db, run)
        db.commit()
    assert [message.body for message in messages(here)] == [b"paid"]
    assert (run.receipt.event, effects()) == ("done", 1)


def test_a_key_that_stood_for_another_body_before_is_noted_in_the_transaction(ledger, here, db, effect):
    for day, body in ((NOON - timedelta(days=1), "first"), (NOON, "other")):
        with claim(ledger, now=day) as run:
            run.emit("crm", body, key="a", scope="job")
            effect(db, run)
            db.commit()
        assert run.receipt.event == "done"
    assert [message.body for message in messages(here)] == [b"first"]
    assert [event for event, _, _ in here.events()][-2:] == ["done", "noted"]


def test_runs_that_emit_the_same_in_transactions_beside_each_other_wait_for_the_first(ledger, address, here, effects):
    other = Ledger.open()
    with contextlib.closing(psycopg.connect(address)) as one, contextlib.closing(psycopg.connect(address)) as two:
        with claim(ledger) as first, other.claim("other", every="day", now=NOON) as second:
            for run in (first, second):
                run.emit("crm", "paid", key="a", scope="ledger")
            first.finish(connection=one)
            waiting = threading.Thread(target=lambda: second.finish(connection=two))
            waiting.start()
            wait_until(lambda: two.info.transaction_status == psycopg.pq.TransactionStatus.ACTIVE)
            one.commit()
            waiting.join(20)
            two.commit()
        assert (first.receipt.messages, second.receipt.event) == (1, "done")
    other.close()
    assert [message.run.job for message in messages(here)] == ["job"]


def test_the_drivers_own_transaction_blocks_will_do(ledger, address, here, effect, effects):
    with psycopg.connect(address, autocommit=True) as db, claim(ledger) as run:
        with db.transaction(), db.transaction():  # a savepoint in it
            effect(db, run)
        assert here.state() == ("done", 1)
    assert (effects(), run.receipt.event) == (1, "done")


def test_a_transaction_that_has_not_begun_yet_begins_with_the_outcome(ledger, db, here, table, effects):
    with claim(ledger) as run:
        run.finish(connection=db)
        db.execute(f"INSERT INTO {table} VALUES ('after')")
        assert here.state() == ("running", 1)
        db.commit()
    assert (effects(), here.state(), run.receipt.event) == (1, ("done", 1), "done")


def test_rolled_back_neither_happened_and_the_receipt_says_so(ledger, here, db, effect, effects):
    with claim(ledger) as run:
        effect(db, run)
        db.rollback()
    assert (effects(), here.state()) == (0, ("failed", 1))
    assert (run.receipt.event, run.receipt.exit) == ("failed", 1)
    assert "rolled back" in run.receipt.reason


def test_rolled_back_it_can_be_tried_again(ledger, here, db, effect, effects):
    with claim(ledger) as run:
        effect(db, run)
        db.rollback()
        run.check()
        effect(db, run)
        db.commit()
    assert (effects(), here.state(), run.receipt.event) == (1, ("done", 1), "done")


def test_a_savepoint_of_the_callers_takes_the_outcome_back_and_it_can_be_given_again(ledger, here, db, effect, effects):
    with claim(ledger) as run:
        with contextlib.suppress(ZeroDivisionError), db.transaction():
            with db.transaction():
                effect(db, run)
            raise ZeroDivisionError
        effect(db, run)
        db.commit()
    assert (effects(), here.state(), run.receipt.event) == (1, ("done", 1), "done")
    assert [event for event, _, _ in here.events()] == ["start", "done"]


def test_a_transaction_that_was_left_open_is_rolled_back(ledger, here, db, effect, effects):
    with claim(ledger) as run:
        effect(db, run)
    assert db.info.transaction_status == psycopg.pq.TransactionStatus.IDLE
    assert (effects(), here.state(), run.receipt.event) == (0, ("failed", 1), "failed")


def test_a_run_that_is_left_inside_the_block_that_would_commit_is_taken_back_with_all_of_it(
    ledger, here, db, effect, effects
):
    with db.transaction(), claim(ledger) as run:
        effect(db, run)
    assert (effects(), here.state(), run.receipt.event) == (0, ("failed", 1), "failed")


def test_a_transaction_that_failed_after_the_outcome_is_taken_back(ledger, here, db, effect, effects):
    with claim(ledger) as run:
        effect(db, run)
        with pytest.raises(psycopg.Error), db.transaction():
            db.execute("SELECT 1 / 0")
        with pytest.raises(psycopg.Error):
            db.execute("SELECT 1 / 0")
    assert (effects(), here.state(), run.receipt.event) == (0, ("failed", 1), "failed")


def test_a_later_transaction_of_the_callers_is_left_alone(ledger, db, table, effect, effects):
    with claim(ledger) as run:
        effect(db, run)
        db.commit()
        db.execute(f"INSERT INTO {table} VALUES ('later')")
    db.commit()
    assert (effects(), run.receipt.event) == (2, "done")


def test_so_is_one_after_a_rollback(ledger, here, db, table, effect, effects):
    with claim(ledger) as run:
        effect(db, run)
        db.rollback()
        db.execute(f"INSERT INTO {table} VALUES ('another')")
    db.commit()
    assert (effects(), here.state()) == (1, ("failed", 1))


def test_an_exception_after_the_commit_does_not_undo_it(ledger, here, db, effect):
    with pytest.raises(ValueError, match="late"), claim(ledger) as run:
        effect(db, run)
        db.commit()
        raise ValueError("late")
    assert (run.receipt.event, here.state()) == ("done", ("done", 1))


def test_an_exception_before_the_commit_is_the_outcome(ledger, here, db, effect, effects):
    with pytest.raises(ValueError, match="early"), claim(ledger) as run, db.transaction():
        effect(db, run)
        raise ValueError("early")
    assert (effects(), here.state(), run.receipt.reason) == (0, ("failed", 1), "ValueError: early")


def test_finished_twice_in_one_transaction_is_finished_once(ledger, here, db, effect):
    with claim(ledger) as run:
        effect(db, run)
        run.finish(connection=db)
        db.commit()
        with pytest.raises(UsageError, match="has ended"):
            run.finish(connection=db)
    assert [event for event, _, _ in here.events()] == ["start", "done"]
    assert run.receipt.event == "done"


def test_another_outcome_in_the_same_transaction_is_refused_and_loses_no_claim(ledger, db, effect, effects):
    with claim(ledger) as run:
        run.finish("failed", "first", connection=db)
        with pytest.raises(UsageError, match="failed in this transaction"):
            run.finish(connection=db)
        db.rollback()
        effect(db, run)
        db.commit()
    assert (effects(), run.receipt.event) == (1, "done")


def test_two_windows_of_a_job_are_finished_in_one_transaction(ledger, here, db, effect, effects):
    first, second = (claim(ledger, window=day, overlap="allow") for day in ("2026-11-08", "2026-11-09"))
    with first, second:
        effect(db, first)
        effect(db, second)
        db.commit()
    assert effects() == 2
    assert here.states() == [("2026-11-08", "done"), ("2026-11-09", "done")]
    assert first.receipt.event == second.receipt.event == "done"


def test_a_job_can_be_finished_in_its_own_transaction(here, db, effect, effects):
    @job("job", every="day")
    def work(run):
        with db.transaction():
            effect(db, run)

    assert work(now=NOON).event == "done"
    assert effects() == 1


# --- a claim that is lost, and one that only looks lost -------------------------------------------------------------


def taken_over(admin, schema):
    admin.execute(f"UPDATE {schema}.runs SET attempt = 2, owner = 'another'")


def test_one_that_lost_its_claim_has_no_effect(ledger, here, db, admin, schema, effect, effects):
    run = claim(ledger)
    taken_over(admin, schema)
    with pytest.raises(ClaimLost), run, db.transaction():
        effect(db, run)
    assert effects() == 0
    assert here.events()[-1][0] == "lost"


def test_nor_has_one_that_lost_it_while_its_transaction_was_open(ledger, db, admin, schema, effect, effects):
    run = claim(ledger)
    db.execute("SELECT 1")
    taken_over(admin, schema)
    with pytest.raises(ClaimLost), run, db.transaction():
        effect(db, run)
    assert effects() == 0


def test_a_transaction_from_before_the_claim_is_to_begin_again_and_takes_nothing_away(
    ledger, here, strict, table, effect, effects
):
    strict.execute(f"SELECT * FROM {table}").fetchall()
    with claim(ledger) as run:
        with pytest.raises(StoreUnavailable, match=r"as it was before job:2026-11-09 was claimed.*do the transaction"):
            run.finish(connection=strict)
        run.check()
        strict.rollback()
        effect(strict, run)
        strict.commit()
    assert (effects(), here.state(), run.receipt.event) == (1, ("done", 1), "done")


def test_at_read_committed_a_transaction_may_be_older_than_the_claim(ledger, address, table, effect, effects):
    with psycopg.connect(address) as db:
        db.execute(f"SELECT * FROM {table}").fetchall()
        with claim(ledger) as run:
            effect(db, run)
            db.commit()
    assert (effects(), run.receipt.event) == (1, "done")


def test_another_change_of_the_job_meanwhile_is_a_race_and_no_lost_claim(ledger, strict, table, effect, effects):
    with claim(ledger, overlap="allow") as run:
        strict.execute(f"SELECT * FROM {table}").fetchall()
        with claim(ledger, window="2026-11-08", overlap="allow"):
            pass
        with pytest.raises(StoreUnavailable, match=r"cannot go on beside others.*do the transaction again"):
            run.finish(connection=strict)
        strict.rollback()
        effect(strict, run)
        strict.commit()
    assert (effects(), run.receipt.event) == (1, "done")


def test_a_claim_that_was_renewed_since_the_transaction_began_is_neither_lost_nor_late(
    ledger, here, db, admin, schema, table, effect, effects
):
    with claim(ledger) as run:
        over_at = time.monotonic() + 2
        admin.execute(f"UPDATE {schema}.leases SET expires = expires - 298")  # as it was once
        db.execute(f"SELECT * FROM {table}").fetchall()
        assert run._holder.renew() is None
        time.sleep(max(0.0, over_at - time.monotonic()))  # what the transaction sees of it is over
        effect(db, run)
        db.commit()
    assert (effects(), run.receipt.event) == (1, "done")
    assert not here.run_of().late


def test_the_claim_is_renewed_while_the_transaction_is_open_however_long(ledger, here, db, effect):
    with claim(ledger) as run:
        effect(db, run)
        (before,) = here.leases()
        assert run._holder.renew() is None
        assert here.leases()[0].expires > before.expires
        db.commit()
        assert run._holder.renew() is None  # it is told that this is finished
        assert run._holder.why is None
    assert run.receipt.event == "done"


def test_nobody_takes_a_run_over_whose_lease_ended_while_its_outcome_waits_for_the_commit(
    ledger, here, db, admin, schema, effect
):
    with claim(ledger) as run:
        effect(db, run)
        admin.execute(f"UPDATE {schema}.leases SET expires = expires - 1000")
        answers = []
        there = OpenLedger(open_store(here.url, wait_seconds=20), folder=None)  # another host
        assert ask(364).window.key == TODAY
        other = threading.Thread(target=lambda: answers.append(there.claim(ask(364))))
        other.start()
        wait_until(lambda: admin.execute("SELECT 1 FROM pg_locks WHERE NOT granted").fetchall())
        db.commit()
        other.join(20)
        there.close()
    assert [answer.reason for answer in answers] == ["done"]
    assert run.receipt.event == "done"


# --- what is refused, and how it leaves the transaction -------------------------------------------------------------


def test_any_other_connection_is_refused_with_a_sentence(ledger, here, address, admin, table):
    with claim(ledger) as run:

        def refused(match, *statements, to=address, before=(), **how):
            with contextlib.closing(psycopg.connect(to, **how)) as connection:
                for statement in statements:
                    with contextlib.suppress(ZeroDivisionError, psycopg.DataError):
                        connection.execute(statement)
                with pytest.raises(UsageError, match=match):
                    run.finish(connection=connection)

        refused("not in a transaction", autocommit=True)
        refused("failed already", "SELECT 1 / 0")
        refused("may not write", "SET TRANSACTION READ ONLY")
        refused("may not write", "BEGIN READ ONLY", autocommit=True)
        refused("in LATIN1", client_encoding="latin1")
        refused("another database", to=address.removesuffix("/postgres") + "/template1")
        with pytest.raises(UsageError, match="'str' is not a connection of psycopg 3"):
            run.finish(connection=address)
        with psycopg.connect(address) as connection, connection.pipeline(), pytest.raises(UsageError, match="pipeline"):
            run.finish(connection=connection)
        closed = psycopg.connect(address)
        closed.close()
        with pytest.raises(UsageError, match="it is closed"):
            run.finish(connection=closed)
        run.check()
    assert here.state() == ("done", 1)


def test_a_connection_of_asyncio_is_refused_with_a_sentence(ledger, here, address):
    import asyncio

    async def work():
        async with await psycopg.AsyncConnection.connect(address) as connection:
            with pytest.raises(UsageError, match="'AsyncConnection' is not a connection"):
                run.finish(connection=connection)

    with claim(ledger) as run:
        asyncio.run(work())


def test_another_server_with_a_copy_of_the_ledger_is_refused(ledger, here, schema, tmp_path):
    for server in started(lambda: PostgresServer(private_folder(tmp_path / "another"))):
        site_of(server.url(schema), wait_seconds=20).create(here.ledger)
        with psycopg.connect(server_of(server.url(schema)).address) as copy, claim(ledger) as run:
            with pytest.raises(UsageError, match="another server or database"):
                run.finish(connection=copy)
            run.check()
    assert here.state() == ("done", 1)


def test_a_role_without_the_rights_is_refused_with_a_sentence(ledger, address, admin, schema, table):
    role = f"role_{os.urandom(6).hex()}"
    admin.execute(f"CREATE ROLE {role} LOGIN")
    try:
        to = address.replace("//postgres@", f"//{role}@")
        with psycopg.connect(to) as db, claim(ledger) as run:
            with pytest.raises(UsageError, match="role may not write to the ledger: permission denied"):
                run.finish(connection=db)
            admin.execute(f"GRANT USAGE ON SCHEMA {schema} TO {role}")
            admin.execute(f"GRANT SELECT ON ALL TABLES IN SCHEMA {schema} TO {role}")
            with pytest.raises(UsageError, match="role may not write"):
                run.finish(connection=db)
            assert db.execute("SELECT 1").fetchone() == (1,)
            run.check()
    finally:
        admin.execute(f"DROP OWNED BY {role}")
        admin.execute(f"DROP ROLE {role}")


def test_what_is_refused_leaves_the_transaction_as_it_was(ledger, db, admin, schema, table, effects):
    run = claim(ledger)
    taken_over(admin, schema)
    with pytest.raises(ClaimLost), run:
        db.execute(f"INSERT INTO {table} VALUES ('kept')")
        with pytest.raises(ClaimLost):
            run.finish(connection=db)
        db.commit()
        run.check()
    assert effects() == 1


def test_no_setting_of_the_callers_is_changed(ledger, db, effect):
    def settings():
        return db.execute("SELECT name, setting FROM pg_settings WHERE name !~ '[.]' ORDER BY 1").fetchall()

    with claim(ledger) as run:
        before = settings()
        effect(db, run)
        assert settings() == before
        db.commit()
        assert settings() == before


def test_a_commit_with_an_outcome_waits_for_the_disk(ledger, db, effect):
    db.execute("SET synchronous_commit = off")
    db.commit()
    with claim(ledger) as run:
        effect(db, run)
        assert db.execute("SHOW synchronous_commit").fetchone() == ("on",)
        db.commit()
    assert db.execute("SHOW synchronous_commit").fetchone() == ("off",)


def test_settings_of_the_callers_that_change_texts_change_nothing(ledger, here, db, effect):
    for setting in ("DateStyle = 'German'", "TimeZone = 'Asia/Kolkata'", "extra_float_digits = -15"):
        db.execute(f"SET {setting}")
    db.execute("SET search_path = ''")
    db.execute("SET search_path = public")
    db.commit()
    with claim(ledger) as run:
        effect(db, run)
        db.commit()
    assert (run.receipt.event, here.run_of().late) == ("done", False)


def test_what_the_caller_registered_for_its_own_values_is_not_asked(ledger, db, effect):
    from psycopg.adapt import Loader

    class Loud(Loader):
        def load(self, data):
            raise AssertionError(data)

    for kind in ("text", "json", "bool", "int8", "xid8"):
        db.adapters.register_loader(kind, Loud)
    db.row_factory = lambda cursor: 1 / 0
    with claim(ledger) as run:
        db.cursor(row_factory=psycopg.rows.tuple_row).execute("SELECT 1.5")
        run.finish(connection=db)
        db.commit()
    assert run.receipt.event == "done"


def test_a_held_row_is_waited_for_no_longer_than_it_says_and_the_transaction_goes_on(
    ledger, db, admin, schema, table, effect, effects, monkeypatch
):
    with claim(ledger) as run:
        monkeypatch.setattr("ranonce.stores.postgres.store.PostgresStore.wait_seconds", 0.3, raising=False)
        with run._connections.lend() as lent:
            lent.store.wait_seconds = 0.3
        with admin.transaction():
            admin.execute(f"SELECT * FROM {schema}.jobs FOR UPDATE")
            with pytest.raises(StoreUnavailable, match="waited too long"):
                run.finish(connection=db)
            assert db.execute("SELECT 1").fetchone() == (1,)
        db.rollback()
        effect(db, run)
        db.commit()
    assert (effects(), run.receipt.event) == (1, "done")


@pytest.mark.parametrize("limit", ["lock_timeout", "statement_timeout"])
def test_a_limit_of_the_callers_is_the_callers(ledger, db, admin, schema, effect, effects, limit):
    db.execute(f"SET {limit} = 100")
    db.commit()
    with claim(ledger) as run:
        with admin.transaction():
            admin.execute(f"SELECT * FROM {schema}.jobs FOR UPDATE")
            with pytest.raises(StoreUnavailable, match="waited too long"):
                run.finish(connection=db)
        db.rollback()
        effect(db, run)
        db.commit()
    assert (effects(), run.receipt.event) == (1, "done")


# --- connections that break -----------------------------------------------------------------------------------------


def test_a_connection_that_broke_before_the_commit_is_no_outcome(ledger, here, db, admin, effect, effects):
    with pytest.raises(psycopg.OperationalError), claim(ledger) as run:
        effect(db, run)
        admin.execute("SELECT pg_terminate_backend(%s)", (db.info.backend_pid,))
        db.commit()
    assert (effects(), here.state(), run.receipt.event) == (0, ("failed", 1), "failed")


def test_a_connection_that_broke_before_the_outcome_is_said_to_have(ledger, here, db, admin, table, effects):
    with pytest.raises(StoreUnavailable, match="connection broke"), claim(ledger) as run:
        db.execute(f"INSERT INTO {table} VALUES ('gone')")
        admin.execute("SELECT pg_terminate_backend(%s)", (db.info.backend_pid,))
        run.finish(connection=db)
    assert (effects(), here.state()) == (0, ("failed", 1))


COMMITTING = "SELECT 1 FROM pg_locks WHERE locktype = 'advisory' AND NOT granted"


@pytest.fixture
def slow_commit(admin, table):
    """A commit of an effect waits until the test lets it go on."""
    admin.execute(
        f"CREATE FUNCTION {table}_waits() RETURNS trigger LANGUAGE plpgsql AS"
        " $$ BEGIN PERFORM pg_advisory_xact_lock(4711); RETURN NULL; END $$"
    )
    admin.execute(
        f"CREATE CONSTRAINT TRIGGER waits AFTER INSERT ON {table} DEFERRABLE INITIALLY DEFERRED"
        f" FOR EACH ROW EXECUTE FUNCTION {table}_waits()"
    )
    admin.execute("SELECT pg_advisory_lock(4711)")

    def let_go():
        wait_until(
            lambda: admin.execute("SELECT 1 FROM pg_locks WHERE locktype = 'advisory' AND NOT granted").fetchall()
        )
        admin.execute("SELECT pg_advisory_unlock(4711)")

    yield let_go
    admin.execute("SELECT pg_advisory_unlock_all()")
    admin.execute(f"DROP FUNCTION {table}_waits CASCADE")


def cut_off_while_it_commits(db, admin):
    """Send COMMIT, and lose the connection before its answer comes."""
    db.pgconn.send_query(b"COMMIT")
    while db.pgconn.flush():
        pass
    wait_until(lambda: admin.execute(COMMITTING).fetchall())
    db.close()


def test_a_commit_whose_answer_was_lost_is_seen_once_it_is_through(
    ledger, here, db, admin, slow_commit, effect, effects
):
    with claim(ledger) as run:
        effect(db, run)
        cut_off_while_it_commits(db, admin)
        later = threading.Timer(0.5, slow_commit)
        later.start()
    later.join()
    assert (effects(), here.state(), run.receipt.event) == (1, ("done", 1), "done")
    assert [event for event, _, _ in here.events()] == ["start", "done"]


def test_doing_a_transaction_again_whose_commit_was_under_way_makes_no_second_effect(
    ledger, here, db, address, admin, slow_commit, table, effect, effects
):
    with pytest.raises((UsageError, StoreUnavailable)), claim(ledger) as run:
        effect(db, run)
        cut_off_while_it_commits(db, admin)
        with psycopg.connect(address) as again:
            again.isolation_level = db.isolation_level
            later = threading.Timer(0.5, slow_commit)
            later.start()
            again.execute(f"INSERT INTO {table} VALUES ('twice')")
            run.finish(connection=again)
    later.join()
    assert (effects(), here.state(), run.receipt.event) == (1, ("done", 1), "done")


def test_a_commit_whose_answer_is_cut_off_is_done_once(ledger, here, postgres, schema, table, effect, effects):
    with Proxy(postgres.port) as proxy:
        to = server_of(postgres.url(schema, port=proxy.port)).address
        with pytest.raises(psycopg.OperationalError), claim(ledger) as run, psycopg.connect(to) as db:
            effect(db, run)
            proxy.cut_next_answer()
            db.commit()
    assert (effects(), here.state(), run.receipt.event) == (1, ("done", 1), "done")


def test_an_outcome_whose_transaction_stays_open_is_left_to_speak_for_itself(
    ledger, here, address, admin, slow_commit, effect, effects
):
    db = psycopg.connect(address)
    run = claim(ledger)
    with run._connections.lend() as lent:
        lent.wait_seconds = 0.2
    from ranonce import OutcomeNotRecorded

    with pytest.raises(OutcomeNotRecorded, match="still open"), run:
        effect(db, run)
        cut_off_while_it_commits(db, admin)
    slow_commit()
    wait_until(lambda: here.state() == ("done", 1))
    assert effects() == 1


KILLED = """
    import psycopg

    @job("job", every="day")
    def work(run):
        db = psycopg.connect(sys.argv[1])
        db.execute(f"INSERT INTO {sys.argv[2]} VALUES (%s)", (run.window,))
        if sys.argv[3] == "before":
            os.kill(os.getpid(), 9)
        run.finish(connection=db)
        if sys.argv[3] == "between":
            os.kill(os.getpid(), 9)
        db.commit()
        if sys.argv[3] == "after":
            os.kill(os.getpid(), 9)
    work(now=NOON)
"""


@pytest.mark.parametrize("point", ["before", "between", "after"])
def test_a_kill_at_any_moment_leaves_as_many_effects_as_there_are_done(programs, here, address, table, effects, point):
    assert programs.run(KILLED, address, table, point).exit == -9
    done = sum(status == "done" for _, status in here.states())
    assert effects() == done == (1 if point == "after" else 0)
    again = programs.run(KILLED, address, table, "never")
    assert again.exit == 0, again.err
    assert here.state(window=TODAY)[0] == "done"
    assert effects() == 1


# --- many at once ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("level", LEVELS, ids=["committed", "repeatable", "serializable"])
def test_many_that_do_their_transactions_again_have_one_effect_each(ledger, here, address, table, effects, level):
    days = [ask(day).window.key for day in range(8)]
    ended: Counter[str] = Counter()

    def work(day):
        with psycopg.connect(address) as db, claim(ledger, window=day, overlap="allow", now=NOON) as run:
            db.isolation_level = level
            for _ in range(50):
                try:
                    with db.transaction():
                        db.execute(f"SELECT count(*) FROM {table}")
                        db.execute(f"INSERT INTO {table} VALUES (%s)", (day,))
                        run.finish(connection=db)
                    break
                except (psycopg.errors.SerializationFailure, StoreUnavailable):
                    ended["again"] += 1
        ended[run.receipt.event] += 1

    threads = [threading.Thread(target=work, args=(day,)) for day in days]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    assert ended["done"] == len(days)
    assert effects() == len(days)
    assert [status for _, status in here.states()] == ["done"] * len(days)


def test_behind_a_pooler_that_changes_sessions_it_is_the_same(ledger, here, postgres, schema, table, tmp_path, effect):
    for pooler in started(lambda: PgBouncer(private_folder(tmp_path / "pooler"), postgres)):
        address = server_of(postgres.url(schema, port=pooler.port)).address
        for level in LEVELS:
            with psycopg.connect(address, prepare_threshold=None) as db, claim(ledger, window=_day(level)) as run:
                db.isolation_level = level
                effect(db, run)
                db.rollback()
                effect(db, run)
                db.commit()
            assert run.receipt.event == "done"
            assert here.state(window=_day(level)) == ("done", 1)


def _day(level):
    return f"2026-11-0{level.value}"


# --- Django ---------------------------------------------------------------------------------------------------------


DJANGO = """
    from urllib.parse import urlsplit
    from django.conf import settings
    to = urlsplit(sys.argv[1])
    there = {"NAME": to.path[1:], "USER": to.username, "HOST": to.hostname, "PORT": to.port}
    settings.configure(DATABASES={"default": {"ENGINE": "django.db.backends.postgresql", **there}})
    from django.db import connection, transaction

    @job("job", every="day")
    def work(run):
        with transaction.atomic(), connection.cursor() as cursor:
            cursor.execute(f"INSERT INTO {sys.argv[2]} VALUES (%s)", [run.window])
            run.finish(connection=connection.connection)
            if sys.argv[3] == "fails":
                raise ValueError("late")
    work(now=NOON)
"""


def test_the_drivers_connection_under_djangos_will_do(programs, here, address, table, effects):
    pytest.importorskip("django")
    failed = programs.run(DJANGO, address, table, "fails")
    assert (failed.exit, here.state(), effects()) == (1, ("failed", 1), 0), failed.err
    done = programs.run(DJANGO, address, table, "ends")
    assert (done.exit, here.state(), effects()) == (0, ("done", 2), 1), done.err


# --- SQLAlchemy -----------------------------------------------------------------------------------------------------


@pytest.fixture(params=["READ COMMITTED", "REPEATABLE READ", "SERIALIZABLE"])
def engine(request, address):
    sqlalchemy = pytest.importorskip("sqlalchemy")
    to = address.replace("postgresql://", "postgresql+psycopg://")
    engine = sqlalchemy.create_engine(to, isolation_level=request.param)
    yield engine
    engine.dispose()


def insert(table):
    import sqlalchemy

    return sqlalchemy.text(f"INSERT INTO {table} VALUES ('a day')")


def test_a_connection_of_sqlalchemys_core_will_do(ledger, here, engine, table, effects):
    with claim(ledger) as run:
        with engine.begin() as connection:
            connection.execute(insert(table))
            run.finish(connection=connection)
            assert here.state() == ("running", 1)
        assert here.state() == ("done", 1)
    assert (effects(), run.receipt.event) == (1, "done")


def test_so_will_one_in_which_nothing_was_done_yet(ledger, here, engine, table, effects):
    with claim(ledger) as run, engine.connect() as connection:
        run.finish(connection=connection)
        connection.execute(insert(table))
        connection.commit()
    assert (effects(), here.state(), run.receipt.event) == (1, ("done", 1), "done")


def test_left_open_it_is_rolled_back_as_sqlalchemy_does_it(ledger, here, engine, table, effects):
    with engine.connect() as connection:
        with claim(ledger) as run:
            connection.execute(insert(table))
            run.finish(connection=connection)
        assert not connection.in_transaction()
        connection.execute(insert(table))
        connection.commit()
    assert (effects(), here.state(), run.receipt.event) == (1, ("failed", 1), "failed")


@pytest.fixture
def mapped(table):
    from sqlalchemy.orm import DeclarativeBase, Mapped, mapped_column

    class Base(DeclarativeBase):
        pass

    return type(
        "Effect",
        (Base,),
        {"__tablename__": table, "__annotations__": {"day": Mapped[str]}, "day": mapped_column(primary_key=True)},
    )


def test_a_session_will_do_with_what_it_has_not_flushed_yet(ledger, here, engine, mapped, effects):
    from sqlalchemy.orm import Session

    with claim(ledger) as run:
        with Session(engine) as session, session.begin():
            session.add(mapped(day="a day"))
            run.finish(connection=session)
            session.add(mapped(day="another day"))
        assert here.state() == ("done", 1)
    assert (effects(), run.receipt.event) == (2, "done")


def test_a_session_that_fails_to_flush_undoes_the_outcome(ledger, here, engine, mapped, effects):
    from sqlalchemy.exc import SQLAlchemyError
    from sqlalchemy.orm import Session

    with pytest.raises(SQLAlchemyError), claim(ledger) as run, Session(engine) as session:
        session.add(mapped(day="nul \0"))
        run.finish(connection=session)
        session.commit()
    assert (effects(), here.state(), run.receipt.event) == (0, ("failed", 1), "failed")


def test_a_session_that_was_left_open_is_rolled_back(ledger, here, engine, mapped, effects):
    from sqlalchemy.orm import scoped_session, sessionmaker

    session = scoped_session(sessionmaker(engine))
    with claim(ledger) as run:
        session.add(mapped(day="a day"))
        session.flush()
        run.finish(connection=session)
    session.commit()
    session.remove()
    assert (effects(), here.state(), run.receipt.event) == (0, ("failed", 1), "failed")


def test_other_connections_of_sqlalchemy_are_refused_with_a_sentence(ledger, here, engine):
    import sqlalchemy
    from sqlalchemy.orm import Session

    careful = engine.connect().execution_options(isolation_level="AUTOCOMMIT")
    other = sqlalchemy.create_engine("sqlite://").connect()
    with claim(ledger) as run, careful, other:
        with pytest.raises(UsageError, match="not in a transaction"):
            run.finish(connection=careful)
        with pytest.raises(UsageError, match="is not a connection of psycopg 3"):
            run.finish(connection=other)
        other.close()
        with pytest.raises(UsageError, match="cannot be used here"):
            run.finish(connection=other)
        with pytest.raises(UsageError, match="cannot be used here"):
            run.finish(connection=Session())  # bound to nothing
        run.check()
    assert here.state() == ("done", 1)
