"""What is particular to messages and steps in PostgreSQL: locks, poolers, isolation, restarts, rights, older tables."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
import threading
import time
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import psycopg
import pytest

from ranonce import lifecycle
from ranonce import messages as rules
from ranonce.errors import ConfigError, NotThisLedger, RanonceError, StoreUnavailable
from ranonce.ledger import OpenLedger
from ranonce.lifecycle import Claim, Policy
from ranonce.messages import JOB, Closing
from ranonce.stores import site_of
from ranonce.stores.base import Wanted
from ranonce.stores.postgres import store as store_module
from ranonce.stores.postgres.outbox import Bodies, told_messages
from ranonce.stores.postgres.store import FORMAT, PostgresStore
from ranonce.storeurl import server_of
from tests.behind import postgres_behind
from tests.conftest import wait_until
from tests.contract.acting import ask, claim, ledger_over, verdict
from tests.contract.emitting import DEDUPING, ROUTE, emit, mark, message, settled, state, states, step, take
from tests.contract.stores import LEDGER
from tests.losses import without_identity
from tests.roles import as_role, role
from tests.servers import PgBouncer, PostgresServer, private_folder, started
from tests.test_postgres import admin, own, url, with_setting

__all__ = ["own", "url"]  # fixtures

HERE = Path(__file__).parent
SERIALIZABLE = ("default_transaction_isolation", "serializable")


@pytest.fixture
def ledger(url: str) -> OpenLedger:
    return ledger_over(PostgresStore(url, wait_seconds=20))


@pytest.fixture
def db(url: str) -> Iterator[psycopg.Connection]:
    """A connection of somebody's, whose transaction stays open until it is committed."""
    with contextlib.closing(psycopg.connect(server_of(url).address)) as connection:
        yield connection


def keeper(url: str, way: str, number: int, times: int = 1, **how: object) -> subprocess.Popen[str]:
    command = [sys.executable, "-m", "tests.programs.outbox_keeper", url, way, str(number), str(times)]
    return subprocess.Popen(command, text=True, **how)


def waits_for_a_lock(url: str) -> bool:
    with admin(url) as connection:
        asked = "SELECT count(*) FROM pg_locks WHERE NOT granted"
        return connection.execute(asked).fetchone()[0] > 0


# --- locks ----------------------------------------------------------------------------------------------------------


def test_many_that_emit_take_prune_import_and_resolve_at_once_never_wait_for_each_other(own):
    url = own.url("busy")
    site_of(url, wait_seconds=20).create(LEDGER)
    for name in ("a", "b", "c"):
        ledger_over(PostgresStore(url, wait_seconds=20), name)
    ways = [*["emit"] * 8, *["take"] * 8, "prune", "bring", "say"]
    processes = [keeper(url, way, number, 12) for number, way in enumerate(ways)]
    assert [process.wait(240) for process in processes] == [0] * len(ways)
    log = (own.folder / "log").read_text()
    assert "deadlock" not in log
    lost = ("a message of this key is there already", "a lease was renewed meanwhile")
    assert [line for line in log.splitlines() if "ERROR" in line and not any(words in line for words in lost)] == []
    store = PostgresStore(url, wait_seconds=20)
    assert store.upkeep().problems(deep=True) == []
    keys = [known.key for known in store.outbox().messages(Wanted(), limit=10_000)]
    assert len(keys) == len(set(keys)) > 100


def test_one_that_settles_keeps_nobody_from_taking(url, ledger, db):
    emit(ledger, 0, "a")
    [had] = take(ledger.store)
    emit(ledger, 1, "b")
    outbox = ledger.store.inside(db).outbox()
    assert outbox.exchange("web", [settled(ledger.store, had)]).moved == {had.key}  # and is not committed yet
    impatient = PostgresStore(url, wait_seconds=0.5)
    assert [one.key for one in take(impatient)] == ["job:2025-11-11/web/b"]
    db.commit()
    assert state(ledger.store, had.key) == "sent"


