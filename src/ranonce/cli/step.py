"""`ranonce step`: inside a job, do a piece of its work once, and keep what it printed."""

from __future__ import annotations

import os
import signal
import subprocess

from ranonce.cli.joboptions import LEDGER_OPTIONS
from ranonce.cli.opening import open_ledger, tell_warnings
from ranonce.cli.options import Command
from ranonce.emission import check_item, message_of
from ranonce.errors import (
    EX_NOT_EXECUTABLE,
    EX_NOT_FOUND,
    ClaimLost,
    ConfigError,
    NotThisLedger,
    OutcomeNotRecorded,
    StoreUnavailable,
    UsageError,
)
from ranonce.failpoints import failpoint
from ranonce.lifecycle import RUNNING, Claim, Step
from ranonce.liveness import MessagesFile
from ranonce.messagefile import close, note_a_step
from ranonce.messages import LONGEST_BODY
from ranonce.names import check_job_name
from ranonce.signals import PASSED_ON, STOP_SIGNALS
from ranonce.timefmt import parse_instant
from ranonce.windows import Window

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Mapping

    from ranonce.cli.options import Parsed
    from ranonce.ledger import OpenLedger

#: No more of what a step printed is kept.
LONGEST_RESULT = LONGEST_BODY
PIECE_BYTES = 1 << 16

COMMAND = Command(
    "step",
    ("NAME", "[COMMAND…]"),
    "Inside a job: do a piece of its work once, and keep what it printed.",
    LEDGER_OPTIONS,
    description="""Runs a command as the step NAME of the job. If it exits 0, the step is done, and stays done however
    often this window is tried again: another attempt does not run it, but prints what it printed. The messages that the
    command emits (`ranonce emit`) are committed together with that, and are sent even if the job fails later on.

    A step prints no more than 256 KiB to standard output: with more it is not done, and exits 64. What is long belongs
    into a file, or on standard error. The exit status is the command's. A step has no steps. A rerun does all of them
    again.""",
    takes_command=True,
)


def run(parsed: Parsed, environ: Mapping[str, str]) -> int:
    """Run the command, or print what it printed when it was done; return its exit status."""
    name = check_item("a step", parsed.arguments[0])
    command = _command(parsed)
    if environ.get("RANONCE_STEP"):
        raise UsageError(
            f"this is inside the step {environ['RANONCE_STEP']!r} already.", "A step is done whole: give it no steps."
        )
    ledger, claim = _claim(parsed, environ)
    tell_warnings(ledger)
    ledger.warnings.clear()
    done = ledger.store.step(claim.key, claim.window.start, claim.generation, name)
    if done is not None:
        _print(done.result or b"")
        return 0
    messages = _room_for_messages(environ)
    try:
        told = {**environ, "RANONCE_STEP": name, "RANONCE_MESSAGES": messages.path}
        status, printed = _Child(command, told).outcome()
        failpoint("step:command-ended")
        if status == 0:
            _mark(ledger, claim, name, printed, messages, resend="RANONCE_RESEND" in environ)
            failpoint("step:marked")
        return status
    finally:
        messages.remove()


def _command(parsed: Parsed) -> list[str]:
    written = parsed.arguments[1:]
    if bool(written) == (parsed.rest is not None):
        raise UsageError("a step has one command.", "Write: ranonce step NAME -- COMMAND…")
    return written or list(parsed.rest or ())


def _claim(parsed: Parsed, environ: Mapping[str, str]) -> tuple[OpenLedger, Claim]:
    """Return the ledger and the claim that this process works for. Raises ClaimLost where another attempt has it."""
    job = _told(environ)[0]
    _, ledger = open_ledger(parsed, environ, job=check_job_name(job))
    return ledger, claim_held(ledger, environ)


def _told(environ: Mapping[str, str]) -> tuple[str, str, int, str, int]:
    """Return job, window, its start, owner and attempt, as the wrapper has told them. Raises UsageError."""
    owner, attempt = environ.get("RANONCE_OWNER", ""), environ.get("RANONCE_ATTEMPT", "")
    job, window = environ.get("RANONCE_JOB", ""), environ.get("RANONCE_WINDOW", "")
    if not (owner and job and window and attempt.isascii() and attempt.isdigit()):
        raise UsageError(
            "this is not inside a job (RANONCE_OWNER is not set).", "Call it from a command of ranonce run."
        )
    return job, window, int(parse_instant(environ.get("RANONCE_WINDOW_START", ""))), owner, int(attempt)


def claim_held(ledger: OpenLedger, environ: Mapping[str, str]) -> Claim:
    """Return the claim that this process works for. Raises UsageError, and ClaimLost where another attempt has it."""
    job, window, start, owner, attempt = _told(environ)
    for found in ledger.store.runs(job, start, start + 1):
        if (found.key.window, found.owner, found.attempt, found.status) == (window, owner, attempt, RUNNING):
            return Claim(
                found.key,
                Window(window, found.window_start, found.window_end),
                found.attempt,
                found.generation,
                owner,
                found.trigger,
                found.version,
                0.0,
                found.started_at,
            )
    raise ClaimLost(
        f"attempt {attempt} no longer holds {job}:{window}.", "Nothing was run: stop, your work is somebody else's now."
    )


