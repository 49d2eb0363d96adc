"""What a test asks of the ledger it has made: through the questions every store answers, whatever it is kept in."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import Any

from ranonce.lifecycle import Event, Gate, Lease, Run, ScheduleVersion
from ranonce.stores import open_store
from ranonce.stores.base import Job, Store, Tombstone

TODAY = "2026-11-09"
#: Before and after every window.
BEFORE, AFTER = -(1 << 62), 1 << 62


class Asked:
    """A ledger at a URL, and what it has to say."""

    url: str

    @contextlib.contextmanager
    def opened(self) -> Iterator[Store]:
        """Open the store, as one more process would."""
        store = open_store(self.url, wait_seconds=20)
        try:
            yield store
        finally:
            store.close()

    def facts(self, job: str = "job", window: str | None = None) -> list[Event]:
        """Return the events of a job, or of one of its windows, in order."""
        with self.opened() as store:
            told = store.events(job, BEFORE, AFTER)
            return [event for event in told if window in (None, event.key.window)]

    def events(self, job: str = "job", window: str = TODAY) -> list[tuple[str, str | None, int]]:
        """Return (event, reason, attempt) of a window, in order."""
        return [(fact.event, fact.reason, fact.attempt) for fact in self.facts(job, window)]

    def count_of_events(self) -> int:
        """Return how many events the ledger has."""
        with self.opened() as store:
            return sum(1 for _ in store.upkeep().all_events())

    def outputs(self, event: str, job: str = "job") -> list[bytes | None]:
        """Return what was kept of the output with each event of a kind."""
        with self.opened() as store:
            return [store.output(fact.seq) for fact in store.events(job, BEFORE, AFTER) if fact.event == event]

    def all_runs(self) -> list[Run]:
        """Return every run of the ledger, in order of job and window."""
        with self.opened() as store:
            return list(store.upkeep().all_runs())

    def run_of(self, job: str = "job", window: str = TODAY) -> Run:
        """Return the run of a window."""
        with self.opened() as store:
            (run,) = store.runs_named(job, window)
            return run

    def state(self, job: str = "job", window: str = TODAY) -> tuple[str, int]:
        """Return status and attempt of a run."""
        run = self.run_of(job, window)
        return run.status, run.attempt

    def states(self, job: str = "job") -> list[tuple[str, str]]:
        """Return (window, status) of the job's runs, in order."""
        with self.opened() as store:
            return [(run.key.window, run.status) for run in store.runs(job, BEFORE, AFTER)]

    def leases(self, job: str = "job") -> list[Lease]:
        """Return the claims that are held on the job's runs."""
        with self.opened() as store:
            return [held.lease for held in store.leases(job)]

    def left_of_the_lease(self, job: str = "job") -> float:
        """Return for how many seconds the only claim on the job's runs is still good; negative when it is over."""
        with self.opened() as store:
            (held,) = store.leases(job)
            return held.lease.expires - store.clock().now

    def jobs(self) -> list[Job]:
        """Return the jobs the ledger knows."""
        with self.opened() as store:
            return store.jobs()

    def schedules(self, job: str = "job") -> tuple[ScheduleVersion, ...]:
        """Return the versions of the job's schedule."""
        with self.opened() as store:
            return store.schedules(job)

    def tombstones(self, job: str = "job") -> list[Tombstone]:
        """Return what stands where runs of the job were pruned."""
        with self.opened() as store:
            return store.tombstones(job, BEFORE, AFTER)

    def gates(self) -> tuple[Gate, ...]:
        """Return the gates that were ever closed."""
        with self.opened() as store:
            return store.gates()

    def everything(self) -> list[Any]:
        """Return all that the ledger has to tell, to be compared with what it tells later."""
        with self.opened() as store:
            jobs = store.jobs()
            schedules = [store.schedules(job.name) for job in jobs]
            leases = [store.leases(job.name) for job in jobs]
            upkeep = store.upkeep()
            return [jobs, schedules, leases, store.gates(), list(upkeep.all_runs()), list(upkeep.all_events())]

    def is_empty(self) -> bool:
        """Say whether the ledger has heard of nothing yet."""
        return self.jobs() == [] and self.count_of_events() == 0
