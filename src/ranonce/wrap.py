"""Work on a window: claim it, let an attempt carry it out, and give a receipt whatever happens.

Order is everything here. The attempt's lock is taken before its claim is committed, so that a crash right after it
can be proved; the child starts only after the commit; the receipt comes last.
"""

from __future__ import annotations

import os

from ranonce.errors import (
    EX_DONE,
    EX_PERSON_NEEDED,
    EX_STORE_UNAVAILABLE,
    EX_TRY_LATER,
    EX_USAGE,
    RanonceError,
    StoreUnavailable,
)
from ranonce.failpoints import failpoint
from ranonce.lifecycle import Ask, Policy, Refusal
from ranonce.liveness import boot_clock
from ranonce.stores.base import LostReply
from ranonce.terms import Locks, Order, Result, Terms, Won

TYPE_CHECKING = False
if TYPE_CHECKING:
    from ranonce.ledger import OpenLedger

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
    terms.signals.new_attempt()
    try:
        answer = take(terms.ledger, ask_of(terms, order))
    except StoreUnavailable as error:
        return unavailable(terms, order, error)
    if isinstance(answer, Refusal):
        return refused(terms, order, answer)
    failpoint("run:claimed")
    from ranonce.attempt import Attempt

    return Attempt(terms, order, answer).carry_out()


def take(ledger: OpenLedger, ask: Ask) -> Won | Refusal:
    """Claim a run under the lock of a new attempt, or learn why not. Raises what `OpenLedger.claim` raises."""
    locks = Locks(ledger, ask.owner)
    claimed_at = boot_clock()
    try:
        answer = ledger.claim(ask, before_start=locks.take)
        if not isinstance(answer, Refusal):
            return Won(answer, locks, claimed_at)
    except LostReply:  # it may be committed: then what we leave shows to the next trigger that nobody works on it
        locks.leave()
        raise
    except RanonceError:
        locks.give_back()
        raise
    except BaseException:  # Ctrl-C in a program of the caller's: it may be committed, and nobody will work on it
        locks.leave()
        raise
    locks.give_back()
    return answer


def ask_of(terms: Terms, order: Order) -> Ask:
    """Return what is asked of the ledger for an order, under a new owner id."""
    spec, ledger = terms.spec, terms.ledger
    return Ask(
        key=order.key,
        window=order.window,
        schedule=order.schedule,
        owner=os.urandom(16).hex(),
        lease_seconds=spec.lease,
        now=order.now,
        served_from=order.served_from,
        trigger=order.trigger,
        policy=Policy(
            spec.max_attempts, spec.retry_delay, spec.early, spec.max_late, spec.overlap, spec.on_crash, spec.uses
        ),
        version=terms.version,
        fingerprint=terms.fingerprint,
        host=ledger.host.host,
        data={"chosen_by": order.chosen_by, **({"warnings": ledger.warnings} if ledger.warnings else {})},
        rerun_reason=order.rerun_reason,
        rerun_data=order.rerun_data,
        record_skip=order.record_skip,
    )


def unavailable(terms: Terms, order: Order, error: StoreUnavailable) -> Result:
    """Return the result of an order whose claim got no answer in time: nothing was started."""
    receipt = terms.receipt(order, "unavailable", EX_STORE_UNAVAILABLE)
    return Result(EX_STORE_UNAVAILABLE, None, receipt.replace(reason=error.code, sentence=str(error)))


def refused(terms: Terms, order: Order, refusal: Refusal) -> Result:
    """Return the result of an order whose claim was refused."""
    status = REFUSED[refusal.reason]
    if refusal.reason == "pruned" and order.rerun_reason is not None:
        status = EX_USAGE  # for a rerun it is no success that the window was done once
    if status == EX_TRY_LATER:
        status = terms.spec.busy_exit
    sentence = refusal.sentence
    if refusal.reason in ("held", "exhausted"):
        sentence += f" -> ranonce release {order.key.job} {order.key.window} --as done|not-done --reason TEXT"
    if refusal.reason == "busy" and refusal.pid is not None:
        sentence += ": wait for it, or end it"
    if refusal.reason == "unknown":
        sentence += f" -> ranonce run {order.key.job} --window {order.key.window}"
    if refusal.reason == "waiting":
        sentence += f"; to start it now: ranonce rerun {order.key.job} {order.key.window} --reason TEXT"
    receipt = terms.receipt(order, "skipped", status).replace(
        reason=refusal.reason, sentence=sentence, holder=refusal.holder, until=refusal.until
    )
    return Result(status, None, receipt)
