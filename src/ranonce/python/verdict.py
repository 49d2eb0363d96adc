"""What the end of a function means: each way out of it has a verdict, whatever was raised."""

from __future__ import annotations

import signal
import sys
import time
import traceback

from ranonce.attempt import passed_on
from ranonce.cli.stop import LONGEST_REASON
from ranonce.errors import EX_CLAIM_LOST, EX_DONE, EX_STOPPED, EX_TIME_LIMIT, ClaimLost
from ranonce.lifecycle import DONE, FAILED, STOPPED, Gate, Verdict
from ranonce.python.answers import Stop
from ranonce.record import Record

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


def judge(error: BaseException | None, spec: JobSpec, *, signum: int | None = None, lost: str | None = None) -> Judged:
    """Say what the end of a function means. `error` is what it raised, `signum` a signal that came meanwhile, `lost`
    why its claim is lost.

    `sys.exit()` and `sys.exit(0)` end a job well, as they end a script; another status fails, or stops if the job
    declares it (`stop_exit_codes`). A cancelled task and a closed generator are stopped.
    """
    now = time.time()

    def verdict(outcome: str, reason: str | None = None, code: int | None = None) -> Verdict:
        return Verdict(outcome, now, reason, code, data={"verified": False} if outcome == DONE else {})

    if isinstance(error, Stop):
        gates = tuple(Gate(name, error.resume_at or now, error.reason, spec.name, now) for name in error.gates)
        stopped = verdict(STOPPED, error.reason).replace(resume_at=error.resume_at, gates=gates)
        return Judged(stopped, EX_STOPPED if signum is None else 128 + signum, signum)
    if lost is not None and isinstance(error, ClaimLost):
        return Judged(verdict(FAILED, lost), EX_CLAIM_LOST)
    if signum is None and isinstance(error, KeyboardInterrupt):
        signum = int(signal.SIGINT)
    if signum is not None:
        return Judged(verdict(STOPPED, "signal").replace(data={"signal": signum}), 128 + signum, signum)
    if error is None or (isinstance(error, SystemExit) and error.code in (None, 0)):
        return Judged(verdict(DONE), EX_DONE)
    if isinstance(error, SystemExit):
        return _exit(error, spec, verdict(FAILED))
    if isinstance(error, TimeLimit):
        return Judged(verdict(FAILED, "timeout"), EX_TIME_LIMIT)
    if isinstance(error, GeneratorExit) or _is_cancelled(error):
        return Judged(verdict(STOPPED, "cancelled"), EX_STOPPED)
    said = traceback.format_exception_only(type(error), error)[-1].strip()
    trace = traceback.format_exception(type(error), error, of_the_job(error)) if spec.keep_output else []
    return Judged(verdict(FAILED, plain(said)).replace(output=_bounded("".join(trace)) or None), 1)


def _is_cancelled(error: BaseException) -> bool:
    """Whether a task was cancelled. Where nobody has loaded asyncio there are no tasks."""
    asyncio = sys.modules.get("asyncio")
    return asyncio is not None and isinstance(error, asyncio.CancelledError)


def _exit(left: SystemExit, spec: JobSpec, failed: Verdict) -> Judged:
    """`sys.exit(5)` is a status; `sys.exit("text")` says why, and is status 1."""
    if not isinstance(left.code, int):
        return Judged(failed.replace(reason=plain(str(left.code)), exit=1), 1)
    code = left.code & 0xFF  # as the system sees it
    if code in spec.stop_exit_codes:
        return Judged(failed.replace(outcome=STOPPED, reason=f"exit {code}", exit=code), EX_STOPPED)
    return Judged(failed.replace(reason=f"exit {code}", exit=code), passed_on(code))


def plain(said: str) -> str:
    """Return a reason that can be recorded: bounded, and without what is not text."""
    return said[:LONGEST_REASON].encode("utf-8", "backslashreplace").decode()


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
