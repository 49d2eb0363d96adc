"""A ledger in the memory of one process, for tests: the contract in its plainest form.

The clocks are attributes, so that a test moves time by assignment.
"""

from __future__ import annotations

import json
import threading
import time
from collections import Counter
from contextlib import contextmanager

from ranonce.lifecycle import (
    DONE,
    FAILED,
    HELD,
    RUNNING,
    STOPPED,
    Decision,
    Done,
    Event,
    Gate,
    Held,
    Lease,
    Run,
    RunKey,
    ScheduleVersion,
    Snapshot,
    Step,
    at_the_write,
    attempts_left,
    prunable,
)
from ranonce.merging import ADDED, ADVANCED, Merged, merge
from ranonce.messages import UNDELIVERED, WINDOW, scope_of
from ranonce.stores.base import (
    FIRST,
    Backlog,
    Clock,
    Epoch,
    Identity,
    Job,
    Outline,
    Place,
    Pruned,
    TakenIn,
    Tombstone,
    buried,
    glanced,
    spared,
)
from ranonce.stores.memory.outbox import MemoryOutbox

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from typing import Self

    from ranonce.lifecycle import Retention
    from ranonce.merging import Told
    from ranonce.messages import Message
    from ranonce.stores.base import Glance, Intake, Scope


