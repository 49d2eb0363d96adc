"""Compare the windows a job should have had with what is recorded of them. Pure: no clock, no I/O.

`judge` gets one job as `survey` read it and returns what is to be said of it (`findings` lists the buckets). Windows
that are plainly done are compared as numbers only; a run becomes a value of its own where there is something to say.
What happened more than once is judged in `doubles`.
"""

from __future__ import annotations

from bisect import bisect_left
from collections import Counter
from itertools import product

from ranonce import doubles
from ranonce.expectation import schedule_of, version_at
from ranonce.findings import RANGE_FROM, Finding, in_order, in_ranges
from ranonce.lifecycle import FAILED, HELD, STOPPED, UNKNOWN, attempts_left
from ranonce.messages import DEAD, UNSURE
from ranonce.record import Record
from ranonce.standing import STUCK_AFTER_WINDOWS, Holder, holder, how_it_ended, stuck, waits
from ranonce.timefmt import format_duration, format_instant

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from ranonce.expectation import Expectation
    from ranonce.lifecycle import Event, Lease, Run, RunKey, ScheduleVersion, Sighting
    from ranonce.messages import Standing
    from ranonce.stores.base import Backlog, Clock

#: What a refusal of a trigger means, where the window never ran.
REFUSALS = {
    "overlap": "another window of the job was running",
    "gate": "a gate it uses was closed",
    "early": "it had not begun",
    "late": "it came later than max_late allows",
    "superseded": "it belongs to another version of the schedule",
    "pruned": "its record was pruned",
}


class Moment(Record):
    """When one looks. `now` chooses what is due; leases and the future are judged by the store's own clocks."""

    now: float
    clock: Clock


class Claimed(Record):
    """A running run with the lease behind it, if there is one, and what this host saw of its process.

    `ended_as`: its outcome, where it ended and that could not be recorded yet.
    """

    run: Run
    lease: Lease | None = None
    sighting: Sighting = UNKNOWN
    ended_as: str | None = None

    def holder(self, moment: Moment) -> Holder:
        """Say whether anybody is alive behind the run. One that ended is not, however long its lease is good."""
        if self.ended_as is not None:
            return Holder(False, waits(self.ended_as))
        return holder(self.lease, moment.clock, self.sighting)


class Job(Record):
    """What is known of one job, for a span of windows. Instants are unix seconds.

    `declared_at` is None for a job that stands only in the configuration; `begins`: nothing is expected earlier.
    `starts` are the recorded windows of the span, `gaps` the numbers of expected windows without a run, `pruned` how
    many had one whose record was pruned, `strange` the runs of windows that nobody expected. `runs` are the runs of
    the span that are more than plainly done, with others that they must be compared to; `whole`: they are all of the
    span. `events` are the notable ones, `stories` all events of windows where those do not say what became of every
    attempt. `backlog` counts what waits from before the span, `older` are its runs where they are few; `future` are
    runs of windows that have not begun.
    """

    name: str
    versions: tuple[ScheduleVersion, ...]
    expectation: Expectation
    declared_at: float | None
    late_after: float
    max_attempts: int
    overlap: str = "forbid"
    begins: float | None = None
    starts: Sequence[int] = ()
    gaps: tuple[range, ...] = ()
    pruned: int = 0
    strange: tuple[Run, ...] = ()
    runs: tuple[Run, ...] = ()
    whole: bool = False
    events: tuple[Event, ...] = ()
    stories: tuple[Event, ...] = ()
    claims: tuple[Claimed, ...] = ()
    backlog: tuple[Backlog, ...] = ()
    older: tuple[Run, ...] = ()
    future: tuple[Run, ...] = ()
    remark: str | None = None

    def since_known(self, now: float) -> Job:
        """Return the job as one that had nothing to do before the ledger first heard of it (unless that is to come)."""
        if self.declared_at is None or self.declared_at > now:
            return self
        return self.replace(begins=max(self.begins or 0.0, self.declared_at))

    def ran(self, start: int) -> bool:
        """Say whether a run is recorded for a window of the span."""
        at = bisect_left(self.starts, start)
        return at < len(self.starts) and self.starts[at] == start


