"""`Job.main()`: the command line of a job that is a Python function. Options, receipts and exit statuses are those of
`ranonce run`; what only a command can have (its grace, its standard input …) is left out.
"""

from __future__ import annotations

import os
import shlex
import signal
import sys
import threading
import time

from ranonce.cli.invoking import INPUT, WORK_OPTIONS
from ranonce.cli.joboptions import job_settings
from ranonce.cli.options import Command, Option, parse
from ranonce.cli.person import LONGEST_TEXT, who
from ranonce.cli.run import COMMAND as RUN
from ranonce.errors import (
    EX_DONE,
    EX_STORE_UNAVAILABLE,
    ConfigError,
    NotThisLedger,
    RanonceError,
    StoreUnavailable,
    UsageError,
)
from ranonce.invocation import Asked, digest_of, that_counts
from ranonce.jobspec import JobSpec
from ranonce.liveness import this_host
from ranonce.python.answers import Stop, plain
from ranonce.python.calling import Place
from ranonce.python.job import Call, called, drive, is_inside
from ranonce.python.verdict import TimeLimit, ended_well, exit_text, of_the_job
from ranonce.receipts import Receipts, say
from ranonce.signals import STOP_SIGNALS, die_by, hold_standard_streams
from ranonce.timefmt import shown

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from types import FrameType
    from typing import Any, NoReturn, Self

    from ranonce.cli.options import Parsed
    from ranonce.python.job import Job, Own
    from ranonce.python.run import Ended
    from ranonce.terms import Result

#: A signal that means nothing: its handler ends a sleep of the main thread. Nobody minds it where there is none.
NUDGE = signal.SIGURG
NUDGES, NUDGE_SECONDS = 100, 0.05
#: Options of `ranonce run` that are about a command and the process it runs in.
OF_A_COMMAND = {"grace-kill", "reconcile", "check", "leftovers", "stdin", "raw-exit"}
#: What `ranonce rerun` has.
AGAIN = (
    Option("rerun", "Do the window again (with --window), for this reason; it is recorded.", "REASON"),
    Option("resend", "With --rerun: send again what the run has sent before."),
)


def main(job: Job[Any], argv: Sequence[str] | None) -> NoReturn:
    """Run the job once as its command line says, and end the process."""
    hold_standard_streams()
    words = sys.argv[1:] if argv is None else [argv] if isinstance(argv, str) else list(argv)
    with _Signals() as signals:
        status = _status(job, words, signals)
    _write_out()
    if signals.die_by is not None:
        die_by(signals.die_by)
    sys.exit(status)


def _write_out() -> None:
    """Write out what the job has printed. What cannot be written changes no verdict, and no status at the exit.

    Source: the "Note on SIGPIPE" in the documentation of Python's signal module.
    """
    for stream in (sys.stdout, sys.stderr):
        try:
            if stream is not None:
                stream.flush()
        except (OSError, ValueError) as error:
            say(f"ranonce: what the job printed could not be written: {error}.")
            try:
                os.dup2(os.open(os.devnull, os.O_WRONLY), stream.fileno())
            except (OSError, ValueError):
                continue  # a stream of the job's own, which an interpreter does not write out


def command_of(job: Job[Any]) -> Command:
    """Return the command line of a job."""
    own = {"window", "scheduled-at", "now", "trigger"}
    about = [option for option in RUN.options if option.name in own]
    work = [option for option in WORK_OPTIONS if option.name not in OF_A_COMMAND]
    program = os.path.basename(sys.argv[0] if sys.argv else "") or job.name
    summary = f"Do a window's work of the job {job.name}, if it is still to be done."
    description = "\n\n".join((job.function.__doc__ or "").strip().split("\n\n")[:1])
    json = Option("json", "Give receipts as JSON, on a terminal too.")
    return Command(program, (), summary, (*about, *AGAIN, INPUT, *work, json), description=description, program=program)


