"""A doctor names every fault planted in a ledger on a server, changes nothing, and is quiet where all is well."""

from __future__ import annotations

import json

import pytest

from ranonce.doctor import Patient, examine, servers
from ranonce.doctor.finding import NOTE, OK, PROBLEM
from ranonce.journal import decode, encode
from ranonce.storeurl import server_of
from tests import losses
from tests.behind import postgres_behind
from tests.losses import created_anew, emptied, gone, of_another_format, redis_behind, without_a_table, without_identity
from tests.planted import Planted
from tests.roles import as_role, role
from tests.servers import PostgresServer, ValkeyServer, free_port, private_folder

on_servers = pytest.mark.parametrize("store_kind", ["postgres", "redis"], indirect=True)
on_postgres = pytest.mark.parametrize("store_kind", ["postgres"], indirect=True)


def looked(world, *, deep=False, env=None):
    return list(examine(Patient([], None, None, {**world.env, **(env or {})}, deep)))


def of_level(level, world, **how):
    """Return (check, what was seen) of the findings of a level."""
    return [(each.check, each.seen) for each in looked(world, **how) if each.level == level]


def problems(world, **how):
    return of_level(PROBLEM, world, **how)


@pytest.fixture
def lived(world):
    """A world with some history."""
    world.run(now="2026-11-08T12:00:00Z")
    world.run(sh="exit 3")
    world.run()
    world.run()
    return world


@on_servers
@pytest.mark.parametrize("words", [(), ("--deep",)])
def test_a_world_in_which_all_is_well_has_no_problem(lived, words):
    before = losses.content(lived)
    ran = lived.ranonce("doctor", *words)
    assert (ran.exit, ran.err) == (0, ""), ran.out.decode()
    checks = {line.split()[1].rstrip(":") for line in ran.out.decode().splitlines()[:-1]}
    assert {"store", "durability", "round-trip", "integrity", "journal", "clock", "claims", "attempts"} <= checks
    assert not {"store-place", "store-locks", "tables"} & checks
    assert losses.content(lived) == before


@on_servers
@pytest.mark.parametrize(
    "lost",
    [gone, emptied, without_identity, created_anew, of_another_format],
    ids=lambda lost: lost.__name__,
)
def test_a_store_that_is_not_the_ledger_is_a_finding_and_the_rest_is_still_looked_at(lived, lost):
    lost(lived)
    found = looked(lived, deep=True)
    assert next(each.check for each in found if each.level == PROBLEM) == "store"
    assert {"versions", "clock", "attempts"} <= {each.check for each in found}
    assert all(each.todo for each in found if each.level == PROBLEM)


@on_servers
def test_a_server_that_is_not_there_is_a_finding(lived):
    address = server_of(lived.url).address
    port = address.rpartition(":")[2].partition("/")[0]
    url = lived.url.replace(port, str(free_port()))
    lived.config.write_text(lived.config.read_text().replace(lived.url, url) + 'store_wait = "1s"\n')
    ((check, seen),) = problems(lived)
    assert check == "store"
    assert "could not be reached" in seen


@on_servers
def test_a_journal_that_knows_more_than_the_store_is_named(lived):
    last = decode(lived.journal.read_bytes().splitlines()[-1])
    with lived.journal.open("ab") as file:
        file.write(encode({**last, "seq": 900, "event": "done", "window": "2026-11-30"}))
    ((check, seen),) = problems(lived)
    assert check == "journal"
    assert "gone back in time" in seen


@on_servers
def test_a_crashed_attempt_is_named_with_the_way_on(lived):
    assert lived.run(env={"RANONCE_FAILPOINT": "run:child-started"}, now="2026-11-10T12:00:00Z").exit < 0
    ((check, seen),) = problems(lived)
    assert check == "claims"
    assert "its process is dead" in seen


# --- PostgreSQL -----------------------------------------------------------------------------------------------------

PLANTED = {
    "DROP TRIGGER events_are_not_changed ON events": "the trigger events_are_not_changed",
    "ALTER TABLE events DISABLE TRIGGER events_are_not_emptied": "is switched off",
    "ALTER TABLE leases SET UNLOGGED": "the table leases is UNLOGGED",
    "DROP INDEX events_notable": "the index events_notable is missing",
    "CREATE OR REPLACE FUNCTION instant(seconds double precision) RETURNS timestamptz LANGUAGE sql"
    " AS 'SELECT now()'": "the function instant is not what it should be",
    "CREATE RULE quiet AS ON INSERT TO events DO INSTEAD NOTHING": "there is a rule quiet",
    "INSERT INTO pruning VALUES ('job')": "events of the job job may be removed at any time",
    "UPDATE ledger SET epoch = 7": "it is in epoch 7",
}


