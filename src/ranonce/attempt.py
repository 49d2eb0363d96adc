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
    OutcomeNotRecorded,
    RanonceError,
)
from ranonce.failpoints import failpoint
from ranonce.lifecycle import DONE, FAILED, HELD, STOPPED, Gate, Verdict
from ranonce.liveness import MessagesFile
from ranonce.process import SpawnFailed, run_child
from ranonce.record import Record
from ranonce.terms import RENEW_WAIT_SECONDS, Order, Result, Terms, Won, passed_on

TYPE_CHECKING = False
if TYPE_CHECKING:
    from ranonce.ledger import OpenLedger
    from ranonce.lifecycle import Refusal
    from ranonce.output import Kept
    from ranonce.process import Ending


class _NotStarted(Exception):
    """The child was forked, and could not be let go: it has ended without having done anything."""


class _Stop(Record):
    """The job gave up on purpose: why, until when (unix seconds), and which gates it closed."""

    reason: str
    resume_at: float | None
    gates: tuple[Gate, ...]


def _stop_of(text: str, job: str, now: float) -> _Stop:
    """Return the stop that `ranonce stop` has asked for. `now` is by the ledger's clock."""
    told = json.loads(text)
    reason, resume_at = str(told["reason"]), None if told["resume_at"] is None else float(told["resume_at"])
    if told.get("after") is not None:
        resume_at = now + float(told["after"])
    gates = tuple(Gate(str(name), resume_at or float(until), reason, job, now) for name, until in told["gates"])
    return _Stop(reason, resume_at, gates)


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
            leave=self._close_renewing,
        )
        self._renewing: list[OpenLedger] = []
        self._told: dict[str, str] | None = None
        self._messages: MessagesFile | None = None

    def carry_out(self) -> Result:
        """Do the work and record what became of it."""
        try:
            verdict, status, signum = self._verdict()
            verdict, status = self._with_messages(verdict, status)
            self._remove_messages()
            failpoint("run:verdict-known")
            return self._record(verdict, status, signum)
        finally:
            self.heartbeat.end()
            self._remove_messages()

    def _remove_messages(self) -> None:
        """Remove the file of what the job has emitted: it is in the verdict, or goes nowhere."""
        messages, self._messages = self._messages, None
        if messages is not None:
            messages.remove()

    def _verdict(self) -> tuple[Verdict, int, int | None]:
        if self.claim.reconciling:
            looked = self._reconcile()
            if looked is not None:
                return looked
        if (signum := self.terms.signals.first) is not None:
            return Verdict(STOPPED, self.ledger.now(), reason="signal"), 128 + signum, signum
        failpoint("run:before-child")
        ending = self._run(self.spec.command)
        failpoint("run:child-ended")
        if isinstance(ending, SpawnFailed):
            return Verdict(FAILED, self.ledger.now(), ending.sentence, ending.exit), ending.exit, None
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
        refusal = self._renewing[0].renew(self.claim, self.spec.overlap)
        if refusal is not None and self._finished_itself():
            return None
        return refusal

    def _finished_itself(self) -> bool:
        """Whether the job has finished its run in a transaction of its own, and only its process has yet to end."""
        run = self._renewing[0].store.read(self.claim.key, self.claim.window.start).run
        return run is not None and (run.status, run.owner) == (DONE, self.claim.owner)

    def _close_renewing(self) -> None:
        """Close that store: one invocation may keep the claims of a thousand windows, one after the other."""
        while self._renewing:
            self._renewing.pop().close()

    def _environment(self) -> dict[str, str]:
        if self._told is None:
            try:
                self._told = self.terms.environment(self.claim)
            except RanonceError as error:
                raise _NotStarted(error.sentence) from error
            self._make_room_for_messages(self._told)
        return dict(self._told)

    # --- what the job emits ---

    def _make_room_for_messages(self, environment: dict[str, str]) -> None:
        """Make the file for what the job emits. Where that cannot be, the job goes on, and `ranonce emit` says so."""
        temporary = os.path.join(os.environ.get("TMPDIR") or "/tmp", f"ranonce-{self.claim.owner}.messages")  # noqa: S108
        path = os.path.abspath(self.file.messages if self.file else temporary)
        try:
            self._messages = MessagesFile(path)
        except OSError as error:
            self.ledger.warnings.append(f"nothing can be emitted: no file {path!r} ({error.strerror})")
        else:
            environment["RANONCE_MESSAGES"] = path

    def _with_messages(self, verdict: Verdict, status: int) -> tuple[Verdict, int]:
        """Return the verdict with what the job has emitted. Work whose messages cannot be read is not done."""
        if self._messages is None or self._messages.is_untouched():
            return verdict, status
        from ranonce.emission import message_of
        from ranonce.messagefile import DamagedMessages, close

        try:
            emissions = close(self._messages)
        except DamagedMessages as error:
            if verdict.outcome != DONE:
                self.ledger.warnings.append(str(error))
                return verdict, status
            return verdict.replace(outcome=FAILED, reason=f"messages: {error.sentence}"), EX_CHECK_FAILED
        assert self._told is not None
        now, resend = self.ledger.now(), "RANONCE_RESEND" in self._told
        messages = [message_of(emission, self.claim, now, resend=resend) for emission in emissions]
        if verdict.outcome != DONE:  # they are only counted
            messages = [message.replace(body=None) for message in messages]
        return verdict.replace(messages=tuple(messages)), status

    # --- verdicts ---

    def _reconcile(self) -> tuple[Verdict, int, int | None] | None:
        """Look whether the crashed attempt did its work. None: it did not, and this attempt goes on."""
        ending = self._run(self.spec.reconcile)
        now = self.ledger.now()
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
        now = self.ledger.now()
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
                return _stop_of(text, self.claim.key.job, self.ledger.now())
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


def _both_ends(kept: Kept) -> bytes | None:
    """Return what is kept of the output as one text, saying how much is left out; None if nothing was printed."""
    gap = b"\n[... %d bytes left out ...]\n" % kept.dropped if kept.dropped else b""
    return kept.head + gap + kept.tail or None
