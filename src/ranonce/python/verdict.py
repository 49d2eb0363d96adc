"""What the end of a function means: each way out of it has a verdict, whatever was raised."""

from __future__ import annotations

import signal
import sys
import traceback

from ranonce.errors import EX_CLAIM_LOST, EX_DONE, EX_STOPPED, EX_TIME_LIMIT, ClaimLost
from ranonce.lifecycle import DONE, FAILED, STOPPED, Gate, Verdict
from ranonce.python.answers import Stop, plain
from ranonce.record import Record
from ranonce.terms import passed_on

TYPE_CHECKING = False
if TYPE_CHECKING:
    from types import TracebackType

    from ranonce.jobspec import JobSpec

#: What is kept of a traceback: as much as of a command's output.
HEAD_BYTES, TAIL_BYTES = 4 * 1024, 60 * 1024


class TimeLimit(BaseException):
    """The job has worked for longer than its `timeout`. No `except Exception` of the job is meant for it."""


class Judged(Record):
    """A verdict, the exit status it has on a command line, and the signal to die by there."""

    verdict: Verdict
    exit: int
    signal: int | None = None


def judge(
    error: BaseException | None, spec: JobSpec, now: float, *, signum: int | None = None, lost: str | None = None
) -> Judged:
    """Say what the end of a function means. `error` is what it raised, `now` the present by the ledger's clock.

    `signum` is a signal that came meanwhile, `lost` why its claim is lost.

    `sys.exit()` and `sys.exit(0)` end a job well, as they end a script; another status fails, or stops if the job
    declares it (`stop_exit_codes`). A cancelled task and a closed generator are stopped. What cannot even be looked at
    (its class may do anything then) has failed.
    """
    try:
        return _judged(error, spec, now, signum, lost)
    except Exception as trouble:  # noqa: BLE001 - the job's own classes, and whatever they raise
        said = f"{type(error).__name__}, which cannot be looked at ({type(trouble).__name__})"
        return Judged(Verdict(FAILED, now, plain(said)), 1)


def _judged(error: BaseException | None, spec: JobSpec, now: float, signum: int | None, lost: str | None) -> Judged:
    def verdict(outcome: str, reason: str | None = None, code: int | None = None) -> Verdict:
        return Verdict(outcome, now, reason, code, data={"verified": False} if outcome == DONE else {})

    if isinstance(error, Stop):
        resume_at = error.when.counted(now) if error.when else None
        gates = tuple(Gate(name, resume_at or now, error.reason, spec.name, now) for name in error.gates)
        stopped = verdict(STOPPED, error.reason).replace(resume_at=resume_at, gates=gates)
        return Judged(stopped, EX_STOPPED if signum is None else 128 + signum, signum)
    if lost is not None and isinstance(error, ClaimLost):
        return Judged(verdict(FAILED, lost), EX_CLAIM_LOST)
    if signum is None and isinstance(error, KeyboardInterrupt):
        signum = int(signal.SIGINT)
    if signum is not None:
        return Judged(verdict(STOPPED, "signal").replace(data={"signal": signum}), 128 + signum, signum)
    if error is None or ended_well(error):
        return Judged(verdict(DONE), EX_DONE)
    if isinstance(error, SystemExit):
        return _exit(error, spec, verdict(FAILED))
    if isinstance(error, TimeLimit):
        return Judged(verdict(FAILED, "timeout"), EX_TIME_LIMIT)
    if isinstance(error, GeneratorExit) or _is_cancelled(error):
        return Judged(verdict(STOPPED, "cancelled"), EX_STOPPED)
    failed = verdict(FAILED, told(error))
    return Judged(failed.replace(output=_trace(error)) if spec.keep_output else failed, 1)


def told(error: BaseException) -> str:
    """Say what was raised, in one line that can be recorded."""
    try:
        said = traceback.format_exception_only(type(error), error)[-1].strip()
    except Exception:  # noqa: BLE001 - its notes, say, are made by a property of its own
        said = type(error).__name__
    return plain(said)


def _trace(error: BaseException) -> bytes | None:
    try:
        lines = traceback.format_exception(type(error), error, of_the_job(error))
    except Exception as trouble:  # noqa: BLE001 - the same; or it is deeper than the interpreter can tell
        lines = [f"[the traceback cannot be told: {type(trouble).__name__}]"]
    return _bounded("".join(lines)) or None


def ended_well(error: BaseException) -> bool:
    """Whether an exception is no failure of a script: `sys.exit()` and `sys.exit(0)`. Any other 0 is text, status 1."""
    return isinstance(error, SystemExit) and (error.code is None or (isinstance(error.code, int) and error.code == 0))


def exit_text(left: SystemExit) -> str | None:
    """Return what an interpreter prints of `sys.exit("text")`; None for a status."""
    if left.code is None or isinstance(left.code, int):
        return None
    try:
        return str(left.code)
    except Exception:  # noqa: BLE001 - the text is the job's own class's
        return type(left.code).__name__


def _is_cancelled(error: BaseException) -> bool:
    """Whether a task was cancelled. Where nobody has loaded asyncio there are no tasks."""
    asyncio = sys.modules.get("asyncio")
    return asyncio is not None and isinstance(error, asyncio.CancelledError)


def _exit(left: SystemExit, spec: JobSpec, failed: Verdict) -> Judged:
    """`sys.exit(5)` is a status; `sys.exit("text")` says why, and is status 1."""
    text = exit_text(left)
    if text is not None or not isinstance(left.code, int):
        return Judged(failed.replace(reason=plain(text or ""), exit=1), 1)
    code = left.code & 0xFF  # as the system sees it
    if code == 0:  # a count of errors, perhaps: no success, whatever the system would make of it
        return Judged(failed.replace(reason=plain(f"exit {left.code}"), exit=1), 1)
    if code in spec.stop_exit_codes:
        return Judged(failed.replace(outcome=STOPPED, reason=f"exit {code}", exit=code), EX_STOPPED)
    return Judged(failed.replace(reason=f"exit {code}", exit=code), passed_on(code))


def of_the_job(error: BaseException) -> TracebackType | None:
    """Return the traceback from the job's own function on: how it was called is no news."""
    trace = error.__traceback__
    while trace is not None and trace.tb_frame.f_globals.get("__name__", "").startswith("ranonce.python."):
        trace = trace.tb_next
    return trace or error.__traceback__


def _bounded(text: str) -> bytes:
    data = text.encode("utf-8", "backslashreplace")
    dropped = len(data) - HEAD_BYTES - TAIL_BYTES
    if dropped <= 0:
        return data
    return data[:HEAD_BYTES] + b"\n[... %d bytes left out ...]\n" % dropped + data[-TAIL_BYTES:]
