"""What is particular to a ledger in PostgreSQL: poolers, isolation, locks, sessions that end, append-only events."""

from __future__ import annotations

import contextlib
import os
import re
import signal
import subprocess
import sys
import threading
import time
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from urllib.parse import quote

import psycopg
import pytest

from ranonce.errors import ConfigError, NotThisLedger, StoreUnavailable
from ranonce.ledger import OpenLedger
from ranonce.lifecycle import Claim
from ranonce.stores import open_store, site_of
from ranonce.stores.postgres.store import PostgresStore
from ranonce.storeurl import masked, server_of
from tests.contract.acting import START, ask, claim, ledger_over, verdict
from tests.contract.stores import LEDGER
from tests.contract.test_races import Racers
from tests.servers import PgBouncer, PostgresServer, private_folder, started


@pytest.fixture
def url(postgres: PostgresServer) -> str:
    address = postgres.url(f"t{os.urandom(6).hex()}")
    site_of(address, wait_seconds=20).create(LEDGER)
    return address


@pytest.fixture
def store(url: str) -> Iterator[PostgresStore]:
    store = PostgresStore(url, wait_seconds=20)
    yield store
    store.close()


@pytest.fixture
def own(tmp_path: Path) -> Iterator[PostgresServer]:
    """A server that the test may stop."""
    yield from started(lambda: PostgresServer(private_folder(tmp_path / "postgres")))  # type: ignore[misc]


@contextlib.contextmanager
def admin(url: str, **options: object) -> Iterator[psycopg.Connection]:
    """A superuser's connection to the database of a ledger."""
    server = server_of(url)
    with psycopg.connect(server.address, autocommit=True, **options) as connection:
        connection.execute(f"SET search_path = {server.namespace}")
        yield connection


def with_setting(url: str, name: str, value: str) -> str:
    """Return the address with a setting of the session, as an administrator may give one to a role."""
    option = f"-c {name}={value.replace(' ', chr(92) + ' ')}"
    server = server_of(url)
    return f"{server.address}?options={quote(option)}&schema={server.namespace}"


# --- poolers and isolation ------------------------------------------------------------------------------------------


def test_behind_a_pooler_that_changes_sessions_one_process_wins(postgres, url, tmp_path):
    for pooler in started(lambda: PgBouncer(private_folder(tmp_path / "pooler"), postgres)):
        pooled = postgres.url(server_of(url).namespace, port=pooler.port)
        ledger = ledger_over(PostgresStore(pooled, wait_seconds=20))
        racers = Racers(pooled, 8)
        for day in range(1, 13):
            if day % 3 == 0:  # one that failed before
                ledger.finish(claim(ledger, day), verdict("failed"))
            answers = racers.race(day)
            assert answers == {"won": 1, "lost busy": 7}, (day, answers)
            [run] = ledger.store.runs("job", ask(day).window.start, ask(day).window.start + 1)
            with admin(url) as connection:
                connection.execute("UPDATE leases SET expires = expires - 301, process = ''")  # nobody to be seen here
            assert ledger.release(run.key, run.window_start, "done", "the race is over", by="a test") is None
        racers.end()


