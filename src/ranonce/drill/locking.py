"""Hold a store back as another program could: the lock that every writer of a job has to wait for."""

from __future__ import annotations

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable

    from ranonce.stores.base import Store


def take_lock(store: Store, job: str) -> Callable[[], None] | str:
    """Take the lock and return what lets it go; or say why that cannot be tried on this kind of store."""
    kind = type(store).__name__
    if kind == "SqliteStore":
        from ranonce.stores.sqlite.store import SqliteStore

        assert isinstance(store, SqliteStore)
        held = store.connection
        held.execute("BEGIN IMMEDIATE")

        def let_go() -> None:
            held.execute("ROLLBACK")

        return let_go
    if kind == "PostgresStore":
        from ranonce.stores.postgres.store import PostgresStore

        assert isinstance(store, PostgresStore)
        transaction = store.connection.begin()
        transaction.__enter__()
        transaction.execute(f'SELECT 1 FROM "{store.schema}".jobs WHERE job = $1 FOR UPDATE', job)  # noqa: S608 - ours
        return lambda: transaction.__exit__(None, None, None)
    if kind == "RedisStore":
        return "to hold a Redis server back (CLIENT PAUSE) would stop everybody who uses it"
    return f"no lock of a {kind} is known to this version"
