"""What a doctor looks at on one kind of store only. Each kind has a module, which is loaded for such a store alone."""

from __future__ import annotations

from ranonce.doctor.finding import RESTORE
from ranonce.record import Record
from ranonce.storeurl import server_of, sqlite_path

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator
    from typing import Protocol

    from ranonce.doctor.finding import Finding
    from ranonce.stores.base import Store

    Step = tuple[str, Callable[[], Iterable[Finding]]]

    class Steps(Protocol):
        """What is looked at in an open store, by the name of the check."""

        def __call__(self, store: Store, *, deep: bool) -> list[Step]: ...


class Kind(Record):
    """What is particular to a kind of store. `gaps` says why numbers of events are missing there though nobody has
    removed any, if they may be; `restore` says how what was there before is had again."""

    before: Callable[[str, str | None], Iterator[Finding]]  # of its place, by its URL; and what was accepted of that
    steps: Steps
    let_go: Callable[[Store], None]
    gaps: str | None = None
    restore: str = RESTORE


def kind_of(url: str) -> Kind:
    """Return what is to be looked at on the kind of store that a URL names. It need not be there."""
    server = server_of(url)
    if sqlite_path(url) is not None:
        from ranonce.doctor import sqlite

        return Kind(sqlite.before, sqlite.steps, sqlite.let_go, restore=sqlite.RESTORE_OLDER)
    if server is not None and server.scheme == "postgresql":
        from ranonce.doctor import postgres

        return Kind(_nothing, postgres.steps, _close, postgres.GAPS, postgres.RESTORE_OLDER)
    if server is not None:
        from ranonce.doctor import redis

        return Kind(_nothing, redis.steps, _close, restore=redis.RESTORE_OLDER)
    return Kind(_nothing, lambda store, deep: [], _close)


def _nothing(url: str, accepted: str | None) -> Iterator[Finding]:
    """A server's folders are not ours to look at."""
    return iter(())


def _close(store: Store) -> None:
    store.close()
