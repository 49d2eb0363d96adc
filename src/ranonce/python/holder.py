"""What the heartbeat's thread needs of a run, and what it learns."""

from __future__ import annotations

import os
from _thread import allocate_lock

from ranonce.errors import EX_CLAIM_LOST, ClaimLost
from ranonce.receipts import say
from ranonce.terms import RENEW_WAIT_SECONDS

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Literal

    from ranonce.lifecycle import Claim, Refusal
    from ranonce.python.connections import Connections
    from ranonce.python.inside import Inside

    OnLost = Literal["raise", "exit"]


class Holder:
    """Renews a claim, and notes when it is lost. It does not keep the run alive: one that its code forgot ends."""

    def __init__(self, connections: Connections, claim: Claim, overlap: str, on_lost: OnLost) -> None:
        self.why: str | None = None  # lost or fenced
        self.sentence = ""
        self.over = False
        self.inside: Inside | None = None
        self._connections = connections
        self._claim = claim
        self._overlap = overlap
        self._on_lost = on_lost
        self._exiting = allocate_lock()

    def renew(self) -> Refusal | None:
        """Renew the claim, from the heartbeat's thread."""
        with self._connections.lend(min(RENEW_WAIT_SECONDS, self._claim.lease_seconds)) as ledger:
            refusal = ledger.renew(self._claim, self._overlap)
            if refusal is not None and self.inside is not None and self.inside.committed(ledger, self._claim):
                return None  # finished, in a transaction of the job's own
        self.sentence = refusal.sentence if refusal else ""
        return refusal

    def stop(self, why: str, _: float | None = None) -> None:
        """Note that the claim is lost, or could not be renewed in time. Nobody can kill a function."""
        if self.over:
            return
        self.sentence = self.sentence or f"the claim on {self._claim.key} could not be renewed in time"
        self.why = why
        if self._on_lost == "exit":
            self._exiting.acquire()  # never given back: it is said once, whoever hears of it first
            say(f"ranonce: {self.lost()}")
            os._exit(EX_CLAIM_LOST)

    def lose(self, sentence: str) -> ClaimLost:
        """Note what the ledger said to the job itself."""
        self.sentence = sentence
        if not self.over:
            self.stop("lost")
        return self.lost()

    def lost(self) -> ClaimLost:
        """Return the error to raise."""
        return ClaimLost(f"{self.sentence.rstrip('.')}.", "This attempt can write nothing more; end it.")
