"""`ranonce stop`: inside a job, give up on purpose, until a time."""

from __future__ import annotations

import json
import os
import time

from ranonce.cli.options import Command, Option
from ranonce.config import state_folder
from ranonce.errors import UsageError
from ranonce.liveness import request_stop
from ranonce.names import check_name
from ranonce.settings import When, when
from ranonce.timefmt import shown

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Mapping

    from ranonce.cli.options import Parsed

LONGEST_STOP_SECONDS = 366 * 86400.0
LONGEST_REASON = 1000  # characters; the rest is cut off, since a stop must not fail for its words

COMMAND = Command(
    "stop",
    (),
    "Inside a job: give up on purpose, until a time.",
    (
        Option("reason", "Why, such as 429.", "TEXT"),
        Option("retry-after", "Resume not before: a time like 34h, an instant, or what Retry-After says.", "WHEN"),
        Option("gate", "Close this gate for every job that uses it, until then.", "NAME", repeat=True),
    ),
    description="""Tells the `ranonce run` around this command that the job stops by itself, for a rate limit, say. End
    the command after it: whatever its exit status, the window is `stopped`, costs no attempt, and is resumed by the
    first trigger after the time.""",
)


def run(parsed: Parsed, environ: Mapping[str, str]) -> int:
    """Hand the stop over to the wrapper of this attempt."""
    owner, reason = environ.get("RANONCE_OWNER"), parsed.get("reason")
    if not owner:
        raise UsageError(
            "this is not inside a job (RANONCE_OWNER is not set).", "Call it from a command of ranonce run."
        )
    if reason is None:
        raise UsageError("a stop needs a reason.", "Write: ranonce stop --reason TEXT [--retry-after TIME]")
    until = until_when("--retry-after", parsed.get("retry-after"))
    gates = [check_name("gate", name) for name in parsed.get("gate", [])]
    if gates and until is None:
        raise UsageError("a gate is closed until a time.", "Say which: --retry-after TIME")
    resume_at, after = (until.counted(time.time()), until.after) if until else (None, None)
    told = {
        "reason": reason[:LONGEST_REASON],
        "resume_at": resume_at,
        "after": after,
        "gates": [[name, resume_at] for name in gates],
    }
    if not request_stop(_folder(environ), owner, json.dumps(told)):
        raise UsageError(
            "the attempt this job belongs to has no file on this host, so nobody can be told.",
            "Give up with an exit code that is declared as --stop-exit-code instead.",
        )
    return 0


def until_when(option: str, written: str | None) -> When | None:
    """Return what a time from now, seconds or an instant mean, or None.

    Takes what a server answers, too: whole seconds, or an HTTP date. Source: RFC 9110, Retry-After. Raises UsageError,
    which begins with the option it stands behind, for what is none of these or more than a year away.
    """
    if written is None:
        return None
    now = time.time()
    try:
        found = when(written)
    except UsageError as error:
        raise UsageError(f"{option}: {error.sentence}", error.next_step) from None
    if found.counted(now) > now + LONGEST_STOP_SECONDS:
        raise UsageError(f"{option}: {shown(written)} is more than a year away.", "Name a time within a year.")
    return found


def _folder(environ: Mapping[str, str]) -> str:
    ledger = environ.get("RANONCE_LEDGER")
    if not ledger:
        raise UsageError("it is not known which ledger this job belongs to.", "Hand RANONCE_LEDGER on to this command.")
    return os.path.join(state_folder(environ), ledger)
