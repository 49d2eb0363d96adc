"""`ranonce show`: did this window run, and why or why not?"""

from __future__ import annotations

from ranonce import story
from ranonce.cli.joboptions import JSON, LEDGER_OPTIONS
from ranonce.cli.opening import open_ledger, tell_warnings
from ranonce.cli.options import Command, Option
from ranonce.cli.probe import unknown_job
from ranonce.cli.report import kept, table, with_instants, write, write_json
from ranonce.cli.span import NOW
from ranonce.cli.status import around, window_table, windows_of
from ranonce.expectation import schedule_of, version_at
from ranonce.jobspec import JobSpec
from ranonce.lifecycle import DONE, RUNNING, RunKey
from ranonce.messages import SENT
from ranonce.names import check_job_name, plain
from ranonce.naming import all_named
from ranonce.receipts import REASONS
from ranonce.standing import EXPECTED, MISSING, PRUNED
from ranonce.stores.base import Wanted
from ranonce.survey import Span, Survey
from ranonce.timefmt import format_duration, format_instant
from ranonce.windows import Window, due

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Mapping
    from typing import Any

    from ranonce.board import WindowState
    from ranonce.cli.options import Parsed
    from ranonce.lifecycle import Event, Run
    from ranonce.probe import Job
    from ranonce.story import Story

EXITS = {story.YES: 0, story.NO: 1, story.UNKNOWN: 2}
#: A table of windows is followed by so many stories at most.
MOST_STORIES = 4
#: Messages of a window are counted page by page.
PAGE = 1000
#: Events that may have kept some of the command's output.
WITH_OUTPUT = ("done", "failed", "stopped", "held", "lost")

COMMAND = Command(
    "show",
    ("JOB", "[WINDOW]"),
    "Tell the story of a window: did it run, and why or why not?",
    (
        NOW,
        Option("output", "Print what was kept of the command's output too."),
        JSON,
        *LEDGER_OPTIONS,
    ),
    description="""WINDOW is a key as the ledger prints it, or a date, which finds the windows that begin on that day in
    the job's zone. Without it: the newest windows, and the story of the newest. Exits 0 if it ran (done, or pruned
    since), 1 if it did not, 2 if that is not known: it runs now, is not due yet, or there is no such window.""",
)


def run(parsed: Parsed, environ: Mapping[str, str]) -> int:
    """Print the story; 0 it ran, 1 it did not, 2 unknown."""
    name = check_job_name(parsed.arguments[0])
    config, ledger = open_ledger(parsed, environ, job=name, reading=True)
    tell_warnings(ledger)
    survey = Survey(ledger.store, ledger.folder, parsed.get("now"))
    spec = config.jobs.get(name)
    if spec is None and ledger.store.job(name) is None:
        raise unknown_job(name, [job.name for job in ledger.store.jobs()])
    teller = _Teller(survey, name, spec)
    if len(parsed.arguments) == 1:
        windows, brief = teller.newest()
    else:
        windows, brief = teller.named(parsed.arguments[1])
    stories = [each for window in windows for each in teller.stories(window)]
    _tell(parsed, survey, name, stories, brief)
    return max((EXITS[each.answer] for each in stories), key=(0, 2, 1).index, default=EXITS[story.UNKNOWN])


