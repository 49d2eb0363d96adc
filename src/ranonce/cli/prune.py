"""`ranonce prune`: forget what was over long ago."""

from __future__ import annotations

import sys
import time

from ranonce.cli.joboptions import JSON, LEDGER_OPTIONS
from ranonce.cli.opening import open_ledger, tell_warnings
from ranonce.cli.options import Command, Option
from ranonce.cli.probe import unknown_job
from ranonce.cli.report import table, write, write_json
from ranonce.errors import RanonceError, StoreUnavailable
from ranonce.names import check_job_name
from ranonce.pruning import (
    Bounds,
    JobPruned,
    bounds,
    clear_attempts,
    clear_journal,
    leaves_effects,
    prune_job,
    would_prune,
)
from ranonce.receipts import say
from ranonce.signals import Signals, die_by
from ranonce.timefmt import DAY, format_instant

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Mapping
    from typing import Any

    from ranonce.cli.options import Parsed
    from ranonce.journal_upkeep import Forgotten
    from ranonce.ledger import OpenLedger

OLDER_THAN, FAILED_OLDER_THAN = 90.0 * DAY, 366.0 * DAY
PROGRESS_SECONDS = 2.0

COMMAND = Command(
    "prune",
    ("[JOB…]",),
    "Forget what was over long ago; the windows stay done.",
    (
        Option("older-than", "What is done goes when it was over for so long.", "TIME", "duration", default="90d"),
        Option(
            "failed-older-than", "What failed goes when it was over for so long.", "TIME", "duration", default="366d"
        ),
        Option("now", "Count ages to this instant, if the newest event is not older.", "INSTANT", "instant"),
        Option("dry-run", "Change nothing; say what would go."),
        JSON,
        *LEDGER_OPTIONS,
    ),
    description="""Removes runs with their events, of all jobs or of those named. A tombstone stays, so that a pruned
    window is never run again. Its steps and its delivered messages go along; messages that are not delivered stay, and
    so do the keys of messages that are not of one window. Held, stopped and running runs stay, however old, and so does
    the newest run of each job. Ages are counted to the newest recorded event, not to the clock. Jobs go on meanwhile;
    after a break the same command goes on. The ledger's file does not shrink: its space is used again.

    It also lets this host's journal forget what is pruned, and removes the files of attempts that ended a day ago.""",
)


class _Told:
    """What is to be told of a pruning, as far as it has come."""

    def __init__(self, limits: Bounds, dry_run: bool) -> None:
        self.limits = limits
        self.dry_run = dry_run
        self.jobs: list[JobPruned] = []
        self.attempts = 0
        self.journal: Forgotten | None = None
        self.complete = dry_run
        self.goes_on = True
        self.effects = False  # whether steps or messages may go along, for a rehearsal

    def runs(self) -> int:
        return sum(job.runs for job in self.jobs)

    def events(self) -> int:
        return sum(job.events for job in self.jobs)


def run(parsed: Parsed, environ: Mapping[str, str]) -> int:
    """Prune, and say what went and what stays. Ends by the signal that broke it off."""
    with Signals() as signals:
        names = list(dict.fromkeys(check_job_name(name) for name in parsed.arguments))
        config, ledger = open_ledger(parsed, environ, reading=parsed.flag("dry-run"))
        known = [job.name for job in ledger.store.jobs()]
        for name in names:
            if name not in known and name not in config.jobs:
                raise unknown_job(name, sorted({*known, *config.jobs}))
        older_than = parsed.get("older-than", OLDER_THAN)
        limits = bounds(
            ledger,
            older_than=older_than,
            failed_older_than=parsed.get("failed-older-than", max(older_than, FAILED_OLDER_THAN)),
            now=parsed.get("now"),
        )
        told = _Told(limits, parsed.flag("dry-run"))
        try:
            _prune(ledger, sorted(names or known), told, signals)
        except RanonceError as error:
            told.goes_on = isinstance(error, StoreUnavailable)  # else the same command ends in the same way
            if told.goes_on or told.runs() or parsed.flag("json"):
                _tell(parsed, ledger, told)
            else:
                tell_warnings(ledger)
            raise
        _tell(parsed, ledger, told)
    if not told.complete and signals.first is not None:
        die_by(signals.first)
    return 0


