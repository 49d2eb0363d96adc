"""Work on a window: claim it, let an attempt carry it out, and give a receipt whatever happens.

Order is everything here. The attempt's lock is taken before its claim is committed, so that a crash right after it
can be proved; the child starts only after the commit; the receipt comes last.
"""

from __future__ import annotations

import os

from ranonce.attempt import Attempt, Order, Result
from ranonce.errors import (
    EX_DONE,
    EX_PERSON_NEEDED,
    EX_STORE_UNAVAILABLE,
    EX_TRY_LATER,
    EX_USAGE,
    StoreUnavailable,
)
from ranonce.failpoints import failpoint
from ranonce.lifecycle import Ask, Policy, Refusal
from ranonce.liveness import AttemptFile, boot_clock
from ranonce.receipts import Receipt
from ranonce.storeurl import sqlite_path

TYPE_CHECKING = False
if TYPE_CHECKING:
    from ranonce.jobspec import JobSpec
    from ranonce.ledger import Ledger
    from ranonce.process import Signals

#: Exit status of a refused claim. `done` and `pruned` are success: the window's work is not to be done again.
REFUSED = {
    "done": EX_DONE,
    "pruned": EX_DONE,
    "busy": EX_TRY_LATER,
    "overlap": EX_TRY_LATER,
    "waiting": EX_TRY_LATER,
    "early": EX_TRY_LATER,
    "gate": EX_TRY_LATER,
    "exhausted": EX_PERSON_NEEDED,
    "held": EX_PERSON_NEEDED,
    "conflict": EX_PERSON_NEEDED,
    "late": EX_PERSON_NEEDED,
    "superseded": EX_PERSON_NEEDED,
    "unknown": EX_USAGE,
}


class Wrapper:
    """Works on windows of one job, one after the other."""

    def __init__(
        self,
        ledger: Ledger,
        spec: JobSpec,
        signals: Signals,
        *,
        version: str | None = None,
        fingerprint: str | None = None,
        raw_exit: bool = False,
        store_url: str,
    ) -> None:
        self.ledger = ledger
        self.spec = spec
        self.signals = signals
        self.version = version
        self.fingerprint = fingerprint
        self.raw_exit = raw_exit
        self.store_url = store_url
        self.local_store = sqlite_path(store_url) is not None

    # --- claim ---

    def work(self, order: Order) -> Result:
        """Claim the window and, if it is won, do its work. Every way out has a receipt."""
        owner = os.urandom(16).hex()
        attempt: list[AttemptFile] = []

        def lock() -> None:
            if self.ledger.folder is not None and not attempt:
                attempt.append(AttemptFile.create(self.ledger.folder, owner, self.ledger.host))
                failpoint("run:lock-taken")

        self.signals.new_attempt()
        claimed_at = boot_clock()
        try:
            answer = self.ledger.claim(self._ask(order, owner), before_start=lock)
        except StoreUnavailable as error:
            _give_back(attempt)
            return self._unavailable(order, error)
        except BaseException:
            _give_back(attempt)
            raise
        if isinstance(answer, Refusal):
            _give_back(attempt)
            return self._refused(order, answer)
        failpoint("run:claimed")
        return Attempt(self, order, answer, attempt[0] if attempt else None, claimed_at).carry_out()

    def _ask(self, order: Order, owner: str) -> Ask:
        spec = self.spec
        return Ask(
            key=order.key,
            window=order.window,
            schedule=order.schedule,
            owner=owner,
            lease_seconds=spec.lease,
            now=order.now,
            served_from=order.served_from,
            trigger=order.trigger,
            policy=Policy(
                spec.max_attempts, spec.retry_delay, spec.early, spec.max_late, spec.overlap, spec.on_crash, spec.uses
            ),
            version=self.version,
            fingerprint=self.fingerprint,
            process=f"{self.ledger.host.host} pid {os.getpid()}",
            host=self.ledger.host.host,
            data={"chosen_by": order.chosen_by, **({"warnings": self.ledger.warnings} if self.ledger.warnings else {})},
            rerun_reason=order.rerun_reason,
        )

    # --- receipts ---

    def receipt(self, order: Order, event: str, status: int) -> Receipt:
        """Return the receipt of an order, with what every receipt carries."""
        return Receipt(
            event=event,
            job=order.key.job,
            exit=status,
            window=order.key.window,
            run=str(order.key),
            trigger=order.trigger,
            chosen_by=order.chosen_by,
            ledger=self.ledger.store.identity().ledger,
            version=self.version,
            warnings=tuple(self.ledger.warnings) or None,
        )

    def _refused(self, order: Order, refusal: Refusal) -> Result:
        status = REFUSED[refusal.reason]
        if status == EX_TRY_LATER:
            status = self.spec.busy_exit
        sentence = refusal.sentence
        if refusal.reason in ("held", "exhausted"):
            step = f"ranonce release {order.key.job} {order.key.window} --as done|not-done --reason TEXT"
            sentence += f" -> {step}"
        receipt = self.receipt(order, "skipped", status).replace(
            reason=refusal.reason, sentence=sentence, holder=refusal.holder, until=refusal.until
        )
        return Result(status, None, receipt)

    def _unavailable(self, order: Order, error: StoreUnavailable) -> Result:
        status = EX_STORE_UNAVAILABLE
        receipt = self.receipt(order, "unavailable", status)
        return Result(status, None, receipt.replace(reason=error.code, sentence=str(error)))


def _give_back(attempt: list[AttemptFile]) -> None:
    for file in attempt:
        file.remove()