class _Teller:
    """Finds the windows that are asked for, and tells of each."""

    def __init__(self, survey: Survey, name: str, spec: JobSpec | None) -> None:
        now = int(survey.moment.now)
        self.survey = survey
        self.spec = spec
        self.job: Job = survey.job(name, Span(now, now + 1), spec=spec)

    def newest(self) -> tuple[list[Window], list[WindowState]]:
        """Return the newest window that has begun to matter, and the windows before it in brief."""
        span = around(self.job, self.survey.moment.now)
        job = self.job.since_known(self.survey.moment.now)
        states = windows_of(self.survey, job, Span(span.since, int(self.survey.moment.now) + 1))
        told = [state for state in states if state.state != EXPECTED] or states
        newest = [Window(state.window, state.start, state.end) for state in told[-1:]]
        if not newest:
            newest = [_window(run) for run in self.survey.latest(self.job.name, 1)]
        return newest, states

    def named(self, text: str) -> tuple[list[Window], list[WindowState]]:
        """Return the windows that a key or a date means; several of them also in brief.

        UsageError for text that names none.
        """
        versions, store, name = self.job.versions, self.survey.store, self.job.name
        recorded = store.runs_named(name, text) if not versions else []
        if recorded:
            return [_window(run) for run in recorded[:1]], []
        found = all_named(versions, text, lambda: store.runs_named(name, text))
        if len(found) < 2:
            return [each.window for each in found], []
        states = windows_of(self.survey, self.job, Span(found[0].window.start, found[-1].window.start + 1))
        return [Window(state.window, state.start, state.end) for state in states], states

    def stories(self, window: Window) -> list[Story]:
        """Return the story of each run of a window (there are several where other input is other work)."""
        store, job, moment = self.survey.store, self.job, self.survey.moment
        events = tuple(store.events(job.name, window.start, window.start + 1))
        runs = [run for run in store.runs(job.name, window.start, window.start + 1) if run.key.window == window.key]
        told = []
        for run in runs:
            claimed = self.survey.claimed(run) if run.status == RUNNING else None
            own = tuple(event for event in events if event.key == run.key)
            told.append(story.of_run(run, _window(run), own, claimed, moment, job.max_attempts))
        stones = [] if told else store.tombstones(job.name, window.start, window.start + 1)
        if stones:
            told.append(story.of_pruned(job.name, window, events, stones[0]))
        elif not told:
            told.append(story.of_window(job.name, window, events, self._due(window), moment, self._expected(window)))
        effects = self._messages(window)
        return [self._with_effects(each, effects).replace(next=self._next(each)) for each in told]

    def _messages(self, window: Window) -> Mapping[RunKey, Mapping[str, int]]:
        """Count the messages of a window, run by run and state by state."""
        wanted = Wanted(job=self.job.name, window_start=window.start)
        outbox, after = self.survey.store.outbox(), 0
        counts: dict[RunKey, dict[str, int]] = {}
        while page := outbox.messages(wanted, after=after, limit=PAGE):
            for message in page:
                of_run = counts.setdefault(message.run, {})
                of_run[message.state] = of_run.get(message.state, 0) + 1
            after = page[-1].seq or after
        return counts

    def _with_effects(self, told: Story, messages: Mapping[RunKey, Mapping[str, int]]) -> Story:
        key = told.run.key if told.run else RunKey(told.job, told.window.key, told.input)
        run = told.run
        steps = len(self.survey.store.steps(key, told.window.start, run.generation)) if run else 0
        return told.with_effects(messages.get(key, {}), steps)

    def _due(self, window: Window) -> float:
        version = version_at(self.job.versions, window.start)
        assert version is not None
        return due(schedule_of(version), window, version.offset, self.job.late_after)

    def _expected(self, window: Window) -> bool:
        version = version_at(self.job.versions, window.start)
        begun = self.job.begins is None or window.start >= self.job.begins
        return begun and version is not None and len(schedule_of(version).expected(window.start, window.start + 1)) > 0

    def _next(self, told: Story) -> str:
        if told.run is not None and told.run.status == RUNNING and self.survey.claimed(told.run).ended_as is not None:
            return "the next ranonce run on this host, of any job, records its outcome before anything else"
        version = version_at(self.job.versions, told.window.start)
        decision = self.survey.would(told.job, told.window, told.input, version, self.spec or _spec(self.job))
        return story.what_next(decision) if decision else "the next run records the job"


def _spec(job: Job) -> JobSpec:
    return JobSpec(job.name, max_attempts=job.max_attempts, late_after=job.late_after)


def _window(run: Run) -> Window:
    return Window(run.key.window, run.window_start, run.window_end)


# --- what is printed ------------------------------------------------------------------------------------------------


def _tell(parsed: Parsed, survey: Survey, name: str, stories: list[Story], brief: list[WindowState]) -> None:
    outputs = parsed.flag("output")
    if parsed.flag("json"):
        told = [_as_json(each, survey, outputs) for each in stories]
        write_json(told[0] if len(told) == 1 else {"job": name, "stories": told})
        return
    if not stories:
        write([f"{name} has no window there."])
    if len(brief) > 1:
        write([*window_table(brief), ""])
    told_here = _worth_telling(stories)
    if left := len(stories) - len(told_here):
        write([f"({left} stories are left out: ranonce show {name} WINDOW tells one.)", *([""] if told_here else [])])
    for at, each in enumerate(told_here):
        write(["", *_story(each)] if at else _story(each))
        if outputs:
            write(_outputs(each, survey))