def judge(job: Job, moment: Moment) -> list[Finding]:
    """Return everything there is to say of one job, in order.

    Raises ConfigError or UsageError for a recorded schedule that cannot be used on this machine.
    """
    refused = _refusals(job)
    found = [*_missing(job, moment, refused)]
    for run in (*job.runs, *job.older):
        found.extend(_unfinished(run, job, moment, refused.get(run.key, Counter())))
    for claimed in job.claims:
        found.append(_at_work(claimed, moment, job.name))
    found.extend(doubles.judge(job, moment))
    found.extend(_odd(job, moment))
    found.extend(_backlog(job))
    if job.remark is not None:
        found.append(Finding("schedule", job.name, "", None, job.remark, note=True))
    return in_order(in_ranges(found, job.expectation.number))


def _refusals(job: Job) -> dict[RunKey, Counter[str]]:
    """Count by reason the refused triggers of each window, without those that only came once more."""
    refused: dict[RunKey, Counter[str]] = {}
    for event in job.events:
        if event.event == "skipped" and not (event.reason in doubles.REPEATED and job.ran(event.window_start)):
            refused.setdefault(event.key, Counter())[event.reason or "no reason"] += 1
    return refused


# --- missing --------------------------------------------------------------------------------------------------------


def _missing(job: Job, moment: Moment, refused: dict[RunKey, Counter[str]]) -> Iterator[Finding]:
    if not job.gaps:
        return
    wanted = job.expectation
    begin = wanted.from_on(job.begins) if job.begins is not None else 0
    due = wanted.due_by(moment.now, job.late_after)
    known_from = 0 if job.declared_at is None else wanted.from_on(job.declared_at)
    tried = _tried(job, refused)
    special = sorted(tried)
    for gap, part in product(job.gaps, due):
        low, high = max(gap.start, begin, part.start), min(gap.stop, part.stop)
        for number in special[bisect_left(special, low) : bisect_left(special, high)]:
            yield from _never_tried(job, low, number, known_from)
            yield _refused(job, number, tried[number])
            low = number + 1
        yield from _never_tried(job, low, high, known_from)


def _tried(job: Job, refused: dict[RunKey, Counter[str]]) -> dict[int, Counter[str]]:
    """Return the refusals of windows that never ran, by the number of the window."""
    keys = {event.key: event.window_start for event in job.events if not job.ran(event.window_start)}
    tried: dict[int, Counter[str]] = {}
    for key, start in keys.items():
        number = job.expectation.number(start)
        if number is not None and key in refused:
            tried.setdefault(number, Counter()).update(refused[key])
    return tried


def _never_tried(job: Job, low: int, high: int, known_from: int) -> Iterator[Finding]:
    """Tell of the windows [low, high) that no trigger ever arrived for: as ranges, or one by one where they are few."""
    if low >= high:
        return
    border = min(max(known_from, low), high)
    for begin, end in ((low, border), (border, high)):
        gist = "no trigger arrived"
        if job.declared_at is None:
            gist += "; the ledger has never heard of the job"
        elif begin < known_from:
            gist += f"; the job was first recorded at {format_instant(job.declared_at)}"
        if end - begin >= RANGE_FROM:
            yield _gap(job, begin, gist).replace(last=job.expectation.key(end - 1), windows=end - begin)
            continue
        for number in range(begin, end):
            due_at = job.expectation.due(number, job.late_after)
            text = f"missing since {format_instant(due_at)}, and {gist}"
            yield _gap(job, number, gist).replace(text=text, facts={"due_at": due_at})


def _gap(job: Job, number: int, gist: str) -> Finding:
    wanted = job.expectation
    return Finding("missing", job.name, wanted.key(number), wanted.start(number), gist, gist=gist)


def _refused(job: Job, number: int, reasons: Counter[str]) -> Finding:
    why = ", ".join(f"{reason} ({REFUSALS[reason]})" if reason in REFUSALS else reason for reason in sorted(reasons))
    due_at, triggers = job.expectation.due(number, job.late_after), reasons.total()
    text = f"missing since {format_instant(due_at)}, and {_triggers(triggers)} refused: {why}"
    finding = _gap(job, number, f"its triggers were refused: {why}")
    return finding.replace(text=text, facts={"due_at": due_at, "refused": dict(reasons)})


