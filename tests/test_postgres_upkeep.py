"""The upkeep of a PostgreSQL ledger beside everything else: no deadlock, no number given twice, nothing unseen."""

from __future__ import annotations

import contextlib
import itertools
import os
import re
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path

import psycopg
import pytest

from ranonce.errors import StoreUnavailable
from ranonce.folding import disagreements
from ranonce.lifecycle import Retention
from ranonce.merging import Told, folded
from ranonce.stores import open_store, site_of
from ranonce.stores.base import FIRST, Intake
from ranonce.stores.postgres.store import PostgresStore
from ranonce.storeurl import server_of
from tests.contract.acting import START, ask, claim, ledger_over, verdict
from tests.contract.stores import LEDGER
from tests.programs.keeper import JOBS, told
from tests.servers import PostgresServer, private_folder, started

DAY = 86400


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
def admin(url: str) -> Iterator[psycopg.Connection]:
    server = server_of(url)
    with psycopg.connect(server.address, autocommit=True) as connection:
        connection.execute(f"SET search_path = {server.namespace}, public")
        yield connection


@pytest.fixture
def own(tmp_path: Path) -> Iterator[PostgresServer]:
    """A server of the test's own, whose log it reads."""
    yield from started(lambda: PostgresServer(private_folder(tmp_path / "postgres")))  # type: ignore[misc]


# --- beside everything else -----------------------------------------------------------------------------------------


def test_many_that_work_prune_and_import_at_once_never_wait_for_each_other(own):
    url = own.url("busy")
    site_of(url, wait_seconds=20).create(LEDGER)
    for name in JOBS:
        ledger_over(PostgresStore(url, wait_seconds=20), name)
    ways = ("work", "work", "work", "prune", "prune", "bring", "bring", "own")
    started = [
        subprocess.Popen([sys.executable, "-m", "tests.programs.keeper", url, way, str(number), "60"])
        for number, way in enumerate(ways)
    ]
    assert [process.wait(240) for process in started] == [0] * len(ways)
    log = (own.folder / "log").read_text()
    assert "deadlock" not in log
    assert "ERROR" not in "".join(line for line in log.splitlines() if "a lease was renewed meanwhile" not in line), log
    upkeep = PostgresStore(url, wait_seconds=20).upkeep()
    with upkeep.view():
        stories = {
            key: list(story)
            for key, story in itertools.groupby(
                sorted(upkeep.all_events(), key=lambda event: (str(event.key), event.seq)), key=lambda event: event.key
            )
        }
        for run in upkeep.all_runs():
            assert list(disagreements(run, folded(stories[run.key]))) == []
    assert upkeep.problems(deep=True) == []


def test_a_hundred_thousand_runs_are_pruned_while_a_job_works_beside(store, url, admin):
    ledger = ledger_over(store, "j")
    columns = (
        'job, window_start, "window", input, window_end, status, generation, attempt, owner, failures, schedule,'
        " triggered_by, started_at, finished_at, late, reconciling, granted"
    )
    admin.execute(
        f"INSERT INTO runs ({columns})"
        " SELECT 'j', n * 60, n::text, '', n * 60 + 60, 'done', 1, 1, 'x', 0, 1, 'schedule',"
        " to_timestamp(n * 60), to_timestamp(n * 60 + 1), false, false, false FROM generate_series(1, 100000) AS n"
    )
    columns = 'job, window_start, "window", input, event, attempt, generation, owner, triggered_by, host, data, at'
    admin.execute(
        f"INSERT INTO events ({columns})"
        " SELECT 'j', n * 60, n::text, '', event, 1, 1, 'x', 'schedule', '', '{}', to_timestamp(n * 60 + later)"
        " FROM generate_series(1, 100000) AS n, (VALUES (0, 'start'), (1, 'done')) AS told (later, event)"
        " ORDER BY n, later"
    )
    over, ran, trouble = threading.Event(), [], []

    def work():
        beside = ledger_over(open_store(url, wait_seconds=20), "j")
        with contextlib.closing(beside.store):
            for day in itertools.count(1):
                held = claim(beside, day, job="j")
                assert beside.renew(held, "forbid") is None
                assert beside.finish(held, verdict()) is None
                ran.append(day)
                if over.is_set():
                    return

    def careful():
        try:
            work()
        except BaseException as error:
            trouble.append(error)
            raise

    worker = threading.Thread(target=careful)
    worker.start()
    place, runs, events = FIRST, 0, 0
    while place is not None:
        pruned = store.upkeep().prune("j", Retention(START - DAY, 0), after=place)
        place, runs, events = pruned.upto, runs + pruned.runs, events + pruned.events
    over.set()
    worker.join(60)
    assert trouble == []
    assert (runs, events) == (100_000, 200_000)
    assert len(ran) >= 10  # it was not kept waiting until all was over
    (stone,) = store.tombstones("j", 0, START)
    assert (stone.since, stone.until, stone.runs) == (60, 6_000_060, 100_000)
    assert {run.status for run in store.runs("j", 0, 1 << 60)} == {"done"}
    assert len(store.runs("j", 0, 1 << 60)) == len(ran)
    assert ledger.claim(ask(1, job="j")).reason == "done"


