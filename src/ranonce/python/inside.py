"""Finish a run inside the caller's own transaction, and see afterwards whether that was committed."""

from __future__ import annotations

import sqlite3

from ranonce import lifecycle
from ranonce.errors import StoreUnavailable, UsageError

TYPE_CHECKING = False
if TYPE_CHECKING:
    from ranonce.ledger import OpenLedger
    from ranonce.lifecycle import Claim, Event, Refusal
    from ranonce.python.verdict import Judged


class Inside:
    """One outcome that became part of the transaction on a connection of the caller's."""

    def __init__(self, judged: Judged, connection: sqlite3.Connection) -> None:
        self.judged = judged
        self._connection = connection
        self._events: tuple[Event, ...] = ()

    @property
    def wrote(self) -> bool:
        """Whether anything was written."""
        return bool(self._events)

    def write(self, ledger: OpenLedger, claim: Claim) -> Refusal | None:
        """Write it; nothing is committed here. A refusal means that the claim is lost: then nothing was written.

        Raises UsageError for a connection that will not do, StoreUnavailable where the transaction cannot write.
        """
        inside = getattr(ledger.store, "inside", None)
        if inside is None:
            raise UsageError("this ledger's store takes no part in other transactions.", "Finish without connection.")
        store = inside(self._connection)
        snap = store.read(claim.key, claim.window.start)
        decision = lifecycle.finish(snap, claim, self.judged.verdict)
        if decision.refusal is not None:
            return decision.refusal
        written = store.commit(decision, claim.key, snap.version)
        if written is None:
            raise StoreUnavailable(f"{claim.key} changed while it was being finished.", "Roll back, and try again.")
        self._events = written
        return None

    def committed(self, ledger: OpenLedger, claim: Claim) -> bool:
        """Say whether the ledger has it, as another connection sees it."""
        return bool(self._events) and all(
            (found := ledger.store.event(event.seq or 0)) is not None
            and (found.key, found.owner, found.event) == (claim.key, claim.owner, event.event)
            for event in self._events
        )

    def witness(self, ledger: OpenLedger) -> None:
        """Note in this host's journal what was seen committed."""
        if ledger.journal is None:
            return
        try:
            ledger.journal.append(self._events)
        except OSError as error:
            ledger.warnings.append(f"the journal {ledger.journal.path!r} could not be written: {error.strerror}")

    def roll_back(self) -> None:
        """Roll the caller's transaction back, if it is still open."""
        try:
            if self._connection.in_transaction:
                self._connection.rollback()
        except sqlite3.ProgrammingError:
            return  # closed by its owner, and so rolled back