def _triggers(count: int) -> str:
    return f"{count} trigger was" if count == 1 else f"{count} triggers were"


# --- runs that are not done -----------------------------------------------------------------------------------------


def _unfinished(run: Run, job: Job, moment: Moment, refused: Counter[str]) -> Iterator[Finding]:
    """Tell of a run that ended and is not done; and of a verdict that came late."""
    tried = f"; {_triggers(refused.total())} refused since ({', '.join(sorted(refused))})" if refused else ""
    told = {**facts(run), "refused": dict(refused)} if refused else facts(run)
    found = Finding("", job.name, run.key.window, run.window_start, "", facts=told)
    if run.late and run.finished_at is not None:
        when = format_instant(run.finished_at)
        gist = f"its verdict ({run.status}) came after its lease was over"
        yield found.replace(bucket="late", text=f"{gist}, at {when}", gist=gist)
    ended = how_it_ended(run)
    if run.status == FAILED and (left := attempts_left(run, job.max_attempts)):
        attempts = "1 more attempt" if left == 1 else f"{left} more attempts"
        gist = f"failed ({ended}), {attempts} allowed"
        yield found.replace(bucket="failed", text=f"attempt {run.attempt} {gist}{tried}", gist=gist)
    elif run.status == FAILED:
        gist = f"all its attempts failed, the last with {ended}"
        text = f"{gist}; a person must release it{tried}"
        yield found.replace(bucket="exhausted", text=text, gist=gist)
    elif run.status == HELD:
        text = f"held ({ended}): its effects may have happened, and a person must say{tried}"
        yield found.replace(bucket="held", text=text, gist=f"held ({ended})")
    elif run.status == STOPPED:
        yield _stopped(run, found, moment, ended, tried)


def _stopped(run: Run, found: Finding, moment: Moment, ended: str, tried: str) -> Finding:
    found = found.replace(bucket="stopped")
    if run.resume_at is None:
        gist = f"stopped ({ended}), with no time to resume"
        return found.replace(text=f"{gist}; the next trigger for the window resumes it{tried}", gist=gist)
    when = format_instant(run.resume_at)
    if moment.now < run.resume_at:
        return found.replace(text=f"stopped ({ended}); it resumes after {when}{tried}", note=True)
    return found.replace(text=f"stopped ({ended}), and due to resume since {when}{tried}")


def _at_work(claimed: Claimed, moment: Moment, name: str) -> Finding:
    """Tell of a run that is running by its record."""
    run, held = claimed.run, claimed.holder(moment)
    about = {**facts(run), "holder": held.process or run.owner}
    found = Finding("running", name, run.key.window, run.window_start, "", facts=about)
    by = f" ({held.process})" if held.process else ""
    began = f"attempt {run.attempt} started at {format_instant(run.started_at)}{by}"
    if not held.alive and claimed.ended_as is not None:
        text = f"{began} and ended: {held.why}"
        return found.replace(bucket="zombies", text=text)
    if not held.alive or held.orphan:
        told = {**about, "orphan": True} if held.orphan else about
        return found.replace(bucket="zombies", text=f"{began} and has no verdict: {held.why}", facts=told)
    lasting = format_duration(max(0.0, moment.now - run.started_at))
    if stuck(run, moment.now):
        text = f"{began}, {lasting} ago: longer than {STUCK_AFTER_WINDOWS} windows of its schedule, and {held.why}"
        return found.replace(bucket="stuck", text=text)
    return found.replace(text=f"{began}, {lasting} ago; {held.why}", note=True)


def facts(run: Run) -> dict[str, object]:
    """Return what machines are told of a run."""
    told = {
        "input": run.key.input or None,
        "status": run.status,
        "attempt": run.attempt,
        "generation": run.generation if run.generation > 1 else None,
        "trigger": run.trigger,
        "started_at": run.started_at,
        "finished_at": run.finished_at,
        "resume_at": run.resume_at,
        "exit": run.exit,
        "reason": run.reason,
        "version": run.version,
    }
    return {name: value for name, value in told.items() if value is not None}


