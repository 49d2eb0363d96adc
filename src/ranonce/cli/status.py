"""`ranonce status`: the board of all jobs, or the windows of one."""

from __future__ import annotations

from ranonce import board
from ranonce.calendars import NEVER
from ranonce.cli.joboptions import JSON, LEDGER_OPTIONS
from ranonce.cli.opening import ledger_of, read_config, tell_warnings
from ranonce.cli.options import Command
from ranonce.cli.probe import standings_of, unknown_job
from ranonce.cli.report import instant, table, with_instants, write, write_json
from ranonce.cli.span import NOW, SINCE, UNTIL, asked_span
from ranonce.errors import ConfigError, UsageError
from ranonce.expectation import schedule_of, version_at
from ranonce.findings import message_counts
from ranonce.lifecycle import RUNNING
from ranonce.names import check_job_name, plain
from ranonce.probe import judge_messages
from ranonce.survey import Span, Survey
from ranonce.timefmt import format_instant

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from ranonce.board import Line, WindowState
    from ranonce.cli.options import Parsed
    from ranonce.findings import Finding
    from ranonce.jobspec import JobSpec
    from ranonce.lifecycle import Gate, Run
    from ranonce.messages import Standing
    from ranonce.probe import Job

#: The days that the board counts.
COUNTED_SECONDS = 7 * 86400
#: Windows before and after the present that are listed where no span is asked for.
WINDOWS_BEFORE, WINDOWS_AFTER = 10, 2

COMMAND = Command(
    "status",
    ("[JOB]",),
    "Show the board of all jobs, or the windows of one.",
    (
        SINCE.replace(default="the last 10 windows"),
        UNTIL.replace(default="the next 2 windows"),
        NOW,
        JSON,
        *LEDGER_OPTIONS,
    ),
    description="""Without a job: for each one its newest window and its state, the newest that is done, the next one
    and when it is missing, and how many windows of the last 7 days are in which state. With a job: also its windows,
    past or future, recorded or not. States are done, failed, stopped, held, running, zombie (it runs by its record,
    and nobody is alive behind it), missing (due, and never started), expected (not started, and not missing) and
    pruned (it ran, and its record was pruned). Messages that are not delivered are counted apart.""",
)


def run(parsed: Parsed, environ: Mapping[str, str]) -> int:
    """Print the board; 0 whatever it shows."""
    name = check_job_name(parsed.arguments[0]) if parsed.arguments else None
    if name is None and parsed.options.keys() & {"since", "until"}:
        raise UsageError("--since and --until are for the windows of one job.", "Write: ranonce status JOB --since …")
    config = read_config(parsed, environ, job=name, pass_over=name is None)
    ledger = ledger_of(config, environ, reading=True)
    tell_warnings(ledger)
    survey = Survey(ledger.store, ledger.folder, parsed.get("now"))
    if name is None:
        recorded = {job.name for job in ledger.store.jobs()}
        found = standings_of(survey, config)
        lines = [
            _with_messages(_line(survey, each, config.jobs.get(each)), found)
            for each in sorted(recorded | config.jobs.keys())
        ]
        lines += [f"{each}: its settings cannot be read: {error}" for each, error in config.broken.items()]
        _tell_board(parsed, survey, lines, judge_messages(found))
        return 0
    spec = config.jobs.get(name)
    if spec is None and ledger.store.job(name) is None:
        raise unknown_job(name, [job.name for job in ledger.store.jobs()])
    found = standings_of(survey, config)
    line = _with_messages(_line(survey, name, spec), found)
    windows = [] if isinstance(line, str) else _windows(survey, name, spec, parsed)
    _tell_job(parsed, survey, name, line, windows, judge_messages(found, [name]))
    return 0


def _line(survey: Survey, name: str, spec: JobSpec | None) -> Line | str:
    """Return a job's line on the board, or why there is none."""
    now = int(survey.moment.now)
    try:
        job = survey.job(name, Span(now - COUNTED_SECONDS, now + 1), spec=spec)
        newest = survey.latest(name, 1)
        done = survey.store.last_done(name, survey.future)
        return board.line(job, survey.moment, newest[0] if newest else None, done)
    except (ConfigError, UsageError) as error:
        return f"{name}: its windows cannot be worked out: {error.sentence}"


def _with_messages(line: Line | str, found: Sequence[Standing]) -> Line | str:
    """Return a job's line with its messages that are not delivered."""
    if isinstance(line, str) or not found:
        return line
    from ranonce.undelivered import counted

    return line.replace(undelivered=counted(found, line.job))


def _windows(survey: Survey, name: str, spec: JobSpec | None, parsed: Parsed) -> list[WindowState]:
    now = survey.moment.now
    job = survey.job(name, Span(int(now), int(now) + 1), spec=spec)
    if parsed.options.keys() & {"since", "until"}:
        return windows_of(survey, job, asked_span(parsed, now, job.versions))
    return windows_of(survey, job.since_known(now), around(job, now))


