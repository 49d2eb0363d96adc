"""`ranonce backup`: copy the ledger to a file, while jobs run."""

from __future__ import annotations

import os
import time

from ranonce.cli.joboptions import JSON, LEDGER_OPTIONS
from ranonce.cli.opening import ledger_of, read_config, tell_warnings
from ranonce.cli.options import Command
from ranonce.cli.report import write, write_json
from ranonce.errors import UsageError
from ranonce.names import plain
from ranonce.signals import Signals, die_by
from ranonce.storeurl import masked, server_of, sqlite_path
from ranonce.timefmt import format_instant

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Mapping

    from ranonce.cli.options import Parsed

COMMAND = Command(
    "backup",
    ("PATH",),
    "Copy the ledger to a file, while jobs run.",
    (JSON, *LEDGER_OPTIONS),
    description="""Writes one consistent state of a SQLite ledger to a new private file, checks it, and only then gives
    it its name. Where PATH is a folder, the file in it is named after the present instant. A copy made in another way
    while jobs run may miss what stands in the ledger's -wal file. A ledger on a server is backed up by what its server
    has for that, or exported.""",
)


def run(parsed: Parsed, environ: Mapping[str, str]) -> int:
    """Write the copy; say up to where it goes, and how it is put back."""
    config = read_config(parsed, environ)
    store = sqlite_path(config.ledger.store)
    if store is None:
        raise _of_a_server(config.ledger.store)
    ledger = ledger_of(config, environ, reading=True)
    tell_warnings(ledger)
    from ranonce.stores.sqlite.upkeep import SqliteUpkeep

    upkeep = ledger.store.upkeep()
    assert isinstance(upkeep, SqliteUpkeep)
    path = _named(parsed.arguments[0])
    with Signals() as signals:
        last = upkeep.backup(path, go_on=lambda: signals.first is None)
    if last is None:
        assert signals.first is not None
        die_by(signals.first)
    identity = ledger.store.identity()
    if parsed.flag("json"):
        told = {"event": "backup", "path": path, "bytes": os.stat(path).st_size, "last_event": last}
        write_json({**told, "ledger": identity.ledger, "epoch": identity.epoch})
        return 0
    write(
        map(
            plain,
            [
                f"Wrote {path}: the ledger {identity.ledger} up to event {last}.",
                f"To put it back, while no job runs: copy it to {store}, mode 0600, and remove {store}-wal and -shm.",
                "Where something ran since, the journals of its hosts know more, and jobs refuse to run until",
                "the loss is accepted (ranonce accept-loss).",
            ],
        )
    )
    return 0


def _of_a_server(url: str) -> UsageError:
    """Return the error for a ledger on a server, with what backs it up."""
    server = server_of(url)
    if server is not None and server.scheme == "postgresql":
        how = f"Use what its server has: pg_dump --format=custom --schema={server.namespace} --file=PATH URL"
    elif server is not None:
        how = "Use what its server has: BGSAVE, then copy the RDB file it has written; or copy its append-only files"
    else:
        how = "There is nothing to keep of it"
    return UsageError(
        f"`ranonce backup` copies a SQLite ledger, and this one is at {masked(url)}.",
        f"{how}. What every store can be filled from again: ranonce export --output FILE",
    )


def _named(path: str) -> str:
    """Return the absolute path of the file to write: in a folder, one named after the present instant."""
    path = os.path.abspath(os.path.expanduser(path))
    if not os.path.isdir(path):
        return path
    instant = format_instant(time.time()).replace("-", "").replace(":", "")
    return os.path.join(path, f"ranonce-{instant}.db")
