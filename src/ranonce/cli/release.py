"""`ranonce release`: a person says what became of a run that cannot say so itself."""

from __future__ import annotations

from ranonce.cli.joboptions import JSON, LEDGER_OPTIONS
from ranonce.cli.opening import open_ledger, tell_warnings
from ranonce.cli.options import Command, Option
from ranonce.cli.person import LONGEST_TEXT, named_run, who
from ranonce.cli.report import write_json
from ranonce.errors import EX_PERSON_NEEDED, EX_TRY_LATER, UsageError
from ranonce.names import check_job_name, plain

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Mapping

    from ranonce.cli.options import Parsed

COMMAND = Command(
    "release",
    ("JOB", "WINDOW"),
    "Say what became of a run that cannot say so itself.",
    (
        Option("as", "Was its work done?", "WHAT", "choice", ("done", "not-done")),
        Option("reason", "Why you think so; it is recorded.", "TEXT"),
        Option("input", "The input's SHA-256, where other input is other work.", "SHA256"),
        JSON,
        *LEDGER_OPTIONS,
    ),
    description="""For a run that is held, crashed or has used up its attempts. `--as done` settles it; `--as not-done`
    allows one more attempt. WINDOW is a key, or a date that names one window.""",
)


def run(parsed: Parsed, environ: Mapping[str, str]) -> int:
    """Release the run, or say why it needs no release."""
    job = check_job_name(parsed.arguments[0])
    text = parsed.arguments[1]
    as_, reason = parsed.get("as"), (parsed.get("reason") or "").strip()[:LONGEST_TEXT]
    if as_ is None or not reason:
        raise UsageError(
            "a release says what became of the work, and why.",
            f"Write: ranonce release {job} {text} --as done|not-done --reason TEXT",
        )
    _, ledger = open_ledger(parsed, environ, job=job)
    tell_warnings(ledger)
    key, start = named_run(parsed, ledger, job, text)
    refusal = ledger.release(key, start, as_, reason, by=who(ledger.host.host))
    if refusal is not None:
        if refusal.reason == "unknown":
            raise UsageError(f"{key} has never run.", f"See: ranonce status {job}")
        if refusal.reason == "pruned":
            raise UsageError(f"{key} was over long ago: {refusal.sentence}.", f"See: ranonce show {job} {key.window}")
        if parsed.flag("json"):
            told = {"event": "refused", "job": job, "window": key.window}
            write_json({**told, "reason": refusal.reason, "sentence": refusal.sentence})
        else:
            print(f"{plain(refusal.sentence)}. Nothing was changed.")
        return EX_TRY_LATER if refusal.reason == "busy" else EX_PERSON_NEEDED
    if parsed.flag("json"):
        write_json({"event": "released", "job": job, "window": key.window, "as": as_, "reason": reason})
    else:
        print(f"{key} is released as {as_}." + (" It may be attempted again." if as_ == "not-done" else ""))
    return 0