def _status(job: Job[Any], words: list[str], signals: _Signals) -> int:
    """Return the exit status. Prints one sentence for every error that was foreseen."""
    try:
        if not all(isinstance(word, str) for word in words):
            raise UsageError(f"argv={shown(words)} is not a list of words.", "Give each argument as text of its own.")
        return _carry_out(job, parse(command_of(job), words), words, signals)
    except RanonceError as error:
        say(f"ranonce: {error}")
        return error.exit_status
    except OSError as error:
        where = f"{error.filename!r}: " if error.filename else ""
        say(f"ranonce: {where}{error.strerror or error}. Nothing was started because of it.")
        return EX_STORE_UNAVAILABLE


def _carry_out(job: Job[Any], parsed: Parsed, words: list[str], signals: _Signals) -> int:
    settings = {**job._settings, **job_settings(command_of(job), parsed)}
    receipts = Receipts(settings.get("receipt", "all"), quiet=parsed.flag("quiet"), as_json=parsed.flag("json"))
    place = Place(parsed.get("store"), None, parsed.get("config"))
    results: list[Result] = []

    inside = is_inside(job.name, None)
    if inside and parsed.get("rerun") is not None:
        raise UsageError("a command of ranonce is around this program already.", "Leave --rerun away.")

    def tell(ended: Ended) -> None:
        _show(ended.error)
        if inside:  # who started this program records the outcome, and gives the receipt
            _say_why(ended.error)
            results.append(ended.result)
            return
        results.append(_as_exit(ended))
        receipts.write(results[-1].receipt)

    source = parsed.get("input")
    asked = Asked(
        now=parsed.get("now"),
        settings=settings,
        window=parsed.get("window"),
        scheduled_at=parsed.get("scheduled-at"),
        digest=digest_of(source) if source is not None else None,
        trigger=parsed.get("trigger"),
        terminal=os.isatty(0),
        **_again(parsed),
    )
    call = Call(place, asked, os.environ, True, tell, lambda: signals.first, lambda: signals.first is not None)
    call = call.replace(inside=inside, program=_program(words))
    try:
        receipts.mode = place.configuration(job.name).jobs.get(job.name, JobSpec(job.name)).replace(**settings).receipt
        if job._is_async:
            import asyncio

            asyncio.run(_in_a_loop(job, call, signals))
        else:
            drive(job._conduct, call, None, signals.call)
    except (StoreUnavailable, NotThisLedger, ConfigError) as error:
        if not inside:
            receipts.unavailable(job.name, error)
        raise
    if not results:
        assert signals.first is not None, "a call has a window, unless a signal came before it"
        signals.die_by = signals.first
        return 128 + signals.first
    counts = that_counts(results)
    signals.die_by = results[-1].signal if signals.first is not None else counts.signal
    return counts.exit


def _again(parsed: Parsed) -> dict[str, Any]:
    """Return what a command line says of a rerun. Raises UsageError."""
    reason = parsed.get("rerun")
    if reason is None:
        if parsed.flag("resend"):
            raise UsageError("--resend says nothing without --rerun.", "Write: --window KEY --rerun REASON --resend")
        return {}
    if parsed.get("window") is None or not reason.strip():
        raise UsageError("a rerun needs a window and a reason.", "Write: --window KEY --rerun REASON")
    told = {"by": who(this_host().host)} | ({"resend": True} if parsed.flag("resend") else {})
    return {"rerun": reason.strip()[:LONGEST_TEXT], "rerun_data": told}


def _program(words: list[str]) -> str | None:
    """Return the words of a shell that start this program; None where its command line is not the job's alone."""
    whole = list(sys.orig_argv)
    program = whole[: len(whole) - len(words)]
    if whole[len(program) :] != words or len(program) < 2:
        return None
    if sys.executable:
        program[0] = sys.executable
    if "-m" not in program and os.path.exists(program[-1]):
        program[-1] = os.path.abspath(program[-1])
    return plain(shlex.join(program))


def _as_exit(ended: Ended) -> Result:
    """A run that was recorded as done, and then raised, is no success of the program."""
    result = ended.result
    if ended.error is not None and result.exit == EX_DONE and not ended_well(ended.error):
        return result.replace(exit=1)
    return result


def _show(error: BaseException | None) -> None:
    """Print what an interpreter prints of what ends a program: a traceback, or the text of `sys.exit("text")`."""
    if isinstance(error, SystemExit) and (text := exit_text(error)) is not None:
        say(text)
    elif isinstance(error, Exception) and not isinstance(error, (RanonceError, Stop)):
        sys.excepthook(type(error), error.with_traceback(of_the_job(error)), error.__traceback__)


