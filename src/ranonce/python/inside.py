"""Finish a run inside the caller's own transaction, and see afterwards whether that was committed."""

from __future__ import annotations

import time

from ranonce import lifecycle
from ranonce.errors import StoreUnavailable, UsageError

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Protocol

    from ranonce.ledger import OpenLedger
    from ranonce.lifecycle import Claim, Decision, Event, Refusal
    from ranonce.python.verdict import Judged
    from ranonce.stores.base import Store

    class CallersConnection(Protocol):
        """What a job may finish its run with: a connection of `sqlite3` or of psycopg 3, a connection or a session of
        SQLAlchemy over psycopg 3. None that is async."""

        def commit(self) -> None:
            """Commit the transaction."""

        def rollback(self) -> None:
            """Roll it back."""


#: A job whose runs are all changed at once is decided on so many times.
TRIES = 20
FIRST_PAUSE_SECONDS = 0.01
LONGEST_PAUSE_SECONDS = 0.5


class Inside:
    """One outcome that became part of the transaction on a connection of the caller's."""

    def __init__(self, judged: Judged, connection: CallersConnection) -> None:
        self.judged = judged
        self._connection: CallersConnection | None = connection
        self._events: tuple[Event, ...] = ()
        self._transaction: str | None = None  # which it was, once something is written
        self._decision: Decision | None = None

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
        verdict = self.judged.verdict
        store = inside(self._connection)
        if before is not None and before._is_seen_by(store, claim):
            outcome = before.judged.verdict.outcome
            if outcome != verdict.outcome:
                raise UsageError(f"{claim.key} is {outcome} in this transaction.", "Roll back to say otherwise.")
            return None
        keys = [message.key for message in verdict.messages]
        for _ in range(TRIES):
            snap = store.read(claim.key, claim.window.start)
            decision = lifecycle.finish(snap, claim, verdict, store.outbox().known(keys) if keys else {})
            if decision.refusal is not None:
                return decision.refusal
            if decision.run is None:  # done already: by a transaction whose answer was lost, or a person said so
                raise UsageError(f"{claim.key} is {verdict.outcome} already.", "Roll back: its effect is there, too.")
            written = store.commit(decision, claim.key, snap.version)
            if written is not None:
                self._events, self._transaction = written, store.transaction_id
                self._decision = decision
                return None
        raise StoreUnavailable(f"{claim.key} changed while it was being finished.", "Roll back, and try again.")

    def committed(self, ledger: OpenLedger, claim: Claim) -> bool:
        """Say whether the ledger has it, as another connection sees it."""
        return self._is_seen_by(ledger.store, claim)

    def stands(self, ledger: OpenLedger, claim: Claim) -> bool:
        """Say whether it is part of the caller's transaction, and that is still open."""
        inside = getattr(ledger.store, "inside", None)
        try:
            return inside is not None and self._is_seen_by(inside(self._connection), claim)
        except UsageError:  # the transaction has ended: rolled back, or it would be committed
            return False

    def settled(self, ledger: OpenLedger, claim: Claim) -> bool:
        """Say the same once it is certain: a COMMIT may be on its way that nobody waits for any more.

        Raises StoreUnavailable for a transaction that is still open when the wait is over.
        """
        is_open = getattr(ledger.store, "is_open", None)
        give_up = time.monotonic() + ledger.wait_seconds
        pause = FIRST_PAUSE_SECONDS
        while is_open is not None and self._transaction is not None and is_open(self._transaction):
            if time.monotonic() > give_up:
                raise StoreUnavailable(f"the transaction in which {claim.key} was finished is still open.", "End it.")
            time.sleep(pause)
            pause = min(pause * 2, LONGEST_PAUSE_SECONDS)
        return self.committed(ledger, claim)

    def _is_seen_by(self, store: Store, claim: Claim) -> bool:
        return bool(self._events) and all(
            (found := store.event(event.seq or 0)) is not None
            and (found.key, found.owner, found.event) == (claim.key, claim.owner, event.event)
            for event in self._events
        )

    def witness(self, ledger: OpenLedger) -> None:
        """Note what was seen committed in this host's journal, and for the receipt."""
        if self._decision is not None:
            ledger.sent = len(self._decision.messages)
            ledger.warn_of_conflicts(self._decision)
        if ledger.journal is None:
            return
        try:
            ledger.journal.append(self._events, self._decision.messages if self._decision else ())
        except OSError as error:
            ledger.warnings.append(f"the journal {ledger.journal.path!r} could not be written: {error.strerror}")

    def roll_back(self, ledger: OpenLedger) -> None:
        """Roll the caller's transaction back, if it is still open, and let go of the connection."""
        connection, self._connection = self._connection, None
        take_back = getattr(ledger.store, "take_back", None)
        if connection is not None and take_back is not None:
            take_back(connection, self._transaction)
