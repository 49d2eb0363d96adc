"""Read from a store, and see on this host, what a probe or a board must know of the jobs. Changes nothing.

Work grows with what is notable, not with the ledger: plain windows are read in outline, everything else through an
index, and whole runs only where there is something to compare.
"""

from __future__ import annotations

from ranonce.calendars import NEVER
from ranonce.doubles import ENDED, REPEATED
from ranonce.expectation import Expectation, schedule_of
from ranonce.ledger import outcome_of
from ranonce.lifecycle import (
    RUNNING,
    Ask,
    Policy,
    RunKey,
    ScheduleVersion,
    claim,
    present_schedules,
)
from ranonce.liveness import this_host, unrecorded
from ranonce.probe import Claimed, Job, Moment
from ranonce.record import Record
from ranonce.sight import sighting_of
from ranonce.stores.base import FAR, Scope
from ranonce.windows import Schedule

TYPE_CHECKING = False
if TYPE_CHECKING:
    from ranonce.jobspec import JobSpec
    from ranonce.lifecycle import Decision, Event, Held, Lease, Run, Sighting
    from ranonce.stores.base import Job as Recorded
    from ranonce.stores.base import Outline, Store
    from ranonce.windows import Window

#: A window that begins later than this after the present is no early trigger, but another clock. Seconds.
FUTURE_AFTER = 300
#: Older runs that wait are named one by one up to so many a job; beyond, they are counted.
NAMED_BACKLOG = 20


class Span(Record):
    """Windows that start in [since, until), unix seconds. `usual`: nobody named a time, so it is fitted to each job.

    It reaches back to the newest due window, so that a weekly one, due when its week has ended, is seen by a probe of
    the last 48 hours; and nothing is missing from before the job was first recorded, so that the first morning is
    quiet. A span that was named is taken as it is.
    """

    since: int
    until: int
    usual: bool = False