class MemoryStore:
    """Everything in dictionaries, behind one lock."""

    def __init__(
        self,
        ledger: str = "0" * 32,
        *,
        now: Callable[[], float] = time.monotonic,
        wall: Callable[[], float] = time.time,
        domain: str = "memory",
    ) -> None:
        self.beside: str | None = None
        self.now = now
        self.wall = wall
        self.domain = domain
        self._identity = Identity(ledger, wall())
        self._lock = threading.RLock()
        self._jobs: dict[str, Job] = {}
        self._schedules: dict[str, tuple[ScheduleVersion, ...]] = {}
        self._runs: dict[tuple[RunKey, int], Run] = {}
        self._leases: dict[tuple[RunKey, int], Lease] = {}
        self._gates: dict[str, Gate] = {}
        self._events: list[Event] = []  # in the order of their numbers
        self._seq = 0
        self._pruned_seq = 0
        self._tombstones: dict[str, list[Tombstone]] = {}
        self._epochs: list[Epoch] = []
        self._steps: dict[tuple[RunKey, int, int, str], Step] = {}
        self._outbox = MemoryOutbox(self, self._lock)

    def identity(self) -> Identity:
        return self._identity

    def clock(self) -> Clock:
        return Clock(self.domain, self.now(), self.wall())

    def read(self, key: RunKey, window_start: int) -> Snapshot:
        with self._lock:
            held = self.leases(key.job)
            job = self._jobs.get(key.job)
            return Snapshot(
                version=job.version if job else -1,
                run=self._runs.get((key, window_start)),
                lease=self._leases.get((key, window_start)),
                rivals=tuple(other for other in held if other.key != key),
                gates=self.gates(),
                schedules=self.schedules(key.job),
                pruned=next((stone.ended for stone in self.tombstones(key.job, window_start, window_start + 1)), None),
                domain=self.domain,
                now=self.now(),
                wall=self.wall(),
            )

    def done(self, key: RunKey, window_start: int) -> Done | None:
        run = self._runs.get((key, window_start))
        if run is None or run.status != DONE:
            return None
        return Done(run.attempt, run.owner, run.fingerprint)

    def witnessed(self, key: RunKey, window_start: int, generation: int | None) -> bool:
        wanted = ("start", None) if generation is None else ("done", generation)
        return any(
            event.key == key and (event.event, None if generation is None else event.generation) == wanted
            for event in self._events
        )

    def commit(self, decision: Decision, key: RunKey, after: int) -> tuple[Event, ...] | None:
        with self._lock:
            job = self._jobs.get(key.job)
            if decision.guarded and (job is None or job.version != after):
                return None
            for held in decision.unchanged:
                now = self._leases.get((held.key, held.window_start))
                if now is None or (now.owner, now.attempt, now.expires) != (
                    held.lease.owner,
                    held.lease.attempt,
                    held.lease.expires,
                ):
                    return None
            if not (
                self._is_fenced(decision)
                and not any(_name(step) in self._steps for step in decision.steps)
                and self._outbox.fits(decision.messages, decision.moves)
            ):
                return None
            if decision.guarded and job is not None:
                self._jobs[key.job] = job.replace(version=job.version + 1)
            return self._write(at_the_write(decision, self.now(), self.wall()), key)

    def _is_fenced(self, decision: Decision) -> bool:
        """Whether the claim that a decision is fenced by still has the run."""
        claim = decision.fence
        if claim is None:
            return True
        run = self._runs.get((claim.key, claim.window.start))
        return run is not None and (run.status, run.attempt, run.owner) == (RUNNING, claim.attempt, claim.owner)

    def _write(self, decision: Decision, key: RunKey) -> tuple[Event, ...]:
        run = decision.run
        if run is not None:
            self._runs[key, run.window_start] = run
        if decision.lease is not None:
            start = run.window_start if run else decision.unchanged[0].window_start
            self._leases[key, start] = decision.lease
        for held in decision.sighted:
            self._leases[held.key, held.window_start] = held.lease
        if decision.drop_lease and run is not None:
            self._leases.pop((key, run.window_start), None)
        for gate in decision.gates:
            known = self._gates.get(gate.name)
            if known is None or gate.until > known.until or known.closed_at > gate.closed_at:
                self._gates[gate.name] = gate
        for step in decision.steps:
            self._steps[_name(step)] = step
        for message in decision.messages:
            self._outbox.add(message)
        for move in decision.moves:
            self._outbox.move(move)
        written = tuple(
            event.replace(seq=self._seq + number, at=round(event.at, 3), data=json.loads(json.dumps(event.data)))
            for number, event in enumerate(decision.events, 1)
        )
        self._events.extend(written)
        self._seq += len(written)
        return written

    def record_schedule(self, job: Job, schedule: ScheduleVersion | None, after: int) -> bool:
        with self._lock:
            known = self._jobs.get(job.name)
            if (known.version if known else 0) != max(after, 0):
                return False
            declared_at = known.declared_at if known else job.declared_at
            self._jobs[job.name] = job.replace(version=max(after, 0) + 1, declared_at=declared_at)
            if schedule is not None:
                self._schedules[job.name] = (*self.schedules(job.name), schedule)
            return True

    def job(self, name: str) -> Job | None:
        return self._jobs.get(name)

    def jobs(self) -> list[Job]:
        return [self._jobs[name] for name in sorted(self._jobs)]

    def schedules(self, job: str) -> tuple[ScheduleVersion, ...]:
        return self._schedules.get(job, ())

    def gates(self) -> tuple[Gate, ...]:
        return tuple(self._gates[name] for name in sorted(self._gates))

    def _of(self, job: str) -> list[Run]:
        found = [run for run in self._runs.values() if run.key.job == job]
        return sorted(found, key=_order)

    def runs(self, job: str, since: int, until: int) -> list[Run]:
        return [run for run in self._of(job) if since <= run.window_start < until]

    def stopped(self, job: str, before: int) -> list[Run]:
        return [run for run in self._of(job) if run.window_start < before and run.status == STOPPED]

    def latest(self, job: str, limit: int) -> list[Run]:
        return self._of(job)[::-1][:limit]

    def last_done(self, job: str, before: int) -> Run | None:
        done = [run for run in self._of(job) if run.window_start < before and run.status == DONE]
        return done[-1] if done else None

    def runs_named(self, job: str, window: str) -> list[Run]:
        return [run for run in self._of(job) if run.key.window == window]

    def outline(self, job: str, since: int, until: int) -> Outline:
        runs = self.runs(job, since, until)
        times = [at for run in runs for at in (run.started_at, run.finished_at or run.started_at)]
        return Outline(
            [run.window_start for run in runs],
            [run.window_start for run in runs if not _plain(run)],
            times == sorted(times),
            max(times, default=None),
            min((run.started_at for run in runs), default=None),
        )

    def notable(self, job: str, since: int, until: int) -> list[Run]:
        return [run for run in self.runs(job, since, until) if not _plain(run)]

    def _unfinished(self, job: str, before: int) -> list[Run]:
        waits = (STOPPED, FAILED, HELD)
        return [run for run in self._of(job) if run.window_start < before and run.status in waits]

    def backlog(self, job: str, before: int, max_attempts: int, now: float) -> list[Backlog]:
        kinds: dict[tuple[str, bool, bool], list[int]] = {}
        for run in self._unfinished(job, before):
            spent = run.status == FAILED and not attempts_left(run, max_attempts)
            waiting = run.resume_at is not None and run.resume_at > now
            kinds.setdefault((run.status, spent, waiting), []).append(run.window_start)
        return [Backlog(*kind, len(starts), starts[0], starts[-1]) for kind, starts in sorted(kinds.items())]

    def unfinished(self, job: str, before: int, limit: int) -> list[Run]:
        return self._unfinished(job, before)[::-1][:limit]

    def last_started_end(self, job: str, schedule: int, before: float) -> int | None:
        ends = [run.window_end for run in self._of(job) if run.schedule >= schedule and run.window_start <= int(before)]
        return max(ends, default=None)

    def events(self, job: str, since: int, until: int) -> list[Event]:
        return [
            event.replace(output=None)
            for event in self._events
            if event.key.job == job and since <= event.window_start < until
        ]

    def notable_events(self, job: str, since: int, until: int) -> list[Event]:
        return [event for event in self.events(job, since, until) if event.event not in ("start", "done")]

    def _event(self, seq: int) -> Event | None:
        return next((event for event in self._events if event.seq == seq), None)

    def output(self, seq: int) -> bytes | None:
        event = self._event(seq)
        return event.output if event else None

    def newest_events(self, limit: int) -> list[Event]:
        return [event.replace(output=None) for event in self._events[::-1][:limit]]

    def event(self, seq: int) -> Event | None:
        event = self._event(seq)
        return event.replace(output=None) if event else None

    def leases(self, job: str) -> list[Held]:
        return [Held(key, start, lease) for (key, start), lease in self._leases.items() if key.job == job]

    def glance(self, job: str, scope: Scope) -> Glance:
        return glanced(self, job, scope)

    def tombstones(self, job: str, since: int, until: int) -> list[Tombstone]:
        found = [stone for stone in self._tombstones.get(job, []) if stone.until > since and stone.since < until]
        return sorted(found, key=lambda stone: stone.since)

    def steps(self, key: RunKey, window_start: int, generation: int) -> list[str]:
        return sorted(name for *of, name in self._steps if of == [key, window_start, generation])

    def step(self, key: RunKey, window_start: int, generation: int, name: str) -> Step | None:
        return self._steps.get((key, window_start, generation, name))

    def outbox(self) -> MemoryOutbox:
        return self._outbox

    def upkeep(self) -> Self:
        return self

    def all_messages(self) -> Iterator[Message]:
        return self._outbox.all()

    def all_steps(self) -> Iterator[Step]:
        return iter([self._steps[name] for name in sorted(self._steps, key=lambda name: (str(name[0]), *name[1:]))])

    def pruned_seq(self) -> int:
        return self._pruned_seq

    def prune(self, job: str, keep: Retention, *, after: Place = FIRST, limit: int = 500) -> Pruned:
        with self._lock:
            before = max(keep.done_before, keep.failed_before)
            after_all = (after.window_start, after.window, after.input)
            come = [run for run in self._of(job) if _order(run) > after_all and run.window_start < before]
            runs, every = come[:limit], self._of(job)
            staying = spared(self, job)
            going = [run for run in runs if run.window_start not in staying and prunable(run, keep)]
            end = runs[-1].window_start if len(runs) == limit else before
            for run in going:
                del self._runs[run.key, run.window_start]
                self._prune_what_it_left(run)
            for stone in buried(going, self.wall()):
                self._bury(stone)
            pruned = {(run.key, run.window_start) for run in going}
            kept = {run.window_start for run in every}
            gone = [
                event
                for event in self._events
                if (event.key, event.window_start) in pruned
                or (
                    event.key.job == job
                    and after.window_start <= event.window_start < end
                    and event.window_start not in kept
                    and event.at < keep.done_before
                    and event.seq != self._seq
                )
            ]
            self._events = [event for event in self._events if event not in gone]
            self._pruned_seq = max([self._pruned_seq, *(event.seq or 0 for event in gone)])
            if going:
                known = self._jobs[job]
                self._jobs[job] = known.replace(version=known.version + 1)
            return Pruned(len(going), len(gone), Place(*_order(runs[-1])) if len(runs) == limit else None)

    def _prune_what_it_left(self, run: Run) -> None:
        for name in [name for name in self._steps if name[:2] == (run.key, run.window_start)]:
            del self._steps[name]
        for message in list(self._outbox.all()):
            if (message.run, message.window_start) != (run.key, run.window_start) or message.state in UNDELIVERED:
                continue
            if scope_of(message.key) == WINDOW:
                self._outbox.prune(message)
            else:
                self._outbox.empty(message)

    def _stones(self, job: str) -> list[Tombstone]:
        return self._tombstones.setdefault(job, [])

    def _bury(self, new: Tombstone) -> None:
        stones = self._stones(new.job)
        whole, taken = new.grown(sorted(stones, key=lambda stone: stone.since))
        stones[:] = [stone for stone in stones if stone not in taken] + [whole]

    def problems(self, *, deep: bool) -> list[str]:
        return []

    def all_runs(self) -> Iterator[Run]:
        return iter([run for job in sorted({key.job for key, _ in self._runs}) for run in self._of(job)])

    def all_events(self) -> Iterator[Event]:
        return iter(list(self._events))

    def events_by_window(self, *, output: bool = False) -> Iterator[Event]:
        ordered = sorted(self._events, key=lambda event: (event.key.job, event.window_start, event.seq or 0))
        return iter(ordered if output else [event.replace(output=None) for event in ordered])

    @contextmanager
    def view(self) -> Iterator[None]:
        with self._lock:
            yield

    def take_in(self, intake: Intake, lives: Callable[[Run, Lease | None], bool]) -> TakenIn:
        with self._lock:
            counts: Counter[str] = Counter()
            left: list[tuple[RunKey, str]] = []
            before = len(self._events)
            for told in intake.told:
                merged = self._merged(told, lives)
                counts[merged.outcome] += 1
                if merged.outcome not in (ADDED, ADVANCED):
                    left.append((told.key, merged.outcome))
                    continue
                self._take(merged, told, keep_numbers=intake.keep_numbers)
            for stone in intake.tombstones:
                if not any(one.since <= stone.since and one.until >= stone.until for one in self._stones(stone.job)):
                    self._bury(stone)
            self._write(Decision("import", guarded=False, gates=tuple(intake.gates)), RunKey("", ""))
            self._outbox.take_in(intake.messages)
            for step in intake.steps:
                self._steps.setdefault(_name(step), step)
            self._pruned_seq = max(self._pruned_seq, intake.pruned_seq)
            if intake.loss is not None:
                self.accept_loss(*intake.loss, after=intake.epoch)
            written = len(self._events) - before
            return TakenIn(dict(counts), tuple(left), written, self._events[-1] if written else None)

    def _merged(self, told: Told, lives: Callable[[Run, Lease | None], bool]) -> Merged:
        place = (told.key, told.window_start)
        known = self._runs.get(place)
        story = [event for event in self._events if (event.key, event.window_start) == place]
        live = known is not None and known.status == RUNNING and lives(known, self._leases.get(place))
        pruned = known is None and bool(self.tombstones(told.key.job, told.window_start, told.window_start + 1))
        return merge(told, known, story, live=live, pruned=pruned)

    def _take(self, merged: Merged, told: Told, *, keep_numbers: bool) -> None:
        job = self._jobs[told.key.job]
        self._jobs[told.key.job] = job.replace(version=job.version + 1)
        run, place = merged.run, (told.key, told.window_start)
        if run is not None:
            self._runs[place] = run
            self._leases.pop(place, None)
        after = max((one.seq or 0 for one in self._events if (one.key, one.window_start) == place), default=0)
        for event in merged.events:
            kept = keep_numbers and event.seq is not None and event.seq > after
            kept = kept and all(one.seq != event.seq for one in self._events)
            seq = after = event.seq if kept and event.seq else self._seq + 1
            self._events.append(event.replace(seq=seq, data=json.loads(json.dumps(event.data))))
            self._seq = max(self._seq, seq)
        self._events.sort(key=lambda event: event.seq or 0)

    def set_gate(self, gate: Gate) -> None:
        self._gates[gate.name] = gate

    def epochs(self) -> list[Epoch]:
        return list(self._epochs)

    def accept_loss(self, reason: str, by: str, *, after: int = 0) -> Epoch:
        with self._lock:
            self._identity = self._identity.replace(epoch=max(self._identity.epoch, after) + 1)
            epoch = Epoch(self._identity.epoch, round(self.wall(), 3), reason, by)
            self._epochs.append(epoch)
            return epoch

    def reopen(self, wait_seconds: float) -> Self:
        return self

    def close(self) -> None:
        """Nothing is held: the ledger lives as long as its process."""


def _order(run: Run) -> tuple[int, str, str]:
    return run.window_start, run.key.window, run.key.input


def _plain(run: Run) -> bool:
    return run.status == DONE and run.attempt == 1 and not run.late


def _name(step: Step) -> tuple[RunKey, int, int, str]:
    return step.run, step.window_start, step.generation, step.name
