"""A ledger in PostgreSQL: what its server promises, what our role may do there, and whether its tables are whole."""

from __future__ import annotations

from ranonce.doctor import servers
from ranonce.doctor.finding import RESTORE, Check

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterator

    from ranonce.doctor.finding import Finding
    from ranonce.doctor.kinds import Step
    from ranonce.stores.base import Store
    from ranonce.stores.postgres.store import PostgresStore

#: Why numbers of events may be missing. Source: the PostgreSQL manual, "Sequence Manipulation Functions".
GAPS = "PostgreSQL passes over numbers where a transaction fails or the server restarts"
RESTORE_OLDER = (
    "restore the ledger from a backup of before that (pg_dump and pg_restore, or the server's own), and see who may"
    " write its tables"
)
MEND = "bring it up to date, as its owner: ranonce init"


def steps(store: Store, *, deep: bool) -> list[Step]:
    """Return what is looked at in the open ledger."""
    from ranonce.stores.postgres.store import PostgresStore

    assert isinstance(store, PostgresStore)
    return [
        ("server", lambda: server(store)),
        ("round-trip", lambda: servers.round_trip(store)),
        ("durability", lambda: durability(store)),
        ("rights", lambda: rights(store)),
        ("integrity", lambda: servers.integrity(store, deep=deep, todo=_todo)),
    ]


def server(store: PostgresStore) -> Iterator[Finding]:
    """See which server it is, and whether it can be written to."""
    from ranonce.stores.postgres.promise import server

    check = Check("server", "asked the server what it is")
    return servers.told(check, server(store.connection), lambda _: "name the server that writes")


def durability(store: PostgresStore) -> Iterator[Finding]:
    """See whether what is answered is on a disk."""
    from ranonce.stores.postgres.promise import durability

    check = Check("durability", "asked the server how it writes")
    found = durability(store.connection, store.identity().volatile)
    return servers.told(check, found, lambda _: "change that setting of the server: until then a crash may lose runs")


def rights(store: PostgresStore) -> Iterator[Finding]:
    """See whether our role may do what jobs need, and no more."""
    from ranonce.stores.postgres.promise import READS_ONLY, granting, rights

    check = Check("rights", "asked the server what this role may do")
    found = rights(store.connection)
    grants = granting(store.connection)
    say = f"let the owner of the ledger say: {grants}"
    return servers.told(check, found, lambda _: say, lambda seen: f"to run jobs, {say}" if READS_ONLY in seen else "")


def _todo(line: str) -> str:
    return MEND if line.startswith(("the function ", "the trigger ")) else RESTORE
