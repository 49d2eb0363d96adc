"""A ledger in memory in which a test plants what happened, at a clock that stands still."""

from __future__ import annotations

from ranonce.emission import TEXT, digest_of
from ranonce.findings import Finding, counts
from ranonce.jobspec import JobSpec
from ranonce.lifecycle import Decision, Event, Gate, Lease, Retention, Run, RunKey, ScheduleVersion, Step
from ranonce.messages import Message, message_key
from ranonce.probe import judge
from ranonce.stores.base import Intake, Job, Store
from ranonce.stores.memory.store import MemoryStore
from ranonce.survey import Span, Survey
from ranonce.timefmt import parse_instant
from ranonce.windows import Schedule, Window

NOW = "2026-11-09T12:30:00Z"
BOOT = 100_000.0  # what the lease clock reads at NOW
DOMAIN = "boot-1/time-1"


def at(text: str) -> int:
    """Return the unix seconds of an instant."""
    return int(parse_instant(text))


def message_of(window: Window, own: str = "", destination: str = "slack", job: str = "j") -> Message:
    """Return a message that a run of a window has emitted at its start."""
    key, body = RunKey(job, window.key), f"body {own}".encode()
    return Message(
        message_key("window", key, destination, own),
        key,
        window.start,
        destination,
        TEXT,
        digest_of(TEXT, body),
        body,
        1,
        1,
        "",
        float(window.start + 5),
        float(window.start + 5),
    )


