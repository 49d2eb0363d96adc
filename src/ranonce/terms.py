"""What is to be done, on which terms, and by which claim: what an invocation hands to an attempt.

Shared by commands and Python jobs. The attempt itself (`attempt`) is loaded when there is one: a trigger for a window
that is done never gets so far.
"""

from __future__ import annotations

import os

from ranonce.errors import EX_CLAIM_LOST, EX_NOT_RECORDED, EXIT_STATUSES, OutcomeNotRecorded, StoreUnavailable
from ranonce.failpoints import failpoint
from ranonce.ledger import outcome_text
from ranonce.lifecycle import DONE
from ranonce.liveness import AttemptFile
from ranonce.receipts import Receipt
from ranonce.record import Record
from ranonce.timefmt import format_instant

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Mapping
    from typing import Any

    from ranonce.heartbeat import Heartbeat
    from ranonce.jobspec import JobSpec
    from ranonce.ledger import OpenLedger
    from ranonce.lifecycle import Claim, Refusal, RunKey, Verdict
    from ranonce.signals import Signals
    from ranonce.signs import Sign
    from ranonce.windows import Window

#: Renewals through SQLite wait no longer than this for the file, so that one slow moment is not the last one.
RENEW_WAIT_SECONDS = 10.0


class Order(Record):
    """One window to be worked on. `now` chooses and `served_from` is the tick it is meant to be worked on, both unix
    seconds. `rerun_reason` asks for a new generation, `rerun_data` says who asked for it and how. `record_skip`: a
    claim that is refused is recorded."""

    key: RunKey
    window: Window
    schedule: int
    served_from: int
    now: float
    trigger: str
    chosen_by: str
    rerun_reason: str | None = None
    rerun_data: Mapping[str, Any] = {}
    record_skip: bool = True


class Result(Record):
    """How an order ended: an exit status, or the signal this process must die by; and the receipt."""

    exit: int
    signal: int | None
    receipt: Receipt


class Terms(Record):
    """What all windows of one invocation have in common: the ledger, the job's settings, and what was given besides."""

    ledger: OpenLedger
    spec: JobSpec
    signals: Signals
    store_url: str
    version: str | None = None
    fingerprint: str | None = None
    raw_exit: bool = False
    config: str | None = None  # the path of the configuration, if there is one
    destinations: Mapping[str, Mapping[str, object]] = {}  # those that it declares, as written

    def environment(self, claim: Claim) -> dict[str, str]:
        """Return the environment of a command that works for a claim. Raises what the ledger raises.

        The store's address is in it with its password, if it has one: that came from this environment, so the command
        has it anyway, and `ranonce stop`, `note` and the like need it there.
        """
        environment = dict(os.environ)
        for name in ("RANONCE_RESEND", "RANONCE_MESSAGES", "RANONCE_STEP"):
            environment.pop(name, None)  # of another run that this one was started by
        if claim.generation > 1 and self.ledger.resends(claim):
            environment["RANONCE_RESEND"] = "1"
        environment.update(
            RANONCE_STORE=self.store_url,
            RANONCE_LEDGER=self.ledger.store.identity().ledger,
            RANONCE_JOB=claim.key.job,
            RANONCE_WINDOW=claim.key.window,
            RANONCE_WINDOW_START=format_instant(claim.window.start),
            RANONCE_WINDOW_END=format_instant(claim.window.end),
            RANONCE_ATTEMPT=str(claim.attempt),
            RANONCE_OWNER=claim.owner,
            RANONCE_GENERATION=str(claim.generation),
            RANONCE_TRIGGER=claim.trigger,
            RANONCE_VERSION=self.version or "",
        )
        if self.config is not None:
            environment["RANONCE_CONFIG"] = self.config  # where destinations are declared
        return environment

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

    def outcome(self, order: Order, claim: Claim, verdict: Verdict, status: int, event: str | None = None) -> Receipt:
        """Return the receipt of an attempt that has ended; `event` where it is not the outcome itself."""
        emitted = verdict.emitted
        return self.receipt(order, event or verdict.outcome, status).replace(
            attempt=claim.attempt,
            generation=claim.generation,
            started_at=claim.started_at,
            finished_at=verdict.at,
            seconds=round(verdict.at - claim.started_at, 3),
            reason=verdict.reason,
            until=verdict.resume_at,
            child_exit=verdict.exit,
            child_signal=verdict.data.get("signal"),
            checks=tuple(verdict.data.get("checks", ())) or None,
            leftovers=tuple(verdict.data.get("leftovers", ())) or None,
            messages=self.ledger.sent if emitted and verdict.outcome == DONE else None,
            not_sent=emitted if emitted and verdict.outcome != DONE else None,
        )

    def lost(self, order: Order, claim: Claim, verdict: Verdict, refusal: Refusal) -> Receipt:
        """Return the receipt of an attempt whose verdict was refused: another has the run."""
        return self.outcome(order, claim, verdict, EX_CLAIM_LOST, "lost").replace(
            reason=refusal.reason,
            sentence=refusal.sentence,
            holder=refusal.holder,
            messages=None,
            not_sent=verdict.emitted or None,
        )

    def not_recorded(self, order: Order, claim: Claim, verdict: Verdict, error: OutcomeNotRecorded) -> Receipt:
        """Return the receipt of an attempt whose verdict waits on this host."""
        receipt = self.outcome(order, claim, verdict, EX_NOT_RECORDED)
        waiting = verdict.emitted if receipt.messages is not None else None
        return receipt.replace(reason=error.code, sentence=str(error), messages=waiting)


