"""What happened more than once to a window: completions, attempts, reruns, triggers; and runs that overlap. Pure."""

from __future__ import annotations

from collections import Counter

from ranonce.findings import Finding
from ranonce.lifecycle import DONE, RUNNING
from ranonce.timefmt import format_instant

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterator

    from ranonce.lifecycle import Event, Run, RunKey
    from ranonce.probe import Job, Moment

#: Reasons for which a trigger is refused because the window is taken care of already.
REPEATED = ("done", "busy", "conflict")
#: How an attempt that was not the last one ended, by the event that says so.
ENDED = {"failed": "failed", "stopped": "stopped", "held": "was held", "expired": "crashed"}


def judge(job: Job, moment: Moment) -> Iterator[Finding]:
    """Return what is to be said of a job's doubles."""
    runs = {run.key: run for run in job.runs}
    yield from _completed_twice(job, runs)
    yield from _again(job, runs)
    yield from _triggered_again(job, runs)
    if job.whole and job.overlap == "forbid":
        yield from _overlapping(job, moment)


# --- completions ----------------------------------------------------------------------------------------------------


def _completed_twice(job: Job, runs: dict[RunKey, Run]) -> Iterator[Finding]:
    """Tell of attempts that came to an end after another had taken their window, and of a second `done`."""
    told: set[RunKey] = set()
    for event in job.events:
        if event.event == "lost" and event.key not in told:
            finding = _lost(event, runs.get(event.key), job)
            if finding is not None:
                told.add(event.key)
                yield finding
    done = Counter((event.key, event.generation) for event in job.stories if event.event == DONE)
    for (key, _), times in done.items():
        if times > 1 and key not in told:
            told.add(key)
            attempts = [event.attempt for event in job.stories if event.key == key and event.event == DONE]
            start = next(event.window_start for event in job.stories if event.key == key)
            text = f"completed {times} times, by attempts {_list(attempts)}"
            yield Finding("dupes", job.name, key.window, start, text, facts={"attempts": attempts})


def _lost(event: Event, run: Run | None, job: Job) -> Finding | None:
    """Judge a verdict that was refused. Without a notable run, the window is done at its first attempt."""
    status, holder = (run.status, run.attempt) if run else (DONE, 1)
    when = format_instant(event.at)
    found = Finding("", job.name, event.key.window, event.window_start, "")
    if event.attempt == holder:
        if event.reason == status:
            return None
        text = f"attempt {event.attempt} ended ({event.reason}) at {when}, after its run was settled as {status}"
        return found.replace(bucket="late", text=f"{text}: refused", facts={"attempt": event.attempt})
    both = {"attempts": [event.attempt, holder], "at": event.at}
    if event.reason == DONE and (status == DONE or _was_done(event, job)):
        text = f"ran twice: attempt {event.attempt} completed at {when}, and so did another after taking it over"
        return found.replace(bucket="dupes", text=text, facts=both)
    text = f"attempt {event.attempt} ended ({event.reason}) at {when}, after attempt {holder} had taken its window over"
    return found.replace(bucket="overlapping", text=text, facts=both)


def _was_done(lost: Event, job: Job) -> bool:
    """Say whether another attempt completed the window, whatever became of the run since."""
    return any(event.event == DONE and event.key == lost.key and event.attempt != lost.attempt for event in job.stories)


# --- attempts and reruns --------------------------------------------------------------------------------------------


def _again(job: Job, runs: dict[RunKey, Run]) -> Iterator[Finding]:
    """Note the windows that were rerun by request, settled by a person, or done at a later attempt than the first."""
    reruns = {(event.key, event.generation): event for event in job.events if event.event == "rerun"}
    for (key, generation), event in reruns.items():
        text = f"rerun by request: {event.reason} (generation {generation}, attempt {event.attempt})"
        yield Finding("rerun", job.name, key.window, event.window_start, text, note=True)
    for event in job.events:
        if event.event == "released":
            text = f"released as {event.data.get('as', '?')} at {format_instant(event.at)}: {event.reason}"
            yield Finding("released", job.name, event.key.window, event.window_start, text, note=True)
    for key, before in _earlier_attempts(job, runs).items():
        run = runs[key]
        text = f"done at attempt {run.attempt}: {', '.join(before)}"
        yield Finding("retried", job.name, key.window, run.window_start, text, True, gist="done at a later attempt")


def _earlier_attempts(job: Job, runs: dict[RunKey, Run]) -> dict[RunKey, list[str]]:
    """Return what became of the attempts before the one that completed a run, by the run."""
    told: dict[RunKey, list[str]] = {}
    for event in job.events:
        run = runs.get(event.key)
        if run is None or run.status != DONE or event.event not in ENDED:
            continue
        if event.generation == run.generation and event.attempt < run.attempt:
            ended = f"attempt {event.attempt} {ENDED[event.event]} ({event.reason or 'no reason given'})"
            told.setdefault(event.key, []).append(ended)
    return told


# --- triggers -------------------------------------------------------------------------------------------------------


def _triggered_again(job: Job, runs: dict[RunKey, Run]) -> Iterator[Finding]:
    """Note the windows that more than one trigger arrived for, and a trigger that came with another version."""
    again: dict[RunKey, list[Event]] = {}
    for event in job.events:
        if event.event == "skipped" and event.reason in REPEATED and job.ran(event.window_start):
            again.setdefault(event.key, []).append(event)
    for key, events in again.items():
        reasons = Counter(event.reason for event in events)
        why = ", ".join(f"{count} {reason}" for reason, count in sorted(reasons.items(), key=str))
        text = f"1 run, {len(events) + 1} triggers ({why})"
        run = runs.get(key)
        others = sorted({event.version for event in events if event.version and run and event.version != run.version})
        if others and run:
            text += f"; a trigger had a different version: {_list(others)}, and the run has {run.version}"
        told = {"triggers": len(events) + 1, "refused": dict(reasons), **({"versions": others} if others else {})}
        yield Finding("repeated", job.name, key.window, events[0].window_start, text, True, gist=text, facts=told)


def _list(values: list[int] | list[str]) -> str:
    return ", ".join(map(str, values))


# --- overlap --------------------------------------------------------------------------------------------------------


def _overlapping(job: Job, moment: Moment) -> Iterator[Finding]:
    """Tell of runs that began while another one of the job was at work."""
    alive = {claimed.run.key for claimed in job.claims if claimed.holder(moment).alive}
    spans: list[tuple[float, float, Run]] = []
    for run in job.runs:
        if run.status != RUNNING:
            spans.append((run.started_at, run.finished_at or run.started_at, run))
        elif run.key in alive:
            spans.append((run.started_at, moment.clock.wall, run))
    spans.sort(key=lambda span: span[:2])
    working: tuple[float, float, Run] | None = None
    for span in spans:
        began, ended, run = span
        if working is not None and began < working[1]:
            other = working[2]
            until = "now" if other.status == RUNNING else format_instant(working[1])
            text = (
                f"began at {format_instant(began)} while {other.key.window} was at work"
                f" ({format_instant(working[0])} until {until})"
            )
            told = {"started_at": began, "with": other.key.window}
            gist = "began while another window was at work"
            yield Finding("overlapping", job.name, run.key.window, run.window_start, text, gist=gist, facts=told)
        if working is None or ended > working[1]:
            working = span