@on_postgres
@pytest.mark.parametrize("statement", PLANTED, ids=[statement[:24] for statement in PLANTED])
def test_what_somebody_did_to_the_tables_is_named(lived, statement):
    with postgres_behind(lived) as db:
        db.execute(statement)
    found = [seen for check, seen in problems(lived) if check == "integrity"]
    assert len(found) == 1
    assert PLANTED[statement] in found[0]


@on_postgres
def test_what_init_mends_is_said_to_be_mended_by_it(lived):
    with postgres_behind(lived) as db:
        db.execute("DROP TRIGGER events_are_not_changed ON events")
    (found,) = [each for each in looked(lived) if each.level == PROBLEM]
    assert "ranonce init" in found.todo
    assert lived.ranonce("init").exit == 0
    assert problems(lived) == []


@on_postgres
def test_a_table_that_is_gone_is_named(lived):
    without_a_table(lived)
    assert "integrity" in {check for check, _ in problems(lived)}


@on_postgres
def test_a_row_that_contradicts_its_events_is_named(lived):
    with postgres_behind(lived) as db:
        db.execute("UPDATE runs SET status = 'failed', exit = 1 WHERE \"window\" = '2026-11-08'")
    seen = ("events", "job:2026-11-08: its row has status 'failed', its events say 'done'")
    found = {(each.check, each.seen): each.todo for each in looked(lived, deep=True) if each.level == PROBLEM}
    assert seen in found
    assert "pg_restore" in found[seen]
    assert "who may write its tables" in found[seen]


@on_postgres
def test_an_event_that_this_host_saw_and_that_is_gone_is_named_by_its_journal(lived):
    with postgres_behind(lived) as db:
        db.execute("SET session_replication_role = replica; DELETE FROM events WHERE event = 'skipped'")
        (number,) = db.execute("SELECT max(seq) FROM events").fetchone()
    assert "journal" in {check for check, _ in problems(lived)}
    assert number


@on_postgres
def test_numbers_that_the_server_passed_over_are_no_problem(lived):
    with postgres_behind(lived) as db:
        db.execute("SELECT nextval('events_seq_seq')")
    lived.run(now="2026-11-10T12:00:00Z")
    assert problems(lived, deep=True) == []
    notes = [seen for check, seen in of_level(NOTE, lived, deep=True) if check == "events"]
    assert [seen.split(":")[0] for seen in notes] == ["1 number between 8 and 8 belong to no event"]


@on_postgres
def test_what_a_role_lacks_is_named_with_what_gives_it(lived):
    schema = server_of(lived.url).namespace
    with role(lived, "job") as job:
        with postgres_behind(lived) as db:
            db.execute(f'GRANT USAGE ON SCHEMA "{schema}" TO "{job}"')
            db.execute(f'GRANT SELECT ON ALL TABLES IN SCHEMA "{schema}" TO "{job}"')
            env = as_role(lived, job)
            assert problems(lived, env=env) == []
            assert ("rights", f"the role {job} may only read: it can look, and run nothing") in of_level(
                NOTE, lived, env=env
            )
            db.execute(f'GRANT INSERT, UPDATE ON runs TO "{job}"')
            (found,) = [each for each in looked(lived, env=env) if each.level == PROBLEM]
            assert (found.check, "INSERT on events" in found.seen) == ("rights", True)
            for statement in found.todo.partition("say: ")[2].split(";"):
                if statement.strip():
                    db.execute(statement)
        assert ("rights", f"the role {job} may do what jobs need, and cannot change history") in of_level(
            OK, lived, env=env
        )
        assert lived.run(now="2026-11-12T12:00:00Z", env=env).said() == (0, "done", None)
        with postgres_behind(lived) as db:
            db.execute(f'GRANT DELETE ON events TO "{job}"')
        assert ("rights", f"the role {job} could change history (DELETE on events); jobs need less") in of_level(
            NOTE, lived, env=env
        )
        with postgres_behind(lived) as db:
            db.execute(f'REVOKE USAGE ON SCHEMA "{schema}" FROM "{job}"')
        assert "store" in {check for check, _ in problems(lived, env=env)}


