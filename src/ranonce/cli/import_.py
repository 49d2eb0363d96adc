"""`ranonce import`: bring in what another ledger tells."""

from __future__ import annotations

from ranonce.cli.joboptions import JSON, LEDGER_OPTIONS
from ranonce.cli.messagetext import counted
from ranonce.cli.opening import open_ledger
from ranonce.cli.options import Command, Option
from ranonce.cli.report import write, write_json
from ranonce.errors import EX_TRY_LATER, UsageError
from ranonce.exchange.importing import Import, Report, rehearse
from ranonce.exchange.reading import Source
from ranonce.exchange.recognise import FORMATS
from ranonce.merging import ADDED, ADVANCED, BUSY, KEPT, PRUNED, SAME
from ranonce.messages import DEAD, UNSURE
from ranonce.names import check_job_name, plain
from ranonce.receipts import say

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from ranonce.cli.options import Parsed

EX_BAD_PLACES = 1

COMMAND = Command(
    "import",
    ("FILE",),
    "Bring in what another ledger tells; what is done here stays done.",
    (
        Option("job", "The job it is about, where its keys do not say so; of an export, only this one.", "JOB"),
        Option("every", "The schedule its windows come from, where the job is not declared.", "RULE"),
        Option("tz", "The zone that schedule is written in.", "ZONE", default="UTC"),
        Option("as", "What the file is.", "FORMAT", "choice", tuple(FORMATS), default="what it looks like"),
        Option(
            "unfinished",
            "What becomes of a start without a verdict: held until a person says, or failed, so that it runs again.",
            "STATE",
            "choice",
            ("held", "failed"),
            default="held",
        ),
        Option(
            "deliver-here",
            "The ledger that it is an export of delivers no more: its messages that wait go out from here.",
        ),
        Option("now", "Nothing can have happened after this instant.", "INSTANT", "instant", default="the clock"),
        Option("dry-run", "Write nothing; say what it tells."),
        JSON,
        *LEDGER_OPTIONS,
    ),
    description="""Reads exports of ranonce, the journal of a host, receipts, and the ledgers that scripts keep: JSON
    lines with start, done and fail, or SQLite tables `runs` (with `outbox`) or `receipts`. Which one it is shows in the
    file. What cannot be read is counted, and the first places are named; the rest comes in.

    A window that is done here stays done, whatever the file says. One that is done in the file is done here. What
    somebody works on is left alone. The same file twice changes nothing, so that an import that was ended in the middle
    is simply done again.

    Messages come along. What was sent, given up or dropped stays so. What waits is unsure here, since the other ledger
    may go on sending it; with --deliver-here it goes out from here, but for what was being sent at that moment. Exits 1
    where something could not be read, 75 where a run was left alone because it runs.""",
)
#: What became of runs, for people.
OUTCOMES = {
    ADDED: "added",
    ADVANCED: "carried further",
    SAME: "already here",
    KEPT: "left as they are here",
    BUSY: "left alone, since they run now",
    PRUNED: "pruned here, so they are done",
}
LEFT = {
    KEPT: "it has come further here, or another story is told here",
    BUSY: "it runs now; import again later",
    PRUNED: "it was done here and is pruned",
}


def run(parsed: Parsed, environ: Mapping[str, str]) -> int:
    """Import, or rehearse it; 0 if all of it could be read."""
    job = parsed.get("job")
    if job is not None:
        check_job_name(job)
    if parsed.get("tz") is not None and parsed.get("every") is None:
        raise UsageError("--tz is the zone of --every, which is missing.", "Write --every RULE --tz ZONE.")
    dry = parsed.flag("dry-run")
    _, ledger = open_ledger(parsed, environ, reading=dry, bringing=True)
    source = Source(
        parsed.arguments[0],
        parsed.get("now", ledger.now()),
        job,
        parsed.get("every"),
        parsed.get("tz", "UTC"),
        parsed.get("as"),
        parsed.get("unfinished", "held"),
        parsed.flag("deliver-here"),
    )
    report = rehearse(ledger, source) if dry else Import(ledger, source).carry_out()
    for warning in ledger.warnings:
        say(f"ranonce: {plain(warning)}")
    if parsed.flag("json"):
        write_json(_json(report, dry))
    else:
        write(map(plain, _told(report, dry)))
    if report.bad:
        return EX_BAD_PLACES
    return EX_TRY_LATER if report.runs.get(BUSY) else 0


def _told(report: Report, dry: bool) -> Iterator[str]:
    yield f"It is {FORMATS[report.format]}."
    if dry:
        counts = {"windows": 0, **report.windows}
        yield " ".join(f"{name}={count}" for name, count in counts.items())
        yield "Nothing was written."
    else:
        told = [f"{count:,} {OUTCOMES.get(name, name)}" for name, count in report.runs.items() if count]
        yield f"Windows: {', '.join(told) or 'none'}. Events added: {report.events:,}."
    if report.held and report.runs.get(ADDED):
        yield (
            f"Held, since nothing tells how they ended: {report.held:,}. ranonce probe names them;"
            " ranonce release JOB WINDOW --as done|not-done --reason TEXT settles each."
        )
    yield from _messages(report)
    for key, why in report.left:
        yield f"  {key}: {LEFT.get(why, why)}"
    if report.unsent:
        yield f"Messages that were never sent: {report.unsent:,} (their runs say so). Nothing was sent."
    if report.bad:
        yield f"Could not be read: {report.bad:,}."
        yield from (f"  {bad}" for bad in report.first_bad)
        if report.bad > len(report.first_bad):
            yield f"  and {report.bad - len(report.first_bad):,} more"


def _messages(report: Report) -> Iterator[str]:
    """Say what came along besides the windows."""
    if report.messages:
        yield f"Messages: {counted(report.messages)}."
    if report.there:
        left = sum(report.there.get(state, 0) for state in (UNSURE, DEAD))
        how = " What is unsure or dead, a person settles: ranonce outbox list." if left else ""
        yield f"Messages that were here already stay as they are here: {counted(report.there)}.{how}"
    if report.conflicts:
        yield f"Of them have another body here than the file tells, which did not come in: {report.conflicts:,}."
        yield from (f"  {key}" for key in report.first_conflicts)
        if report.conflicts > len(report.first_conflicts):
            yield f"  and {report.conflicts - len(report.first_conflicts):,} more"
    if report.messages.get(UNSURE):
        yield (
            "Nobody here can know whether the unsure ones were sent: ranonce outbox list --state unsure names them;"
            " ranonce outbox resolve settles them."
        )
    if report.steps:
        yield f"Steps that are done: {report.steps:,}."


def _json(report: Report, dry: bool) -> dict[str, object]:
    told = {name: value for name, value in report.as_dict().items() if name not in ("first_bad", "left")}
    bad = [{name: value for name, value in each.as_dict().items() if value is not None} for each in report.first_bad]
    left = [{"job": key.job, "window": key.window, "why": why} for key, why in report.left]
    return {"event": "rehearsed" if dry else "imported", **told, "first_bad": bad, "left": left}