def _room_for_messages(environ: Mapping[str, str]) -> MessagesFile:
    """Make the file for what the step emits, beside that of the job, which it goes with."""
    path = environ.get("RANONCE_MESSAGES", "")
    if not path.startswith("/"):
        raise UsageError(
            "the job has no file for messages (RANONCE_MESSAGES is not set).",
            "Hand RANONCE_MESSAGES on to this command.",
        )
    note_a_step(path)
    try:
        return MessagesFile(f"{path}.{os.urandom(8).hex()}")
    except OSError as error:
        raise StoreUnavailable(
            f"no file beside {path!r} could be made: {error.strerror}.", "Nothing was run."
        ) from error


def _mark(
    ledger: OpenLedger, claim: Claim, name: str, printed: bytes | None, messages: MessagesFile, *, resend: bool
) -> None:
    """Commit the step with its messages. Raises OutcomeNotRecorded where it ran and that could not be recorded."""
    if printed is None:
        raise UsageError(
            f"the step {name!r} printed more than {LONGEST_RESULT} bytes, which cannot be kept: it is not done.",
            "Let it print to a file or to standard error (>&2).",
        )
    emissions = [] if messages.is_untouched() else close(messages)
    try:
        now = ledger.now()
        refusal = ledger.mark(
            claim,
            Step(claim.key, claim.window.start, claim.generation, name, claim.attempt, now, printed or None),
            [message_of(emission, claim, now, item=name, resend=resend) for emission in emissions],
        )
    except (StoreUnavailable, NotThisLedger, ConfigError) as error:
        raise OutcomeNotRecorded(
            f"the step {name!r} ran, and that could not be recorded: {error.sentence}", "It will be run again."
        ) from error
    tell_warnings(ledger)
    if refusal is not None:
        raise ClaimLost(f"{refusal.sentence}.", f"The step {name!r} ran, and is not recorded; nothing was emitted.")


def _print(data: bytes) -> bool:
    """Write to standard output; False where nobody reads it any more. Raises OutcomeNotRecorded where it is full."""
    try:
        while data:
            data = data[os.write(1, data) :]
    except BrokenPipeError:
        return False
    except OSError as error:
        raise OutcomeNotRecorded(
            f"what the step printed could not be written: {error.strerror}.",
            "Make room there: a step that is not done is run again.",
        ) from error
    return True


class _Child:
    """The command of a step: in our own process group, so that whoever stops the job stops all of it."""

    def __init__(self, command: list[str], environ: Mapping[str, str]) -> None:
        self._command = command
        self._environ = environ
        self._process: subprocess.Popen[bytes] | None = None
        self._early: int | None = None

    def outcome(self) -> tuple[int, bytes | None]:
        """Run it to its end; return its exit status, as a shell has it, and what it printed (None: too much)."""
        before = {}
        for number in (*STOP_SIGNALS, *PASSED_ON):
            if signal.getsignal(number) != signal.SIG_IGN:
                before[number] = signal.signal(number, self._pass_on)
        try:
            return self._run()
        finally:
            for number, handler in before.items():
                signal.signal(number, handler)

    def _run(self) -> tuple[int, bytes | None]:
        try:
            with subprocess.Popen(self._command, env=self._environ, stdout=subprocess.PIPE) as process:
                self._process = process
                if self._early is not None:
                    process.send_signal(self._early)
                assert process.stdout is not None
                printed = _passed_through(process.stdout.fileno())
                status = process.wait()
        except FileNotFoundError:
            raise _NotStarted(self._command[0], "was not found", EX_NOT_FOUND) from None
        except OSError as error:
            raise _NotStarted(self._command[0], f"cannot be executed: {error.strerror}", EX_NOT_EXECUTABLE) from None
        return (status if status >= 0 else 128 - status), printed

    def _pass_on(self, number: int, _: object) -> None:
        if self._process is None:
            self._early = number
        else:
            self._process.send_signal(number)


class _NotStarted(UsageError):
    """The command of a step could not be started."""

    def __init__(self, program: str, why: str, status: int) -> None:
        super().__init__(f"the command {program!r} {why}.", "The step is not done.")
        self.exit_status = status


def _passed_through(source: int) -> bytes | None:
    """Pass on what a command prints until the last who can has closed it; return it, or None if it cannot be kept."""
    kept: list[bytes] = []
    size, listened = 0, True
    while True:
        piece = os.read(source, PIECE_BYTES)
        if not piece:
            return b"".join(kept) if size <= LONGEST_RESULT else None
        size += len(piece)
        if size <= LONGEST_RESULT:
            kept.append(piece)
        listened = listened and _print(piece)