@pytest.mark.parametrize("level", ["repeatable read", "serializable"])
def test_a_role_whose_transactions_are_stricter_races_as_well(url, level):
    ledger_over(PostgresStore(url, wait_seconds=20))
    strict = with_setting(url, "default_transaction_isolation", level)
    answers: Counter[str] = Counter()
    barrier = threading.Barrier(8)

    def race() -> None:
        ledger = OpenLedger(PostgresStore(strict, wait_seconds=20), folder=None, wait_seconds=20)
        assert ledger.store.ask("SHOW transaction_isolation") == [(level,)]
        for day in range(5):
            barrier.wait(20)
            answer = ledger.claim(ask(day, policy=ask().policy.replace(overlap="allow")))
            answers["won" if isinstance(answer, Claim) else answer.reason] += 1
            if isinstance(answer, Claim):
                assert ledger.finish(answer, verdict()) is None

    threads = [threading.Thread(target=race) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(40)
    assert answers["won"] == 5
    assert answers["busy"] + answers["done"] == 35


@pytest.mark.parametrize("state", ["40001", "40P01"])
def test_a_question_that_others_were_in_the_way_of_is_asked_again(url, state):
    with admin(url) as connection:
        connection.execute("CREATE SEQUENCE asked")
        connection.execute(
            "CREATE FUNCTION in_the_way(tries bigint) RETURNS bigint LANGUAGE plpgsql AS $$"
            f" BEGIN IF nextval('asked') < tries THEN RAISE EXCEPTION 'no' USING ERRCODE = '{state}'; END IF;"
            " RETURN 7; END $$"
        )
    schema = server_of(url).namespace
    searched = with_setting(url, "search_path", schema)
    assert PostgresStore(searched, wait_seconds=20).ask("SELECT {schema}.in_the_way(3)") == [("7",)]
    with pytest.raises(StoreUnavailable, match="another transaction was faster: no"):
        PostgresStore(searched, wait_seconds=0.2).ask("SELECT {schema}.in_the_way(1000000)")


def test_what_was_answered_is_on_disk_even_where_the_role_does_not_wait_for_it(url):
    careless = with_setting(url, "synchronous_commit", "off")
    ledger = ledger_over(PostgresStore(careless, wait_seconds=20))
    assert ledger.store.ask("SHOW synchronous_commit") == [("off",)]
    with admin(url) as connection:
        flushed = "SELECT pg_current_wal_flush_lsn() >= %s::pg_lsn"
        for day in range(20):
            ledger.finish(claim(ledger, day), verdict())
            inserted = connection.execute("SELECT pg_current_wal_insert_lsn()").fetchone()[0]
            # What came in between is the server's own; the commit's record is what must have been flushed.
            assert connection.execute(flushed, (inserted,)).fetchone()[0] or _only_housekeeping(connection, inserted)


def _only_housekeeping(connection: psycopg.Connection, lsn: str) -> bool:
    time.sleep(0.05)
    return connection.execute("SELECT pg_current_wal_flush_lsn() + 8192 >= %s::pg_lsn", (lsn,)).fetchone()[0]


# --- duplicates -----------------------------------------------------------------------------------------------------


def test_a_duplicate_that_records_no_skip_writes_no_wal(own):
    address = own.url("quiet")
    site_of(address, wait_seconds=20).create(LEDGER)
    ledger = ledger_over(PostgresStore(address, wait_seconds=20))
    ledger.finish(claim(ledger), verdict())
    with admin(address) as connection:
        connection.execute("ALTER TABLE runs SET (autovacuum_enabled = off)")
        connection.execute("VACUUM")
        connection.execute("CHECKPOINT")
        ledger.claim(ask(record_skip=False))  # hints are set once, by whoever reads first
        before = _written(connection)
        for _ in range(200):
            assert ledger.claim(ask(record_skip=False)).reason == "done"
        assert (
            _written(connection) - before < 1024
        )  # a snapshot of running transactions, at most: no record a duplicate


def _written(connection: psycopg.Connection) -> int:
    return int(connection.execute("SELECT pg_current_wal_insert_lsn() - '0/0'::pg_lsn").fetchone()[0])


# --- locks ----------------------------------------------------------------------------------------------------------


def test_a_row_that_somebody_holds_is_waited_for_no_longer_than_it_says(url):
    ledger = ledger_over(PostgresStore(url, wait_seconds=1))
    with admin(url) as connection, connection.transaction():
        connection.execute("SELECT * FROM jobs FOR UPDATE")
        before = time.monotonic()
        with pytest.raises(StoreUnavailable, match="locked by another transaction"):
            ledger.claim(ask())
        assert time.monotonic() - before < 10
    assert ledger.store.runs("job", START, START + 1) == []  # nor was it written later, when the row was free
    assert isinstance(ledger.claim(ask()), Claim)


def test_a_stopped_server_is_waited_for_no_longer_than_it_says(own):
    address = own.url("frozen")
    site_of(address, wait_seconds=20).create(LEDGER)
    ledger = ledger_over(PostgresStore(address, wait_seconds=1))
    with admin(address) as connection:
        backends = [pid for (pid,) in connection.execute("SELECT pid FROM pg_stat_activity WHERE pid IS NOT NULL")]
    processes = [own.process.pid, *backends]
    for pid in processes:
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signal.SIGSTOP)
    try:
        before = time.monotonic()
        with pytest.raises(StoreUnavailable, match="could not be reached in time"):
            ledger.claim(ask())
        assert time.monotonic() - before < 15
    finally:
        for pid in processes:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGCONT)
    assert isinstance(ledger_over(PostgresStore(address, wait_seconds=20)).claim(ask()), Claim)


# --- sessions that end ----------------------------------------------------------------------------------------------


