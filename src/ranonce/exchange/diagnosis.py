"""Say how a ledger was lost, if it was: missing, damaged, or behind what this host remembers.

What is no loss of this ledger (another one, somebody else's file, a wrong mode) is refused, and left alone.
"""

from __future__ import annotations

from ranonce.errors import NotThisLedger
from ranonce.exchange.salvage import stories
from ranonce.journal import Journal
from ranonce.lifecycle import DONE
from ranonce.merging import folded
from ranonce.record import Record
from ranonce.stores import open_store
from ranonce.storeurl import masked

TYPE_CHECKING = False
if TYPE_CHECKING:
    from ranonce.stores.base import Recovery, Site, Store


# How a ledger was lost.
MISSING, DAMAGED, BEHIND = "missing", "damaged", "behind"


class Where(Record):
    """Which ledger it is about: its id, its URL and site, and this host's folder for it."""

    ledger: str
    url: str
    site: Site
    folder: str
    wait_seconds: float = 30.0


class Loss(Record):
    """How the ledger was lost, and the sentence that says so."""

    kind: str
    why: str


def diagnose(where: Where, recovery: Recovery) -> Loss | None:
    """Say how the ledger was lost; None where nothing is wrong with it.

    Raises NotThisLedger for what is no loss of this ledger: another one, something of somebody else's, a wrong mode.
    """
    if not where.site.stands():
        return Loss(MISSING, f"there is nothing at {masked(where.url)}")
    if (broken := recovery.broken()) is not None:
        return Loss(DAMAGED, broken)
    try:
        store = open_store(where.url, wait_seconds=where.wait_seconds)
    except NotThisLedger as error:
        return Loss(DAMAGED, error.sentence)
    try:
        identity = store.identity()
        if identity.ledger != where.ledger:
            raise NotThisLedger(
                f"the store {masked(where.url)} is ledger {identity.ledger}, and {where.ledger} is expected there.",
                "Nothing was changed. Name the right store; a ledger that only moved is no loss.",
            )
        return _damage(store) or _behind(store, where)
    finally:
        store.close()


def _damage(store: Store) -> Loss | None:
    """Look for damage inside: pages and indexes, and rows that their own events contradict."""
    try:
        if problems := store.upkeep().problems(deep=True):
            return Loss(DAMAGED, f"it is damaged: {problems[0]}")
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
