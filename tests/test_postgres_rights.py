"""What roles of a PostgreSQL server need: one that runs jobs and cannot rewrite history, and one that only looks."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from ranonce.stores.postgres.promise import REWRITES, WRITES
from ranonce.storeurl import server_of
from tests.behind import postgres_behind
from tests.conftest import TODAY
from tests.losses import content, gone, without_identity
from tests.roles import as_role, role

pytestmark = pytest.mark.parametrize("store_kind", ["postgres"], indirect=True)

PAGE = Path(__file__).resolve().parent.parent / "docs" / "how-to" / "postgresql.md"


def documented() -> str:
    """Return the statements that the documentation gives for a role `jobs`, on any schema, for any role."""
    [block] = re.findall(r"```sql\n(GRANT USAGE.*?)```", PAGE.read_text(encoding="utf-8"), re.DOTALL)
    for name, other in ((" ranonce.", " {schema}."), ("SCHEMA ranonce", "SCHEMA {schema}"), ("TO jobs;", "TO {role};")):
        assert name in block
        block = block.replace(name, other)
    return block


JOBS = documented()
READERS = "".join(JOBS.splitlines(keepends=True)[:2])  # "the first two statements are enough"


def granted(world, name, statements):
    with postgres_behind(world) as db:
        db.execute(statements.format(schema=server_of(world.url).namespace, role=f'"{name}"'))


@pytest.fixture
def job(world):
    """The environment of a role that runs jobs, in a world with a run that was done and one that failed."""
    world.run(now="2026-11-08T12:00:00Z")
    world.run(sh="exit 3")
    with role(world, "job") as name:
        granted(world, name, JOBS)
        yield as_role(world, name)


@pytest.fixture
def reader(world):
    """The environment of a role that only looks."""
    world.run(now="2026-11-08T12:00:00Z")
    with role(world, "reader") as name:
        granted(world, name, READERS)
        yield as_role(world, name)


def test_it_runs_stops_notes_reruns_releases_and_closes_gates(world, job):
    assert world.run("--timeout", "1h", env=job).said() == (0, "done", None)
    assert world.run(env=job).said() == (0, "skipped", "done")
    assert world.run(job="other", every="hour", env=job).said() == (0, "done", None)  # a job nobody knew
    stopped = world.run(job="third", env=job, sh="$RANONCE stop --reason 429 --retry-after 60 --gate api")
    assert (stopped.exit, stopped.receipt["event"]) == (79, "stopped")
    for words in (
        ("note", "job", TODAY, "looked at it"),
        ("rerun", "job", TODAY, "--reason", "again", "--", "/bin/true"),
        ("gate", "api", "--open", "--reason", "x"),
        ("gate", "mail", "--close-for", "1h", "--reason", "x"),
        ("status",),
        ("show", "job", TODAY),
        ("export", "--output", str(world.root / "all.jsonl")),
        ("doctor",),
    ):
        ran = world.ranonce(*words, env=job)
        assert ran.exit == 0, (words, ran.err, ran.out)
    assert world.ranonce("probe", "job", env=job).exit in (0, 1)
    crashed = {"RANONCE_FAILPOINT": "run:child-ended", **job}
    world.run("--on-crash", "hold", now="2026-11-10T12:00:00Z", env=crashed)
    assert world.run("--on-crash", "hold", now="2026-11-10T12:00:00Z", env=job).said()[2] == "held"
    released = world.ranonce("release", "job", "2026-11-10", "--as", "done", "--reason", "looked", env=job)
    assert released.exit == 0, released.err


@pytest.mark.parametrize(
    "statement",
    [
        "UPDATE events SET event = 'done'",
        "DELETE FROM events",
        "TRUNCATE events",
        "INSERT INTO events SELECT * FROM events ON CONFLICT (seq) DO UPDATE SET event = 'done'",
        "MERGE INTO events AS e USING events AS o ON e.seq = o.seq WHEN MATCHED THEN DELETE",
        "INSERT INTO pruning VALUES ('job')",
        "ALTER TABLE events DISABLE TRIGGER ALL",
        "DROP TRIGGER events_are_not_changed ON events",
        "SET session_replication_role = replica",
        "DROP TABLE events",
        "ALTER TABLE events SET UNLOGGED",
        "UPDATE ledger SET id = 'x'",
        "UPDATE ledger SET epoch = 7",
        "DELETE FROM runs",
        "DELETE FROM jobs",
        "UPDATE schedules SET every = 'hour'",
        "INSERT INTO tombstones VALUES ('job', 0, 1, 1, 0, now())",
        "CREATE TABLE mine (x integer)",
        "CREATE OR REPLACE FUNCTION instant(seconds double precision) RETURNS timestamptz LANGUAGE sql"
        " AS 'SELECT now()'",
        "SELECT drop_runs('job', '[]')",
        "SELECT open_epoch(1, 'x', 'y')",
        "SELECT forget_until(100)",
        "SELECT setval('events_seq_seq', 1)",
        "DROP SCHEMA {schema} CASCADE",
        "ALTER SCHEMA {schema} RENAME TO elsewhere",
    ],
)
def test_it_cannot_rewrite_history(world, job, statement):
    import psycopg

    before = content(world)
    server = server_of(job["RANONCE_STORE"])
    with psycopg.connect(server.address, autocommit=True) as db:
        db.execute(f'SET search_path TO "{server.namespace}"')
        with pytest.raises((psycopg.errors.InsufficientPrivilege, psycopg.errors.RaiseException)):
            db.execute(statement.replace("{schema}", server.namespace))
    assert content(world) == before


@pytest.mark.parametrize("words", [("prune", "--older-than", "0s"), ("accept-loss", "--reason", "x")])
def test_it_neither_prunes_nor_accepts_a_loss(world, job, words):
    if words[0] == "accept-loss":
        without_identity(world)
    before = content(world)
    ran = world.ranonce(*words, "--now", "2027-11-09T12:00:00Z", env=job) if words[0] == "prune" else None
    ran = ran or world.ranonce(*words, env=job)
    assert ran.exit == 78, ran.out
    assert "as the role that owns the ledger (postgres)" in ran.sentence or (
        "only the role that owns the ledger (postgres) prunes" in ran.sentence
    )
    assert b"goes on" not in ran.out
    assert content(world) == before


def test_a_reader_looks_and_runs_nothing(world, reader):
    for words in (("status",), ("status", "job"), ("show", "job", "2026-11-08"), ("doctor",), ("doctor", "--deep")):
        ran = world.ranonce(*words, env=reader)
        assert (ran.exit, ran.err) == (0, ""), (words, ran.out)
    probed = world.ranonce("probe", "job", "--since", "2026-11-08", "--until", "2026-11-09", env=reader)
    assert (probed.exit, probed.err) == (0, "")
    before = content(world)
    refused = world.run(env=reader)
    assert refused.exit == 78
    assert "does not permit this" in refused.sentence
    assert content(world) == before


def test_who_may_not_look_is_told_the_grants_that_jobs_need_and_they_let_it_run(world):
    world.run(now="2026-11-08T12:00:00Z")
    with role(world, "nobody") as name:
        env = as_role(world, name)
        refused, seen = world.run(env=env), world.ranonce("doctor", env=env)
        assert (refused.exit, seen.exit) == (78, 1)
        grants = refused.sentence.partition("say: ")[2]
        assert grants.startswith("GRANT USAGE ON SCHEMA ")
        assert grants in seen.out.decode()
        with postgres_behind(world) as db:
            db.execute(grants)
        assert world.run(env=env).said() == (0, "done", None)


def test_who_only_looks_is_told_by_doctor_what_would_let_it_run(world, reader):
    seen = world.ranonce("doctor", env=reader)
    assert seen.exit == 0
    assert "to run jobs, let the owner of the ledger say: GRANT USAGE" in seen.out.decode()


def test_a_healthy_ledger_has_no_loss_to_accept_whoever_asks(world, job):
    ran = world.ranonce("accept-loss", "--reason", "x", env=job)
    assert ran.exit == 0
    assert b"Nothing was changed" in ran.out


def test_rights_that_went_with_the_schema_are_to_be_granted_again(world):
    world.run(now="2026-11-08T12:00:00Z")
    gone(world)
    ran = world.ranonce("accept-loss", "--reason", "x")
    assert ran.exit == 0, ran.err
    told = ran.out.decode()
    assert f'grant again, for jobs: GRANT USAGE ON SCHEMA "{server_of(world.url).namespace}" TO jobs; GRANT' in told


def test_what_is_documented_is_what_the_program_asks_for(world):
    given = {
        (table, privilege)
        for line in JOBS.splitlines()
        for table in WRITES
        for privilege in ("INSERT", "UPDATE", "DELETE")
        if f"{{schema}}.{table}" in line and privilege in line.partition(" ON ")[0]
    }
    assert given == {(table, privilege) for table, some in WRITES.items() for privilege in some}
    assert not given & {(table, privilege) for table, some in REWRITES.items() for privilege in some}
    assert world.url
