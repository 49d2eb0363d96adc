"""Servers that are there and of no use: not permitted, read-only, full, foreign. Nothing is started, one sentence says
why, and the exit status tells what may pass (69) from what a person must mend (78)."""

from __future__ import annotations

import contextlib
import socket
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from ranonce.storeurl import in_namespace, server_of
from tests.behind import postgres_behind
from tests.conftest import TODAY, World, wait_until
from tests.outboxes import bodies
from tests.roles import as_role, role
from tests.servers import PostgresServer, ValkeyServer, private_folder

MAY_PASS, TO_MEND = 69, 78


@pytest.fixture(scope="module")
def postgres_of_ours(tmp_path_factory: pytest.TempPathFactory) -> Iterator[PostgresServer]:
    """A PostgreSQL server whose settings may be changed."""
    server = PostgresServer(private_folder(tmp_path_factory.mktemp("own") / "postgres"))
    server.start()
    yield server
    server.stop()


@pytest.fixture(scope="module")
def valkey_of_ours(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ValkeyServer]:
    """A Valkey server whose settings may be changed."""
    server = ValkeyServer(private_folder(tmp_path_factory.mktemp("own") / "valkey"))
    server.start()
    yield server
    server.stop()


def made_at(url: str, folder: Path) -> World:
    world = World(folder, url)
    world.init()
    world.wait_for_the_store(0.5)
    return world


@pytest.fixture
def sql(postgres_of_ours: PostgresServer, tmp_path: Path) -> Iterator[World]:
    """A world with a ledger on the PostgreSQL server."""
    with postgres_of_ours.place() as url:
        world = made_at(url, tmp_path)
        yield world
        world.end()


@pytest.fixture
def keys(valkey_of_ours: ValkeyServer, tmp_path: Path) -> Iterator[World]:
    """A world with a ledger on the Valkey server."""
    with valkey_of_ours.place() as url:
        world = made_at(url, tmp_path)
        yield world
        world.end()


def refused(world: World, status: int, words: str, url: str | None = None) -> None:
    """Check that a run is refused in a sentence with these words, and that the ledger itself goes on."""
    there = {"RANONCE_STORE": url, "RANONCE_LEDGER": world.ledger} if url else {}
    before = world.effects()
    for job in ("job", "new"):  # one that the ledger knows, and one that it would have to be told of
        ran = world.run(job=job, env=there)
        assert (ran.exit, ran.receipt["event"]) == (status, "unavailable"), ran.err
        assert words in (ran.receipt.get("sentence") or ran.sentence)
        assert "hunter2" not in ran.err
        assert "Traceback" not in ran.err
    assert world.effects() == before


def known(world: World) -> None:
    assert world.run(now="2026-11-08T12:00:00Z").exit == 0


def goes_on(world: World) -> None:
    assert world.run().said() == (0, "done", None)
    assert world.effects() == ["job 2026-11-08 1", f"job {TODAY} 1"]


# --- PostgreSQL -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("change", "status", "words"),
    [
        (lambda url: url.replace("/postgres?", "/nowhere?"), TO_MEND, 'database "nowhere" does not exist'),
        (lambda url: url.replace("//postgres@", "//somebody@"), TO_MEND, 'role "somebody" does not exist'),
        (lambda url: url.replace("127.0.0.1", "nowhere.invalid"), MAY_PASS, "nowhere.invalid"),
        (lambda url: url.replace("?", "?sslmode=require&"), TO_MEND, "SSL"),
        (lambda url: url.replace("?", "?colour=green&"), TO_MEND, "colour"),
        (lambda url: in_namespace(url, "another"), TO_MEND, "no whole ledger"),
    ],
)
def test_an_address_at_which_there_is_no_ledger_runs_nothing(sql, change, status, words):
    known(sql)
    refused(sql, status, words, change(sql.url))
    goes_on(sql)


def test_a_read_only_server_runs_nothing(sql):
    known(sql)
    with setting(sql, "default_transaction_read_only", "on"):
        refused(sql, MAY_PASS, "read-only")
    goes_on(sql)


def test_a_server_without_a_place_for_one_more_runs_nothing(sql):
    known(sql)
    with postgres_behind(sql) as db:
        db.execute("DROP ROLE IF EXISTS crowd")
        db.execute("CREATE ROLE crowd LOGIN SUPERUSER CONNECTION LIMIT 1")
        db.execute("ALTER ROLE crowd NOSUPERUSER")
    crowded = sql.url.replace("//postgres@", "//crowd@")
    import psycopg

    with psycopg.connect(server_of(crowded).address):
        refused(sql, MAY_PASS, "too many connections", crowded)
    goes_on(sql)