def test_one_that_takes_keeps_nobody_from_settling(url, ledger, db):
    emit(ledger, 0, "a")
    [had] = take(ledger.store)
    emit(ledger, 1, "b")
    inside = ledger.store.inside(db)
    asked = rules.take(ledger.store.outbox().queue("web", 9), ROUTE, "other", 9)
    assert inside.outbox().exchange("web", take=asked).taken  # and is not committed yet
    impatient = PostgresStore(url, wait_seconds=0.5)
    assert impatient.outbox().exchange("web", [settled(impatient, had)]).moved == {had.key}


def test_a_message_that_somebody_has_locked_is_not_waited_for_by_a_take(url, ledger, db):
    emit(ledger, 0, "a", "b")
    [first, _] = ledger.store.outbox().queue("web", 9).due
    said = rules.resolve(first, "dropped", "looked", ledger.store.clock().wall)
    assert ledger.store.inside(db).outbox().exchange("web", [said]).moved == {first.key}
    assert take(PostgresStore(url, wait_seconds=0.5)) == []
    db.rollback()
    assert len(take(ledger.store)) == 2


LATER = [chr(letter) for letter in range(ord("n"), ord("z"))]


def test_messages_are_written_in_the_order_of_their_keys_whatever_the_order_of_their_emission(url, ledger, db):
    held = [claim(ledger, day, policy=Policy(overlap="allow")) for day in range(3)]

    def told(number: int, *keys: str) -> lifecycle.Decision:
        those = [message(ledger, held[number], key, scope=JOB) for key in keys]
        return lifecycle.mark(held[number], step(ledger, held[number], "item"), those, {})

    assert ledger.store.inside(db).commit(told(0, "m"), held[0].key, -1) is not None  # and is not committed yet
    waiting_store, answers = PostgresStore(url, wait_seconds=20), []
    decision = told(1, *LATER, "m", "a")
    waiting = threading.Thread(target=lambda: answers.append(waiting_store.commit(decision, held[1].key, -1)))
    waiting.start()
    wait_until(lambda: waits_for_a_lock(url))
    impatient = PostgresStore(url, wait_seconds=1)
    assert impatient.commit(told(2, *LATER), held[2].key, -1) is not None
    db.commit()
    waiting.join(20)
    assert answers == [None]


def test_messages_are_locked_in_the_order_of_their_keys_whatever_the_order_of_the_moves(url, ledger, db):
    emit(ledger, 0, *LATER, "m", "a")
    taken = take(ledger.store)
    moves = {one.key[-1]: settled(ledger.store, one) for one in taken}
    assert len(ledger.store.inside(db).outbox().exchange("web", [moves["m"]]).moved) == 1  # and is not committed yet
    waiting_store, answers = PostgresStore(url, wait_seconds=20), []
    asked = [moves[key] for key in (*LATER, "m", "a")]
    waiting = threading.Thread(target=lambda: answers.append(waiting_store.outbox().exchange("web", asked).moved))
    waiting.start()
    wait_until(lambda: waits_for_a_lock(url))
    impatient = PostgresStore(url, wait_seconds=1)
    assert len(impatient.outbox().exchange("web", [moves[key] for key in LATER]).moved) == len(LATER)
    db.commit()
    waiting.join(20)
    assert answers == [{moves["a"].was.key}]


def test_a_wait_for_a_message_that_is_locked_has_an_end(url, ledger, db):
    emit(ledger, 0, "a")
    [had] = take(ledger.store)
    move = settled(ledger.store, had)
    ledger.store.inside(db).outbox().exchange("web", [move])
    began = time.monotonic()
    with pytest.raises(StoreUnavailable, match="locked by another transaction"):
        PostgresStore(url, wait_seconds=0.3).outbox().exchange("web", [move])
    assert time.monotonic() - began < 5


