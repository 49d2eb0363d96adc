"""What a PostgreSQL server promises to keep, and what our role may do in a ledger there.

Each question is answered by levels and sentences. Source of the settings: the PostgreSQL manual, "Write Ahead Log",
"Developer Options" and "Replication"; of the rights: "Privileges".
"""

from __future__ import annotations

from ranonce.stores.postgres.site import OLDEST
from ranonce.stores.postgres.store import in_schema
from ranonce.stores.statements import load

TYPE_CHECKING = False
if TYPE_CHECKING:
    from ranonce.stores.postgres.connection import Connection

SQL = load("postgres/promise.sql")
READS_ONLY = "may only read"
OK, NOTE, PROBLEM = "ok", "note", "problem"
#: From so many connections of a hundred on, the next storm of jobs may find none.
CROWDED_PERCENT = 80
#: Settings that must be on, and what may happen where they are not; that may have been accepted.
ON = {
    "fsync": "a power cut or a crash of the machine may lose or damage everything",
    "full_page_writes": "a power cut may damage what was being written",
}
#: Settings that must have this value, and what happens where they have another.
AS_IT_SHOULD_BE = {
    "session_replication_role": ("origin", "the triggers that keep events from being changed do not fire"),
    "zero_damaged_pages": ("off", "damaged pages are emptied without a word"),
    "ignore_checksum_failure": ("off", "damaged pages are read as if they were whole"),
}
#: What each table of a ledger is written with by a run. All of them are read.
WRITES = {
    "jobs": ("INSERT", "UPDATE"),
    "schedules": ("INSERT",),
    "runs": ("INSERT", "UPDATE"),
    "leases": ("INSERT", "UPDATE", "DELETE"),
    "events": ("INSERT",),
    "gates": ("INSERT", "UPDATE"),
    "outbox": ("INSERT", "UPDATE"),
    "bodies": ("INSERT",),
    "destinations": ("INSERT", "UPDATE"),
    "steps": ("INSERT",),
}
#: What would change history.
REWRITES = {
    "events": ("UPDATE", "DELETE", "TRUNCATE"),
    "pruning": ("INSERT",),
    "outbox": ("DELETE", "TRUNCATE"),
    "bodies": ("UPDATE", "DELETE", "TRUNCATE"),
    "steps": ("UPDATE", "DELETE", "TRUNCATE"),
}


def server(connection: Connection) -> list[tuple[str, str]]:
    """Say which server it is, and whether it can be written to."""
    version, number, standby, read_only, taken, most = connection.ask(SQL["server"])[0]
    told = []
    if int(number or 0) < OLDEST:
        told.append((PROBLEM, f"it is PostgreSQL {version}, and a ledger needs {OLDEST // 10000} or newer"))
    if standby == "t":
        told.append((PROBLEM, "it is a standby, which takes no writes: nothing can run"))
    elif read_only == "on":
        told.append((PROBLEM, "transactions are read-only there (default_transaction_read_only): nothing can run"))
    if int(taken or 0) * 100 >= int(most or 0) * CROWDED_PERCENT:
        told.append(
            (NOTE, f"{taken} of its {most} connections are taken: jobs wait for one, or put a pooler before it")
        )
    return told or [(OK, f"PostgreSQL {version}, which takes writes; {taken} of {most} connections are taken")]


