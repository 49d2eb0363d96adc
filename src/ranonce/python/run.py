"""A claim that was won, as the job's own code holds it: `Run`.

The claim is kept by a heartbeat in a thread of its own, and proved by the attempt's locked file, as it is for a
command. What a function cannot be is stopped from outside: one that lost its claim learns it from the next `run.…`
call, and can write nothing more; `on_lost="exit"` ends the whole process instead.
"""

from __future__ import annotations

import os
import time
import weakref
from typing import TypeVar, overload

from ranonce.errors import (
    EX_CHECK_FAILED,
    EX_CLAIM_LOST,
    EX_DONE,
    EX_NOT_RECORDED,
    EX_PERSON_NEEDED,
    EX_STOPPED,
    OutcomeNotRecorded,
    RanonceError,
    UsageError,
)
from ranonce.lifecycle import DONE, FAILED, HELD, RUNNING, STOPPED, Verdict, renew
from ranonce.python.answers import plain
from ranonce.python.answers import said as words_of
from ranonce.python.emitting import Emitter
from ranonce.python.holder import Holder
from ranonce.python.inside import Inside
from ranonce.python.items import Items, step
from ranonce.python.verdict import Judged, judge
from ranonce.record import Record
from ranonce.terms import Result
from ranonce.timefmt import shown, to_datetime

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import AsyncIterable, Callable, Coroutine, Iterable
    from datetime import datetime
    from types import TracebackType
    from typing import Any, Literal, NoReturn, Self

    from ranonce.heartbeat import Heartbeat
    from ranonce.ledger import OpenLedger
    from ranonce.python.calling import Plan
    from ranonce.python.connections import Connections
    from ranonce.python.emitting import Payload, Piece
    from ranonce.python.holder import OnLost
    from ranonce.python.inside import CallersConnection
    from ranonce.receipts import Receipt
    from ranonce.terms import Order, Terms, Won


Item = TypeVar("Item")
Value = TypeVar("Value")
ROLLED_BACK = "the transaction it was finished in was rolled back"
#: The outcomes that a job may give itself, and their exit statuses.
OUTCOMES = {DONE: EX_DONE, FAILED: 1, STOPPED: EX_STOPPED}


class Ended(Record):
    """How a run ended: its result, and what its caller must be told by an exception."""

    result: Result
    error: BaseException | None = None