class Locks:
    """What shows that an attempt works: its file to this host, its sign to all who may claim in a local ledger."""

    def __init__(self, ledger: OpenLedger, owner: str) -> None:
        self.file: AttemptFile | None = None
        self.sign: Sign | None = None
        self._ledger = ledger
        self._owner = owner
        self._taken = False

    def take(self) -> None:
        """Take them, once. Before the claim is committed, so that a crash right after it can be proved.

        Raises StoreUnavailable where too few files can be opened, one for what is loaded after the claim included.
        """
        if self._taken:
            return
        self._taken = True
        try:
            self._take()
            os.close(os.open(os.devnull, os.O_RDONLY | os.O_CLOEXEC))
        except OSError as error:
            raise StoreUnavailable(f"a file cannot be opened: {error.strerror}.", "Nothing was started.") from error
        failpoint("run:lock-taken")

    def _take(self) -> None:
        ledger = self._ledger
        if ledger.folder is not None:
            self.file = AttemptFile.create(ledger.folder, self._owner, ledger.host)
        beside = ledger.store.beside
        if beside is not None and not self._seen_by_this_host_alone(beside):
            from ranonce.signs import Sign

            self.sign = Sign.show(beside, self._owner)

    def _seen_by_this_host_alone(self, folder: str) -> bool:
        """Whether others may claim who do not see locks of this host. A ledger is made there only at a known risk."""
        if self._ledger.store.identity().volatile is None:
            return False
        from ranonce.filesystem import shared_by_hosts

        return shared_by_hosts(folder)

    def give_back(self) -> None:
        """Let go, and leave nothing behind: the ledger has the attempt's story, or there is none."""
        self._end_sign()
        if self.file is not None:
            self.file.remove()

    def leave(self) -> None:
        """Let go of an attempt that has no end: this process works on it no more, though it lives on."""
        self._end_sign()
        if self.file is not None:
            self.file.leave()

    def release(self) -> None:
        """Let go of an attempt whose outcome waits in its file."""
        self._end_sign()
        if self.file is not None:
            self.file.release()

    def _end_sign(self) -> None:
        if self.sign is not None:
            self.sign.end()


class Won(Record):
    """A claim that was won, what shows that its attempt works, and the boot-clock instant before the claim was sent."""

    claim: Claim
    locks: Locks
    at: float

    @property
    def file(self) -> AttemptFile | None:
        """The attempt's file, where this host has a place for it."""
        return self.locks.file

    def heartbeat(
        self,
        renew: Callable[[], Refusal | None],
        stop: Callable[[str, float | None], None],
        *,
        grace: float,
        leave: Callable[[], None] = lambda: None,
    ) -> Heartbeat:
        """Return what keeps the claim; it has yet to be started."""
        from ranonce.heartbeat import Heartbeat

        return Heartbeat(
            renew,
            stop,
            lease_seconds=self.claim.lease_seconds,
            grace_seconds=grace,
            fence=self.locks.sign is None,
            claimed_at=self.at,
            leave=leave,
        )

    def settle(self, ledger: OpenLedger, verdict: Verdict) -> Refusal | None:
        """Record the verdict; a refusal means that another attempt has the run.

        Raises OutcomeNotRecorded: then the attempt's file stays, since it holds the outcome, and the next invocation
        on this host records it.
        """
        try:
            refusal = ledger.finish_or_keep(self.claim, verdict, self._keep if self.file else None)
        except OutcomeNotRecorded:
            self.locks.release()
            raise
        failpoint("finish:committed")
        self.locks.give_back()
        failpoint("finish:file-removed")
        return refusal

    def keep(self, verdict: Verdict) -> bool:
        """Leave the verdict on this host, for the next invocation to record; say whether that went well."""
        if self.file is None:
            return False
        try:
            self._keep(outcome_text(self.claim, verdict), True)
        except OSError:
            return False
        self.locks.release()
        return True

    def _keep(self, text: str, sync: bool) -> None:
        assert self.file is not None
        self.file.write_outcome(text, sync=sync)


def passed_on(code: int) -> int:
    """Return the status of a job that ended with `code`: one that `ranonce` uses itself becomes 1, so that nobody
    mistakes it."""
    return 1 if code in EXIT_STATUSES or code > 128 else code
