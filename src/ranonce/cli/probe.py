"""`ranonce probe`: which windows are missing, dead or doubled?"""

from __future__ import annotations

import time

from ranonce.cli.joboptions import JSON, LEDGER_OPTIONS
from ranonce.cli.opening import ledger_of, read_config, tell_warnings
from ranonce.cli.options import Command, Option
from ranonce.cli.report import with_instants, write, write_json
from ranonce.cli.span import NOW, SINCE, UNTIL, asked_span
from ranonce.errors import ConfigError, NotThisLedger, StoreUnavailable, UsageError
from ranonce.findings import MESSAGES, Finding, counts, message_counts
from ranonce.lifecycle import present_schedules
from ranonce.names import check_job_name, plain
from ranonce.probe import Moment, judge, judge_messages
from ranonce.stores.base import Clock
from ranonce.survey import Survey, described, unrecorded_job
from ranonce.timefmt import format_instant

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence
    from typing import Any

    from ranonce.cli.options import Parsed
    from ranonce.config import Config
    from ranonce.lifecycle import ScheduleVersion
    from ranonce.messages import Standing
    from ranonce.started import Started
    from ranonce.stores.base import Job as RecordedJob
    from ranonce.stores.base import Store
    from ranonce.survey import Span

#: The word for one window of a bucket, where it is not the bucket's own.
WORDS = {"zombies": "zombie", "dupes": "dupe"}
EX_FINDINGS = 1

COMMAND = Command(
    "probe",
    ("[JOB…]",),
    "Name what is missing, dead or doubled.",
    (
        SINCE,
        UNTIL,
        NOW,
        Option("quiet", "Print nothing when there are no findings, and no notes.", short="q"),
        JSON,
        *LEDGER_OPTIONS,
    ),
    description="""Compares the windows that each job should have had with those that are recorded. Prints how many
    windows are in each bucket, then a line for each finding, then notes. Exits 0 if there are no findings, else 1.
    By default it looks at windows that start in the last 48 hours, and at the newest one that is due where it began
    before; what is unfinished from before is counted too.

    Messages of the jobs are counted apart, of whatever time they are: unsent ones wait in time (a note); overdue ones
    wait for longer than their destination's late_after; unsure ones may have been received, and a person must say; dead
    ones are given up.""",
)


def run(parsed: Parsed, environ: Mapping[str, str]) -> int:
    """Print what was found; 0 if nothing needs anybody's attention, else 1.

    Without the ledger nothing proves that anything ran: every window the configuration expects is missing then, and
    the error is raised all the same.
    """
    names = list(dict.fromkeys(check_job_name(name) for name in parsed.arguments))
    config = read_config(parsed, environ, job=names[0] if len(names) == 1 else None, pass_over=len(names) != 1)
    try:
        ledger = ledger_of(config, environ, reading=True)
    except (NotThisLedger, StoreUnavailable) as error:
        if config.jobs:
            _tell_without_ledger(parsed, config, names, error)
        raise
    tell_warnings(ledger)
    survey = Survey(ledger.store, ledger.folder, parsed.get("now"))
    recorded = {job.name: job for job in survey.store.jobs()}
    known = sorted(recorded.keys() | config.jobs.keys() | config.broken.keys())
    for name in names:
        if name not in known:
            raise unknown_job(name, known)
    span = asked_span(parsed, survey.moment.now, _versions(survey, config, names))
    findings = list(_findings(survey, config, sorted(names) or known, recorded, span))
    findings += judge_messages(standings_of(survey, config), names)
    _tell(parsed, span, survey.moment.now, findings, config, survey.store)
    return EX_FINDINGS if any(not finding.note for finding in findings) else 0


def _versions(survey: Survey, config: Config, names: list[str]) -> tuple[ScheduleVersion, ...]:
    """Return the versions of the schedule that days are meant in: those of the job, where one job is asked about."""
    if len(names) != 1:
        return ()
    recorded = present_schedules(survey.store.schedules(names[0]), survey.moment.clock.wall)
    return described(names[0], config.jobs.get(names[0]), survey.store.job(names[0]), recorded).versions


def _findings(
    survey: Survey, config: Config, names: list[str], recorded: Mapping[str, RecordedJob], span: Span
) -> Iterable[Finding]:
    for name in names:
        if name in config.broken:
            yield Finding("unexpected", name, "", None, f"its settings cannot be read: {config.broken[name]}")
            if name not in recorded:
                continue
        try:
            job = survey.job(name, span, spec=config.jobs.get(name), recorded=recorded.get(name))
            yield from judge(job, survey.moment)
        except (ConfigError, UsageError) as error:
            # A schedule that cannot be expanded here must not hide what is wrong with the other jobs.
            yield Finding("unexpected", name, "", None, f"its windows cannot be worked out: {error.sentence}")


def standings_of(survey: Survey, config: Config) -> Sequence[Standing]:
    """Return how messages stand. What reads destinations is loaded only where something waits."""
    outbox = survey.store.outbox()
    names = outbox.destinations()
    if not names:
        return ()
    from ranonce.undelivered import Destinations, standings

    return standings(outbox, names, Destinations(config), survey.moment.now)