@on_postgres
def test_who_owns_the_ledger_is_told_that_jobs_need_less(lived):
    (seen,) = [seen for check, seen in of_level(NOTE, lived) if check == "rights"]
    assert "is a superuser, so it could change history" in seen


SETTINGS = [
    (("-c", "fsync=off"), "durability", "fsync = off"),
    (("-c", "full_page_writes=off"), "durability", "full_page_writes = off"),
    (("-c", "zero_damaged_pages=on"), "durability", "zero_damaged_pages = on"),
    (("-c", "session_replication_role=replica"), "durability", "do not fire"),
]


@pytest.fixture(scope="module")
def own(tmp_path_factory):
    """A PostgreSQL server of this test's own."""
    server = PostgresServer(private_folder(tmp_path_factory.mktemp("own") / "server"))
    server.start()
    yield server
    server.stop()


@pytest.fixture
def mine(bare, own):
    """A world on it."""
    with own.place() as url:
        bare.url = url
        bare.init()
        bare.run()
        yield bare


@pytest.mark.parametrize(("options", "check", "seen"), SETTINGS, ids=[each[2] for each in SETTINGS])
def test_a_setting_that_loses_commits_is_named(mine, own, options, check, seen):
    own.stop()
    own.options = options
    own.start()
    try:
        found = problems(mine)
        assert [(each, seen in told) for each, told in found] == [(check, True)]
        if "off" in seen:
            with postgres_behind(mine) as db:
                db.execute("UPDATE ledger SET volatile = %s", (f"a server with {seen}: x",))
            assert problems(mine) == []
    finally:
        own.stop()
        own.options = ()
        own.start()


def test_a_server_that_takes_no_writes_is_named(mine):
    with postgres_behind(mine) as db:
        db.execute("ALTER DATABASE postgres SET default_transaction_read_only = on")
    assert problems(mine)[0][0] == "server"
    with postgres_behind(mine) as db:
        db.execute("SET transaction_read_only = off; ALTER DATABASE postgres RESET default_transaction_read_only")
    assert problems(mine) == []


# --- Redis and Valkey -----------------------------------------------------------------------------------------------

POLICIES = [
    (("--appendfsync", "everysec"), "appendfsync everysec"),
    (("--appendonly", "no"), "keeps its data in memory"),
    (("--maxmemory", "100mb", "--maxmemory-policy", "allkeys-lru"), "evicts keys"),
]


@pytest.mark.parametrize(("options", "seen"), POLICIES, ids=[each[1] for each in POLICIES])
def test_a_policy_that_loses_runs_is_named(bare, tmp_path_factory, options, seen):
    server = ValkeyServer(private_folder(tmp_path_factory.mktemp("own") / "server"), options=options)
    server.start()
    try:
        bare.url = server.url("t")
        bare.init()  # which accepts it
        assert problems(bare) == []
        assert any(seen in told for check, told in of_level(NOTE, bare) if check == "durability")
        with redis_behind(bare) as (db, prefix):
            db.hset(f"{prefix}ledger", "volatile", "something else")
        if "evicts" in seen:
            assert "store" in {check for check, _ in problems(bare)}
    finally:
        server.stop()


@pytest.mark.parametrize("store_kind", ["redis"], indirect=True)
def test_keys_that_contradict_each_other_are_named(lived):
    with redis_behind(lived) as (db, prefix):
        db.zremrangebyrank(f"{prefix}order:job", 0, 0)
    assert "integrity" in {check for check, _ in problems(lived, deep=True)}


# --- how far away ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("seconds", "level"), [(0.002, OK), (0.3, NOTE)])
def test_a_server_that_is_far_away_is_noted(seconds, level):
    reading = iter(number * seconds for number in range(100))
    (found,) = servers.round_trip(Planted().store, clock=lambda: next(reading))
    assert found.level == level
    assert f"{seconds * 1000:.1f} ms" in found.seen


@on_servers
def test_for_machines_no_finding_shows_more_than_it_should(lived):
    ran = lived.ranonce("doctor", "--json")
    found = [json.loads(line) for line in ran.out.splitlines()]
    assert {"server", "rights"} <= {each["check"] for each in found} or lived.url.startswith("redis")