def durability(connection: Connection, volatile: str | None) -> list[tuple[str, str]]:
    """Say whether what the server answers is on a disk by then. `volatile` is what was accepted, if anything was."""
    told = []
    settings = {str(name): str(value) for name, value in connection.ask(SQL["settings"])}
    for name, why in ON.items():
        if settings[name] == "off":
            accepted = volatile is not None and name in volatile
            told.append(
                (NOTE, f"{name} = off, which was accepted: {why}") if accepted else (PROBLEM, f"{name} = off: {why}")
            )
    for name, (value, why) in AS_IT_SHOULD_BE.items():
        if settings[name] != value:
            told.append((PROBLEM, f"{name} = {settings[name]}: {why}"))
    if settings["synchronous_commit"] == "off":
        told.append((NOTE, "synchronous_commit = off, in spite of which a ledger's own commits wait for the disk"))
    if settings["data_checksums"] != "on":
        told.append((NOTE, "it keeps no checksums (data_checksums), so a flipped bit on its disk may go unseen"))
    standbys = int(connection.ask(SQL["standbys"])[0][0] or 0)
    if standbys and not settings["synchronous_standby_names"]:
        told.append(
            (
                NOTE,
                f"{_standbys(standbys)}: a failover may lose runs that were answered last; hosts that saw them"
                " then refuse to run, and say so",
            )
        )
    if not any(level == PROBLEM for level, _ in told):
        told.insert(0, (OK, "every commit is on its disk before it is answered (fsync, full_page_writes)"))
    return told


def _standbys(count: int) -> str:
    many = "a standby" if count == 1 else f"{count} standbys"
    return f"it has {many}, which no commit waits for (synchronous_standby_names is empty)"


def rights(connection: Connection) -> list[tuple[str, str]]:
    """Say whether our role may do what a run does, and whether it could change history."""
    user, usage, owner, superuser = connection.ask(SQL["role"], connection.server.namespace)[0]
    missing = _missing(connection)
    writes = sum(map(len, WRITES.values()))
    lacking = [f"{privilege} on {table}" for table, privilege in missing]
    if usage != "t":
        return [(PROBLEM, f"the role {user} may not look into the schema")]
    told = []
    if unread := [what for what in lacking if what.startswith("SELECT")]:
        told.append((PROBLEM, f"the role {user} lacks {', '.join(unread)}"))
    elif len(lacking) == writes:
        told.append((NOTE, f"the role {user} {READS_ONLY}: it can look, and run nothing"))
    elif lacking:
        told.append((PROBLEM, f"the role {user} lacks {', '.join(lacking)}"))
    if "t" in (owner, superuser):
        what = "is a superuser" if superuser == "t" else "owns the ledger"
        told.append(
            (NOTE, f"the role {user} {what}, so it could change history; jobs need less (see the documentation)")
        )
    elif more := [f"{privilege} on {table}" for table, privilege in _held(connection)]:
        told.append((NOTE, f"the role {user} could change history ({', '.join(more)}); jobs need less"))
    return told or [(OK, f"the role {user} may do what jobs need, and cannot change history")]


def _missing(connection: Connection) -> list[tuple[str, str]]:
    asked = [(table, privilege) for table, some in WRITES.items() for privilege in some]
    asked += [(table, "SELECT") for table in (*WRITES, "ledger", "epochs", "tombstones", "pruning")]
    return [(table, privilege) for table, privilege in asked if not _may(connection, table, privilege)]


def _held(connection: Connection) -> list[tuple[str, str]]:
    asked = [(table, privilege) for table, some in REWRITES.items() for privilege in some]
    return [(table, privilege) for table, privilege in asked if _may(connection, table, privilege)]


def _may(connection: Connection, table: str, privilege: str) -> bool:
    name = in_schema(f"{{schema}}.{table}", connection.server.namespace)
    return connection.ask(SQL["may"], name, privilege)[0][0] == "t"


def granting(connection: Connection) -> str:
    """Return the statements that give our role what a run needs, on one line."""
    user = connection.ask("SELECT pg_catalog.quote_ident(current_user)")[0][0]
    return grants(connection.server.namespace, str(user))


def grants(namespace: str, user: str) -> str:
    """Return the same for any role, whose name is quoted where that is needed."""
    schema = in_schema("{schema}", namespace)
    by_writes: dict[tuple[str, ...], list[str]] = {}
    for table, privileges in WRITES.items():
        by_writes.setdefault(privileges, []).append(f"{schema}.{table}")
    given = [f"GRANT USAGE ON SCHEMA {schema} TO {user};", f"GRANT SELECT ON ALL TABLES IN SCHEMA {schema} TO {user};"]
    given += [f"GRANT {', '.join(some)} ON {', '.join(tables)} TO {user};" for some, tables in by_writes.items()]
    return " ".join(given)
