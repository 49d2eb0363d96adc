"""Open a store by its URL. Each store is loaded only when it is asked for."""

from __future__ import annotations

from ranonce.errors import ConfigError
from ranonce.storeurl import sqlite_path

TYPE_CHECKING = False
if TYPE_CHECKING:
    from ranonce.stores.base import Store


def open_store(url: str, *, wait_seconds: float) -> Store:
    """Open the store at an absolute URL. Never creates anything."""
    if (path := sqlite_path(url)) is not None:
        from ranonce.stores.sqlite import SqliteStore

        return SqliteStore(path, wait_seconds=wait_seconds)
    if url == "memory:":
        from ranonce.stores.memory import MemoryStore

        return MemoryStore()
    raise ConfigError(f"{url!r} is no store this version knows.", "Use sqlite:////absolute/path.")