def test_a_session_that_ended_between_two_statements_is_begun_anew(url, store):
    ledger = ledger_over(store)
    held = claim(ledger)
    with admin(url) as connection:
        connection.execute(
            "SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE application_name = 'ranonce'"
            " AND pid <> pg_backend_pid()"
        )
    assert ledger.finish(held, verdict()) is None
    [run] = store.runs("job", START, START + 1)
    assert run.status == "done"


def test_a_server_that_restarts_is_waited_for(own):
    address = own.url("patient")
    site_of(address, wait_seconds=20).create(LEDGER)
    ledger = ledger_over(PostgresStore(address, wait_seconds=20))
    held = claim(ledger)
    own.stop(signal.SIGKILL)
    answers: list[object] = []
    waiting = threading.Thread(target=lambda: answers.append(ledger.finish(held, verdict())))
    waiting.start()
    time.sleep(0.3)  # it has been refused at least once
    own.start()
    waiting.join(20)
    assert answers == [None]


def test_a_forked_child_leaves_its_parents_connection_alone(store):
    ledger = ledger_over(store)
    held = claim(ledger)
    child = os.fork()
    if child == 0:
        os._exit(0)
    assert os.waitpid(child, 0)[1] == 0
    assert ledger.finish(held, verdict()) is None


# --- which ledger it is ---------------------------------------------------------------------------------------------


def test_a_schema_that_is_dropped_under_our_hands_is_no_ledger(url, store):
    ledger = ledger_over(store)
    held = claim(ledger)
    with admin(url) as connection:
        connection.execute(f"DROP SCHEMA {store.schema} CASCADE")
    with pytest.raises(NotThisLedger, match="no whole ledger"):
        ledger.finish(held, verdict())
    with pytest.raises(NotThisLedger, match="no whole ledger"):
        PostgresStore(url, wait_seconds=20)


def test_another_ledger_that_took_the_schemas_place_is_never_written(url, store):
    ledger = ledger_over(store)
    held = claim(ledger)
    with admin(url) as connection:
        connection.execute("UPDATE ledger SET id = %s", ("f" * 32,))
    with pytest.raises(NotThisLedger, match="another ledger"):
        ledger.finish(held, verdict())
    with admin(url) as connection:
        assert connection.execute("SELECT status FROM runs").fetchall() == [("running",)]


@pytest.mark.parametrize("record_skip", [True, False])
def test_what_another_ledger_that_took_the_schemas_place_has_done_is_not_done_here(url, store, record_skip):
    ledger = ledger_over(store)
    ledger.finish(claim(ledger), verdict())  # as the other one would tell it, behind the same pooler
    with admin(url) as connection:
        connection.execute("UPDATE ledger SET id = %s", ("f" * 32,))
        for _ in range(2):
            with pytest.raises(NotThisLedger, match="holds another ledger now"):
                ledger.claim(ask(record_skip=record_skip))
        connection.execute("DELETE FROM ledger")
        with pytest.raises(NotThisLedger, match="has lost its identity"):
            ledger.claim(ask(record_skip=record_skip))


def test_staging_and_production_are_apart_in_one_database(postgres, url):
    other = postgres.url(f"t{os.urandom(6).hex()}")
    site_of(other, wait_seconds=20).create("f" * 32)
    first, second = (ledger_over(PostgresStore(address, wait_seconds=20)) for address in (url, other))
    claim(first)
    claim(second)
    assert first.store.identity().ledger != second.store.identity().ledger


def test_a_schema_that_holds_something_is_not_taken(postgres, url):
    with admin(url) as connection:
        connection.execute("CREATE SCHEMA somebodys CREATE TABLE payments (id int)")
    site = site_of(postgres.url("somebodys"), wait_seconds=20)
    assert site.stands()
    with pytest.raises(NotThisLedger, match="holds something already"):
        site.create(LEDGER)
    with pytest.raises(NotThisLedger, match="no whole ledger"):
        open_store(postgres.url("somebodys"), wait_seconds=20)


def test_only_a_scratch_schema_is_ever_dropped(url):
    with pytest.raises(Exception, match="no scratch ledger"):
        site_of(url, wait_seconds=20).destroy()
    scratch = site_of(site_of(url, wait_seconds=20).scratch("abc"), wait_seconds=20)
    scratch.create(LEDGER)
    scratch.destroy()
    assert not scratch.stands()


# --- events ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "statement",
    [
        "UPDATE events SET event = 'done'",
        "DELETE FROM events",
        "TRUNCATE events",
        "INSERT INTO events SELECT * FROM events ON CONFLICT (seq) DO UPDATE SET event = 'done'",
        "MERGE INTO events e USING events f ON e.seq = f.seq WHEN MATCHED THEN DELETE",
    ],
)
def test_even_their_owner_cannot_change_events(url, store, statement):
    claim(ledger_over(store))
    with admin(url) as connection, pytest.raises(psycopg.Error, match="append-only"):
        connection.execute(statement)
    assert [event.event for event in store.events("job", START, START + 1)] == ["start"]