def unknown_job(name: str, known: list[str]) -> UsageError:
    """Return the error for a job that neither the ledger nor the configuration has."""
    from ranonce.settings import nearest

    step = nearest(name, known) if known else "Declare it: ranonce add"
    return UsageError(f"neither the ledger nor the configuration has a job {name!r}.", step)


def _tell_without_ledger(
    parsed: Parsed, config: Config, names: list[str], error: NotThisLedger | StoreUnavailable
) -> None:
    wall = time.time()
    now = parsed.get("now", wall)
    versions = described(names[0], config.jobs.get(names[0]), None, ()).versions if len(names) == 1 else ()
    span = asked_span(parsed, now, versions)
    moment = Moment(now, Clock("", 0.0, wall))
    wanted = [name for name in sorted(config.jobs) if not names or name in names]
    jobs = [unrecorded_job(name, config.jobs[name], span) for name in wanted]
    findings = [finding for job in jobs for finding in judge(job, moment)]
    unproved = "the ledger cannot be read, so nothing proves that it ran"
    _tell(parsed, span, now, [each.replace(text=unproved) for each in findings], config, None, error=error.sentence)


def _tell(
    parsed: Parsed,
    span: Span,
    now: float,
    findings: list[Finding],
    config: Config,
    store: Store | None,
    *,
    error: str | None = None,
) -> None:
    step = _NextStep(config, store) if store is not None else _no_step
    severe = [finding for finding in findings if not finding.note]
    notes = [finding for finding in findings if finding.note]
    if parsed.flag("json"):
        told: dict[str, Any] = {
            "since": format_instant(span.since),
            "until": format_instant(span.until),
            "now": format_instant(now),
            "counts": counts(findings),
            "messages": message_counts(findings),
            "findings": [_as_json(finding, step(finding)) for finding in severe],
            "notes": [_as_json(finding, None) for finding in notes],
        }
        write_json({**told, "error": error} if error else told)
        return
    if parsed.flag("quiet"):
        notes = []
        if not severe:
            return
    write(
        [
            " ".join(f"{bucket}={count}" for bucket, count in {**counts(findings), **message_counts(findings)}.items()),
            *(_line(each, step(each)) for each in severe),
        ]
    )
    write(f"note: {_line(note, None)}" for note in notes)


def _line(finding: Finding, step: str | None) -> str:
    about = f"{finding.job} {finding.span}" if finding.window else finding.job
    return plain(f"{WORDS.get(finding.bucket, finding.bucket)} {about}: {finding.text}{f' -> {step}' if step else ''}")


class _NextStep:
    """Finds the command that settles a finding, where there is one. It must be one that works: how a job is started,
    and what its crash means, stands in the configuration, or in its story, for one that is a Python program."""

    def __init__(self, config: Config, store: Store) -> None:
        self.config = config
        self._store = store
        self._started: dict[str, Started | None] = {}

    def _python(self, job: str) -> Started | None:
        """Return how a job is started from Python, if it is. Asked for what has a finding alone, and once."""
        from ranonce.started import python_start

        if job not in self._started:
            self._started[job] = python_start(self._store, job)
        return self._started[job]

    def __call__(self, finding: Finding) -> str | None:
        if finding.bucket in MESSAGES:
            return f"ranonce outbox list --destination {finding.facts['destination']}"
        if not finding.window or finding.facts.get("input"):
            return None
        spec = self.config.jobs.get(finding.job)
        if finding.last is not None:
            if finding.bucket != "missing":
                return None
            command = ""
            if spec is None or not spec.command:
                started = self._python(finding.job)
                command = f" -- {started.command if started else 'COMMAND'}"
            return f"ranonce backfill {finding.job} --since {finding.window}{command}"
        held = finding.bucket == "zombies" and spec is not None and spec.on_crash == "hold"
        if finding.bucket in ("held", "exhausted") or held:
            return f"ranonce release {finding.job} {finding.window} --as done|not-done --reason TEXT"
        if finding.bucket in ("missing", "failed", "stopped", "zombies") and not finding.facts.get("orphan"):
            if spec is None or not spec.command:
                started = self._python(finding.job)
                if started is not None:
                    return started.again(finding.window)
                return f"ranonce run {finding.job} --window {finding.window} -- COMMAND"
            return f"ranonce run {finding.job} --window {finding.window}"
        return None


def _no_step(_: Finding) -> None:
    """Nothing can be run without the ledger."""


def _as_json(finding: Finding, step: str | None) -> dict[str, Any]:
    told: dict[str, Any] = {
        "bucket": finding.bucket,
        "job": finding.job,
        "window": finding.window or None,
        "last": finding.last,
        "windows": None if finding.bucket in MESSAGES else finding.windows,
        "start": None if finding.start is None else format_instant(finding.start),
        "explanation": finding.text,
        "next_step": step,
    }
    return {**{name: value for name, value in told.items() if value is not None}, **with_instants(finding.facts)}