def _prune(ledger: OpenLedger, jobs: list[str], told: _Told, signals: Signals) -> None:
    keep = told.limits.keep
    if told.dry_run:
        told.jobs = would_prune(ledger, jobs, keep)
        told.effects = told.runs() > 0 and leaves_effects(ledger, jobs)
        return
    for key, outcome in ledger.settle_unrecorded():
        ledger.warnings.append(f"recorded first what an earlier run could not: {key} {outcome}")
    progress = _Progress()
    for job in jobs:
        told.jobs.append(JobPruned(job, 0, 0, {}, complete=False))

        def batch(runs: int, events: int, job: str = job) -> None:
            told.jobs[-1] = told.jobs[-1].replace(runs=runs, events=events)
            progress.tell(job, runs)

        told.jobs[-1] = prune_job(ledger, job, keep, go_on=lambda: signals.first is None, told=batch)
        if not told.jobs[-1].complete:
            return
    told.attempts = clear_attempts(ledger)
    told.journal = clear_journal(ledger)
    told.complete = True


class _Progress:
    """Says on a terminal how far it has come, every two seconds."""

    def __init__(self) -> None:
        self._next = time.monotonic() + PROGRESS_SECONDS
        self._wanted = sys.stderr is not None and sys.stderr.isatty()

    def tell(self, job: str, runs: int) -> None:
        if self._wanted and time.monotonic() >= self._next:
            self._next = time.monotonic() + PROGRESS_SECONDS
            say(f"ranonce: {job}: {runs:,} runs pruned so far")


# --- what is printed ------------------------------------------------------------------------------------------------


def _tell(parsed: Parsed, ledger: OpenLedger, told: _Told) -> None:
    tell_warnings(ledger)
    if parsed.flag("json"):
        write_json(_as_json(told))
        return
    write(_lines(told))


def _as_json(told: _Told) -> dict[str, Any]:
    limits, journal = told.limits, told.journal
    events = {} if told.dry_run else {"events": told.events()}
    return {
        "event": "pruned",
        "dry_run": told.dry_run,
        "complete": told.complete,
        "as_of": format_instant(limits.as_of, precision="ms"),
        "done_before": format_instant(limits.keep.done_before, precision="ms"),
        "failed_before": format_instant(limits.keep.failed_before, precision="ms"),
        "runs": told.runs(),
        **events,
        "jobs": [_job_as_json(job, told.dry_run) for job in told.jobs],
        "attempt_files": told.attempts,
        "journal": None if journal is None else {"facts": journal.facts, "bytes_shorter": journal.shorter},
    }


def _job_as_json(job: JobPruned, dry_run: bool) -> dict[str, Any]:
    told = {"job": job.job, "runs": job.runs, "events": job.events, "kept": job.kept, "complete": job.complete}
    told["undelivered"] = job.undelivered
    if dry_run:
        del told["events"]
    return told


def _lines(told: _Told) -> list[str]:
    keep = told.limits.keep
    would = "Would prune" if told.dry_run else "Pruned"
    events = "" if told.dry_run else f" and {_count(told.events(), 'event')}"
    lines = [
        f"{would} {_count(told.runs(), 'run')}{events}: what was over before {format_instant(keep.done_before)}"
        f" (failed: before {format_instant(keep.failed_before)})."
    ]
    if told.limits.now - told.limits.as_of > DAY:
        lines.append(f"Ages are counted to the newest event, at {format_instant(told.limits.as_of)}.")
    shown = [job for job in told.jobs if job.runs or job.events or job.kept]
    if shown:
        rows = [(job.job, f"{job.runs:,}", _kept(job)) for job in shown]
        lines += ["", *table(("JOB", "RUNS", "KEPT THOUGH OLD"), rows)]
    notes = []
    if told.effects:
        notes.append("Their steps and delivered messages would go along.")
    if waiting := sum(job.undelivered for job in told.jobs):
        stay = "stays" if waiting == 1 else "stay"
        notes.append(f"{_count(waiting, 'message')} of windows that old {stay}, not delivered yet: ranonce outbox list")
    if told.attempts:
        notes.append(f"Removed the files of {_count(told.attempts, 'attempt')} that ended without a verdict.")
    if told.journal is not None:
        notes.append(f"This host's journal is {told.journal.shorter:,} bytes shorter.")
    if told.runs() and not told.dry_run:
        notes.append("The ledger's file does not shrink; its space is used again.")
    if not told.complete:
        notes.append("It was broken off; the same command goes on." if told.goes_on else "It was broken off.")
    return [*lines, *([""] if notes else []), *notes]


def _count(number: int, thing: str) -> str:
    return f"{number:,} {thing}" if number == 1 else f"{number:,} {thing}s"


def _kept(job: JobPruned) -> str:
    return ", ".join(f"{count:,} {reason}" for reason, count in sorted(job.kept.items())) or "-"
