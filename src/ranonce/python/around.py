"""A Python job that runs inside `ranonce run`, `rerun` or `backfill` of its own name: it works under the claim that the
command around it holds.

That command keeps the lease, makes the declared checks and records the outcome, by the exit status; what the job says
in Python is handed to it in the ways that a shell job has: messages through RANONCE_MESSAGES, as `ranonce emit` does, a
`Stop` as `ranonce stop` does. Items, steps and notes go into the ledger itself, under the claim.
"""

from __future__ import annotations

import json
import os

from ranonce.cli.step import claim_held
from ranonce.errors import EX_DONE, NotThisLedger, RanonceError, UsageError
from ranonce.invocation import Invocation
from ranonce.lifecycle import DONE, FAILED, STOPPED, Verdict
from ranonce.liveness import request_stop
from ranonce.messagefile import add
from ranonce.python.calling import Plan
from ranonce.python.run import Ended, Run
from ranonce.python.verdict import Judged
from ranonce.receipts import say
from ranonce.record import Record
from ranonce.signals import Signals
from ranonce.terms import Order, Result

TYPE_CHECKING = False
if TYPE_CHECKING:
    from ranonce.invocation import Asked
    from ranonce.ledger import OpenLedger
    from ranonce.lifecycle import Claim, Event
    from ranonce.python.calling import Place
    from ranonce.python.connections import Connections
    from ranonce.python.holder import OnLost

#: Settings that belong to whoever claims.
SCHEDULE = frozenset({"every", "tz", "dialect", "offset"})
#: What a run's story says of a crash and of the end of the doubt about it.
CRASHED, SETTLED = "expired", ("released", "noted")
RECONCILED = "reconciled"


class Lent(Record):
    """The claim of the command around this process, which also keeps it and shows who works on it."""

    claim: Claim
    #: A crash before this attempt left a doubt, and the job's own settings do not let it be done again for that.
    in_doubt: bool

    @property
    def locks(self) -> Lent:
        """What shows that an attempt works is the other's."""
        return self

    def heartbeat(self, *_: object, **__: object) -> Lent:
        """The other one beats."""
        return self

    def start(self) -> None:
        """Nothing is to be started."""

    def end(self) -> None:
        """Nothing is to be ended."""

    def give_back(self) -> None:
        """Nothing of ours is to be given back."""

    def leave(self) -> None:
        """Nothing of ours is left."""

    def keep(self, _: Verdict) -> bool:
        """No outcome is kept here: the exit status says it."""
        return False


def join(place: Place, connections: Connections, job: str, asked: Asked, on_lost: OnLost) -> InnerRun:
    """Return the run that the command around this program works on.

    Raises UsageError where another window or another ledger is asked for, and ClaimLost.
    """
    environ = os.environ
    window = environ.get("RANONCE_WINDOW", "")
    if asked.window not in (None, window):
        raise UsageError(
            f"`ranonce` around this program works on the window {window!r}, and this asks for {asked.window!r}.",
            "Name the window there, and none here.",
        )
    with connections.lend() as ledger:
        meant, found = environ.get("RANONCE_LEDGER", ""), ledger.store.identity().ledger
        if meant != found:
            raise NotThisLedger(
                f"`ranonce` around this program works in ledger {meant}, and this means {found}.",
                "Name the store there, and none here.",
            )
        claim = claim_held(ledger, environ)
        settings = {name: value for name, value in asked.settings.items() if name not in SCHEDULE}
        invocation = Invocation(job, asked.replace(settings=settings), {}, place.configuration(job), ledger)
        terms = invocation.terms(Signals()).replace(version=claim.version)
        spec = terms.spec
        in_doubt = spec.on_crash != "retry" and _is_in_doubt(ledger, claim)
        order = Order(
            key=claim.key,
            window=claim.window,
            schedule=0,
            served_from=claim.window.start,
            now=invocation.now,
            trigger=claim.trigger,
            chosen_by="around",
        )
        plan = Plan(terms.replace(spec=spec.replace(checks=())), [order], ())
    return InnerRun(connections, plan, order, Lent(claim, in_doubt), on_lost)


def _is_in_doubt(ledger: OpenLedger, claim: Claim) -> bool:
    """Say whether an attempt of this generation crashed, and nobody has found out since what it did."""
    doubt = False
    for event in ledger.store.events(claim.key.job, claim.window.start, claim.window.start + 1):
        if event.key == claim.key and event.generation == claim.generation:
            doubt = (doubt or event.event == CRASHED) and not _settles(event)
    return doubt


def _settles(event: Event) -> bool:
    return event.event == "released" or (event.event == "noted" and (event.reason or "").startswith(RECONCILED))


class InnerRun(Run):
    """A run whose outcome the command around this program records."""

    def __init__(self, connections: Connections, plan: Plan, order: Order, lent: Lent, on_lost: OnLost) -> None:
        super().__init__(connections, plan, order, lent, on_lost)  # type: ignore[arg-type]  # stands for what is won

    @property
    def _reconciling(self) -> bool:
        return bool(self._won.in_doubt)  # type: ignore[attr-defined]

    def _look(self) -> bool | None:
        """Only a function could look: the command that the configuration declares for it is the other's to start."""
        return None

    def _looked(self, did: bool | None, why: str = "nobody knows") -> Ended | None:
        """Pass on what a look found. One that found nothing leaves the run to a person."""
        now = self._now()
        if did is True:
            return self._settle(Judged(Verdict(DONE, now, "reconciled"), EX_DONE))
        if did is False:
            return None
        key = self._won.claim.key
        say(
            f"ranonce: {key} crashed before, and may have been done ({why}). Nothing was done now."
            f" -> ranonce release {key.job} {key.window} --as done|not-done --reason TEXT"
        )
        return self._settle(Judged(Verdict(FAILED, now, f"crashed before: {why}"), 1))

    def _settle(self, judged: Judged, error: BaseException | None = None) -> Ended:
        """Hand the outcome over. It counts once this program has ended with the status that it has."""
        self._holder.over = True
        self._emitter.leave_all()
        receipt = self._terms.outcome(self._order, self._won.claim, judged.verdict, judged.exit)
        trouble: RanonceError | None = None
        try:
            self._hand_over(judged.verdict)
        except RanonceError as found:
            trouble = found
        for warning in self._emitter.warnings:
            say(f"ranonce: {warning}")
        if trouble is None or (error is not None and judged.verdict.outcome == FAILED):
            return self._over(self._terms, judged, error=error)
        status = trouble.exit_status if judged.verdict.outcome == DONE else judged.exit
        return self._over(self._terms, judged, Result(status, None, receipt), error or trouble)

    def _hand_over(self, verdict: Verdict) -> None:
        if verdict.outcome == STOPPED and "signal" not in verdict.data:
            told = {
                "reason": verdict.reason or STOPPED,
                "resume_at": verdict.resume_at,
                "after": None,
                "gates": [[gate.name, gate.until] for gate in verdict.gates],
            }
            folder = self._terms.ledger.folder
            if folder is None or not request_stop(folder, self.owner, json.dumps(told)):
                raise UsageError(
                    "the attempt this job belongs to has no file on this host, so nobody can be told of the stop.",
                    "Give up with an exit code that is declared as --stop-exit-code instead.",
                )
        emissions = self._emitter.waiting()
        if emissions:
            path = os.environ.get("RANONCE_MESSAGES", "")
            if not path.startswith("/"):
                raise UsageError(
                    "the job has no file for messages (RANONCE_MESSAGES is not set).",
                    "Hand RANONCE_MESSAGES on to this program.",
                )
            add(path, emissions)
