"""Destinations of type `command`: a program of this host is started for each message.

The payload is its standard input. What it is called is what the configuration says; of what the store holds, only plain
characters ever come into an argument, and nothing is run that came from there.

Its exit status is its answer: 0 sent (the last line that it prints is the receipt), `retry_exit_codes` certainly not
received, `refuse_exit_codes` never to be tried again. Everything else says nothing about what it has done by then, and
neither does a signal, or the end of its time. What could not be started was received by nobody.
"""

from __future__ import annotations

import os
import re
import select
import signal
import subprocess

from ranonce.delivery.pool import Pool
from ranonce.errors import UsageError
from ranonce.liveness import boot_clock
from ranonce.messages import DELIVERED, LONGEST_WORDS, NOT_RECEIVED, REFUSED, UNFIT, UNKNOWN, Answer
from ranonce.settings import argv, exit_codes
from ranonce.timefmt import shown

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from ranonce.delivery.base import Spec
    from ranonce.messages import Message

RETRY_EXIT_CODES = (75,)  # EX_TEMPFAIL. Source: sysexits.h
REFUSE_EXIT_CODES = (64, 65, 78)  # EX_USAGE, EX_DATAERR, EX_CONFIG. Source: sysexits.h
#: Between TERM and KILL, when its time is over.
GRACE_SECONDS = 5.0
#: A program that has ended is noticed within this time, though something it left behind holds its output open.
LOOK_SECONDS = 0.05
TAIL_BYTES = 4096
PIECE_BYTES = 64 * 1024
#: What may stand in an argument; no shell gives any of it a meaning.
_PLAIN = re.compile(r"[A-Za-z0-9._~:@/+=,%#-]*")
#: Variables of a job that this process may itself be in: they are not the message's.
_OF_A_JOB = ("RANONCE_OWNER", "RANONCE_ATTEMPT", "RANONCE_GENERATION", "RANONCE_WINDOW_START", "RANONCE_WINDOW_END")


def _codes(value: object) -> tuple[int, ...]:
    codes = exit_codes(value)
    for code in codes:
        if not 1 <= code <= 125:
            raise UsageError(f"{code} is out of range.", "Exit codes from 1 to 125 can be given a meaning.")
    return codes


KEYS: Mapping[str, Callable[[object], object]] = {
    "command": argv,
    "retry_exit_codes": _codes,
    "refuse_exit_codes": _codes,
}
REQUIRED = ("command",)


def dedupes(settings: Mapping[str, object]) -> float:
    """Return 0: whether a program dedupes is for its owner to say."""
    return 0.0


def open_sender(spec: Spec, environ: Mapping[str, str]) -> Pool:
    """Return what starts the program, several at a time."""
    return Pool(lambda: CommandCarrier(spec, environ), spec.route.concurrency)


class CommandCarrier:
    """Starts one program at a time."""

    def __init__(self, spec: Spec, environ: Mapping[str, str]) -> None:
        settings = spec.settings
        self._spec = spec
        self._environ = {name: value for name, value in environ.items() if name not in _OF_A_JOB}
        self._command = argv(settings["command"])
        self._retry = exit_codes(settings.get("retry_exit_codes", RETRY_EXIT_CODES))
        self._refuse = exit_codes(settings.get("refuse_exit_codes", REFUSE_EXIT_CODES))

    def carry(self, message: Message) -> Answer:
        """Start the program with a message, and return what its end means."""
        if message.body is None:
            return Answer(NOT_RECEIVED, "the payload of this message is not there any more")
        try:
            arguments = self._arguments(message)
        except UsageError as error:
            return Answer(REFUSED, f"{UNFIT}{error.sentence}")
        try:
            process = subprocess.Popen(  # the configuration says what is run, and no shell reads it
                arguments,
                bufsize=0,
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=subprocess.PIPE,
                cwd=self._spec.folder,
                env=self._environment(message),
                process_group=0,
            )
        except (OSError, ValueError) as error:
            why = getattr(error, "strerror", None) or error
            return Answer(NOT_RECEIVED, f"{shown(arguments[0])} could not be started: {why}")
        return self._answer(_Conversation(process, message.body, self._spec.route.timeout))

    def close(self) -> None:
        """Nothing is kept open."""

    def _arguments(self, message: Message) -> list[str]:
        """Return the command for a message. Raises UsageError for what no message of ours has in it."""
        program, *rest = self._command
        values = {
            "{key}": message.key,
            "{window}": message.run.window,
            "{job}": message.run.job,
            "{destination}": message.destination,
        }
        for name, value in values.items():
            if any(name in argument for argument in rest) and not _PLAIN.fullmatch(value):
                raise UsageError(f"{name} is {shown(value)}, which cannot stand in an argument.")
        values["{key}"] = self._spec.key(message)
        pattern = re.compile("|".join(map(re.escape, values)))
        return [program, *(pattern.sub(lambda found: values[found.group()], argument) for argument in rest)]

    def _environment(self, message: Message) -> dict[str, str]:
        return {
            **self._environ,
            "RANONCE_MESSAGE_KEY": self._spec.key(message),
            "RANONCE_MESSAGE_CONTENT_TYPE": message.content_type,
            "RANONCE_MESSAGE_ATTEMPT": str(message.tries),
            "RANONCE_JOB": message.run.job,
            "RANONCE_WINDOW": message.run.window,
        }

    def _answer(self, told: _Conversation) -> Answer:
        told.go_on()
        status = told.status
        if told.timed_out:
            return Answer(UNKNOWN, _and(f"it was ended after {self._spec.route.timeout:g} seconds", told.said))
        if status == 0:
            return Answer(DELIVERED, told.receipt)
        if status < 0:
            return Answer(UNKNOWN, _and(f"it died by signal {-status}", told.said))
        kind = NOT_RECEIVED if status in self._retry else REFUSED if status in self._refuse else UNKNOWN
        return Answer(kind, _and(f"exit {status}", told.said), answered=kind != UNKNOWN)