class Run:
    """One window's work, claimed by this process. A context manager: leaving it records the outcome.

    Left without an exception the run is `done`, with one it is `failed` (`Stop`: `stopped`) and the exception goes on.
    `window` is the window's key; `window_start` and `window_end` are aware UTC datetimes; `attempt` is the fencing
    token. Once the claim is lost every method raises ClaimLost.
    """

    job: str
    window: str
    window_start: datetime
    window_end: datetime
    attempt: int
    generation: int
    owner: str
    trigger: str
    version: str | None

    def __init__(self, connections: Connections, plan: Plan, order: Order, won: Won, on_lost: OnLost) -> None:
        claim, terms = won.claim, plan.terms
        self.job, self.window = claim.key.job, claim.key.window
        self.window_start, self.window_end = to_datetime(claim.window.start), to_datetime(claim.window.end)
        self.attempt, self.generation, self.owner = claim.attempt, claim.generation, claim.owner
        self.trigger, self.version = claim.trigger, claim.version
        self._connections = connections
        self._terms = terms
        self._warnings = plan.warnings
        self._order = order
        self._won = won
        self._pid = os.getpid()
        self._ended: Ended | None = None
        self._inside: Inside | None = None
        self._tried: Inside | None = None  # with the connection that the job tried last, whatever became of it
        self._began = time.time()
        self._emitter = Emitter(connections, claim, terms.destinations)
        self._holder = Holder(connections, claim, terms.spec.overlap, on_lost)
        self._heartbeat = won.heartbeat(self._holder.renew, self._holder.stop, grace=terms.spec.grace_kill)
        self._abandoned = weakref.finalize(self, _abandon, self._pid, self._heartbeat, won)
        self._abandoned.atexit = False  # a daemon thread may be working still; the process's end says it all
        try:
            self._heartbeat.start()
        except RuntimeError as error:  # no thread left for this user
            self._settle(Judged(Verdict(FAILED, self._now(), f"not started: {error}"), 1), error)
            raise

    def __bool__(self) -> Literal[True]:
        return True

    def __reduce__(self) -> NoReturn:
        raise TypeError(f"{self!r} is this process's alone: it can be neither copied nor sent to another.")

    def __repr__(self) -> str:
        return f"<Run {self.job}:{self.window} attempt {self.attempt}>"

    @property
    def receipt(self) -> Receipt | None:
        """The receipt, once the run has ended."""
        return self._ended.result.receipt if self._ended else None

    # --- what the job may ask ---

    def check(self) -> None:
        """Make sure that the claim is still held: ask the ledger. Call it before an effect that cannot be undone.

        Raises ClaimLost, or StoreUnavailable where the ledger does not answer in time.
        """
        self._may_speak()
        claim = self._won.claim
        with self._connections.lend() as ledger:
            snap = ledger.store.read(claim.key, claim.window.start)
        refusal = renew(snap, claim, self._terms.spec.overlap).refusal
        if refusal is not None:
            raise self._holder.lose(refusal.sentence)

    def note(self, text: str) -> None:
        """Note something worth knowing about this run; `ranonce show` tells it. Longer texts are cut."""
        self._may_speak()
        said, claim = words_of(text), self._won.claim
        if not said:
            raise UsageError(f"{shown(text)} is empty.", "Note something.")
        with self._connections.lend() as ledger:
            held = (claim.owner, claim.attempt)
            refusal = ledger.note(claim.key, claim.window.start, said, by="", held=held)
        if refusal is not None:
            raise self._holder.lose(refusal.sentence)

    # --- its messages, and the pieces of its work ---

    def emit(
        self,
        destination: str,
        payload: Payload,
        *,
        key: str | None = None,
        scope: Literal["window", "job", "ledger"] = "window",
        content_type: str | None = None,
    ) -> None:
        """Emit a message that goes out once, when the run is done; in an item or a step, when that is.

        `payload` is bytes, text, or a dict or list, which becomes JSON. `key` says which message it is, in its `scope`:
        the same key and payload again is there already, another payload is a conflict, which is recorded and not sent.
        Without a key there is one message to a destination (in an item or a step: for that). Nothing is asked of the
        ledger, but once in a rerun. Raises UsageError for what cannot be sent (None, nothing, NaN, a second payload
        for a key of this piece of work), ConfigError for a destination that is not declared, and ClaimLost.
        """
        self._may_speak()
        if self._inside is not None:
            with self._connections.lend() as ledger:
                if self._inside.stands(ledger, self._won.claim):
                    raise UsageError(f"{self!r} is finished in a transaction.", "Emit before run.finish(…).")
        self._emitter.emit(destination, payload, key, scope, content_type)

    def items(
        self, iterable: Iterable[Item] | AsyncIterable[Item], *, key: Callable[[Item], str | int] | None = None
    ) -> Items[Item]:
        """Loop over what is still to be done: `for item in run.items(…)`, or `async for`.

        An item whose body came to its end is done, and its mark and messages are committed before the next one begins:
        no later attempt works on it again (a rerun does). One that is left by an exception or `break` is not done, and
        its messages are not sent. `key` says what an item is known by: text or a whole number, the item itself where
        it is one of these. A key that was met before is passed over. The loop raises ClaimLost, and StoreUnavailable
        where an item could not be recorded.
        """
        return Items(self, iterable, key)

    @overload
    def step(self, name: str, function: Callable[[], Coroutine[Any, Any, Value]]) -> Coroutine[Any, Any, Value]: ...
    @overload
    def step(self, name: str, function: Callable[[], Value]) -> Value: ...
    def step(self, name: str, function: Callable[[], Any]) -> Any:
        """Do a step once, and return what it returned: now, or in an earlier attempt of this generation.

        The result is kept as JSON, no more than 256 KiB of it, and comes back as JSON has it (a tuple as a list). An
        `async def` function is awaited: `await run.step(…)`. What the function emits is committed with the step. In an
        item its name is one of that item. Raises UsageError for what is not JSON, ClaimLost, and StoreUnavailable
        where it could not be recorded: then it is not done.
        """
        return step(self, name, function)

    def _begin_piece(self, name: str, *, is_step: bool = False) -> Piece:
        self._may_speak()
        return self._emitter.begin(name, is_step=is_step)

    def _mark(self, piece: Piece, result: bytes | None = None) -> None:
        """Commit a piece of the work. Raises ClaimLost."""
        self._may_speak()
        refusal = self._emitter.mark(piece, self._now(), result)
        if refusal is not None:
            raise self._holder.lose(refusal.sentence)

    def _with_messages(self, judged: Judged) -> Judged:
        """Return the verdict with what waits for it. Where it is not done the messages are only counted."""
        self._emitter.leave_all()
        messages = self._emitter.messages(self._now())
        if judged.verdict.outcome != DONE:
            messages = tuple(message.replace(body=None) for message in messages)
        return judged.replace(verdict=judged.verdict.replace(messages=messages))

    def finish(
        self,
        outcome: Literal["done", "failed", "stopped"] = "done",
        reason: str | None = None,
        *,
        connection: CallersConnection | None = None,
    ) -> None:
        """Record the outcome now; nothing more is recorded when the run is left. Declared checks are made first.

        With `connection` the outcome becomes part of the caller's own open transaction where the ledger is (its SQLite
        file, its PostgreSQL database): the effect and `done` are committed together or not at all. Commit it before you
        leave the run; rolled back, the run may be finished again. It is a connection of `sqlite3` or of psycopg 3, or
        SQLAlchemy's over psycopg 3. Raises ClaimLost, UsageError for a connection that will not do, OutcomeNotRecorded,
        and StoreUnavailable for a transaction that cannot write now, or must be done again.
        """
        self._goes_on()  # a verdict that comes too late is recorded as lost
        if outcome not in OUTCOMES:
            raise UsageError(f"{shown(outcome)} is no outcome.", f"It is one of {', '.join(OUTCOMES)}.")
        said = None if reason is None else words_of(reason) or None
        data = {"verified": False} if outcome == DONE else {}
        judged = Judged(Verdict(outcome, self._now(), said, data=data), OUTCOMES[outcome])
        if outcome == DONE and self._terms.spec.checks:
            judged = self._checked(judged)
            if connection is not None and judged.verdict.outcome != DONE:
                raise UsageError(f"the run cannot be done: {judged.verdict.reason}.", "Roll back, and mend it.")
        if connection is None:
            ended = self._settle(judged)
            if ended.error is not None:
                raise ended.error
            return
        inside = self._tried = Inside(self._with_messages(judged), connection)
        with self._connections.lend() as ledger:
            refusal = inside.write(ledger, self._won.claim, self._inside)
        if refusal is not None:
            raise self._holder.lose(refusal.sentence)
        if inside.wrote:  # else it is in this very transaction already
            self._inside = self._holder.inside = inside

    def _may_speak(self) -> None:
        self._goes_on()
        if self._holder.why is not None:
            raise self._holder.lost()

    def _now(self) -> float:
        """Return the present by the ledger's clock, which was looked at when the run was claimed."""
        return self._terms.ledger.now()

    def _goes_on(self) -> None:
        if os.getpid() != self._pid:
            raise UsageError(f"{self!r} belongs to process {self._pid}, of which this is a fork.", "Use it there.")
        if self._ended is not None or self._is_committed():
            raise UsageError(f"{self!r} has ended.", "Its receipt says how.")

    def _is_committed(self) -> bool:
        if self._inside is None:
            return False
        with self._connections.lend() as ledger:
            return self._inside.committed(ledger, self._won.claim)

    # --- its end ---

    def __enter__(self) -> Self:
        self._goes_on()
        return self

    def __exit__(self, kind: object, error: BaseException | None, _: TracebackType | None) -> None:
        self._leave()
        ended = self._end(error)
        if error is None and ended.error is not None:
            raise ended.error

    def _leave(self) -> None:
        """Take back a transaction of the caller's that the run was to be finished in and that is still open: half of it
        is nothing, and while it is open no outcome can be recorded.

        In the thread that it belongs to. Where the ledger cannot be asked, nothing is done to it.
        """
        if self._tried is None or os.getpid() != self._pid:
            return
        try:
            with self._connections.lend() as ledger:
                if self._inside is not None and self._inside.committed(ledger, self._won.claim):
                    return
                for tried in (self._inside, self._tried):
                    if tried is not None:
                        tried.roll_back(ledger)
        except RanonceError:
            return

    def _end(self, error: BaseException | None, *, signum: int | None = None) -> Ended:
        """Record what the end of the job's code means, if nothing is recorded yet. Raises nothing: it is all in the
        answer. A forked child that comes here by itself says nothing: the run is its parent's."""
        if os.getpid() != self._pid:
            verdict = Verdict(RUNNING, self._now(), "this process is a fork of the one that works on it")
            return Ended(Result(0, None, self._terms.outcome(self._order, self._won.claim, verdict, 0)), error)
        if self._ended is not None:
            return self._ended.replace(error=error)
        lost = self._holder.why
        judged = judge(error, self._terms.spec, self._now(), signum=signum, lost=lost)
        try:
            if self._inside is not None:
                return self._end_inside(self._inside, judged, error)
            if judged.verdict.outcome == DONE and self._terms.spec.checks:
                judged = self._checked(judged)
        except RanonceError as trouble:
            return self._unknown(judged, trouble, error)
        return self._settle(judged, error)

    def _end_inside(self, inside: Inside, judged: Judged, error: BaseException | None) -> Ended:
        """The receipt says what the ledger has, once that is seen: the transaction may have been rolled back."""
        self._holder.over = True
        with self._connections.lend() as ledger:
            if inside.settled(ledger, self._won.claim):
                late = len(self._emitter) - len(inside.judged.verdict.messages)
                if late:
                    self._emitter.warnings.append(f"emitted after the run was finished, and not sent: {late}")
                terms = self._terms_on(ledger)
                inside.witness(ledger)
                self._won.locks.give_back()
                return self._over(terms, inside.judged, error=error)
        if judged.verdict.outcome == DONE:
            verdict = judged.verdict.replace(outcome=FAILED, reason=ROLLED_BACK)
            judged = Judged(verdict.replace(data={}), 1)
        return self._settle(judged, error)

    def _settle(self, judged: Judged, error: BaseException | None = None) -> Ended:
        self._holder.over = True  # what the heartbeat is told from now on is about a run that has ended
        judged, claim = self._with_messages(judged), self._won.claim
        try:
            with self._connections.lend() as ledger:
                terms = self._terms_on(ledger)
                refusal = self._won.settle(ledger, judged.verdict)
                if refusal is None:
                    return self._over(terms, judged, error=error)
                receipt = terms.lost(self._order, claim, judged.verdict, refusal)
        except OutcomeNotRecorded as trouble:
            return self._unrecorded(judged, trouble, error)
        except RanonceError as trouble:  # not even a connection
            return self._unknown(judged, trouble, error)
        lost = self._holder.lose(refusal.sentence)
        return self._over(terms, judged, Result(EX_CLAIM_LOST, None, receipt), error or lost)

    def _unknown(self, judged: Judged, trouble: RanonceError, error: BaseException | None) -> Ended:
        """The ledger cannot be asked at all. An outcome that may be committed already is left to speak for itself."""
        judged = self._with_messages(judged)
        kept = self._inside is None and self._won.keep(judged.verdict)
        step = "The outcome waits on this host; the next run here records it before anything else." if kept else ""
        sentence = f"{self._won.claim.key} ended ({judged.verdict.outcome}), and the ledger says: {trouble.sentence}"
        return self._unrecorded(judged, OutcomeNotRecorded(sentence, step), error)

    def _unrecorded(self, judged: Judged, trouble: OutcomeNotRecorded, error: BaseException | None) -> Ended:
        receipt = self._terms.not_recorded(self._order, self._won.claim, judged.verdict, trouble)
        receipt = receipt.replace(warnings=(*self._warnings, *self._emitter.warnings) or None)
        return self._over(self._terms, judged, Result(EX_NOT_RECORDED, None, receipt), error or trouble)

    def _terms_on(self, ledger: OpenLedger) -> Terms:
        """Return the terms over a ledger that is lent now, which then has the warnings of the claim, too."""
        ledger.warnings[:0] = (*self._warnings, *self._emitter.warnings)
        return self._terms.replace(ledger=ledger)

    def _over(
        self, terms: Terms, judged: Judged, result: Result | None = None, error: BaseException | None = None
    ) -> Ended:
        self._heartbeat.end()
        self._abandoned.detach()
        receipt = terms.outcome(self._order, self._won.claim, judged.verdict, judged.exit)
        self._ended = Ended(result or Result(judged.exit, judged.signal, receipt), error)
        return self._ended

    # --- a crash that is looked into ---

    @property
    def _reconciling(self) -> bool:
        return self._won.claim.reconciling

    def _look(self) -> bool | None:
        """Ask the command that the configuration declares whether the crashed attempt did its work."""
        from ranonce.python.commands import did_it

        spec = self._terms.spec
        with self._connections.lend() as ledger:
            environment = self._terms.replace(ledger=ledger).environment(self._won.claim)
        return did_it(spec.reconcile, self.window, spec.cwd, environment)

    def _looked(self, did: bool | None, why: str = "nobody knows") -> Ended | None:
        """Settle what a look found. None: the work was not done, and this attempt goes on with it."""
        now = self._now()
        if did is True:
            return self._settle(Judged(Verdict(DONE, now, "reconciled"), EX_DONE))
        if did is not False:
            return self._settle(Judged(Verdict(HELD, now, plain(f"reconcile: {why}")), EX_PERSON_NEEDED))
        try:
            with self._connections.lend() as ledger:
                refusal = ledger.reconciled(self._won.claim, self._terms.spec.max_attempts)
        except RanonceError as error:
            return self._settle(Judged(Verdict(HELD, now, plain(f"reconcile: {error.sentence}")), EX_PERSON_NEEDED))
        return None if refusal is None else self._settle(Judged(Verdict(FAILED, now, "crashed"), EX_PERSON_NEEDED))

    # --- the job's declared checks ---

    def _checked(self, judged: Judged) -> Judged:
        """Look whether the product that the configuration declares is really there."""
        from ranonce.checks import run_checks
        from ranonce.python.commands import exit_status

        spec = self._terms.spec
        with self._connections.lend() as ledger:
            environment = self._terms.replace(ledger=ledger).environment(self._won.claim)
        results = run_checks(
            spec.checks,
            window_key=self.window,
            started_at=self._began,
            cwd=spec.cwd,
            env=environment,
            run_command=lambda argv: exit_status(argv, spec.cwd, environment),
        )
        broken = [f"{result.name}: {result.seen}" for result in results if not result.held]
        verdict = judged.verdict.replace(at=self._now(), data={"verified": not broken})
        if not broken:
            return judged.replace(verdict=verdict)
        data = {"verified": False, "checks": broken}
        return Judged(verdict.replace(outcome=FAILED, reason=f"check: {broken[0]}", data=data), EX_CHECK_FAILED)


def _abandon(pid: int, heartbeat: Heartbeat, won: Won) -> None:
    """A run that was dropped without an end: let the ledger see a crash, unless this is only a fork of its process."""
    if os.getpid() == pid:
        heartbeat.end()
        won.locks.leave()
