"""The way from a command line to work, for `run` and those that are like it: options, ledger, signals, receipts."""

from __future__ import annotations

import os

from ranonce.calendars import NEVER
from ranonce.cli.joboptions import LEDGER_OPTIONS, RUN_OPTIONS, SCHEDULE_OPTIONS, job_settings
from ranonce.cli.opening import open_ledger
from ranonce.cli.options import Option
from ranonce.errors import ConfigError, NotThisLedger, StoreUnavailable, UsageError
from ranonce.invocation import Asked, Invocation, digest_of
from ranonce.names import check_job_name
from ranonce.receipts import Receipts
from ranonce.record import Record
from ranonce.signals import Signals, die_by

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Mapping
    from typing import Any

    from ranonce.cli.options import Command, Parsed
    from ranonce.ledger import OpenLedger
    from ranonce.terms import Terms

INPUT = Option("input", "What the run works on: other input is a conflict (or other work).", "FILE", "path")
WORK_OPTIONS = (
    *SCHEDULE_OPTIONS,
    *RUN_OPTIONS,
    Option("raw-exit", "Pass on the command's exit status even where it is one of ranonce's own."),
    Option("quiet", "Give receipts of problems only.", short="q"),
    *LEDGER_OPTIONS,
)
#: What such a command needs besides.
NEEDED = {"rerun": " --reason TEXT", "backfill": " --since DATE"}


class Call(Record):
    """A command line on its way: what it asks for, the signals that reach it, and where its receipts go."""

    invocation: Invocation
    signals: Signals
    receipts: Receipts
    raw_exit: bool

    def terms(self) -> Terms:
        """Return what all windows of this call have in common."""
        return self.invocation.terms(self.signals, raw_exit=self.raw_exit)


def carry_out(
    command: Command, parsed: Parsed, environ: Mapping[str, str], do: Callable[[Call], tuple[int, int | None]]
) -> int:
    """Open what the command line names and let `do` work on it; it returns an exit status, and the signal to die by.

    Returns the exit status, or ends by that signal. An error before any work has a receipt, too.
    """
    job = check_job_name(parsed.arguments[0])
    settings = given_settings(command, parsed)
    with Signals() as signals:
        receipts = Receipts(settings.get("receipt", "all"), quiet=parsed.flag("quiet"))
        try:
            config, ledger = open_ledger(parsed, environ, job=job)
            invocation = Invocation(job, asked_of(parsed, settings), environ, config, ledger)
            if not invocation.spec.command:
                if invocation.spec.every == NEVER:
                    raise UsageError(
                        f"the job {job!r} was removed.", f"Declare it again: ranonce add {job} --every RULE -- COMMAND"
                    )
                raise _no_command(command, parsed, ledger)
            receipts.mode = invocation.spec.receipt
            status, signum = do(Call(invocation, signals, receipts, parsed.flag("raw-exit")))
        except (StoreUnavailable, NotThisLedger, ConfigError) as error:
            receipts.unavailable(job, error)
            raise
    if signum is not None:
        die_by(signum)
    return status


def _no_command(command: Command, parsed: Parsed, ledger: OpenLedger) -> UsageError:
    """Return the error for a job without a command. One that was started from Python has a program for it."""
    from ranonce.started import python_start

    job = parsed.arguments[0]
    written = " ".join((command.name, *parsed.arguments)) + NEEDED.get(command.name, "")
    started = python_start(ledger.store, job)
    if started is None:
        return UsageError(f"{job!r} has no command.", f"Write it after --: ranonce {written} -- COMMAND.")
    return UsageError(
        f"{job!r} has no command here: it is a Python job, started by {started.way}.",
        f"Write the program after --: ranonce {written} -- {started.command}",
    )


def given_settings(command: Command, parsed: Parsed) -> dict[str, Any]:
    """Return the job's settings that stand on the command line, the command after -- among them."""
    settings = job_settings(command, parsed)
    if parsed.rest is not None:
        settings["command"] = _from_here(parsed.rest)
    return settings


def asked_of(parsed: Parsed, settings: dict[str, Any]) -> Asked:
    """Return what a command line asks for. Reads the input. Raises UsageError."""
    source = parsed.get("input")
    return Asked(
        now=parsed.get("now"),
        settings=settings,
        window=parsed.get("window", *parsed.arguments[1:]),
        scheduled_at=parsed.get("scheduled-at"),
        digest=digest_of(source) if source is not None else None,
        trigger=parsed.get("trigger"),
        terminal=os.isatty(0),
    )


def _from_here(command: list[str]) -> tuple[str, ...]:
    """Return a command whose relative program is found from where the caller stands, whatever folder it runs in."""
    program = command[0]
    return (os.path.abspath(program) if "/" in program else program, *command[1:])