class Survey:
    """Looks at the jobs of one ledger at one moment. `folder` is its state folder on this host, if there is one."""

    def __init__(self, store: Store, folder: str | None, now: float | None = None) -> None:
        self.store = store
        self.folder = folder
        clock = store.clock()
        self.moment = Moment(clock.wall if now is None else now, clock)
        self.future = int(max(clock.wall, self.moment.now)) + FUTURE_AFTER
        self._host = this_host()
        self._kept: dict[str, str] | None = None

    def job(self, name: str, span: Span, *, spec: JobSpec | None = None, recorded: Recorded | None = None) -> Job:
        """Read what is known of one job that is recorded, declared in the configuration (`spec`), or both.

        Raises ConfigError or UsageError for a schedule that cannot be used on this machine.
        """
        recorded = recorded or self.store.job(name)
        if recorded is None:
            return unrecorded_job(name, spec, span)
        versions = present_schedules(self.store.schedules(name), self.moment.clock.wall)
        job = described(name, spec, recorded, versions)
        since, until = span.since, max(span.since, min(span.until, self.future))
        wanted = Expectation(job.versions, since, until)
        if span.usual:
            job = job.since_known(self.moment.now)
        if span.usual and not wanted.due_by(self.moment.now, job.late_after):
            since = self._newest_due(job, since)
            wanted = Expectation(job.versions, since, until)
        return self._read(job.replace(expectation=wanted), since, until)

    def _newest_due(self, job: Job, since: int) -> int:
        """Return the start of the newest window that is due, if it began before the span and after the declaration."""
        if not job.versions or job.declared_at is None:
            return since
        version = job.versions[-1]
        schedule = schedule_of(version)
        if schedule.every == NEVER:
            return since
        served_in = schedule.window_at(self.moment.now - job.late_after)
        if not schedule.is_cron:
            served_in = schedule.before(served_in)
        window = schedule.shift(served_in, version.offset)
        begins = version.valid_from if version.valid_from is not None else window.start
        return window.start if begins <= window.start < since and window.end > job.declared_at else since

    def _read(self, job: Job, since: int, until: int) -> Job:
        store, name = self.store, job.name
        seen = store.glance(name, Scope(since, until, self.future, job.max_attempts, self.moment.now))
        outline, events, backlog = seen.outline, seen.events, seen.backlog
        absent, odd = job.expectation.gaps(outline.starts)
        stones = [(stone.since, stone.until) for stone in seen.tombstones]
        gaps = job.expectation.without(absent, stones) if absent else absent
        claims = self._claims(name, seen.notable, seen.held)
        whole = job.overlap == "forbid" and not self._in_turn(outline, claims)
        runs = store.runs(name, since, until) if whole else self._with_named(name, seen.notable, events)
        few = sum(kind.count for kind in backlog) <= NAMED_BACKLOG
        return job.replace(
            starts=outline.starts,
            gaps=tuple(gaps),
            pruned=sum(map(len, absent)) - sum(map(len, gaps)),
            strange=tuple(self._strange(job, odd, runs)),
            runs=tuple(runs),
            whole=whole,
            events=tuple(events),
            stories=tuple(self._stories(name, runs, events)),
            claims=tuple(claims),
            backlog=tuple(backlog),
            older=tuple(store.unfinished(name, since, NAMED_BACKLOG)) if backlog and few else (),
            future=tuple(seen.later),
        )

    def latest(self, name: str, limit: int) -> list[Run]:
        """Return the newest runs by window, without those that lie in the future, newest first."""
        ahead = len(self.store.runs(name, self.future, FAR))
        return self.store.latest(name, ahead + limit)[ahead:]

    def would(
        self,
        name: str,
        window: Window,
        digest: str,
        version: ScheduleVersion | None,
        spec: JobSpec,
        *,
        trigger: str = "schedule",
    ) -> Decision | None:
        """Return what the rules would decide on a trigger for a window now; None for a job that is not recorded.

        Nothing is written. `spec` gives the job's rules, `digest` the input where other input is other work.
        """
        key = RunKey(name, window.key, digest)
        snap = self.store.read(key, window.start)
        if snap.version < 0 or version is None:
            return None
        served_in = schedule_of(version).shift(window, -version.offset) if version.offset else window
        policy = Policy(
            spec.max_attempts, spec.retry_delay, spec.early, spec.max_late, spec.overlap, spec.on_crash, spec.uses
        )
        ask = Ask(key, window, version.number, "?", spec.lease, self.moment.now, served_in.start, trigger, policy)
        leases = {held.lease.owner: held.lease for held in snap.rivals}
        sightings = {owner: self.sighting(owner, lease) for owner, lease in leases.items()}
        if snap.run is not None and snap.run.status == RUNNING:
            sightings[snap.run.owner] = self.sighting(snap.run.owner, snap.lease)
        return claim(snap, ask, sightings)

    # --- claims ---

    def claimed(self, run: Run) -> Claimed:
        """Return what is known of the holder of one run."""
        for held in self.store.leases(run.key.job):
            if held.key == run.key and held.window_start == run.window_start:
                return self._claimed(run, held.lease)
        return self._claimed(run, None)

    def _claimed(self, run: Run, lease: Lease | None) -> Claimed:
        return Claimed(run, lease, self.sighting(run.owner, lease), self._ended_as(run.owner))

    def _claims(self, name: str, runs: list[Run], held: list[Held]) -> list[Claimed]:
        """Return the running runs of the span, and older or later ones that a lease speaks of."""
        running = {(run.key, run.window_start): run for run in runs if run.status == RUNNING}
        leases = {(one.key, one.window_start): one.lease for one in held}
        for key, start in leases:
            if (key, start) not in running:
                for run in self.store.runs(name, start, start + 1):
                    if run.key == key and run.status == RUNNING and start < self.future:
                        running[key, start] = run
        return [self._claimed(run, leases.get(place)) for place, run in running.items()]

    def sighting(self, owner: str, lease: Lease | None) -> Sighting:
        """Return what can be proved here of the attempt behind a claim."""
        process = lease.process if lease else ""
        return sighting_of(owner, process, folder=self.folder, beside=self.store.beside, here=self._host)

    def _ended_as(self, owner: str) -> str | None:
        """Return the outcome that this host keeps for an attempt because it could not be recorded."""
        if self.folder is None:
            return None
        if self._kept is None:
            outcomes = ((owner, outcome_of(text)) for owner, text in unrecorded(self.folder))
            self._kept = {owner: outcome[1].outcome for owner, outcome in outcomes if outcome is not None}
        return self._kept.get(owner)

    # --- runs ---

    def _in_turn(self, outline: Outline, claims: list[Claimed]) -> bool:
        """Say whether the outline shows that no two runs worked at the same time, those at work now included."""
        if len(claims) > 1 or not outline.in_turn:
            return False
        return all(outline.latest is None or outline.latest <= claimed.run.started_at for claimed in claims)

    def _with_named(self, name: str, runs: list[Run], events: list[Event]) -> list[Run]:
        """Return the runs with those whose version must be known, because a trigger came again and named one."""
        known = {run.key for run in runs}
        named = {
            event.window_start
            for event in events
            if event.event == "skipped" and event.reason in REPEATED and event.version and event.key not in known
        }
        added = (run for start in sorted(named) for run in self.store.runs(name, start, start + 1))
        return [*runs, *(run for run in added if run.key not in known)]

    def _strange(self, job: Job, odd: list[int], runs: list[Run]) -> list[Run]:
        """Return the runs of windows that no schedule has. One that has it without firing it is not strange."""
        found = []
        for start in dict.fromkeys(odd):
            found += [run for run in self.store.runs(job.name, start, start + 1) if not _is_window(job, run)]
        misnamed = (run for run in runs if run.window_start not in odd and not _is_window(job, run))
        return [*found, *misnamed]

    def _stories(self, name: str, runs: list[Run], events: list[Event]) -> list[Event]:
        """Return all events of the windows where the notable ones do not say what became of every earlier attempt."""
        told: dict[RunKey, set[int]] = {}
        for event in events:
            if event.event in ENDED:
                told.setdefault(event.key, set()).add(event.attempt)
            elif event.event == "rerun":
                told.setdefault(event.key, set()).add(event.attempt - 1)
        unclear = {run.window_start for run in runs if run.attempt > 1 and len(told.get(run.key, ())) < run.attempt - 1}
        return [event for start in sorted(unclear) for event in self.store.events(name, start, start + 1)]


