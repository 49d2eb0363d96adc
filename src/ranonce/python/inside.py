"""Finish a run inside the caller's own transaction, and see afterwards whether that was committed."""

from __future__ import annotations

import os
import sqlite3

from ranonce import lifecycle
from ranonce.errors import StoreUnavailable, UsageError

TYPE_CHECKING = False
if TYPE_CHECKING:
    from ranonce.ledger import OpenLedger
    from ranonce.lifecycle import Claim, Event, Refusal
    from ranonce.python.verdict import Judged
    from ranonce.stores.base import Store


class Inside:
    """One outcome that became part of the transaction on a connection of the caller's."""

    def __init__(self, judged: Judged, connection: sqlite3.Connection) -> None:
        self.judged = judged
        self._connection: sqlite3.Connection | None = connection
        self._events: tuple[Event, ...] = ()

    @property
    def wrote(self) -> bool:
        """Whether anything was written."""
        return bool(self._events)

    def write(self, ledger: OpenLedger, claim: Claim, before: Inside | None) -> Refusal | None:
        """Write it; nothing is committed here. A refusal means that the claim is lost: then nothing was written.

        Nor is anything where `before`, an earlier outcome of the run, is part of the transaction already. Raises
        UsageError for a connection that will not do, StoreUnavailable where the transaction cannot write.
        """
        inside = getattr(ledger.store, "inside", None)
        if inside is None:
            raise UsageError("this ledger's store takes no part in other transactions.", "Finish without connection.")
        assert self._connection is not None
        store = inside(self._connection)
        if before is not None and before._is_seen_by(store, claim):
            outcome = before.judged.verdict.outcome
            if outcome != self.judged.verdict.outcome:
                raise UsageError(f"{claim.key} is {outcome} in this transaction.", "Roll back to say otherwise.")
            return None
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
        return self._is_seen_by(ledger.store, claim)

    def _is_seen_by(self, store: Store, claim: Claim) -> bool:
        return bool(self._events) and all(
            (found := store.event(event.seq or 0)) is not None
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

    def roll_back(self, path: str) -> None:
        """Roll the caller's transaction back, if it is still open and on the ledger's file at `path`.

        The connection is let go of. One that cannot be used here is another thread's, and left to it; if that thread
        has ended, it ends with us.
        """
        connection, self._connection = self._connection, None
        if not isinstance(connection, sqlite3.Connection):
            return
        try:
            if not (connection.in_transaction and (self.wrote or self._is_on(connection, path))):
                return
            if getattr(connection, "autocommit", None) is True:  # then rollback() does nothing
                sqlite3.Cursor(connection).execute("ROLLBACK")
            else:
                sqlite3.Connection.rollback(connection)
        except sqlite3.Error:
            return  # closed by its owner, and so rolled back

    def _is_on(self, connection: sqlite3.Connection, path: str) -> bool:
        cursor = sqlite3.Cursor(connection)
        cursor.row_factory = None
        files = [os.fsdecode(file) for *_, file in cursor.execute("PRAGMA database_list").fetchall() if file]
        return any(os.path.exists(file) and os.path.samefile(file, path) for file in files)