@pytest.mark.parametrize(
    "rights",
    [
        (),
        ("GRANT USAGE ON SCHEMA {schema} TO guest",),
        ("GRANT USAGE ON SCHEMA {schema} TO guest", "GRANT SELECT ON ALL TABLES IN SCHEMA {schema} TO guest"),
    ],
    ids=["none", "to enter", "to read"],
)
def test_a_role_without_the_rights_runs_nothing(sql, rights):
    known(sql)
    schema = server_of(sql.url).namespace
    with postgres_behind(sql) as db:
        db.execute("CREATE ROLE guest LOGIN")
        for right in rights:
            db.execute(right.format(schema=schema))
    try:
        refused(sql, TO_MEND, "permission denied", sql.url.replace("//postgres@", "//guest@"))
    finally:
        with postgres_behind(sql) as db:
            db.execute("DROP OWNED BY guest")
            db.execute("DROP ROLE guest")
    goes_on(sql)


def test_an_outcome_whose_messages_a_role_may_not_write_stands_in_the_way_of_its_own_run_alone(sql):
    schema = server_of(sql.url).namespace
    emitting = "echo hi | $RANONCE emit slack"
    with role(sql, "job") as job:
        with postgres_behind(sql) as db:
            db.execute(f'GRANT USAGE ON SCHEMA "{schema}" TO "{job}"')
            db.execute(f'GRANT SELECT, INSERT, UPDATE, DELETE ON ALL TABLES IN SCHEMA "{schema}" TO "{job}"')
            db.execute(f'GRANT USAGE ON ALL SEQUENCES IN SCHEMA "{schema}" TO "{job}"')
            db.execute(f'REVOKE ALL ON outbox FROM "{job}"')
        env = as_role(sql, job)
        assert sql.run("--lease", "1s", sh=emitting, env=env).exit == 74
        other = sql.run(job="other", env=env)
        assert other.said() == (0, "done", None), other.err
        assert "waits on this host, and cannot be recorded" in other.receipt["warnings"][0]
        again = wait_until(lambda: (ran := sql.run("--lease", "1s", env=env)).exit == TO_MEND and ran)
        assert "permission denied" in again.err
    assert sql.effects() == [f"other {TODAY} 1"]
    assert sql.run().said() == (0, "skipped", "done")
    assert bodies(sql) == {f"job:{TODAY}/slack/-": b"hi\n"}


def test_a_wrong_password_runs_nothing_and_a_right_one_is_kept_nowhere(sql, postgres_of_ours):
    known(sql)
    access = postgres_of_ours.data / "pg_hba.conf"
    before = access.read_text()
    access.write_text("host all locked 127.0.0.1/32 scram-sha-256\n" + before)
    with postgres_behind(sql) as db:
        db.execute("CREATE ROLE locked LOGIN SUPERUSER PASSWORD 'hunter2'")
        db.execute("SELECT pg_reload_conf()")
    try:
        for secret, words in ((":hunter22", "password authentication failed"), ("", "no password supplied")):
            refused(sql, TO_MEND, words, sql.url.replace("//postgres@", f"//locked{secret}@"))
        right = sql.url.replace("//postgres@", "//locked:hunter2@")
        env = {"RANONCE_STORE": right, "RANONCE_LEDGER": sql.ledger}
        ran = sql.run(env=env)
        assert ran.said() == (0, "done", None)
    finally:
        access.write_text(before)
        with postgres_behind(sql) as db:
            db.execute("DROP ROLE locked")
            db.execute("SELECT pg_reload_conf()")
    kept = [file for file in sql.root.rglob("*") if file.is_file()]
    assert [file for file in kept if b"hunter2" in file.read_bytes()] == []


def test_without_the_driver_it_is_said_what_to_install(sql):
    known(sql)
    (sql.root / "sitecustomize.py").write_text("import sys; sys.modules['psycopg'] = None\n")
    ran = sql.run(env={"PYTHONPATH": str(sql.root)})
    assert (ran.exit, ran.receipt["event"]) == (TO_MEND, "unavailable")
    assert "psycopg 3, which cannot be loaded here: import of psycopg halted" in ran.sentence
    assert "pip install 'ranonce[postgres]'" in ran.sentence
    goes_on(sql)


