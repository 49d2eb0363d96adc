"""What a test does to a ledger behind its back, on each kind of store."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import Any

from ranonce.storeurl import server_of
from tests.world import World

LONG_AGO = "2020-01-01T00:00:00.000Z"


@contextlib.contextmanager
def postgres_behind(world: World) -> Iterator[Any]:
    """Connect to the world's ledger in PostgreSQL, so that its tables can be named without their schema."""
    import psycopg

    server = server_of(world.url)
    assert server is not None
    with psycopg.connect(server.address, autocommit=True) as db:
        db.execute(f'SET search_path TO "{server.namespace}"')
        yield db


def born_long_ago(world: World) -> None:
    """Let the ledger be old: that of a test is seconds old, and a clock before its birth is refused for that."""
    statement = f"UPDATE ledger SET created_at = '{LONG_AGO}'"
    if world.url.startswith("sqlite"):
        world.sql(statement)
        return
    if world.url.startswith("redis"):
        with world.opened() as store:
            store._connection.ask(("HSET", store.keys("ledger"), "created_at", "0.0"))  # type: ignore[attr-defined]
        return
    with postgres_behind(world) as db:
        db.execute(statement)