def test_numbers_that_are_kept_are_given_to_nobody_who_works_meanwhile(store, url):
    ledger_over(store)
    trouble = []

    def work():
        beside = ledger_over(open_store(url, wait_seconds=20))
        try:
            with contextlib.closing(beside.store):
                for day in range(100, 180):
                    beside.finish(claim(beside, day), verdict())
        except BaseException as error:
            trouble.append(error)
            raise

    worker = threading.Thread(target=work)
    worker.start()
    for day in range(40):
        one = told("job", day)
        numbered = tuple(event.replace(seq=3 * day + 5 + at) for at, event in enumerate(one.events))
        store.upkeep().take_in(Intake([Told(one.run, numbered)], keep_numbers=True), lambda run, lease: True)
    worker.join(60)
    assert trouble == []
    events = list(store.upkeep().all_events())
    assert len(events) == 2 * (40 + 80)
    for run in store.runs("job", 0, 1 << 60):
        assert list(disagreements(run, folded(event for event in events if event.key == run.key))) == []
    assert store.upkeep().problems(deep=False) == []


def test_a_pruning_waits_for_nobody_longer_than_it_says(url, admin):
    ledger = ledger_over(PostgresStore(url, wait_seconds=1))
    ledger.finish(claim(ledger), verdict())
    with admin.transaction():
        admin.execute("SELECT * FROM jobs FOR UPDATE")
        with pytest.raises(StoreUnavailable, match="locked by another transaction"):
            ledger.store.upkeep().prune("job", Retention(4e9, 4e9))


def test_a_session_that_ends_is_begun_anew_for_what_an_owner_does_as_well(url, store, admin):
    ledger = ledger_over(store)
    for day in (0, 1):
        ledger.finish(claim(ledger, day), verdict())
    admin.execute(
        "SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE application_name = 'ranonce'"
        " AND pid <> pg_backend_pid()"
    )
    assert store.upkeep().prune("job", Retention(4e9, 0)).runs == 1
    admin.execute(
        "SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE application_name = 'ranonce'"
        " AND pid <> pg_backend_pid()"
    )
    with store.upkeep().view():
        assert len(list(store.upkeep().all_runs())) == 1


# --- all of it ------------------------------------------------------------------------------------------------------


def test_a_view_is_of_one_state_whatever_others_do(url, store):
    ledger = ledger_over(store)
    for day in range(3):
        ledger.finish(claim(ledger, day), verdict())
    other = ledger_over(open_store(url, wait_seconds=20))
    upkeep = store.upkeep()
    with upkeep.view():
        runs = iter(upkeep.all_runs())
        next(runs)
        other.finish(claim(other, 5), verdict())
        other.store.upkeep().prune("job", Retention(4e9, 0))
        assert len(list(runs)) == 2
        assert len(list(upkeep.all_events())) == 6
        assert store.tombstones("job", 0, 1 << 60) == []
    assert len(list(upkeep.all_runs())) == 1
    other.store.close()


