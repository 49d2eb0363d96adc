"""What `status` shows, as values: one line for each job, and the windows of one job. Pure: no clock, no I/O."""

from __future__ import annotations

from ranonce.calendars import NEVER
from ranonce.errors import UsageError
from ranonce.expectation import Expectation, schedule_of, version_at
from ranonce.findings import Finding, counts
from ranonce.lifecycle import DONE
from ranonce.probe import judge
from ranonce.record import Record
from ranonce.standing import EXPECTED, MISSING, PRUNED, since, state_of
from ranonce.timefmt import format_instant
from ranonce.windows import due

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from ranonce.lifecycle import Run
    from ranonce.messages import Waiting
    from ranonce.probe import Claimed, Job, Moment
    from ranonce.stores.base import Tombstone

#: More windows than this are no table any more.
MOST_WINDOWS = 100_000


class Line(Record):
    """One job on the board. Instants are unix seconds; None where there is nothing to tell.

    `window` is the newest one that ran or is missing, `state` its state (see `standing`) since `since`. `next_window`
    is the next one to come, missing from `next_due` on. `counts` are windows by state over the last days, `undelivered`
    the job's messages that are not delivered, by state.
    """

    job: str
    every: str | None
    tz: str | None
    window: str | None
    state: str | None
    since: float | None
    attempt: int | None
    done_window: str | None
    done_at: float | None
    next_window: str | None
    next_due: float | None
    counts: dict[str, int]
    undelivered: Mapping[str, int] = {}


class WindowState(Record):
    """One window of a job: its key, its bounds in unix seconds, its state (see `standing`), and its messages that are
    not delivered, by their states."""

    window: str
    start: int
    end: int
    state: str
    undelivered: Mapping[str, int] = {}


def line(job: Job, moment: Moment, latest: Run | None, done: Run | None) -> Line:
    """Return a job's line. `job` covers the last days; `latest` and `done` are its newest run and its newest done one.

    The board speaks of the time since the job was first recorded; only a probe asks for what was before. Raises
    ConfigError or UsageError for a recorded schedule that cannot be used on this machine.
    """
    job = job.since_known(moment.now)
    findings = judge(job, moment)
    version = job.versions[-1] if job.versions else None
    missing = _newest_missing(job, findings)
    window, state, since_when, attempt = None, None, None, None
    if latest is not None:
        window, attempt, since_when = latest.key.window, latest.attempt, since(latest)
        state = state_of(latest, _holder_alive(latest, job.claims, moment))
    if missing is not None and (latest is None or job.expectation.start(missing) > latest.window_start):
        window, attempt, state = job.expectation.key(missing), None, MISSING
        since_when = job.expectation.due(missing, job.late_after)
    next_window, next_due = _next(job, moment, latest)
    return Line(
        job=job.name,
        every=version.every if version else None,
        tz=version.tz if version else None,
        window=window,
        state=state,
        since=since_when,
        attempt=attempt,
        done_window=done.key.window if done else None,
        done_at=done.finished_at if done else None,
        next_window=next_window,
        next_due=next_due,
        counts=_counts(job, findings),
    )


def _newest_missing(job: Job, findings: list[Finding]) -> int | None:
    """Return the number of the newest window that is missing."""
    newest = None
    for finding in findings:
        if finding.bucket == "missing" and finding.start is not None:
            number = job.expectation.number(finding.start)
            if number is not None:
                newest = max(newest or 0, number + finding.windows - 1)
    return newest


def _holder_alive(run: Run, claims: Iterable[Claimed], moment: Moment) -> bool:
    return any(
        claimed.run.key == run.key and claimed.run.window_start == run.window_start and claimed.holder(moment).alive
        for claimed in claims
    )


