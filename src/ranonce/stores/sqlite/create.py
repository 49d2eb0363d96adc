"""Create the file of a SQLite ledger. Not loaded by anything that only uses one."""

from __future__ import annotations

import os
import sqlite3
import time

from ranonce.errors import NotThisLedger, StoreUnavailable
from ranonce.stores.sqlite.file import APPLICATION_ID, FORMAT, SQL, private_file, quoted, translated
from ranonce.stores.statements import load
from ranonce.timefmt import format_instant

#: How long an upgrade waits for the file.
UPGRADE_WAIT_SECONDS = 30.0


def create(path: str, ledger: str, *, volatile: str | None = None, epoch: int = 1) -> None:
    """Create an empty ledger file at an absolute path. Refused where anything stands already.

    The file is built under another name and moved into place, so that nobody ever meets half a ledger.
    """
    folder = os.path.dirname(path)
    try:
        os.makedirs(folder, mode=0o700, exist_ok=True)
        # A name of chance: one that was killed in a container has left its own, and its number comes back there.
        building = f"{path}.{os.urandom(4).hex()}.new"
        os.close(os.open(building, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600))
        try:
            _build(building, ledger, volatile, epoch)
            os.link(building, path)
        finally:
            for leftover in (building, building + "-wal", building + "-shm"):
                if os.path.lexists(leftover):
                    os.unlink(leftover)
        sync_folder(folder)
    except FileExistsError as error:
        raise NotThisLedger(f"{path!r} exists already.", "Nothing was changed; name another path.") from error
    except OSError as error:
        raise StoreUnavailable(f"no ledger could be created at {path!r}: {error.strerror}.", "") from error
    except sqlite3.Error as error:
        raise translated(error, path) from error


def _build(path: str, ledger: str, volatile: str | None, epoch: int) -> None:
    db = sqlite3.connect(f"file:{quoted(path)}?mode=rw", uri=True, isolation_level=None)
    try:
        # The journal mode is set while nobody else can have the file open, so it cannot fail for being locked.
        mode = db.execute("PRAGMA journal_mode = WAL").fetchone()[0]
        if mode != "wal":
            raise StoreUnavailable(f"{path!r} cannot be put in WAL mode (it stays {mode}).", "Use a local disk.")
        db.execute("PRAGMA synchronous = FULL")
        schema = read_schema()
        db.executescript(
            f"BEGIN; PRAGMA application_id = {APPLICATION_ID}; PRAGMA user_version = {FORMAT}; {schema} COMMIT;"
        )
        db.execute(SQL["create"], (ledger, format_instant(time.time(), precision="ms"), epoch, volatile))
        db.execute("PRAGMA wal_checkpoint(TRUNCATE)")
    finally:
        db.close()


def read_schema() -> str:
    """Return the statements that make the tables."""
    with open(os.path.join(os.path.dirname(__file__), "schema.sql"), encoding="utf-8") as file:
        return file.read()


def sync_folder(folder: str) -> None:
    """Make durable which names stand in a folder."""
    fd = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(fd)
    finally:
        os.close(fd)


def upgrade(path: str, ledger: str | None = None) -> bool:
    """Bring the tables of an older ledger to this version's format; say whether there was anything to do.

    One transaction: whoever has the file open meanwhile waits, and then refuses or goes on with what it knows.
    Raises NotThisLedger for another ledger than the one that is meant.
    """
    private_file(path)
    db = sqlite3.connect(f"file:{quoted(path)}?mode=rw", uri=True, isolation_level=None, timeout=UPGRADE_WAIT_SECONDS)
    try:
        if db.execute("PRAGMA application_id").fetchone()[0] != APPLICATION_ID:
            return False
        db.execute("PRAGMA synchronous = FULL")
        db.execute("BEGIN IMMEDIATE")
        known = db.execute("PRAGMA user_version").fetchone()[0]
        steps = range(known, FORMAT) if 0 < known <= FORMAT else ()
        found = db.execute(SQL["identity"]).fetchone()[0] if steps else ledger
        if ledger not in (None, found):
            raise NotThisLedger(
                f"the ledger at {path!r} is ledger {found}, and {ledger} is expected there.",
                "Nothing was changed. Restore the right ledger, or name another store.",
            )
        scripts = load("sqlite/upgrade.sql")
        for number in steps:
            for statement in _statements(scripts[f"upgrade_{number}"]):
                db.execute(statement)
        if steps:
            db.execute(f"PRAGMA user_version = {FORMAT}")
        db.execute("COMMIT")
    except sqlite3.Error as error:
        raise translated(error, path) from error
    finally:
        db.close()
    return bool(steps)


def _statements(script: str) -> list[str]:
    """Cut a script into its statements: a trigger's body holds semicolons of its own."""
    found, part = [], ""
    for piece in script.split(";"):
        part += piece + ";"
        if sqlite3.complete_statement(part):
            found.append(part)
            part = ""
    return [statement for statement in found if statement.strip(" ;\n")]
