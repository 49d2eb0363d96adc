"""Say how a ledger was lost, if it was: missing, damaged, or behind what this host remembers.

What is no loss of this ledger (another one, somebody else's file, a wrong mode) is refused, and left alone.
"""

from __future__ import annotations

import os

from ranonce.errors import NotThisLedger
from ranonce.exchange.salvage import stories
from ranonce.journal import Journal
from ranonce.lifecycle import DONE
from ranonce.merging import folded
from ranonce.record import Record
from ranonce.stores import open_store
from ranonce.stores.sqlite_file import APPLICATION_ID, FORMAT, private_file

TYPE_CHECKING = False
if TYPE_CHECKING:
    from ranonce.stores.base import Store


MAGIC = b"SQLite format 3\0"
# How a ledger was lost.
MISSING, DAMAGED, BEHIND = "missing", "damaged", "behind"


class Where(Record):
    """Which ledger it is about: its id, its file, its URL, and this host's folder for it."""

    ledger: str
    path: str
    url: str
    folder: str
    wait_seconds: float = 30.0


class Loss(Record):
    """How the ledger was lost, and the sentence that says so."""

    kind: str
    why: str


def diagnose(where: Where) -> Loss | None:
    """Say how the ledger was lost; None where nothing is wrong with it.

    Raises NotThisLedger for what is no loss of this ledger: another one, somebody else's file, a wrong mode.
    """
    if not os.path.lexists(where.path):
        return Loss(MISSING, f"there is no file at {where.path!r}")
    if (broken := _no_ledger_file(where.path)) is not None:
        return broken
    try:
        store = open_store(where.url, wait_seconds=where.wait_seconds)
    except NotThisLedger as error:
        return Loss(DAMAGED, error.sentence)
    try:
        identity = store.identity()
        if identity.ledger != where.ledger:
            raise NotThisLedger(
                f"the store {where.url} is ledger {identity.ledger}, and {where.ledger} is expected there.",
                "Nothing was changed. Name the right store; a ledger that only moved is no loss.",
            )
        return _damage(store) or _behind(store, where)
    finally:
        store.close()


def _no_ledger_file(path: str) -> Loss | None:
    """Look at the file itself. Raises NotThisLedger where it is not ours to replace."""
    if not os.path.islink(path) and os.path.isfile(path) and os.path.getsize(path) == 0:
        return Loss(DAMAGED, f"the ledger {path!r} is empty (0 bytes).")
    private_file(path)
    with open(path, "rb") as file:
        header = file.read(100)
    if not header.startswith(MAGIC) or len(header) < 100:
        return Loss(DAMAGED, f"{path!r} is no database any more.")
    application, version = (int.from_bytes(header[at : at + 4], "big") for at in (68, 60))
    if application != APPLICATION_ID:
        raise NotThisLedger(
            f"{path!r} is a SQLite file of something else, not a ranonce ledger.",
            "Nothing was changed. Move it away yourself if the ledger was overwritten, and say so again.",
        )
    if version != FORMAT:
        raise NotThisLedger(
            f"{path!r} has table format {version}; this ranonce knows format {FORMAT}.",
            "Bring it up to date: ranonce init" if 0 < version < FORMAT else "Use the version that wrote it.",
        )
    return None


def _damage(store: Store) -> Loss | None:
    """Look for damage inside: pages and indexes, and rows that their own events contradict."""
    try:
        if problems := store.upkeep().problems(deep=True):
            return Loss(DAMAGED, f"the file is damaged: {problems[0]}")
        with store.upkeep().view():
            for run, events in stories(store):
                told = folded(events)
                if told.status == DONE and (run is None or (run.status, run.generation) != (DONE, told.generation)):
                    return Loss(DAMAGED, f"its events know {events[0].key} as done, and its runs do not")
                if run is None and told.status is not None:
                    return Loss(DAMAGED, f"its events know of {events[0].key}, and its runs do not")
    except NotThisLedger as error:
        return Loss(DAMAGED, error.sentence)
    return None


def _behind(store: Store, where: Where) -> Loss | None:
    journal = Journal(where.folder, store.identity().epoch)
    try:
        journal.check(journal.tail(), store)
    except NotThisLedger as error:
        return Loss(BEHIND, error.sentence)
    return None
