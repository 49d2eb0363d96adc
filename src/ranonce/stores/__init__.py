"""Open a store by its URL, or find the site at which one may be made. Each is loaded only when it is asked for."""

from __future__ import annotations

from ranonce.errors import ConfigError
from ranonce.storeurl import MEMORY, server_of, sqlite_path

TYPE_CHECKING = False
if TYPE_CHECKING:
    from ranonce.stores.base import Site, Store


def open_store(url: str, *, wait_seconds: float) -> Store:
    """Open the store at an absolute URL. Never creates anything."""
    if (path := sqlite_path(url)) is not None:
        from ranonce.stores.sqlite.store import SqliteStore

        return SqliteStore(path, wait_seconds=wait_seconds)
    server = server_of(url)
    if server is not None and server.scheme == "postgresql":
        from ranonce.stores.postgres.store import PostgresStore

        return PostgresStore(url, wait_seconds=wait_seconds)
    if server is not None:
        from ranonce.stores.redis.store import RedisStore

        return RedisStore(url, wait_seconds=wait_seconds)
    if url == MEMORY:
        from ranonce.stores.memory.store import MemoryStore

        return MemoryStore()
    raise ConfigError(f"{url!r} is no store this version knows.", "Use sqlite:////absolute/path.")


def site_of(url: str, *, wait_seconds: float) -> Site:
    """Return the site that a URL names: what stands there, what it promises, and how a ledger is made there.

    Raises ConfigError for a store that cannot be kept.
    """
    if (path := sqlite_path(url)) is not None:
        from ranonce.stores.sqlite.site import SqliteSite

        return SqliteSite(path, wait_seconds=wait_seconds)
    server = server_of(url)
    if server is not None and server.scheme == "postgresql":
        from ranonce.stores.postgres.site import PostgresSite

        return PostgresSite(url, wait_seconds=wait_seconds)
    if server is not None:
        from ranonce.stores.redis.site import RedisSite

        return RedisSite(url, wait_seconds=wait_seconds)
    raise ConfigError(f"{url!r} cannot be kept.", "Name a file: --store sqlite:////absolute/path.")