def unrecorded_job(name: str, spec: JobSpec | None, span: Span) -> Job:
    """Return a job that no ledger knows: it is expected from the beginning of the span on, and never ran."""
    job = described(name, spec, None, ())
    wanted = Expectation(job.versions, span.since, span.until)
    return job.replace(expectation=wanted, gaps=tuple(wanted.gaps(())[0]))


def described(name: str, spec: JobSpec | None, recorded: Recorded | None, versions: tuple[ScheduleVersion, ...]) -> Job:
    """Return a job by its own settings: those of the configuration where it stands there, else the recorded ones."""
    remark = None
    if spec is not None and spec.every is not None:
        if not versions:
            versions = (ScheduleVersion(1, spec.every, spec.tz, spec.dialect, spec.offset, None, 0.0),)
        else:
            remark = _edited(spec, versions[-1])
    elif not versions:
        remark = "no schedule is known for it, so nothing can be expected"
    return Job(
        name=name,
        versions=versions,
        expectation=Expectation((), 0, 0),
        declared_at=recorded.declared_at if recorded else None,
        late_after=spec.late_after if spec else recorded.late_after if recorded else 3600.0,
        max_attempts=spec.max_attempts if spec else recorded.max_attempts if recorded else 3,
        overlap=spec.overlap if spec else "forbid",
        begins=spec.since if spec else None,
        remark=remark,
    )


def _edited(spec: JobSpec, version: ScheduleVersion) -> str | None:
    """Say that the configuration has a newer schedule than the ledger, which the next run will record."""
    assert spec.every is not None
    in_file = Schedule(spec.every, spec.tz, spec.dialect)
    if in_file == schedule_of(version) and spec.offset == version.offset:
        return None
    return (
        f"the configuration says {spec.every!r} in {spec.tz}, the ledger still {version.every!r} in {version.tz}:"
        " windows are judged by the ledger's until the next run records the new one"
    )


def _is_window(job: Job, run: Run) -> bool:
    """Say whether the schedule has the run's window, under its key, whether it is ever fired or not."""
    number = job.expectation.number(run.window_start)
    if number is not None:
        return job.expectation.key(number) == run.key.window
    for era in job.expectation.eras:
        if era.since <= run.window_start < era.until:
            ticks = era.schedule.starts(run.window_start, run.window_start + 1)
            return len(ticks) == 1 and era.schedule.key(run.window_start) == run.key.window
    return not job.versions
