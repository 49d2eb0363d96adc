"""How a ledger is lost, on each kind of store, by somebody who may do everything there."""

from __future__ import annotations

import contextlib
import re
import shutil
import sqlite3
from collections.abc import Iterator
from typing import Any

from ranonce.lifecycle import Event
from ranonce.stores import open_store, site_of
from ranonce.storeurl import in_namespace, server_of
from tests.behind import postgres_behind
from tests.ledgers import AFTER, BEFORE
from tests.servers import forget
from tests.world import World

TABLES = (
    *("jobs", "leases", "runs", "events", "steps", "outbox", "bodies", "destinations", "gates", "ledger"),
    *("schedules", "epochs", "tombstones", "pruning"),
)


@contextlib.contextmanager
def redis_behind(world: World) -> Iterator[tuple[Any, str]]:
    """Connect to the server of the world's ledger in Redis; what its keys begin with comes along."""
    from redis import Redis

    server = server_of(world.url)
    assert server is not None
    with Redis.from_url(server.address) as db:
        yield db, f"{{{server.namespace}}}:"


def kind(world: World) -> str:
    return world.url.partition(":")[0].replace("rediss", "redis")


def sqlite_files(world: World) -> list[Any]:
    return sorted(world.store.parent.glob("ledger.db*"))


# --- gone, emptied --------------------------------------------------------------------------------------------------


def gone(world: World) -> None:
    """Drop it: the folder, the schema, all keys."""
    if kind(world) == "sqlite":
        shutil.rmtree(world.store.parent)
    else:
        forget(world.url)


def emptied(world: World) -> None:
    """Empty the file or the tables; Redis has no empty keys, so only what is not a job's is left."""
    match kind(world):
        case "sqlite":
            for file in sqlite_files(world):
                file.write_bytes(b"")
        case "postgresql":
            with postgres_behind(world) as db:
                db.execute("SET session_replication_role = replica")
                db.execute(f"TRUNCATE {', '.join(TABLES)}")
        case "redis":
            with redis_behind(world) as (db, prefix):
                db.delete(*(name for name in db.scan_iter(f"{prefix}*") if name.count(b":") > 1))
                db.delete(f"{prefix}jobs", f"{prefix}versions", f"{prefix}events", f"{prefix}ledger")


def without_identity(world: World) -> None:
    match kind(world):
        case "sqlite":
            world.sql("DELETE FROM ledger")
        case "postgresql":
            with postgres_behind(world) as db:
                db.execute("DELETE FROM ledger")
        case "redis":
            with redis_behind(world) as (db, prefix):
                db.hdel(f"{prefix}ledger", "id")


def without_runs(world: World) -> None:
    """Remove the state of all runs; the events still tell of them."""
    match kind(world):
        case "sqlite":
            world.sql("DELETE FROM runs")
        case "postgresql":
            with postgres_behind(world) as db:
                db.execute("DELETE FROM runs")
        case "redis":
            with redis_behind(world) as (db, prefix):
                for what in ("runs", "order", "notable", "waiting"):
                    db.delete(f"{prefix}{what}:job")


def without_a_table(world: World) -> None:
    """Remove the runs with all that knows of them."""
    match kind(world):
        case "sqlite":
            world.sql("DROP TABLE runs")
        case "postgresql":
            with postgres_behind(world) as db:
                db.execute("DROP TABLE runs CASCADE")
        case "redis":
            without_runs(world)


# --- put back from before -------------------------------------------------------------------------------------------


def copied(world: World) -> None:
    """Keep a copy of the ledger as it is, as a backup would."""
    match kind(world):
        case "sqlite":
            backup = world.root / "yesterday"
            backup.mkdir()
            for file in sqlite_files(world):
                shutil.copy2(file, backup)
        case "postgresql":
            with postgres_behind(world) as db:
                copy = {table: db.execute(f"SELECT * FROM {table}").fetchall() for table in TABLES}
                copy["seq"] = db.execute("SELECT last_value FROM events_seq_seq").fetchall()
                copy["outbox_seq"] = db.execute("SELECT last_value FROM outbox_seq_seq").fetchall()
            world.copy = copy  # type: ignore[attr-defined]
        case "redis":
            with redis_behind(world) as (db, prefix):
                world.copy = {name: db.dump(name) for name in db.scan_iter(f"{prefix}*")}  # type: ignore[attr-defined]