def test_a_take_over_waits_for_a_mark_that_is_being_committed(url, ledger, db):
    held = claim(ledger, 0)
    ledger.store.ask("UPDATE {schema}.leases SET expires = 0, seen_at = seen_at - 1000")
    marked = lifecycle.mark(held, step(ledger, held, "item"), [message(ledger, held, "a")], {})
    assert ledger.store.inside(db).commit(marked, held.key, -1) is not None  # and is not committed yet
    answers: list[object] = []
    other = OpenLedger(PostgresStore(url, wait_seconds=20), folder=None, wait_seconds=20)
    taking_over = threading.Thread(target=lambda: answers.append(other.claim(ask(0))))
    taking_over.start()
    wait_until(lambda: waits_for_a_lock(url))
    assert answers == []
    db.commit()
    taking_over.join(20)
    [answer] = answers
    assert isinstance(answer, Claim)
    assert answer.attempt == 2
    assert ledger.store.steps(held.key, held.window.start, 1) == ["item"]
    assert states(ledger.store) == ["pending"]


def test_a_mark_waits_for_a_take_over_that_is_being_committed_and_is_refused(url, ledger, db):
    held = claim(ledger, 0)
    ledger.store.ask("UPDATE {schema}.leases SET expires = 0, seen_at = seen_at - 1000")
    schema = server_of(url).namespace
    db.execute(f"UPDATE {schema}.runs SET attempt = 2, owner = 'other'")
    answers: list[object] = []
    marking = threading.Thread(target=lambda: answers.append(mark(ledger, held, "item", message(ledger, held, "a"))))
    marking.start()
    wait_until(lambda: waits_for_a_lock(url))
    db.commit()
    marking.join(20)
    assert answers[0].reason == "lost"
    assert states(ledger.store) == []


def test_marks_of_one_run_do_not_wait_for_each_other(url, ledger, db):
    held = claim(ledger, 0)
    marked = lifecycle.mark(held, step(ledger, held, "one"), [], {})
    assert ledger.store.inside(db).commit(marked, held.key, -1) is not None  # and is not committed yet
    impatient = OpenLedger(PostgresStore(url, wait_seconds=0.5), folder=None, wait_seconds=0.5)
    assert mark(impatient, held, "two") is None


# --- poolers and isolation ------------------------------------------------------------------------------------------


