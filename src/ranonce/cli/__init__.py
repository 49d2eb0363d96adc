"""The command line: `ranonce COMMAND …`. Each command is a module of its own, loaded when it is called."""

from __future__ import annotations

import gc
import os
import sys

from ranonce import __version__
from ranonce.errors import EX_STORE_UNAVAILABLE, EX_USAGE, RanonceError, UsageError
from ranonce.receipts import say

TYPE_CHECKING = False
if TYPE_CHECKING:
    from types import ModuleType

#: The commands in the order a person meets them, and what each is for.
COMMANDS: dict[str, str] = {
    "init": "Create a ledger.",
    "add": "Declare a job and print what its scheduler needs.",
    "run": "Do a window's work, if it is still to be done.",
    "probe": "Name what is missing, dead or doubled.",
    "show": "Tell the story of a window: did it run, and why or why not?",
    "status": "Show the board of all jobs, or the windows of one.",
    "rerun": "Do a window's work again on purpose.",
    "backfill": "Do the work of many windows, oldest first.",
    "release": "Say what became of a run that cannot say so itself.",
    "note": "Note something worth knowing about a window.",
    "gate": "Show the gates, open one before its time, or close one.",
    "deliver": "Send what waits in the outbox.",
    "outbox": "Show the messages of jobs, and say what becomes of those that are not delivered.",
    "remove": "Say that a job is not to run any more.",
    "prune": "Forget what was over long ago; the windows stay done.",
    "backup": "Copy the ledger to a file, while jobs run.",
    "export": "Write the ledger as JSON lines.",
    "import": "Bring in what another ledger tells; what is done here stays done.",
    "accept-loss": "Accept that the ledger was lost, and go on with what is still known.",
    "doctor": "Find out whether ledger, disk, clock and schedules are what the jobs rely on.",
    "drill": "Rehearse the failures on this store, in a scratch ledger that is removed again.",
    "stop": "Inside a job: give up on purpose, until a time.",
    "emit": "Inside a job: emit a message that goes out once, when the work is done.",
    "step": "Inside a job: do a piece of its work once, and keep what it printed.",
}


def entry() -> None:
    """Run the command line and end this process with its exit status.

    The process ends at once, without closing the store: the ledger is durable already, and closing would cost two
    more syncs of the disk.
    """
    # A start makes some 20,000 objects that all stay; to look through them again and again takes 1 ms, and nothing is
    # found. Cycles are rare here, and are still collected where a process goes on long enough to make many.
    gc.set_threshold(100_000)

    try:
        _prepare_streams()
        status = main(sys.argv[1:])
    except KeyboardInterrupt:  # before a command could take the signal for its own
        os._exit(130)
    for stream in (sys.stdout, sys.stderr):
        try:
            stream.flush()
        except (OSError, ValueError, AttributeError):
            continue  # closed or full: nobody listens, and the status says what happened
    os._exit(status)


def _prepare_streams() -> None:
    """See to it that what is written always has a place to go: a closed or full stream fails nothing."""
    from ranonce.signals import hold_standard_streams

    hold_standard_streams()
    for name in ("stdout", "stderr"):
        stream = getattr(sys, name)
        if stream is None:  # it was closed; there is /dev/null in its place now
            setattr(sys, name, open(1 if name == "stdout" else 2, "w", closefd=False))  # noqa: SIM115 - for good
        else:
            # Unbuffered (PYTHONUNBUFFERED), a full disk behind stdout would fail what is already done.
            stream.reconfigure(errors="backslashreplace", write_through=False)


def main(argv: list[str]) -> int:
    """Run one command and return its exit status. Prints one sentence for every error that was foreseen."""
    try:
        if not argv or argv[0] in ("-h", "--help", "help"):
            return _help(argv[1:] if argv[:1] == ["help"] else [])
        if argv[0] in ("-V", "--version"):
            print("ranonce", __version__)
            return 0
        command = module(argv[0])
        from ranonce.cli.options import parse

        return int(command.run(parse(command.COMMAND, argv[1:]), os.environ))
    except RanonceError as error:
        say(f"ranonce: {error}")
        return error.exit_status
    except BrokenPipeError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), 1)  # whoever read us has seen enough
        return 141
    except OSError as error:
        where = f"{error.filename!r}: " if error.filename else ""
        say(f"ranonce: {where}{error.strerror or error}. Nothing was started because of it.")
        return EX_STORE_UNAVAILABLE
    except KeyboardInterrupt:
        return 130
    except SystemExit as left:
        return left.code if isinstance(left.code, int) else EX_USAGE


def module(name: str) -> ModuleType:
    """Return the module of a command. Raises UsageError for one that does not exist."""
    if name not in COMMANDS:
        from ranonce.settings import nearest

        raise UsageError(f"ranonce has no command {name!r}.", nearest(name, COMMANDS))
    file = {"import": "import_"}.get(name, name.replace("-", "_"))
    found: ModuleType = __import__(f"ranonce.cli.{file}", fromlist=["COMMAND"])  # importlib loads more than it needs
    return found


def _help(about: list[str]) -> int:
    from ranonce.cli.options import help_text

    if about:
        print(help_text(module(about[0]).COMMAND), end="")
        return 0
    print("ranonce: a run ledger for scheduled jobs. Did it run once?\n\nusage: ranonce COMMAND [options]\n")
    for name, summary in COMMANDS.items():
        print(f"  {name:<12}{summary}")
    print("\n`ranonce COMMAND --help` says more. Start with: ranonce init")
    return 0
