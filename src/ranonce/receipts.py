"""Receipts: one JSON object per window an invocation dealt with, whatever happened; a sentence on a terminal.

The state is durable before its receipt is written, and trouble with the output changes no verdict.
"""

from __future__ import annotations

import os
import select
import sys

from ranonce import jsontext as json
from ranonce.names import plain
from ranonce.record import Record
from ranonce.timefmt import format_duration, format_instant

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

    from ranonce.errors import RanonceError

#: Events and reasons that need nobody's attention: a crontab line with `--receipt problems` mails the rest.
QUIET = {("done", None), ("skipped", "done"), ("skipped", "pruned")}


#: Reasons that need words besides their name.
REASONS = {"fenced": "fenced: the ledger was out of reach, and the lease was running out"}

STUCK_MILLISECONDS = 5000
PIECE_BYTES = 4096  # a pipe that is ready takes so much without blocking. Source: pipe(7), PIPE_BUF


class Receipt(Record):
    """What became of one window in one invocation. Instants are unix seconds; fields without a value are left out."""

    event: str
    job: str
    exit: int
    window: str | None = None
    run: str | None = None
    trigger: str | None = None
    chosen_by: str | None = None
    ledger: str | None = None
    attempt: int | None = None
    generation: int | None = None
    started_at: float | None = None
    finished_at: float | None = None
    seconds: float | None = None
    version: str | None = None
    reason: str | None = None
    holder: str | None = None
    until: float | None = None
    sentence: str | None = None
    leftovers: tuple[str, ...] | None = None
    checks: tuple[str, ...] | None = None
    child_exit: int | None = None
    child_signal: int | None = None
    messages: int | None = None  # that go out with the outcome
    not_sent: int | None = None  # that the job has emitted, and that do not go out
    warnings: tuple[str, ...] | None = None
    progress: str | None = None  # which of many windows this is, like 3/30

    def as_json(self) -> str:
        """Return the receipt as one line of JSON."""
        told: dict[str, Any] = {}
        for name, value in self.as_dict().items():
            if value is not None:
                told[name] = format_instant(value, precision="ms") if name in _INSTANTS else value
        return json.dumps(told)

    def as_sentence(self) -> str:
        """Return the receipt for a person."""
        what = f"{self.job} {self.window or ''}".rstrip() + f": {_EVENTS.get(self.event, self.event)}"
        if self.attempt is not None and self.event != "skipped":
            what += f" (attempt {self.attempt}" + (f", {format_duration(self.seconds)})" if self.seconds else ")")
        if self.sentence or self.reason:
            what += f": {self.sentence or REASONS.get(self.reason or '', self.reason)}"
        elif self.child_exit:
            what += f": exit {self.child_exit}"
        if self.child_signal is not None and self.reason == "signal":
            what += f" {self.child_signal}"
        if self.until is not None:
            held = self.reason in ("busy", "overlap")
            what += f"{'; its lease runs' if held else ''} until {format_instant(self.until)}"
        if self.progress:
            what = f"{self.progress} {what}"
        if self.messages is not None or self.not_sent:
            what += f"; messages not sent: {self.not_sent}" if self.not_sent else f"; messages: {self.messages}"
        if self.leftovers:
            what += f"; still running: {', '.join(self.leftovers)}"
        more = (*(self.checks or ())[1:], *(self.warnings or ()))  # the first broken check is the reason
        return plain(what) + "".join(f"\n  {plain(line)}" for line in more)


_INSTANTS = frozenset({"started_at", "finished_at", "until"})
_EVENTS = {"skipped": "not run", "unavailable": "not run"}


class Receipts:
    """Where receipts go. `mode`: all, problems, none, or the path of a file they are appended to. They are sentences
    on a terminal, unless `as_json`."""

    def __init__(self, mode: str, *, quiet: bool = False, as_json: bool = False) -> None:
        self.mode = mode
        self.quiet = quiet
        self.as_json = as_json

    def write(self, receipt: Receipt) -> None:
        """Give a receipt out."""
        problem = (receipt.event, receipt.reason) not in QUIET or bool(receipt.warnings or receipt.exit)
        if self.mode == "none" or (self.mode == "problems" and not problem):
            return
        if self.mode not in ("all", "problems"):
            self._append(receipt.as_json())
            return
        terminal = sys.stderr is not None and sys.stderr.isatty()
        if terminal and self.quiet and not problem:
            return
        say(receipt.as_sentence() if terminal and not self.as_json else receipt.as_json())

    def unavailable(self, job: str, error: RanonceError) -> None:
        """Give out that an invocation ended before it had a window. Standard error gets the sentence by itself, so it
        stands in the receipt for a file."""
        sentence = None if self.mode in ("all", "problems") else str(error)
        self.write(Receipt("unavailable", job, exit=error.exit_status, reason=error.code, sentence=sentence))

    def _append(self, line: str) -> None:
        try:
            # A pipe that nobody reads is an error, not a wait for ever.
            fd = os.open(self.mode, os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC | os.O_NONBLOCK, 0o600)
            try:
                os.write(fd, line.encode() + b"\n")
            finally:
                os.close(fd)
        except OSError as error:
            say(f"ranonce: the receipt could not be written to {self.mode!r}: {error.strerror}. It was: {line}")


def say(line: str) -> None:
    """Write a line to standard error, if there still is one: a closed, full or stuck one must not change what happened.

    A reader that takes nothing for 5 seconds does not get the rest.
    """
    data = (line + "\n").encode("utf-8", "backslashreplace")
    ready = select.poll()
    ready.register(2, select.POLLOUT)
    try:
        while data and ready.poll(STUCK_MILLISECONDS):
            data = data[os.write(2, data[:PIECE_BYTES]) :]
    except OSError:
        return