# --- mistakes -------------------------------------------------------------------------------------------------------


def test_without_the_driver_it_is_said_what_to_install(url):
    program = (
        "import sys; sys.modules['psycopg'] = None\n"
        "from ranonce.errors import ConfigError\n"
        "from ranonce.stores import open_store\n"
        "try:\n    open_store(sys.argv[1], wait_seconds=1)\n"
        "except ConfigError as error:\n    print(error)\n"
    )
    said = subprocess.run([sys.executable, "-c", program, url], capture_output=True, text=True)
    assert "pip install 'ranonce[postgres]'" in said.stdout, said


def test_a_driver_that_cannot_be_loaded_says_why(url, tmp_path):
    (tmp_path / "psycopg.py").write_text("raise ImportError('no pq wrapper available.\\n- libpq.so is missing')\n")
    program = "import sys; from ranonce.stores import open_store; open_store(sys.argv[1], wait_seconds=1)"
    env = {**os.environ, "PYTHONPATH": str(tmp_path)}
    said = subprocess.run([sys.executable, "-c", program, url], capture_output=True, text=True, env=env)
    assert "psycopg 3, which cannot be loaded here: no pq wrapper available. - libpq.so is missing." in said.stderr


@pytest.mark.parametrize(
    ("change", "said"),
    [
        (lambda url: url.replace("/postgres?", "/nowhere?"), 'database "nowhere" does not exist'),
        (lambda url: url.replace("//postgres@", "//nobody@"), 'role "nobody" does not exist'),
        (lambda url: url.replace("?", "?colour=green&"), "not an address of PostgreSQL"),
        (lambda url: url.replace("?", "?sslmode=require&"), "does not support SSL"),
        (lambda url: url.replace("?", "?sslmode=verify-ful&"), 'invalid sslmode value: "verify-ful"'),
        (lambda url: url.replace("?", "?target_session_attrs=rw&"), "invalid target_session_attrs value"),
        (lambda url: url.replace("?", "?ssl_min_protocol_version=9&"), 'invalid "ssl_min_protocol_version" value'),
        (lambda url: url.replace("?", "?keepalives_idle=x&"), "invalid integer value"),
        (lambda url: re.sub(r":[0-9]+/", ":99999/", url), "invalid port number"),
    ],
)
def test_an_address_that_will_never_do_is_refused_at_once(url, change, said):
    before = time.monotonic()
    with pytest.raises(ConfigError, match=said):
        open_store(change(url), wait_seconds=20)
    assert time.monotonic() - before < 10


def test_a_server_that_is_not_there_is_unavailable(url, postgres):
    with pytest.raises(StoreUnavailable, match=r"could not be reached in time: .*Connection refused\.") as refused:
        open_store(url.replace(str(postgres.port), "1"), wait_seconds=0.2)
    assert "?" not in refused.value.sentence.replace(masked(url.replace(str(postgres.port), "1")), "")


def test_a_read_only_server_is_named(url):
    ledger = ledger_over(PostgresStore(url, wait_seconds=20))
    standby = PostgresStore(with_setting(url, "default_transaction_read_only", "on"), wait_seconds=0.3)
    with pytest.raises(StoreUnavailable, match="read-only"):
        OpenLedger(standby, folder=None, wait_seconds=0.3).claim(ask())
    assert isinstance(ledger.claim(ask()), Claim)


def test_what_somebodys_own_trigger_refuses_is_no_damage(url):
    ledger = ledger_over(PostgresStore(url, wait_seconds=20))
    with admin(url) as connection:
        connection.execute(
            "CREATE FUNCTION not_now() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN RAISE EXCEPTION 'not now'; END $$"
        )
        connection.execute("CREATE TRIGGER audit BEFORE INSERT ON runs FOR EACH ROW EXECUTE FUNCTION not_now()")
    with pytest.raises(ConfigError, match="refused this: not now") as refused:
        ledger.claim(ask())
    assert "accept-loss" not in str(refused.value)


def test_no_password_is_in_any_message(url):
    secret = url.replace("//postgres@", "//nobody:hunter2@")
    with pytest.raises(ConfigError) as refused:
        open_store(secret, wait_seconds=1)
    assert "hunter2" not in str(refused.value)