def test_a_view_whose_session_ends_is_over_and_never_of_two_states(store, admin):
    ledger = ledger_over(store)
    ledger.finish(claim(ledger), verdict())
    with pytest.raises(StoreUnavailable), store.upkeep().view():
        list(store.upkeep().all_runs())
        admin.execute(
            "SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE application_name = 'ranonce'"
            " AND pid <> pg_backend_pid()"
        )
        with contextlib.suppress(StoreUnavailable):
            list(store.upkeep().all_runs())
        store.latest("job", 1)
    assert len(store.latest("job", 1)) == 1


def test_a_page_of_a_window_with_very_many_facts_costs_what_any_page_does(store, admin):
    ledger = ledger_over(store)
    ledger.finish(claim(ledger), verdict())
    admin.execute(
        'INSERT INTO events (at, job, window_start, "window", input, event, attempt, generation, owner, triggered_by,'
        " host, data) SELECT at, job, window_start, \"window\", input, 'noted', 1, 1, '', 'api', 'here', '{}'"
        " FROM events, generate_series(1, 30000) WHERE event = 'done'"
    )
    admin.execute("ANALYZE events")
    for seq in (0, 15000, 30000):
        page = f"SELECT next_events_by_window('job', {START}, {seq}, false, 10)"
        admin.execute(page)  # catalogs have been read
        (plan,) = admin.execute(f"EXPLAIN (ANALYZE, BUFFERS, FORMAT JSON) {page}").fetchone()
        read = plan[0]["Plan"]
        assert read["Actual Rows"] == (10 if seq < 30000 else 2)
        assert read["Shared Hit Blocks"] + read["Shared Read Blocks"] < 100, seq


def test_pages_leave_nothing_out_and_tell_nothing_twice(store, monkeypatch):
    for size in ("PAGE_ROWS", "PAGE_OUTPUTS"):
        monkeypatch.setattr(f"ranonce.stores.postgres.upkeep.{size}", 2)
    for name in JOBS:
        ledger = ledger_over(store, name)
        for day in (2, 0, 1):
            held = claim(ledger, day, job=name)
            ledger.claim(ask(day, job=name))
            ledger.finish(held, verdict(output=f"{name} {day}".encode()))
    upkeep = store.upkeep()
    assert [(run.key.job, run.window_start) for run in upkeep.all_runs()] == [
        (name, START + day * DAY) for name in JOBS for day in (0, 1, 2)
    ]
    assert [event.seq for event in upkeep.all_events()] == list(range(1, 28))
    for output in (True, False):
        told_by_window = list(upkeep.events_by_window(output=output))
        assert [(event.key.job, event.window_start, event.seq) for event in told_by_window] == sorted(
            (event.key.job, event.window_start, event.seq) for event in upkeep.all_events()
        )
        assert {event.output for event in told_by_window if event.event == "done"} == (
            {f"{name} {day}".encode() for name in JOBS for day in range(3)} if output else {None}
        )


# --- what is wrong --------------------------------------------------------------------------------------------------