class Planted:
    """One job in a store, and what is planted for it. Instants are text, as the ledger prints them."""

    def __init__(self, every: str = "hour", *, tz: str = "UTC", store: Store | None = None, **job: object) -> None:
        self.clock = at(NOW)
        self.store: Store = store or MemoryStore(now=lambda: BOOT, wall=lambda: self.clock, domain=DOMAIN)
        self.schedules: list[Schedule] = []
        self.settings: dict[str, object] = {"late_after": 3600.0, "max_attempts": 3, **job}
        self.declared_at = at(str(self.settings.pop("declared_at", "2026-01-01T00:00:00Z")))
        self.declare(every, tz=tz)

    def declare(
        self, every: str, *, tz: str = "UTC", dialect: str = "debian", offset: int = 0, valid_from: str | None = None
    ) -> None:
        """Record one more version of the job's schedule."""
        known = self.store.job("j")
        job = Job("j", 0, self.declared_at, **self.settings)
        version = ScheduleVersion(
            len(self.schedules) + 1,
            every,
            tz,
            dialect,
            offset,
            at(valid_from) if valid_from else None,
            self.declared_at,
        )
        assert self.store.record_schedule(job, version, known.version if known else -1)
        self.schedules.append(Schedule(every, tz, dialect))

    def run(
        self,
        key: str,
        status: str = "done",
        *,
        started: str | None = None,
        seconds: float = 60,
        attempt: int = 1,
        lease: float | None = None,
        domain: str = DOMAIN,
        schedule: int | None = None,
        **fields: object,
    ) -> RunKey:
        """Plant a run. `lease` is how many seconds its lease is still good for (negative: it is over)."""
        number = schedule or len(self.schedules)
        window = self.schedules[number - 1].window(key)
        began = at(started) if started else window.start + 5
        run = Run(
            key=RunKey("j", key),
            window_start=window.start,
            window_end=window.end,
            status=status,
            generation=1,
            attempt=attempt,
            owner=f"{attempt:032x}",
            failures=attempt if status == "failed" else attempt - 1,
            schedule=number,
            trigger="schedule",
            started_at=began,
            finished_at=None if status == "running" else began + seconds,
        ).replace(**fields)
        held = None if lease is None else Lease(run.owner, attempt, domain, BOOT + lease, 300.0, "host pid 7")
        self.commit(run.key, run=run, lease=held)
        self.event("start", run, at=began)
        if status != "running":
            self.event(status, run, at=began + seconds, reason=run.reason, data={"exit": run.exit, "seconds": seconds})
        return run.key

    def message(self, window: str, own: str = "", destination: str = "slack", **fields: object) -> Message:
        """Plant a message of a window, as it stands: pending since the run's start, unless `fields` say otherwise."""
        message = message_of(self.schedules[-1].window(window), own, destination).replace(**fields)
        self.store.upkeep().take_in(Intake(messages=[message]), lambda run, lease: False)
        return self.store.outbox().message(message.key)

    def step(self, window: str, name: str, generation: int = 1) -> None:
        """Plant a step that is done."""
        start = self.schedules[-1].window(window).start
        step = Step(RunKey("j", window), start, generation, name, 1, float(start + 5), b"result")
        self.store.upkeep().take_in(Intake(steps=[step]), lambda run, lease: False)

    def misnamed(self, key: str, start: str, end: str, **fields: object) -> RunKey:
        """Plant a done run of a window that no schedule has."""
        run = Run(
            RunKey("j", key),
            at(start),
            at(end),
            "done",
            1,
            1,
            "0" * 32,
            0,
            1,
            "manual",
            at(start),
            finished_at=at(start),
        )
        self.commit(run.key, run=run.replace(**fields))
        return run.key

    def event(self, event: str, run: Run | str, *, at: float | None = None, **fields: object) -> None:
        """Plant an event of a run, or of a window that never ran (by its key)."""
        if isinstance(run, str):
            start = self.schedules[-1].window(run).start
            planted = Event(start + 5, RunKey("j", run), start, event, 0, 1, owner="f" * 32, trigger="schedule")
        else:
            planted = Event(0, run.key, run.window_start, event, run.attempt, run.generation, owner=run.owner)
            planted = planted.replace(trigger=run.trigger, version=run.version, host="host")
        moved = {**fields, **({"at": at} if at is not None else {})}
        self.commit(planted.key, events=(planted.replace(**moved),))

    def recorded(self, key: RunKey | str) -> Run:
        """Return a planted run."""
        name = key if isinstance(key, str) else key.window
        return next(run for run in self.store.runs("j", 0, 1 << 60) if run.key.window == name)

    def skip(self, key: str, reason: str, **fields: object) -> None:
        """Plant a refused trigger."""
        self.event("skipped", key, reason=reason, **fields)

    def gate(self, name: str, until: str) -> None:
        self.commit(RunKey("j", "gate"), gates=(Gate(name, at(until), "429", "j", at(until) - 60),))

    def commit(self, key: RunKey, **written: object) -> None:
        assert self.store.commit(Decision("planted", guarded=False, **written), key, 0) is not None

    def hours(self, since: str, until: str, *, but: tuple[str, ...] = ()) -> None:
        """Plant plainly done runs for all windows of the newest schedule in a span, but for some."""
        for window in self.schedules[-1].windows(at(since), at(until)):
            if window.key not in but:
                self.run(window.key)

    def prune(self, before: str) -> None:
        """Prune what is done and was over before an instant."""
        self.store.upkeep().prune("j", Retention(at(before), 0))

    # --- what is said of it ---

    def survey(self, now: str = NOW, folder: str | None = None) -> Survey:
        return Survey(self.store, folder, at(now))

    def probe(
        self,
        since: str = "2026-11-09T10:00:00Z",
        until: str = NOW,
        *,
        now: str = NOW,
        spec: JobSpec | None = None,
        folder: str | None = None,
        usual: bool = False,
    ) -> list[Finding]:
        survey = self.survey(now, folder)
        job = survey.job("j", Span(at(since), at(until), usual), spec=spec)
        return judge(job, survey.moment)


def said(findings: list[Finding]) -> list[tuple[str, str]]:
    """Return bucket and window, or range of windows, of each finding."""
    return [(finding.bucket, finding.span) for finding in findings]


def only(findings: list[Finding]) -> Finding:
    """Return the one finding."""
    assert len(findings) == 1, [(each.bucket, each.span, each.text) for each in findings]
    return findings[0]


def counted(findings: list[Finding]) -> dict[str, int]:
    """Return the buckets that hold something."""
    return {bucket: count for bucket, count in counts(findings).items() if count}
