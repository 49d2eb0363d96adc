"""A ledger in Redis or Valkey: what its server promises, and whether its keys fit each other."""

from __future__ import annotations

from ranonce.doctor import servers
from ranonce.doctor.finding import Check

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterator

    from ranonce.doctor.finding import Finding
    from ranonce.doctor.kinds import Step
    from ranonce.stores.base import Store
    from ranonce.stores.redis.store import RedisStore


RESTORE_OLDER = "restore the ledger from the server's backup of before that, and see who may write its keys (ACL LIST)"


def steps(store: Store, *, deep: bool) -> list[Step]:
    """Return what is looked at in the open ledger."""
    from ranonce.stores.redis.store import RedisStore

    assert isinstance(store, RedisStore)
    return [
        ("durability", lambda: durability(store)),
        ("round-trip", lambda: servers.round_trip(store)),
        ("integrity", lambda: servers.integrity(store, deep=deep)),
    ]


def durability(store: RedisStore) -> Iterator[Finding]:
    """See what the server keeps, and whether another one may take over that has less."""
    check = Check("durability", "asked the server what it keeps")
    return servers.told(check, store.promise(), _todo)


def _todo(seen: str) -> str:
    if "replica of" in seen:
        return "name the server that writes"
    if "evict" in seen:
        return "set maxmemory-policy noeviction there, or maxmemory 0"
    return "set appendonly yes, appendfsync always and no-appendfsync-on-rewrite no there"