class _Conversation:
    """A program at work: it is given its input, and heard, until it ends or its time is over."""

    def __init__(self, process: subprocess.Popen[bytes], given: bytes, timeout: float) -> None:
        self._process = process
        self._given = memoryview(given)
        self._end_at = boot_clock() + timeout
        self._kill_at: float | None = None
        self._tails: dict[int, bytes] = {}
        self._open: set[int] = set()
        self._poll = select.poll()
        assert process.stdin and process.stdout and process.stderr
        self._input = process.stdin.fileno()
        self._out, self._error = process.stdout.fileno(), process.stderr.fileno()
        self._poll.register(self._input, select.POLLOUT)
        os.set_blocking(self._input, False)
        for fd in (self._out, self._error):
            os.set_blocking(fd, False)
            self._tails[fd] = b""
            self._open.add(fd)
            self._poll.register(fd, select.POLLIN)
        self.timed_out = False

    @property
    def status(self) -> int:
        """How it ended: its exit status, or less than 0 for a signal."""
        status = self._process.returncode
        assert status is not None
        return int(status)

    @property
    def receipt(self) -> str:
        """The last line that it printed."""
        return _last_line(self._tails[self._out])

    @property
    def said(self) -> str:
        """What it said last, of what went wrong before anything else."""
        return _last_line(self._tails[self._error]) or self.receipt

    def go_on(self) -> None:
        """Go on until it has ended."""
        try:
            while self._process.poll() is None:
                self._press()
                if not self._open:  # it has closed its output, as it does when it ends
                    self._wait()
                    continue
                for fd, _ in self._poll.poll(LOOK_SECONDS * 1000):
                    self._give() if fd == self._input else self._hear(fd)
            for fd in list(self._open):
                self._hear(fd)  # what it has left in the pipe: a pipe holds no more than a piece
        finally:
            for stream in (self._process.stdin, self._process.stdout, self._process.stderr):
                assert stream is not None
                stream.close()  # nothing is buffered in it

    def _wait(self) -> None:
        if self._given:
            self._give()
        try:
            self._process.wait(LOOK_SECONDS)
        except subprocess.TimeoutExpired:
            return

    def _press(self) -> None:
        """End it, and all of its group, when its time is over."""
        now = boot_clock()
        if self._kill_at is None and now >= self._end_at:
            self.timed_out = True
            self._kill_at = now + GRACE_SECONDS
            self._send(signal.SIGTERM)
        elif self._kill_at is not None and now >= self._kill_at:
            self._send(signal.SIGKILL)

    def _send(self, number: int) -> None:
        try:
            os.killpg(self._process.pid, number)
        except (ProcessLookupError, PermissionError):
            return  # it has just ended, or is another user's now

    def _give(self) -> None:
        try:
            self._given = self._given[os.write(self._input, self._given[:PIECE_BYTES]) :]
        except BlockingIOError:
            return
        except OSError:
            self._given = self._given[:0]  # it does not want the rest; its exit status says what that means
        if not self._given:
            self._poll.unregister(self._input)
            assert self._process.stdin is not None
            self._process.stdin.close()

    def _hear(self, fd: int) -> None:
        """Take what there is."""
        try:
            piece = os.read(fd, PIECE_BYTES)
        except BlockingIOError:
            return
        if not piece:
            self._open.remove(fd)
            self._poll.unregister(fd)
        self._tails[fd] = (self._tails[fd] + piece)[-TAIL_BYTES:]


def _and(how: str, said: str) -> str:
    return f"{how}: {said}" if said else how


def _last_line(tail: bytes) -> str:
    lines = tail.decode("utf-8", "backslashreplace").strip().splitlines()
    return lines[-1].strip()[:LONGEST_WORDS] if lines else ""
