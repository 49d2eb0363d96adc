"""One claim that was won, until its verdict: start the child, keep the lease, look at the product, finish.

The outcome is put beside the attempt's lock before it is committed, so that a kill between the two loses nothing.
Whatever goes wrong after the child's end, it keeps its verdict.
"""

from __future__ import annotations

import os
import time

from ranonce import jsontext as json
from ranonce.errors import (
    EX_CHECK_FAILED,
    EX_CLAIM_LOST,
    EX_DONE,
    EX_NOT_EXECUTABLE,
    EX_NOT_RECORDED,
    EX_PERSON_NEEDED,
    EX_STOPPED,
    EX_TIME_LIMIT,
    EXIT_STATUSES,
    OutcomeNotRecorded,
    RanonceError,
)
from ranonce.failpoints import failpoint
from ranonce.heartbeat import Heartbeat
from ranonce.ledger import outcome_text
from ranonce.lifecycle import DONE, FAILED, HELD, STOPPED, Gate, Verdict
from ranonce.process import SpawnFailed, run_child
from ranonce.receipts import Receipt
from ranonce.record import Record
from ranonce.storeurl import masked, sqlite_path
from ranonce.timefmt import format_instant

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Mapping
    from typing import Any

    from ranonce.jobspec import JobSpec
    from ranonce.ledger import OpenLedger
    from ranonce.lifecycle import Claim, Refusal, RunKey
    from ranonce.liveness import AttemptFile
    from ranonce.output import Kept
    from ranonce.process import Ending, Signals
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

    def environment(self, claim: Claim) -> dict[str, str]:
        """Return the environment of a command that works for a claim. Raises what the ledger raises."""
        environment = dict(os.environ)
        for name in ("RANONCE_STORE", "RANONCE_RESEND"):  # of another run that this one was started by
            environment.pop(name, None)
        if claim.generation > 1 and self.ledger.resends(claim):
            environment["RANONCE_RESEND"] = "1"
        if masked(self.store_url) == self.store_url:  # a password is not handed on to the work
            environment["RANONCE_STORE"] = self.store_url
        environment.update(
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
        )

    def lost(self, order: Order, claim: Claim, verdict: Verdict, refusal: Refusal) -> Receipt:
        """Return the receipt of an attempt whose verdict was refused: another has the run."""
        return self.outcome(order, claim, verdict, EX_CLAIM_LOST, "lost").replace(
            reason=refusal.reason, sentence=refusal.sentence, holder=refusal.holder
        )

    def not_recorded(self, order: Order, claim: Claim, verdict: Verdict, error: OutcomeNotRecorded) -> Receipt:
        """Return the receipt of an attempt whose verdict waits on this host."""
        return self.outcome(order, claim, verdict, EX_NOT_RECORDED).replace(reason=error.code, sentence=str(error))


