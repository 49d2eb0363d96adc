"""Work on a window: claim it, let an attempt carry it out, and give a receipt whatever happens.

Order is everything here. The attempt's lock is taken before its claim is committed, so that a crash right after it
can be proved; the child starts only after the commit; the receipt comes last.
"""

from __future__ import annotations

import os

from ranonce.attempt import Attempt, Order, Result, Terms
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


def work(terms: Terms, order: Order) -> Result:
    """Claim the window and, if it is won, do its work. Every way out has a receipt."""
    ledger, owner = terms.ledger, os.urandom(16).hex()
    attempt: list[AttemptFile] = []

    def lock() -> None:
        if ledger.folder is not None and not attempt:
            attempt.append(AttemptFile.create(ledger.folder, owner, ledger.host))
            failpoint("run:lock-taken")

    terms.signals.new_attempt()
    claimed_at = boot_clock()
    try:
        answer = ledger.claim(_ask(terms, order, owner), before_start=lock)
    except StoreUnavailable as error:
        _give_back(attempt)
        receipt = terms.receipt(order, "unavailable", EX_STORE_UNAVAILABLE)
        return Result(EX_STORE_UNAVAILABLE, None, receipt.replace(reason=error.code, sentence=str(error)))
    except BaseException:
        _give_back(attempt)
        raise
    if isinstance(answer, Refusal):
        _give_back(attempt)
        return _refused(terms, order, answer)
    failpoint("run:claimed")
    return Attempt(terms, order, answer, attempt[0] if attempt else None, claimed_at).carry_out()


def _ask(terms: Terms, order: Order, owner: str) -> Ask:
    spec, ledger = terms.spec, terms.ledger
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
        version=terms.version,
        fingerprint=terms.fingerprint,
        process=f"{ledger.host.host} pid {os.getpid()}",
        host=ledger.host.host,
        data={"chosen_by": order.chosen_by, **({"warnings": ledger.warnings} if ledger.warnings else {})},
        rerun_reason=order.rerun_reason,
    )


def _refused(terms: Terms, order: Order, refusal: Refusal) -> Result:
    status = REFUSED[refusal.reason]
    if status == EX_TRY_LATER:
        status = terms.spec.busy_exit
    sentence = refusal.sentence
    if refusal.reason in ("held", "exhausted"):
        sentence += f" -> ranonce release {order.key.job} {order.key.window} --as done|not-done --reason TEXT"
    receipt = terms.receipt(order, "skipped", status).replace(
        reason=refusal.reason, sentence=sentence, holder=refusal.holder, until=refusal.until
    )
    return Result(status, None, receipt)


def _give_back(attempt: list[AttemptFile]) -> None:
    for file in attempt:
        file.remove()