def rolled_back(world: World) -> None:
    """Put the copy back where the ledger is."""
    match kind(world):
        case "sqlite":
            for file in sqlite_files(world):
                file.unlink()
            for file in (world.root / "yesterday").iterdir():
                shutil.copy2(file, world.store.parent)
        case "postgresql":
            _put_back_tables(world, world.copy)  # type: ignore[attr-defined]
        case "redis":
            forget(world.url)
            with redis_behind(world) as (db, _):
                for name, value in world.copy.items():  # type: ignore[attr-defined]
                    db.restore(name, 0, value)


def _put_back_tables(world: World, copy: dict[str, list[tuple[Any, ...]]]) -> None:
    from psycopg.types.json import Json

    with postgres_behind(world) as db:
        db.execute("SET session_replication_role = replica")
        db.execute(f"TRUNCATE {', '.join(TABLES)}")
        for table in TABLES:
            for row in copy[table]:
                values = [Json(value) if isinstance(value, dict) else value for value in row]
                db.execute(f"INSERT INTO {table} VALUES ({', '.join(['%s'] * len(row))})", values)
        db.execute("SELECT setval('events_seq_seq', %s)", copy["seq"][0])
        db.execute("SELECT setval('outbox_seq_seq', %s)", copy["outbox_seq"][0])


# --- made again -----------------------------------------------------------------------------------------------------


def _removed(world: World) -> None:
    if kind(world) == "sqlite":
        for file in sqlite_files(world):
            file.unlink()
    else:
        forget(world.url)


def created_anew(world: World) -> None:
    """Put another ledger there."""
    _removed(world)
    site_of(world.url, wait_seconds=20).create("f" * 32)


def created_anew_under_the_same_id(world: World) -> None:
    _removed(world)
    site_of(world.url, wait_seconds=20).create(world.ledger)


def somebody_elses(world: World) -> None:
    """Put something there that was never a ledger."""
    _removed(world)
    match kind(world):
        case "sqlite":
            with contextlib.closing(sqlite3.connect(world.store)) as db:
                db.execute("CREATE TABLE runs (x)")
        case "postgresql":
            server = server_of(world.url)
            assert server is not None
            with postgres_behind(world) as db:
                db.execute(f'CREATE SCHEMA "{server.namespace}"')
                db.execute(f'CREATE TABLE "{server.namespace}".accounts (balance integer)')


def of_another_format(world: World) -> None:
    match kind(world):
        case "sqlite":
            world.sql("PRAGMA user_version = 99")
        case "postgresql":
            with postgres_behind(world) as db:
                db.execute("UPDATE ledger SET format = 99")
        case "redis":
            with redis_behind(world) as (db, prefix):
                db.hset(f"{prefix}ledger", "format", "99")


# --- what is there --------------------------------------------------------------------------------------------------


def url_of(world: World, name: str) -> str:
    """Return the address of what was moved aside, by its name."""
    return f"sqlite:///{name}" if kind(world) == "sqlite" else in_namespace(world.url, name)


def facts_of(world: World, name: str) -> list[Event]:
    """Return the events of a ledger that was moved aside."""
    store = open_store(url_of(world, name), wait_seconds=20)
    try:
        return list(store.events("job", BEFORE, AFTER))
    finally:
        store.close()


def beside(world: World) -> list[str]:
    """Return what stands beside the ledger under names of its own: what was moved aside, and what was left behind."""
    server = server_of(world.url)
    if server is None:
        own = re.compile(re.escape(world.store.name) + r"(-wal|-shm|-line)?|.*-(wal|shm)|signs?")
        found = [str(file) for file in world.store.parent.iterdir() if not own.fullmatch(file.name) and file.is_file()]
        return sorted(found)
    if server.scheme == "postgresql":
        with postgres_behind(world) as db:
            rows = db.execute("SELECT nspname FROM pg_namespace WHERE nspname LIKE %s", (f"{server.namespace}\\_%",))
            return sorted(row[0] for row in rows)
    with redis_behind(world) as (db, prefix):
        return sorted({name[1:].partition(b"}")[0].decode() for name in db.scan_iter(f"{prefix[:-2]}_*")})


def content(world: World) -> object:
    """Return all that stands where the ledger is, so that two of them can be compared."""
    match kind(world):
        case "sqlite":
            return world.store.read_bytes()
        case "postgresql":
            server = server_of(world.url)
            assert server is not None
            with postgres_behind(world) as db:
                named = "SELECT tablename FROM pg_tables WHERE schemaname = %s ORDER BY 1"
                tables = [row[0] for row in db.execute(named, (server.namespace,))]
                return {table: db.execute(f"SELECT * FROM {table}").fetchall() for table in tables}
        case _:
            with redis_behind(world) as (db, prefix):
                return {name: db.dump(name) for name in db.scan_iter(f"{prefix}*")}