WRONG = {
    "ALTER TABLE events DISABLE TRIGGER events_are_not_changed": "events_are_not_changed, .* is switched off",
    "ALTER TABLE events ENABLE REPLICA TRIGGER events_are_not_emptied": "events_are_not_emptied, .* is switched off",
    "DROP TRIGGER events_are_not_changed ON events": "events_are_not_changed, .* is missing",
    "CREATE TRIGGER spy BEFORE INSERT ON runs FOR EACH ROW EXECUTE FUNCTION suppress_redundant_updates_trigger()": (
        "a trigger spy on the table runs that is not ours"
    ),
    "CREATE RULE quiet AS ON DELETE TO events DO INSTEAD NOTHING": "a rule quiet on the table events",
    "ALTER TABLE gates SET UNLOGGED": "the table gates is UNLOGGED",
    "ALTER TABLE runs ENABLE ROW LEVEL SECURITY": "the table runs hides rows",
    "DROP INDEX events_of_window": "the index events_of_window is missing",
    "UPDATE pg_index SET indisvalid = false WHERE indexrelid = 'runs_unfinished'::regclass": (
        "the index runs_unfinished is invalid: REINDEX"
    ),
    "CREATE OR REPLACE FUNCTION events_are_append_only() RETURNS trigger LANGUAGE plpgsql AS $$"
    " BEGIN RETURN OLD; END $$": "the function events_are_append_only is not what it should be",
    "DROP FUNCTION set_gate": "the function set_gate is missing",
    "INSERT INTO pruning VALUES ('job')": "events of the job job may be removed at any time",
    "UPDATE ledger SET pruned_seq = 9": "events up to 9 were pruned, and there are none after 2",
    "UPDATE ledger SET epoch = 3": "it is in epoch 3, and the last loss that was accepted began epoch 1",
    "DELETE FROM schedules": "the job job should have 1 versions of its schedule, and has 0",
    "DELETE FROM jobs": "the job job has a schedule, and is none of the jobs",
    "SELECT setval('events_seq_seq', 1)": "numbers that are taken, from 1 on",
}


@pytest.mark.parametrize("statement", WRONG)
def test_what_was_changed_by_hand_is_found(store, admin, statement):
    ledger = ledger_over(store)
    ledger.finish(claim(ledger), verdict())
    assert store.upkeep().problems(deep=True) == []
    admin.execute(statement)
    (problem,) = store.upkeep().problems(deep=False)
    assert re.search(WRONG[statement], problem), problem


def test_an_index_that_differs_from_its_table_is_found(own):
    url = own.url("damaged")
    site_of(url, wait_seconds=20).create(LEDGER)
    store = PostgresStore(url, wait_seconds=20)
    ledger = ledger_over(store)
    for day in range(3):
        ledger.finish(claim(ledger, day), verdict())
    with psycopg.connect(server_of(url).address, autocommit=True) as admin:
        admin.execute("SET allow_in_place_tablespaces = on")
        admin.execute("CREATE EXTENSION amcheck")
        assert store.upkeep().problems(deep=True) == []
        (index,) = admin.execute("SELECT pg_relation_filepath('damaged.events_of_window')").fetchone()
        (table,) = admin.execute("SELECT pg_relation_filepath('damaged.runs')").fetchone()
        admin.execute("CHECKPOINT")
    store.close()
    own.stop()
    _spoil(own.data / index, 8192 + 8000)
    own.start()
    store = PostgresStore(url, wait_seconds=20)
    found = store.upkeep().problems(deep=True)
    assert found
    assert all("events_of_window" in line for line in found), found
    store.close()
    own.stop()
    _spoil(own.data / table, 4)
    own.start()
    found = PostgresStore(url, wait_seconds=20).upkeep().problems(deep=True)
    assert any("the table runs" in line for line in found), found


def test_without_the_servers_own_check_what_cannot_be_read_is_found(own):
    url = own.url("damaged")
    site_of(url, wait_seconds=20).create(LEDGER)
    store = PostgresStore(url, wait_seconds=20)
    ledger = ledger_over(store)
    ledger.finish(claim(ledger), verdict())
    with psycopg.connect(server_of(url).address, autocommit=True) as admin:
        (table,) = admin.execute("SELECT pg_relation_filepath('damaged.events')").fetchone()
        admin.execute("CHECKPOINT")
    store.close()
    own.stop()
    _spoil(own.data / table, 4)
    own.start()
    found = PostgresStore(url, wait_seconds=20).upkeep().problems(deep=True)
    assert any("events" in line for line in found), found


def _spoil(path: Path, at: int) -> None:
    with path.open("r+b") as file:
        file.seek(at)
        file.write(os.urandom(64))