def _next(job: Job, moment: Moment, latest: Run | None) -> tuple[str | None, float | None]:
    """Return the next window that may still run in time, and when it is missing."""
    version = version_at(job.versions, int(moment.now))
    if version is None or job.versions[-1].every == NEVER:  # nobody knows it, or it was removed
        return None, None
    schedule = schedule_of(version)
    window = schedule.shift(schedule.window_at(moment.now), version.offset)
    taken = latest is not None and latest.window_start >= window.start
    unknown_then = job.begins is not None and window.start < job.begins
    if taken or unknown_then or due(schedule, window, version.offset, job.late_after) <= moment.now:
        window = schedule.after(window)
    return window.key, due(schedule, window, version.offset, job.late_after)


def _counts(job: Job, findings: list[Finding]) -> dict[str, int]:
    """Return the windows of the span by state, without what waits from before it and without what is twice."""
    spans = job.expectation.eras
    begin = spans[0].since if spans else None
    inside = (each for each in findings if begin is None or each.start is None or each.start >= begin)
    found = counts(inside)
    told = {DONE: len(job.starts) - sum(run.status != DONE for run in job.runs)}
    for bucket in ("failed", "exhausted", "held", "stopped", "running", "stuck", "zombies", "missing"):
        if found[bucket]:
            told[bucket] = found[bucket]
    if job.pruned:
        told[PRUNED] = job.pruned
    return told


def windows(
    job: Job,
    moment: Moment,
    runs: Sequence[Run],
    claims: Sequence[Claimed],
    since: int,
    until: int,
    stones: Sequence[Tombstone] = (),
) -> list[WindowState]:
    """Return the windows that start in [since, until): those that are expected, and those that are recorded. None of
    those is expected that were over before the job began.

    `runs` are all recorded ones, `claims` those that are running, `stones` what stands for pruned ones. Raises
    UsageError for more than 100,000 windows.
    """
    wanted = Expectation(job.versions, since, until)
    if wanted.total > MOST_WINDOWS:
        raise UsageError(
            f"From {format_instant(since)} to {format_instant(until)} there are {wanted.total:,} windows.",
            f"Ask for a shorter time (at most {MOST_WINDOWS:,} windows).",
        )
    found: dict[int, WindowState] = {}
    are_due = wanted.due_by(moment.now, job.late_after)
    for number in range(wanted.total):
        start = wanted.start(number)
        began = job.begins is None or start >= job.begins
        state = MISSING if began and any(number in part for part in are_due) else EXPECTED
        found[start] = WindowState(wanted.key(number), start, start, state)
    for era in wanted.eras:
        for window in era.schedule.windows(era.since, era.until):
            if window.start in found:
                found[window.start] = found[window.start].replace(end=window.end)
    for stone in stones:
        for number in range(wanted.from_on(stone.since), wanted.from_on(stone.until)):
            start = wanted.start(number)
            found[start] = found[start].replace(state=PRUNED)
    for run in runs:
        state = state_of(run, _holder_alive(run, claims, moment))
        before = found.get(run.window_start)
        if before is not None and before.state not in (DONE, MISSING, EXPECTED, PRUNED):
            continue  # several inputs of one window: it is done when all of them are
        found[run.window_start] = WindowState(run.key.window, run.window_start, run.window_end, state)
    return [found[start] for start in sorted(found) if not _before_its_time(job, found[start], moment)]


def _before_its_time(job: Job, window: WindowState, moment: Moment) -> bool:
    """Whether a window without a record was over before the job was known: a probe misses none of them either."""
    began = job.begins is None or window.start >= job.begins
    return window.state == EXPECTED and not began and window.end <= moment.now


def with_messages(states: Sequence[WindowState], waiting: Iterable[Waiting]) -> list[WindowState]:
    """Return windows with the messages that wait of each."""
    found: dict[tuple[str, int], dict[str, int]] = {}
    for one in waiting:
        found.setdefault((one.window, one.window_start), {})[one.state] = one.count
    return [each.replace(undelivered=found.get((each.window, each.start), {})) for each in states]