def taken_by_threads(url: str, count: int, emitted: int) -> Counter[str]:
    """Let threads take and settle until nothing is due; return how often each key was taken."""
    taken: Counter[str] = Counter()
    trouble: list[BaseException] = []

    def work(number: int) -> None:
        try:
            store = PostgresStore(url, wait_seconds=30)
            while store.outbox().queue("web", 1).due:
                mine = take(store, 7, route=DEDUPING, sender=str(number))
                taken.update(one.key for one in mine)
                moves = [move for one in mine if (move := settled(store, one, route=DEDUPING))]
                assert len(store.outbox().exchange("web", moves).moved) == len(mine)
        except BaseException as error:
            trouble.append(error)
            raise

    threads = [threading.Thread(target=work, args=(number,)) for number in range(count)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(90)
    assert trouble == []
    assert states(PostgresStore(url, wait_seconds=20)) == ["sent"] * min(emitted, 100)
    return taken


def test_behind_a_pooler_that_changes_sessions_each_message_is_taken_once(postgres, url, tmp_path):
    for pooler in started(lambda: PgBouncer(private_folder(tmp_path / "pooler"), postgres)):
        pooled = postgres.url(server_of(url).namespace, port=pooler.port)
        ledger = ledger_over(PostgresStore(pooled, wait_seconds=20))
        emit(ledger, 0, *map(str, range(100)))
        assert taken_by_threads(pooled, 4, 100) == {f"job:2025-11-10/web/{number}": 1 for number in range(100)}


def test_a_role_whose_transactions_are_serializable_takes_each_message_once(url, ledger):
    strict = with_setting(url, *SERIALIZABLE)
    emit(ledger_over(PostgresStore(strict, wait_seconds=20)), 0, *map(str, range(60)))
    assert taken_by_threads(strict, 4, 60) == {f"job:2025-11-10/web/{number}": 1 for number in range(60)}


def test_runs_of_a_serializable_role_that_emit_the_same_keys_at_once_emit_each_once(url, ledger):
    strict = with_setting(url, *SERIALIZABLE)
    ready, answers = threading.Barrier(4), []

    def work(day: int) -> None:
        mine = OpenLedger(PostgresStore(strict, wait_seconds=20), folder=None, wait_seconds=20)
        held = claim(mine, day, policy=Policy(overlap="allow"))
        told = tuple(
            message(mine, held, str(key), scope=JOB) for key in sorted(range(30), key=lambda key: key * day % 31)
        )
        ready.wait(20)
        answers.append(mine.finish(held, verdict(messages=told)))

    threads = [threading.Thread(target=work, args=(day,)) for day in range(1, 5)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    assert answers == [None] * 4
    assert sorted(one.key for one in ledger.store.outbox().messages(Wanted())) == sorted(
        f"job/web/{key}" for key in range(30)
    )


# --- a server that fails --------------------------------------------------------------------------------------------


def test_a_server_that_fails_while_deliverers_work_makes_nothing_be_sent_twice_and_loses_nothing(own, tmp_path):
    url = own.url("failing")
    site_of(url, wait_seconds=20).create(LEDGER)
    ledger = ledger_over(PostgresStore(url, wait_seconds=20))
    keys = {emit(ledger, day, *map(str, range(150))).key.window: range(150) for day in range(3)}
    files = [tmp_path / f"sent-{number}" for number in range(4)]
    processes = []
    for number, file in enumerate(files):
        with file.open("w") as out:
            processes.append(keeper(url, "deliver", number, stdout=out))

    def sent() -> list[str]:
        return [line for file in files for line in file.read_text().splitlines()]

    for much in (30, 150, 300):
        wait_until(lambda much=much: len(sent()) > much)
        own.stop(signal.SIGKILL)
        own.start()
    assert [process.wait(120) for process in processes] == [0] * 4
    expected = [f"job:{window}/web/{number}" for window, numbers in keys.items() for number in numbers]
    assert sorted(sent()) == sorted(expected)
    counted = PostgresStore(url, wait_seconds=20).ask("SELECT state, count(*) FROM {schema}.outbox GROUP BY 1")
    assert counted == [("sent", "450")]


# --- bodies ---------------------------------------------------------------------------------------------------------


def test_what_is_written_with_each_step_of_a_messages_way_is_small_whatever_it_says(url, ledger):
    held, body = claim(ledger, 0), os.urandom(1024)
    mark(ledger, held, "item", message(ledger, held, "a").replace(body=body))
    [had] = take(ledger.store)
    assert had.body == body
    with admin(url) as connection:
        asked = "SELECT pg_column_size(o.*) < 1024, body FROM outbox AS o JOIN bodies USING (seq)"
        assert connection.execute(asked).fetchall() == [(True, body)]


def test_of_messages_that_are_brought_only_those_that_were_not_there_leave_a_body(url, ledger):
    emit(ledger, 0, "a")
    [known] = ledger.store.outbox().messages(Wanted())
    known = ledger.store.outbox().message(known.seq)
    more = [known.replace(key=f"job:2000-01-0{number}/web/b") for number in (1, 2)]
    bodies = Bodies()
    told = told_messages([more[0], known.replace(body=b"other"), more[1].replace(body=b"more")], bodies)
    with admin(url) as connection:
        connection.execute("SELECT take_in_messages(NULL, %s, %s)", (told, bodies.all()))
        found = connection.execute("SELECT key, body FROM outbox FULL JOIN bodies USING (seq) ORDER BY seq").fetchall()
    assert found == [(known.key, known.body), (more[0].key, known.body), (more[1].key, b"more")]


# --- what nobody changes --------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "statement",
    [
        "UPDATE outbox SET key = 'other'",
        "UPDATE outbox SET digest = repeat('0', 64)",
        "UPDATE outbox SET destination = 'mail'",
        "UPDATE outbox SET window_start = 0",
        "DELETE FROM outbox",
        "TRUNCATE outbox",
        "UPDATE bodies SET body = 'other'",
        "UPDATE bodies SET seq = seq + 1",
        "DELETE FROM bodies",  # of one that waits
        "TRUNCATE bodies",
        "INSERT INTO bodies SELECT seq, 'other' FROM bodies ON CONFLICT (seq) DO UPDATE SET body = excluded.body",
        "UPDATE steps SET result = 'other'",
        "INSERT INTO outbox SELECT * FROM outbox",
    ],
)
def test_what_a_message_or_a_step_is_cannot_be_changed(url, ledger, statement):
    held = claim(ledger, 0)
    mark(ledger, held, "item", message(ledger, held, "a"), result=b"7")
    with admin(url) as connection:
        before = connection.execute("SELECT * FROM outbox, bodies, steps").fetchall()
        with pytest.raises((psycopg.errors.RaiseException, psycopg.errors.UniqueViolation)):
            connection.execute(statement)
        assert len(before) == 1
        assert connection.execute("SELECT * FROM outbox, bodies, steps").fetchall() == before


def test_a_body_that_is_not_waited_for_is_removed_and_not_changed(url, ledger):
    emit(ledger, 0)
    with admin(url) as connection:
        connection.execute("UPDATE outbox SET state = 'sent'")
        with pytest.raises(psycopg.errors.RaiseException, match="a body is not changed"):
            connection.execute("UPDATE bodies SET body = 'other'")
        connection.execute("DELETE FROM bodies")
    [known] = ledger.store.outbox().messages(Wanted())
    assert ledger.store.outbox().message(known.seq).body is None
    assert ledger.store.upkeep().problems(deep=True) == []


def test_the_body_of_a_message_that_is_removed_goes_with_it_and_no_other(url, ledger):
    for number, key in enumerate("ab"):
        emit(ledger, number, key)
    with admin(url) as connection:
        connection.execute("UPDATE outbox SET state = 'dropped' WHERE seq = 1")
        connection.execute("DELETE FROM outbox WHERE seq = 1")
        assert connection.execute("SELECT seq FROM bodies").fetchall() == [(2,)]


@pytest.mark.parametrize(
    ("damage", "found"),
    [
        ("DELETE FROM bodies", "the message 1 waits, and has lost its body: it cannot be sent"),
        ("UPDATE bodies SET body = 'other'", "the message 1 has another body than was emitted"),
        ("UPDATE outbox SET state = 'sending'", "the message 1 is sending, and no deliverer has it"),
        ("SELECT setval('outbox_seq_seq', 1, false)", "the next messages would get numbers that are taken, from 0 on"),
        (
            "ALTER TABLE outbox DISABLE TRIGGER messages_are_not_lost",
            "the trigger messages_are_not_lost, which keeps messages from being changed, is switched off",
        ),
        (
            "DROP TRIGGER bodies_are_not_changed ON bodies",
            "the trigger bodies_are_not_changed, which keeps bodies from being changed, is missing",
        ),
        ("DROP TRIGGER steps_are_not_changed ON steps", None),
        ("DROP INDEX outbox_keys", "the index outbox_keys is missing"),
        ("DROP FUNCTION queue_at", "the function queue_at is missing"),
    ],
)
def test_what_is_wrong_with_messages_is_said(url, ledger, damage, found):
    emit(ledger, 0)
    with admin(url) as connection:
        connection.execute("SET session_replication_role = replica")
        connection.execute(damage)
    said = "the trigger steps_are_not_changed, which keeps steps from being changed, is missing"
    assert ledger.store.upkeep().problems(deep=True) == [found or said]


# --- older tables ---------------------------------------------------------------------------------------------------


@pytest.fixture
def older(postgres: PostgresServer) -> str:
    """The address of a ledger whose tables are of format 1."""
    url = postgres.url(f"t{os.urandom(6).hex()}")
    schema = server_of(url).namespace
    script = (HERE / "data" / "postgres_format_1.sql").read_text().replace("{schema}", f'"{schema}"')
    with psycopg.connect(server_of(url).address, autocommit=True) as connection:
        connection.execute(f"CREATE SCHEMA {schema}")
        connection.execute(script)
        connection.execute(f"INSERT INTO {schema}.ledger VALUES (1, '{LEDGER}', 1, now(), 1, NULL)")
    return url


@pytest.fixture
def earlier(older, monkeypatch) -> OpenLedger:
    """That ledger as an older version has it open."""
    with monkeypatch.context() as patch:
        patch.setattr(store_module, "FORMAT", 1)
        return ledger_over(PostgresStore(older, wait_seconds=20))


def test_an_older_ledger_runs_nothing_until_it_is_brought_up_to_date(older):
    with pytest.raises(NotThisLedger, match="has table format 1") as refused:
        PostgresStore(older, wait_seconds=20)
    assert refused.value.next_step == "Bring it up to date: ranonce init"
    with site_of(older, wait_seconds=20).recovery() as recovery, pytest.raises(NotThisLedger, match="table format 1"):
        recovery.broken()


def test_an_older_ledger_is_brought_up_to_date_and_has_all_it_had(older, earlier):
    earlier.finish(claim(earlier, 0), verdict())
    site = site_of(older, wait_seconds=20)
    assert site.upgrade(LEDGER)
    assert not site.upgrade(LEDGER)
    ledger = ledger_over(PostgresStore(older, wait_seconds=20))
    assert ledger.claim(ask(0)).reason == "done"
    emit(ledger, 1, "a")
    assert len(take(ledger.store)) == 1
    assert ledger.store.upkeep().problems(deep=True) == []


def test_its_tables_are_then_those_of_a_new_one(older, url):
    site_of(older, wait_seconds=20).upgrade(LEDGER)
    asked = """
    SELECT 'column', table_name || '.' || column_name, data_type || is_nullable || coalesce(is_identity, '')
    FROM information_schema.columns WHERE table_schema = %(schema)s
    UNION ALL SELECT 'index', indexname, replace(indexdef, %(schema)s, '') FROM pg_indexes WHERE schemaname = %(schema)s
    UNION ALL SELECT 'trigger', tgname, replace(pg_get_triggerdef(t.oid), %(schema)s, '') FROM pg_trigger AS t
    JOIN pg_class AS c ON c.oid = tgrelid WHERE relnamespace = %(schema)s::regnamespace AND NOT tgisinternal
    UNION ALL SELECT 'function', replace(p.oid::regprocedure::text, %(schema)s, ''), replace(prosrc, %(schema)s, '')
    FROM pg_proc AS p WHERE pronamespace = %(schema)s::regnamespace ORDER BY 1, 2, 3"""
    found = []
    for each in (older, url):
        with psycopg.connect(server_of(each).address) as connection:
            found.append(connection.execute(asked, {"schema": server_of(each).namespace}).fetchall())
    assert found[0] == found[1]


def test_what_an_older_version_has_begun_it_ends_in_the_new_tables(older, earlier):
    held = claim(earlier, 0)
    assert site_of(older, wait_seconds=20).upgrade(LEDGER)
    assert earlier.renew(held, "forbid") is None
    assert earlier.finish(held, verdict()) is None


def test_many_that_bring_it_up_to_date_at_once_do_it_once(older):
    trouble: list[BaseException] = []

    def work() -> None:
        try:
            site_of(older, wait_seconds=20).upgrade(LEDGER)
        except RanonceError as error:
            trouble.append(error)

    threads = [threading.Thread(target=work) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    assert trouble == []
    assert PostgresStore(older, wait_seconds=20).upkeep().problems(deep=True) == []


def test_it_waits_for_a_pruning_that_is_being_committed_and_the_pruning_not_for_it(older):
    schema, done = server_of(older).namespace, []
    with contextlib.closing(psycopg.connect(server_of(older).address)) as pruning:
        pruning.execute(f"LOCK TABLE {schema}.events IN ROW EXCLUSIVE MODE")
        upgrading = threading.Thread(target=lambda: done.append(site_of(older, wait_seconds=20).upgrade(LEDGER)))
        upgrading.start()
        wait_until(lambda: waits_for_a_lock(older))
        pruning.execute("SET lock_timeout = 500")
        pruning.execute(f"UPDATE {schema}.ledger SET pruned_seq = 7")
        assert done == []
        pruning.commit()
        upgrading.join(20)
    assert done == [True]
    assert PostgresStore(older, wait_seconds=20).upkeep().pruned_seq() == 7


def test_who_ran_jobs_and_who_looked_may_do_so_with_messages_after_it(older):
    schema, names = server_of(older).namespace, [f"{what}_{os.urandom(4).hex()}" for what in ("jobs", "reader")]
    jobs, reader = names
    with admin(older) as connection:
        for name in names:
            connection.execute(f"CREATE ROLE {name} LOGIN; GRANT USAGE ON SCHEMA {schema} TO {name}")
            connection.execute(f"GRANT SELECT ON ALL TABLES IN SCHEMA {schema} TO {name}")
        connection.execute(f"GRANT INSERT ON events, schedules TO {jobs}")
        connection.execute(f"GRANT INSERT, UPDATE ON jobs, runs, gates TO {jobs}")
        connection.execute(f"GRANT INSERT, UPDATE, DELETE ON leases TO {jobs}")
        try:
            site_of(older, wait_seconds=20).upgrade(LEDGER)
            ledger = ledger_over(PostgresStore(older.replace("postgres@", f"{jobs}@"), wait_seconds=20))
            held = claim(ledger, 0)
            assert mark(ledger, held, "item", message(ledger, held, "a")) is None
            [had] = take(ledger.store)
            looking = PostgresStore(older.replace("postgres@", f"{reader}@"), wait_seconds=20)
            assert looking.outbox().queue("web", 1).sending[0].key == had.key
            assert looking.steps(held.key, held.window.start, 1) == ["item"]
            with pytest.raises(ConfigError, match="does not permit this"):
                looking.outbox().exchange("web", [settled(looking, had)])
        finally:
            connection.execute("".join(f"DROP OWNED BY {name}; DROP ROLE {name};" for name in names))


def test_a_server_of_the_next_format_is_not_touched(url):
    with admin(url) as connection:
        connection.execute(f"UPDATE ledger SET format = {FORMAT + 1}")
    assert not site_of(url, wait_seconds=20).upgrade(LEDGER)
    with pytest.raises(NotThisLedger, match="Use the version that wrote it"):
        PostgresStore(url, wait_seconds=20)


# --- rights ---------------------------------------------------------------------------------------------------------


@pytest.fixture
def store_kind():
    return "postgres"


def test_a_role_without_the_rights_is_told_so_in_one_sentence(world):
    world.run(now="2026-11-08T12:00:00Z")
    schema = server_of(world.url).namespace
    with role(world, "job") as name, postgres_behind(world) as db:
        db.execute(f'GRANT USAGE ON SCHEMA "{schema}" TO "{name}"')
        db.execute(f'GRANT SELECT, INSERT, UPDATE, DELETE ON ALL TABLES IN SCHEMA "{schema}" TO "{name}"')
        db.execute(f'REVOKE ALL ON outbox, bodies, destinations, steps FROM "{name}"')
        env = as_role(world, name)
        assert world.run(env=env).said() == (0, "done", None)  # which emits nothing
        ledger = OpenLedger(PostgresStore(env["RANONCE_STORE"], wait_seconds=20), folder=None, wait_seconds=20)
        held = claim(ledger_over(ledger.store, "other"), 0, job="other")
        with pytest.raises(ConfigError) as refused:
            ledger.finish(held, verdict(messages=(message(ledger, held),)))
        assert "does not permit this: permission denied for table outbox" in refused.value.sentence
        with pytest.raises(ConfigError, match="permission denied"):
            ledger.store.outbox().queue("web", 1)
        with pytest.raises(ConfigError, match="permission denied"):
            ledger.store.outbox().exchange("web", closing=Closing(None, ""))
        seen = world.ranonce("doctor", env=env)
        assert seen.exit == 1
        assert "lacks SELECT on outbox, SELECT on bodies, SELECT on destinations, SELECT on steps" in seen.out.decode()


def test_messages_are_found_again_after_a_loss_that_left_them(world):
    world.run(now="2026-11-08T12:00:00Z")
    emit(ledger_over(PostgresStore(world.url, wait_seconds=20)), 0, "a")
    without_identity(world)
    with site_of(world.url, wait_seconds=20).recovery() as recovery:
        recovery.halt()
        left = recovery.remains(world.ledger)
        assert [one.body for one in left.upkeep().all_messages()] == [b"payload"]
        assert list(left.upkeep().all_steps()) == []