def _worth_telling(stories: list[Story]) -> list[Story]:
    """Return all stories where they are few, else those that somebody would look for, if these are few."""
    if len(stories) <= MOST_STORIES:
        return stories
    notable = [each for each in stories if each.state not in (DONE, EXPECTED, MISSING, PRUNED)]
    return notable if len(notable) <= MOST_STORIES else []


def _story(told: Story) -> list[str]:
    window = told.window
    about = f"{told.job} {window.key}" + (f" (input {told.input[:12]})" if told.input else "")
    no = "it did not run" if told.run is None else "it is not done"
    answer = {story.YES: "it ran", story.NO: no, story.UNKNOWN: "unknown"}[told.answer]
    lines = [
        f"{about}: {answer} ({told.state}).",
        f"  window  {format_instant(window.start)} until {format_instant(window.end)}",
        f"  why     {told.why}",
        f"  next    {told.next}",
    ]
    if told.messages:
        counts = [f"{count:,} {state}" for state, count in sorted(told.messages.items(), key=_sent_first)]
        lines.append(f"  emitted {', '.join(counts)}")
    lines = [plain(line) for line in lines]
    if told.events:
        rows = [
            (
                format_instant(event.at, precision="ms"),
                str(event.attempt),
                event.event,
                _who(event),
                _what(event),
            )
            for event in told.events
        ]
        lines += ["", *table(("TIME", "ATTEMPT", "EVENT", "WHO", "WHAT"), rows)]
    return lines


def _sent_first(counted: tuple[str, int]) -> tuple[bool, str]:
    return counted[0] != SENT, counted[0]


def _who(event: Event) -> str:
    where = f" on {event.host}" if event.host else ""
    return f"{event.trigger or '-'}{where} ({event.owner[:8] or '-'})"


def _what(event: Event) -> str:
    """Return reason, exit status, duration and the rest of what an event says, for people."""
    data = dict(event.data)
    parts = [REASONS.get(event.reason, event.reason)] if event.reason else []
    code, seconds = data.pop("exit", None), data.pop("seconds", None)
    if code is not None and event.reason != f"exit {code}":
        parts.append(f"exit {code}")
    if isinstance(seconds, (int, float)):
        parts.append(f"after {format_duration(max(0, seconds))}")
    if event.version:
        parts.append(f"version {event.version}")
    for name, value in data.items():
        if isinstance(value, bool):
            parts.append(name if value else f"not {name}")
            continue
        if isinstance(value, (int, float)) and name in ("until", "resume_at", "started_at"):
            parts.append(f"{name} {format_instant(value)}")
        else:
            parts.append(f"{name} {', '.join(map(str, value)) if isinstance(value, list) else value}")
    return "; ".join(parts)


def _outputs(told: Story, survey: Survey) -> list[str]:
    lines = []
    for event in told.events:
        output = survey.store.output(event.seq) if event.event in WITH_OUTPUT and event.seq is not None else None
        if output is not None:
            lines += ["", f"output of attempt {event.attempt}:", *kept(output).rstrip("\n").split("\n")]
    return lines or ["", "No output was kept."]


def _as_json(told: Story, survey: Survey, outputs: bool) -> dict[str, Any]:
    run = told.run
    answer: dict[str, Any] = {
        "job": told.job,
        "window": told.window.key,
        "start": format_instant(told.window.start),
        "end": format_instant(told.window.end),
        "state": told.state,
        "ran": told.answer,
        "why": told.why,
        "next": told.next,
        "messages": dict(told.messages),
        "steps": told.steps,
        "events": [_event(event, survey, outputs) for event in told.events],
    }
    if told.input:
        answer["input"] = told.input
    if run is not None:
        answer |= {"attempt": run.attempt, "generation": run.generation, "failures": run.failures}
    return answer


def _event(event: Event, survey: Survey, outputs: bool) -> dict[str, Any]:
    told = with_instants(
        {
            "seq": event.seq,
            "at": event.at,
            "event": event.event,
            "attempt": event.attempt,
            "generation": event.generation,
            "reason": event.reason,
            "owner": event.owner,
            "trigger": event.trigger,
            "version": event.version,
            "host": event.host,
            "data": dict(event.data),
        }
    )
    if outputs and event.seq is not None and event.event in WITH_OUTPUT:
        output = survey.store.output(event.seq)
        if output is not None:
            told["output"] = output.decode("utf-8", "backslashreplace")
    return told
