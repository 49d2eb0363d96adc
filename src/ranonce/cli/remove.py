"""`ranonce remove`: a job is not to run any more."""

from __future__ import annotations

from ranonce.calendars import NEVER
from ranonce.cli.joboptions import JSON, LEDGER_OPTIONS
from ranonce.cli.opening import open_ledger, tell_warnings
from ranonce.cli.options import Command, Option
from ranonce.cli.probe import unknown_job
from ranonce.errors import StoreUnavailable
from ranonce.names import check_job_name
from ranonce.timefmt import format_instant
from ranonce.windows import Schedule

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Mapping

    from ranonce.cli.options import Parsed

COMMAND = Command(
    "remove",
    ("JOB",),
    "Say that a job is not to run any more.",
    (
        Option("now", "Remove it as if it were this instant.", "INSTANT", "instant"),
        JSON,
        *LEDGER_OPTIONS,
    ),
    description="""Takes the job out of the configuration, and records a last version of its schedule, without any
    windows: from the end of its last started window on nothing is expected of it, and a trigger that still comes is
    refused. Its history stays. `ranonce add` declares it again. Take its line out of the scheduler, too.""",
)


def run(parsed: Parsed, environ: Mapping[str, str]) -> int:
    """Remove the job, from the configuration first: its next run would declare again what still stands there."""
    name = check_job_name(parsed.arguments[0])
    config, ledger = open_ledger(parsed, environ)
    tell_warnings(ledger)
    job, recorded = ledger.store.job(name), ledger.declared(name)
    if name not in config.jobs and recorded is None:
        raise unknown_job(name, sorted({job.name for job in ledger.store.jobs()} | config.jobs.keys()))
    dropped = config.path if name in config.jobs else None
    if dropped is not None:
        from ranonce.configfile import drop_job

        drop_job(dropped, name, environ)
    begin, already = None, recorded is not None and recorded.schedule.every == NEVER and name not in config.jobs
    if job is not None and recorded is not None:
        now = parsed.get("now", ledger.now())
        last = Schedule(NEVER, recorded.schedule.tz, recorded.schedule.dialect)
        try:
            declared, _ = ledger.declare(job, last, 0, now=now, change=True)
        except StoreUnavailable as error:
            where = "stands in the configuration no more" if dropped else "was not removed"
            raise StoreUnavailable(
                f"{name!r} {where}, but the ledger could not be told: {error.sentence}",
                f"Say it once more: ranonce remove {name}",
            ) from error
        begin = declared.version.valid_from
    _tell(parsed, name, begin, already=already)
    return 0


def _tell(parsed: Parsed, name: str, begin: int | None, *, already: bool) -> None:
    since = None if begin is None else format_instant(begin)
    if parsed.flag("json"):
        import json

        print(json.dumps({"job": name, "removed_from": since}))
        return
    if already:
        print(f"{name} was removed already: no window is expected of it from {since} on.")
        return
    told = f"Removed {name}." if since is None else f"Removed {name}: no window is expected of it from {since} on."
    print(f"{told} Take its line out of the scheduler, too. Its history stays: ranonce status {name}")