def around(job: Job, now: float) -> Span:
    """Return the span of the last ten windows and the next two."""
    version = version_at(job.versions, int(now))
    if version is not None and version.every == NEVER and len(job.versions) > 1:  # removed: its last windows
        version, now = job.versions[-2], (version.valid_from or 0) - 1
    if version is None or version.every == NEVER:
        return Span(int(now) - COUNTED_SECONDS, int(now) + 1)
    schedule = schedule_of(version)
    current = schedule.window_at(now)
    since = schedule.shift(current, 1 - WINDOWS_BEFORE).start
    return Span(since, schedule.shift(current, WINDOWS_AFTER).start + 1)


def windows_of(survey: Survey, job: Job, span: Span) -> list[WindowState]:
    """Return the windows of a job in a span, with their states."""
    runs: list[Run] = survey.store.runs(job.name, span.since, span.until)
    claims = [survey.claimed(run) for run in runs if run.status == RUNNING]
    stones = survey.store.tombstones(job.name, span.since, span.until)
    states = board.windows(job, survey.moment, runs, claims, span.since, span.until, stones)
    return board.with_messages(states, survey.store.outbox().waiting(job.name, span.since, span.until))


# --- what is printed ------------------------------------------------------------------------------------------------


def _tell_board(parsed: Parsed, survey: Survey, lines: list[Line | str], messages: Sequence[Finding]) -> None:
    told = [line for line in lines if not isinstance(line, str)]
    problems = [line for line in lines if isinstance(line, str)]
    gates = [gate for gate in survey.store.gates() if survey.moment.clock.wall < gate.until]
    if parsed.flag("json"):
        write_json(
            {
                "now": format_instant(survey.moment.now),
                "jobs": [_as_json(line) for line in told],
                "gates": [with_instants({"gate": g.name, "until_at": g.until, "reason": g.reason}) for g in gates],
                "messages": message_counts(messages),
                "problems": problems,
            }
        )
        return
    if not lines:
        write(["No job is declared. Declare one: ranonce add JOB --every day -- COMMAND"])
    if told:
        write(_board(told))
    write(plain(problem) for problem in problems)
    write(map(_gate, gates))
    write(_messages(messages, "ranonce outbox list"))


def _board(lines: list[Line]) -> list[str]:
    head = ("JOB", "WINDOW", "STATE", "SINCE", "LAST DONE", "NEXT", "MISSING FROM", "LAST 7 DAYS")
    rows = [
        (
            line.job,
            line.window or "-",
            line.state or "never ran",
            instant(line.since),
            line.done_window or "-",
            line.next_window or ("removed" if line.every == NEVER else "-"),
            instant(line.next_due),
            ", ".join(f"{count} {state}" for state, count in line.counts.items()),
        )
        for line in lines
    ]
    return table(head, rows)


def _gate(gate: Gate) -> str:
    return plain(f"gate {gate.name} is closed until {format_instant(gate.until)}: {gate.reason} (by {gate.job})")


def _messages(messages: Sequence[Finding], step: str) -> list[str]:
    """Return a line about messages, where any are not delivered."""
    if not messages:
        return []
    told = ", ".join(f"{count:,} {bucket}" for bucket, count in message_counts(messages).items() if count)
    return [f"messages that are not delivered: {told} -> {step}"]


def _tell_job(
    parsed: Parsed,
    survey: Survey,
    name: str,
    line: Line | str,
    windows: list[WindowState],
    messages: Sequence[Finding],
) -> None:
    if parsed.flag("json"):
        told = {
            "job": name,
            "now": format_instant(survey.moment.now),
            "board": line if isinstance(line, str) else _as_json(line),
            "messages": message_counts(messages),
            "windows": [
                {**w.as_dict(), "start": format_instant(w.start), "end": format_instant(w.end)} for w in windows
            ],
        }
        write_json(told)
        return
    if isinstance(line, str):
        write([plain(line)])
        return
    step = f"ranonce outbox list --job {name}"
    write([*_board([line]), *_messages(messages, step), "", *window_table(windows)])


def window_table(windows: list[WindowState]) -> list[str]:
    """Return windows as a table, with a column of messages where any are not delivered."""
    head: tuple[str, ...] = ("WINDOW", "START", "END", "STATE")
    rows = [(each.window, format_instant(each.start), format_instant(each.end), each.state) for each in windows]
    if not any(each.undelivered for each in windows):
        return table(head, rows)
    told = [", ".join(f"{count:,} {state}" for state, count in each.undelivered.items()) or "-" for each in windows]
    return table((*head, "NOT DELIVERED"), [(*row, cell) for row, cell in zip(rows, told, strict=True)])


def _as_json(line: Line) -> dict[str, object]:
    names = {"since": "since_at", "next_due": "next_due_at"}
    told = with_instants({names.get(name, name): value for name, value in line.as_dict().items()})
    for name, with_at in names.items():
        if with_at in told:
            told[name] = told.pop(with_at)
    return told