@contextlib.contextmanager
def setting(world: World, name: str, value: str) -> Iterator[None]:
    """Change a setting of the PostgreSQL server for a while."""
    with postgres_behind(world) as db:
        db.execute(f"ALTER SYSTEM SET {name} = {value}")
        db.execute("SELECT pg_reload_conf()")
    try:
        yield
    finally:
        with postgres_behind(world) as db:
            db.execute("SET default_transaction_read_only = off")
            db.execute(f"ALTER SYSTEM RESET {name}")
            db.execute("SELECT pg_reload_conf()")


# --- Valkey ---------------------------------------------------------------------------------------------------------


@contextlib.contextmanager
def configured(world: World, **settings: str) -> Iterator[None]:
    """Change settings of the Valkey server for a while."""
    from redis import Redis

    with Redis.from_url(server_of(world.url).address, decode_responses=True) as db:
        before = {name: db.config_get(name)[name] for name in settings}
        for name, value in settings.items():
            db.config_set(name, value)
        try:
            yield
        finally:
            for name, value in before.items():
                db.config_set(name, value)


@pytest.mark.parametrize(
    ("change", "status", "words"),
    [
        (lambda url: url.replace("127.0.0.1", "nowhere.invalid"), MAY_PASS, "nowhere.invalid"),
        (lambda url: url.replace("/0?", "/99?"), TO_MEND, "99"),
        (lambda url: in_namespace(url, "another"), TO_MEND, "ledger"),
        (lambda url: url.replace("redis://", "rediss://"), MAY_PASS, "encrypt"),
        (lambda url: url.replace("//", "//somebody:hunter2@"), TO_MEND, "invalid username-password pair"),
    ],
)
def test_an_address_at_which_there_are_no_keys_of_ours_runs_nothing(keys, change, status, words):
    known(keys)
    refused(keys, status, words, change(keys.url))
    goes_on(keys)


def test_a_server_without_room_runs_nothing(keys):
    known(keys)
    with configured(keys, maxmemory="1"):
        refused(keys, MAY_PASS, "memory")
    goes_on(keys)


def test_a_server_that_wants_a_password_runs_nothing(keys):
    known(keys)
    with configured(keys, requirepass="hunter2"):
        refused(keys, TO_MEND, "Authentication required")
        env = {"RANONCE_STORE": keys.url.replace("//", "//:hunter2@"), "RANONCE_LEDGER": keys.ledger}
        assert keys.run(env=env).said() == (0, "done", None)
    kept = [file for file in keys.root.rglob("*") if file.is_file()]
    assert [file for file in kept if b"hunter2" in file.read_bytes()] == []


def test_a_replica_runs_nothing(keys):
    from redis import Redis

    known(keys)
    with Redis.from_url(server_of(keys.url).address) as db:
        db.execute_command("REPLICAOF", "127.0.0.1", "1")
        try:
            refused(keys, MAY_PASS, "is a replica")
        finally:
            db.execute_command("REPLICAOF", "NO", "ONE")
    goes_on(keys)


# --- something else -------------------------------------------------------------------------------------------------


@contextlib.contextmanager
def answering(what: bytes) -> Iterator[int]:
    """Something that listens, and answers everybody with the same."""
    listener = socket.create_server(("127.0.0.1", 0))

    def answer() -> None:
        with contextlib.suppress(OSError):
            while True:
                client, _ = listener.accept()
                with client, contextlib.suppress(OSError):
                    client.settimeout(5)
                    client.recv(4096)
                    client.sendall(what)

    threading.Thread(target=answer, daemon=True).start()
    try:
        yield listener.getsockname()[1]
    finally:
        listener.shutdown(socket.SHUT_RDWR)
        listener.close()


@pytest.mark.parametrize(
    "what",
    [b"HTTP/1.1 400 Bad Request\r\n\r\n", b"", b"\0" * 5000, b"+OK\r\n", b"-ERR unknown command\r\n", b"N"],
    ids=["a web server", "nothing", "zeros", "OK", "an error", "N"],
)
@pytest.mark.parametrize("kind", ["sql", "keys"])
def test_what_is_no_such_server_runs_nothing(request, kind, what):
    world = request.getfixturevalue(kind)
    known(world)
    with answering(what) as port:
        there = world.url.replace(str(port_of(world)), str(port))
        ran = world.run(env={"RANONCE_STORE": there, "RANONCE_LEDGER": world.ledger})
    assert ran.exit in (MAY_PASS, TO_MEND), ran.err
    assert ran.receipt["event"] == "unavailable"
    assert ran.sentence
    goes_on(world)


def port_of(world: World) -> int:
    return int(world.url.rpartition(":")[2].partition("/")[0])