# --- what does not fit ----------------------------------------------------------------------------------------------


def _odd(job: Job, moment: Moment) -> Iterator[Finding]:
    """Tell of runs of windows that the schedule does not have, or that have not begun."""
    for run in job.strange:
        version = version_at(job.versions, run.window_start)
        rule = f"{version.every!r} in {version.tz}" if version else "no schedule"
        text = f"recorded ({run.status}), but the schedule of that time ({rule}) has no such window"
        yield Finding("unexpected", job.name, run.key.window, run.window_start, text, facts=facts(run))
    reads = format_instant(moment.clock.wall)
    for run in job.future:
        text = f"recorded ({run.status}), but it lies in the future: the clock reads {reads}"
        yield Finding("unexpected", job.name, run.key.window, run.window_start, text, facts=facts(run))


def _backlog(job: Job) -> Iterator[Finding]:
    """Tell of what waits from before the span, in one line for each kind."""
    if job.older:
        return
    for kind in job.backlog:
        bucket = "exhausted" if kind.spent else kind.status
        text = "from before the time asked for"
        if kind.waiting:
            text += "; their time to resume is yet to come"
        first, last = _key(job, kind.first), _key(job, kind.last) if kind.count > 1 else None
        yield Finding(bucket, job.name, first, kind.first, text, note=kind.waiting, last=last, windows=kind.count)


def _key(job: Job, start: int) -> str:
    version = version_at(job.versions, start)
    return schedule_of(version).key(start) if version else format_instant(start)


# --- messages -------------------------------------------------------------------------------------------------------


def judge_messages(standings: Sequence[Standing], jobs: Sequence[str] = ()) -> list[Finding]:
    """Return what there is to say of messages that are not delivered, in order; of these jobs only, if any are named.

    They are counted apart from runs: a run that is done stays done, whatever becomes of what it sends.
    """
    found = [finding for standing in standings for finding in _of_destination(standing)]
    return in_order(finding for finding in found if not jobs or finding.job in jobs)


def _of_destination(standing: Standing) -> Iterator[Finding]:
    kinds: dict[tuple[str, str], tuple[int, float]] = {}
    for tally in standing.tallies:
        bucket = tally.state if tally.state in (UNSURE, DEAD) else "overdue" if tally.late else "unsent"
        count, oldest = kinds.get((tally.job, bucket), (0, tally.oldest))
        kinds[tally.job, bucket] = (count + tally.count, min(oldest, tally.oldest))
    for (job, bucket), (count, oldest) in sorted(kinds.items()):
        facts: dict[str, object] = {"destination": standing.destination, "messages": count, "oldest_at": oldest}
        which = f"{count:,} {'message' if count == 1 else 'messages'} to {standing.destination}"
        text = f"{which} {_how_they_stand(bucket, count == 1, standing)}; the oldest is of {format_instant(oldest)}"
        if bucket in ("unsent", "overdue") and standing.closed_until is not None:
            facts["closed_until_at"] = standing.closed_until
            why = f" ({standing.closed_why})" if standing.closed_why else ""
            text += f"; the destination is closed until {format_instant(standing.closed_until)}{why}"
        if bucket in ("unsent", "overdue") and standing.mistake is not None:
            facts["mistake"] = standing.mistake
            text += f"; nothing can be sent there: {standing.mistake.rstrip('.')}"
        yield Finding(bucket, job, "", None, text, note=bucket == "unsent", facts=facts)


def _how_they_stand(bucket: str, one: bool, standing: Standing) -> str:
    waits, them = ("waits", "it") if one else ("wait", "them")
    return {
        "unsent": f"{waits} to be sent",
        "overdue": f"{waits} for longer than {format_duration(standing.late_after)} (does anything deliver {them}?)",
        UNSURE: "may have been received, and a person must say",
        DEAD: f"{'is' if one else 'are'} given up: refused for good, or all attempts spent",
    }[bucket]
