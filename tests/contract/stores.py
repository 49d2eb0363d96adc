"""The stores under contract: how a test makes one of each kind."""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from ranonce.stores import open_store, site_of
from ranonce.stores.base import Store
from tests.servers import Server

LEDGER = "c0ffee" + "0" * 26


@dataclass
class Kind:
    """One kind of store. `url` is None where other processes cannot reach it."""

    name: str
    open: Callable[[], Store]
    url: str | None
    pass_time: Callable[[Store, float], None]


def memory() -> Kind:
    from ranonce.stores.memory.store import MemoryStore

    moved = [0.0]
    store = MemoryStore(LEDGER, now=lambda: time.monotonic() + moved[0])

    def pass_time(_: Store, seconds: float) -> None:
        moved[0] += seconds

    return Kind("memory", lambda: store, None, pass_time)


def sqlite(folder: Path) -> Kind:
    from ranonce.stores.sqlite.create import create
    from ranonce.stores.sqlite.store import SqliteStore

    path = folder / "ledger" / "ledger.db"
    create(str(path), LEDGER)
    url = f"sqlite:///{path}"

    def pass_time(store: Store, seconds: float) -> None:
        # The boot clock cannot be moved; what counts is the distance, so the leases move the other way.
        assert isinstance(store, SqliteStore)
        store._db.execute("UPDATE leases SET expires = expires - ?, seen_at = seen_at - ?", (seconds, seconds))
        store._db.execute("UPDATE outbox SET lease_until = lease_until - ? WHERE state = 'sending'", (seconds,))

    return Kind("sqlite", lambda: open_store(url, wait_seconds=20), url, pass_time)


def postgres(server: Server) -> Kind:
    url = server.url(f"t{os.urandom(6).hex()}")  # type: ignore[attr-defined]
    site_of(url, wait_seconds=20).create(LEDGER)

    def pass_time(store: Store, seconds: float) -> None:
        # The server's clock cannot be moved; what counts is the distance.
        store.ask("UPDATE {schema}.leases SET expires = expires - $1::float8, seen_at = seen_at - $1::float8", seconds)  # type: ignore[attr-defined]
        store.ask("UPDATE {schema}.outbox SET lease_until = lease_until - $1::float8", seconds)  # type: ignore[attr-defined]

    return Kind("postgres", lambda: open_store(url, wait_seconds=20), url, pass_time)


def redis(server: Server) -> Kind:
    url = server.url(f"t{os.urandom(6).hex()}")
    site_of(url, wait_seconds=20).create(LEDGER)

    def pass_time(store: Store, seconds: float) -> None:
        # The server's clock cannot be moved; what counts is the distance.
        from ranonce.messages import SENDING, Move
        from ranonce.stores.base import Wanted
        from ranonce.stores.redis.plan import Plan
        from ranonce.stores.redis.store import RedisStore

        assert isinstance(store, RedisStore)
        plan = Plan(store.keys)
        for held in (held for job in store.jobs() for held in store.leases(job.name)):
            earlier = held.lease.replace(expires=held.lease.expires - seconds, seen_at=held.lease.seen_at - seconds)
            plan.unless_as_read(held)
            plan.lease(held.key, held.window_start, earlier)
        assert store.write(plan) is not None
        outbox = store.outbox()
        for message in outbox.messages(Wanted(states=frozenset({SENDING})), limit=1000):
            move = Move(message, message.replace(lease_until=message.lease_until - seconds))
            assert outbox.exchange(message.destination, [move]).moved == {message.key}

    return Kind("redis", lambda: open_store(url, wait_seconds=20), url, pass_time)