def _say_why(error: BaseException | None) -> None:
    """Say what a receipt would have said of an end that prints nothing by itself."""
    if isinstance(error, (RanonceError, TimeLimit)):
        say(f"ranonce: {error}")


async def _in_a_loop(job: Job[Any], call: Call, signals: _Signals) -> None:
    """Drive the job in the running loop; a signal cancels its task."""
    import asyncio

    from ranonce.python.aside import ends_of

    loop, task = asyncio.get_running_loop(), asyncio.current_task()
    assert task is not None
    signals.cancel = lambda: loop.call_soon_threadsafe(task.cancel)
    try:
        await ends_of(job._conduct, call, None)
    except asyncio.CancelledError:
        if signals.first is None:
            raise
    finally:
        signals.cancel = None


class _Signals:
    """Notes TERM, INT, HUP and QUIT, and lets them end the job's code; a context manager.

    INT is raised there as KeyboardInterrupt, the others as SystemExit; around it, they are only noted, so that every
    claim has its verdict. One that was ignored at the start (nohup, a background job) stays ignored. Outside the main
    thread signals are not ours.

    Python notes a signal at once, and calls its handler when the main thread comes to it. One that comes a moment
    before that thread goes to sleep in the system would wait for the end of the sleep: so another thread, told by the
    wakeup descriptor, nudges it until the handler was called.
    """

    def __init__(self) -> None:
        self.first: int | None = None
        self.die_by: int | None = None
        self.cancel: Callable[[], object] | None = None
        self._in_the_job = False
        self._before: dict[int, Any] = {}

    def __enter__(self) -> Self:
        if threading.current_thread() is not threading.main_thread():
            return self
        for number in (*STOP_SIGNALS, signal.SIGALRM, NUDGE):
            if signal.getsignal(number) != signal.SIG_IGN:
                self._before[number] = signal.signal(number, self._come)
        read_end, self._write_end = os.pipe()
        os.set_blocking(self._write_end, False)
        self._wakeup_before = signal.set_wakeup_fd(self._write_end, warn_on_full_buffer=False)
        threading.Thread(target=self._watch, args=(read_end, threading.get_ident()), daemon=True).start()
        return self

    def __exit__(self, *_: object) -> None:
        if not self._before:
            return
        signal.set_wakeup_fd(self._wakeup_before)
        os.close(self._write_end)
        for number, handler in self._before.items():
            if handler is not None:  # None: not installed by Python, and not ours to restore
                signal.signal(number, handler)

    def _watch(self, read_end: int, main_thread: int) -> None:
        """Nudge the main thread when a signal has come, until its handler was called; for a while, since a fork of the
        job's shares the descriptor and has signals of its own."""
        with open(read_end, "rb", buffering=0) as numbers:
            while come := numbers.read(64):
                for _ in range(NUDGES if set(come) & set(STOP_SIGNALS) else 0):
                    if self.first is not None:
                        break
                    signal.pthread_kill(main_thread, NUDGE)
                    time.sleep(NUDGE_SECONDS)

    def call(self, step: Own) -> tuple[BaseException | None, object]:
        """Call the job's own code, under its time limit, where signals may end it."""
        limit = step.run._terms.spec.timeout
        if self.first is not None:
            return None, None  # it came before: what was not begun has nothing to say
        try:
            self._in_the_job = True
            if limit is not None and self._before:
                signal.setitimer(signal.ITIMER_REAL, limit)
            return called(step)
        except BaseException as error:  # noqa: BLE001 - a signal that came in this very moment
            return error, None
        finally:
            self._in_the_job = False
            if limit is not None:
                signal.setitimer(signal.ITIMER_REAL, 0)

    def _come(self, number: int, _: FrameType | None) -> None:
        if number == NUDGE:
            return
        if number == signal.SIGALRM:
            if self._in_the_job:
                raise TimeLimit("the job took longer than its time limit")
            return
        if self.first is None:
            self.first = number
        if self.cancel is not None:
            self.cancel()
        elif self._in_the_job:
            raise KeyboardInterrupt if number == signal.SIGINT else SystemExit(128 + number)
