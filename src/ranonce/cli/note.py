"""`ranonce note`: write something worth knowing into a window's story."""

from __future__ import annotations

from ranonce.cli.joboptions import JSON, LEDGER_OPTIONS
from ranonce.cli.opening import open_ledger, tell_warnings
from ranonce.cli.options import Command, Option
from ranonce.cli.person import LONGEST_TEXT, named_run, who
from ranonce.cli.report import write_json
from ranonce.errors import ClaimLost, UsageError
from ranonce.lifecycle import RunKey
from ranonce.names import check_job_name
from ranonce.receipts import say
from ranonce.timefmt import parse_instant

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Mapping

    from ranonce.cli.options import Parsed
    from ranonce.ledger import OpenLedger

COMMAND = Command(
    "note",
    ("[JOB]", "[WINDOW]", "TEXT"),
    "Note something worth knowing about a window.",
    (
        Option("input", "The input's SHA-256, where other input is other work.", "SHA256"),
        JSON,
        *LEDGER_OPTIONS,
    ),
    description="""Writes TEXT into the story of a window, for `ranonce show`: who wrote it, when, and what. It changes
    nothing else, and the window need not have run. Inside a job, `ranonce note TEXT` is about its own run.""",
)


def run(parsed: Parsed, environ: Mapping[str, str]) -> int:
    """Note the text."""
    text = parsed.arguments[-1].strip()
    if not text:
        raise UsageError("a note needs a text.", "Write: ranonce note JOB WINDOW TEXT")
    if len(text) > LONGEST_TEXT:
        say(f"ranonce: the note is cut after {LONGEST_TEXT} characters.")
        text = text[:LONGEST_TEXT]
    if len(parsed.arguments) == 2:
        raise UsageError("a note is about a job's window.", "Write: ranonce note JOB WINDOW TEXT")
    about = _of_this_job if len(parsed.arguments) == 1 else _of_a_person
    key = about(parsed, environ, text)
    if parsed.flag("json"):
        write_json({"event": "noted", "job": key.job, "window": key.window, "text": text})
    return 0


def _of_a_person(parsed: Parsed, environ: Mapping[str, str], text: str) -> RunKey:
    job = check_job_name(parsed.arguments[0])
    _, ledger = open_ledger(parsed, environ, job=job)
    tell_warnings(ledger)
    key, start = named_run(parsed, ledger, job, parsed.arguments[1])
    ledger.note(key, start, text, by=who(ledger.host.host))
    return key


def _of_this_job(parsed: Parsed, environ: Mapping[str, str], text: str) -> RunKey:
    """Note the text about the run that this process works for. Raises ClaimLost where another attempt has it."""
    owner, attempt = environ.get("RANONCE_OWNER", ""), environ.get("RANONCE_ATTEMPT", "")
    job, window = environ.get("RANONCE_JOB", ""), environ.get("RANONCE_WINDOW", "")
    if not (owner and job and window and attempt.isascii() and attempt.isdigit()):
        raise UsageError(
            "this is not inside a job (RANONCE_OWNER is not set), so it is not known what the note is about.",
            "Write: ranonce note JOB WINDOW TEXT",
        )
    start = int(parse_instant(environ.get("RANONCE_WINDOW_START", "")))
    _, ledger = open_ledger(parsed, environ, job=job)
    key = _key_of(ledger, RunKey(check_job_name(job), window), start, owner)
    refusal = ledger.note(key, start, text, by="", held=(owner, int(attempt)))
    if refusal is not None:
        raise ClaimLost(f"{refusal.sentence}.", "Nothing was noted: stop, your work is somebody else's now.")
    return key


def _key_of(ledger: OpenLedger, key: RunKey, start: int, owner: str) -> RunKey:
    """Return the run's key with its input, where other input is other work."""
    runs = ledger.store.runs(key.job, start, start + 1)
    return next((run.key for run in runs if run.owner == owner and run.key.window == key.window), key)