class Won(Record):
    """A claim that was won, the locked file that shows on this host that its attempt works, and the boot-clock instant
    before the claim was sent."""

    claim: Claim
    file: AttemptFile | None
    at: float

    def heartbeat(
        self,
        renew: Callable[[], Refusal | None],
        stop: Callable[[str], None],
        *,
        grace: float,
        store_url: str,
        leave: Callable[[], None] = lambda: None,
    ) -> Heartbeat:
        """Return what keeps the claim; it has yet to be started."""
        return Heartbeat(
            renew,
            stop,
            lease_seconds=self.claim.lease_seconds,
            grace_seconds=grace,
            # The lock of a local ledger proves to everybody who could claim that this attempt lives.
            fence=self.file is None or sqlite_path(store_url) is None,
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
            if self.file is not None:
                self.file.release()
            raise
        failpoint("finish:committed")
        self.give_back()
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
        self.file.release()
        return True

    def give_back(self) -> None:
        """Let go of the attempt's lock: the ledger has its story."""
        if self.file is not None:
            self.file.remove()

    def _keep(self, text: str, sync: bool) -> None:
        assert self.file is not None
        self.file.write_outcome(text, sync=sync)


class _NotStarted(Exception):
    """The child was forked, and could not be let go: it has ended without having done anything."""


class _Stop(Record):
    """The job gave up on purpose: why, until when (unix seconds), and which gates it closed."""

    reason: str
    resume_at: float | None
    gates: tuple[Gate, ...]


def _stop_of(text: str, job: str) -> _Stop:
    told, now = json.loads(text), time.time()
    gates = tuple(Gate(str(name), float(until), str(told["reason"]), job, now) for name, until in told["gates"])
    return _Stop(str(told["reason"]), None if told["resume_at"] is None else float(told["resume_at"]), gates)


class Attempt:
    """One claim that was won, until its verdict."""

    def __init__(self, terms: Terms, order: Order, won: Won) -> None:
        self.terms = terms
        self.spec = terms.spec
        self.ledger = terms.ledger
        self.order = order
        self.won = won
        self.claim = won.claim
        self.file = won.file
        self.began = time.time()
        self.heartbeat = won.heartbeat(
            self._renew,
            terms.signals.interrupt,
            grace=self.spec.grace_kill,
            store_url=terms.store_url,
            leave=self._close_renewing,
        )
        self._renewing: list[OpenLedger] = []
        self._told: dict[str, str] | None = None

    def carry_out(self) -> Result:
        """Do the work and record what became of it."""
        try:
            verdict, status, signum = self._verdict()
            failpoint("run:verdict-known")
            return self._record(verdict, status, signum)
        finally:
            self.heartbeat.end()

    def _verdict(self) -> tuple[Verdict, int, int | None]:
        if self.claim.reconciling:
            looked = self._reconcile()
            if looked is not None:
                return looked
        if (signum := self.terms.signals.first) is not None:
            return Verdict(STOPPED, time.time(), reason="signal"), 128 + signum, signum
        failpoint("run:before-child")
        ending = self._run(self.spec.command)
        failpoint("run:child-ended")
        if isinstance(ending, SpawnFailed):
            return Verdict(FAILED, time.time(), ending.sentence, ending.exit), ending.exit, None
        return self._judge(ending)

    def _run(self, command: tuple[str, ...]) -> Ending | SpawnFailed:
        try:
            return run_child(
                [argument.replace("{window}", self.claim.key.window) for argument in command],
                env=self._environment(),
                signals=self.terms.signals,
                cwd=self.spec.cwd,
                stdin=self.spec.stdin,
                keep_output=self.spec.keep_output,
                timeout=self.spec.timeout,
                grace=self.spec.grace_kill,
                leftovers=self.spec.leftovers,
                inherit=(self.file.fd,) if self.file else (),
                on_started=self._started,
            )
        except _NotStarted as error:
            return SpawnFailed(EX_NOT_EXECUTABLE, f"the command was not started: {error}")

    def _started(self, pid: int) -> None:
        """Record the child, which still waits, and begin to beat. If that fails, it never gets to be the command."""
        try:
            if self.file is not None:
                self.file.child_started(pid)
            failpoint("run:child-started")
            if not self.heartbeat.running:
                self.heartbeat.start()
        except (OSError, RuntimeError) as error:  # no room for the attempt's file, no thread left for this user
            raise _NotStarted(str(error)) from error

    def _renew(self) -> Refusal | None:
        """Renew through a store of the heartbeat's own thread, opened at its first beat."""
        if not self._renewing:
            self._renewing.append(self.ledger.reopen(wait_seconds=min(RENEW_WAIT_SECONDS, self.claim.lease_seconds)))
        return self._renewing[0].renew(self.claim, self.spec.overlap)

    def _close_renewing(self) -> None:
        """Close that store: one invocation may keep the claims of a thousand windows, one after the other."""
        while self._renewing:
            self._renewing.pop().close()

    def _environment(self) -> dict[str, str]:
        try:
            self._told = self._told or self.terms.environment(self.claim)
        except RanonceError as error:
            raise _NotStarted(error.sentence) from error
        return dict(self._told)

    # --- verdicts ---

    def _reconcile(self) -> tuple[Verdict, int, int | None] | None:
        """Look whether the crashed attempt did its work. None: it did not, and this attempt goes on."""
        ending = self._run(self.spec.reconcile)
        now = time.time()
        if isinstance(ending, SpawnFailed):
            return Verdict(HELD, now, reason=f"reconcile: {ending.sentence}"), EX_PERSON_NEEDED, None
        if ending.interrupted:
            return Verdict(HELD, now, reason=f"reconcile: {ending.interrupted}"), EX_CLAIM_LOST, None
        if ending.timed_out:
            return Verdict(HELD, now, reason="reconcile: timeout"), EX_PERSON_NEEDED, None
        if ending.stopped_by is not None:
            return self._judge(ending)  # the run stays to be looked into
        if ending.exit == 0:
            return Verdict(DONE, now, reason="reconciled"), EX_DONE, None
        if ending.exit != 1:
            how = f"exit {ending.exit}" if ending.exit is not None else f"signal {ending.signal}"
            return Verdict(HELD, now, reason=f"reconcile: {how}"), EX_PERSON_NEEDED, None
        refusal = self.ledger.reconciled(self.claim, self.spec.max_attempts)
        if refusal is None:
            return None
        status = EX_CLAIM_LOST if refusal.reason == "lost" else EX_PERSON_NEEDED
        return Verdict(FAILED, now, reason="crashed"), status, None

    def _judge(self, ending: Ending) -> tuple[Verdict, int, int | None]:
        """Say what an ending means: the outcome, the exit status, and the signal to die by."""
        now = time.time()
        data: dict[str, object] = {}
        if ending.leftovers:
            data["leftovers"] = [f"{left.pid} {left.name}" for left in ending.leftovers]
        if ending.signal is not None:
            data["signal"] = ending.signal
        if ending.killed:
            data["killed"] = True
        kept = _both_ends(ending.output) if ending.output else None

        def verdict(outcome: str, reason: str | None = None) -> Verdict:
            return Verdict(outcome, now, reason, ending.exit, data=data, output=kept)

        if ending.interrupted:
            return verdict(FAILED, ending.interrupted), EX_CLAIM_LOST, None
        # What the job itself said counts first: it may have been ended while it wound down.
        stop = self._stop_request(ending)
        stopped = verdict(STOPPED, stop.reason).replace(resume_at=stop.resume_at, gates=stop.gates) if stop else None
        if ending.stopped_by is not None:
            return stopped or verdict(STOPPED, "signal"), 128 + ending.stopped_by, ending.stopped_by
        if stopped:
            return stopped, EX_STOPPED, None
        if ending.timed_out:
            return verdict(FAILED, "timeout"), EX_TIME_LIMIT, None
        if ending.signal is not None:
            return verdict(FAILED, "signal"), 128 + ending.signal, ending.signal
        if ending.exit != 0:
            assert ending.exit is not None
            return verdict(FAILED), ending.exit if self.terms.raw_exit else passed_on(ending.exit), None
        try:
            broken = self._broken_checks(data)
        except (RanonceError, OSError) as error:  # whatever goes wrong here, the command has ended and has a verdict
            broken = [f"the checks could not be made: {error}"]
        signals = self.terms.signals
        if broken and signals.interrupted is not None:  # the check was stopped, so it says nothing
            return verdict(FAILED, signals.interrupted), EX_CLAIM_LOST, None
        if broken and signals.first is not None:
            return verdict(STOPPED, "signal"), 128 + signals.first, signals.first
        if broken:
            return verdict(FAILED, f"check: {broken[0]}"), EX_CHECK_FAILED, None
        return verdict(DONE), EX_DONE, None

    def _stop_request(self, ending: Ending) -> _Stop | None:
        """Return what `ranonce stop` said inside the job, or what a declared exit code says; None if neither did."""
        try:
            if self.file and (text := self.file.take_stop()) is not None:
                return _stop_of(text, self.claim.key.job)
        except (OSError, ValueError, KeyError, TypeError) as error:
            self.ledger.warnings.append(f"a request to stop could not be read, and is passed over: {error}")
        if ending.exit in self.spec.stop_exit_codes:
            return _Stop(f"exit {ending.exit}", None, ())
        return None

    def _broken_checks(self, data: dict[str, object]) -> list[str]:
        if not self.spec.checks:
            data["verified"] = False
            return []
        from ranonce.checks import run_checks

        results = run_checks(
            self.spec.checks,
            window_key=self.claim.key.window,
            started_at=self.began,
            cwd=self.spec.cwd,
            env=self._environment(),
            run_command=self._check_command,
        )
        broken = [f"{result.name}: {result.seen}" for result in results if not result.held]
        data["verified"] = not broken
        if broken:
            data["checks"] = broken
        return broken

    def _check_command(self, argv: list[str]) -> int:
        """Run a check's command like the job's own, under the same signals and time limit; stopped, it did not hold."""
        ending = self._run(tuple(argv))
        if isinstance(ending, SpawnFailed):
            return ending.exit
        if ending.timed_out or ending.stopped_by is not None or ending.interrupted:
            return EX_TIME_LIMIT
        return ending.exit if ending.exit is not None else 128 + (ending.signal or 0)

    # --- finish ---

    def _record(self, verdict: Verdict, status: int, signum: int | None) -> Result:
        try:
            refusal = self.won.settle(self.ledger, verdict)
        except OutcomeNotRecorded as error:
            receipt = self.terms.not_recorded(self.order, self.claim, verdict, error)
            return Result(EX_NOT_RECORDED, None, receipt)
        if refusal is not None:
            return Result(EX_CLAIM_LOST, None, self.terms.lost(self.order, self.claim, verdict, refusal))
        return Result(status, signum, self.terms.outcome(self.order, self.claim, verdict, status))


def passed_on(code: int) -> int:
    """Return the status of a job that ended with `code`: one that `ranonce` uses itself becomes 1, so that nobody
    mistakes it."""
    return 1 if code in EXIT_STATUSES or code > 128 else code


def _both_ends(kept: Kept) -> bytes | None:
    """Return what is kept of the output as one text, saying how much is left out; None if nothing was printed."""
    gap = b"\n[... %d bytes left out ...]\n" % kept.dropped if kept.dropped else b""
    return kept.head + gap + kept.tail or None
