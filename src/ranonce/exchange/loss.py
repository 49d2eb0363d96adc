"""Accept that a ledger was lost, and put back what is still known of it: the one recorded way on.

What can be known: what this host's journal saw committed, outcomes that wait on this host to be recorded, and whatever
can still be read of a damaged file. All of it is put back before the ledger may be used again, so that nothing this
host remembers as finished runs a second time. What other hosts did is not known here; their journals can be imported.

A store that is there and sound, but behind, is carried on, in one transaction with its new epoch. Any other is built
anew beside the old place, under the same id, and takes that place when it is whole. What stood there is moved aside and
never deleted. How that is done is each store's own (`Recovery`).
"""

from __future__ import annotations

import os
import time
from collections import Counter
from contextlib import contextmanager

from ranonce.exchange.diagnosis import BEHIND, Loss, Where
from ranonce.exchange.importing import BATCH, note_last, works
from ranonce.exchange.lines import Bad
from ranonce.exchange.reading import LATE_AFTER, MAX_ATTEMPTS
from ranonce.exchange.remembered import Memory
from ranonce.exchange.salvage import Salvage, nobody
from ranonce.failpoints import failpoint
from ranonce.journal import Journal
from ranonce.ledger import OpenLedger
from ranonce.lifecycle import DONE, Event, ScheduleVersion
from ranonce.merging import Told
from ranonce.record import Record
from ranonce.stores import open_store
from ranonce.stores.base import Intake, Job
from ranonce.stores.sqlite.line import WaitingLine
from ranonce.windows import Schedule

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from ranonce.jobspec import JobSpec
    from ranonce.stores.base import Recovery, Store, TakenIn


class Recovered(Record):
    """What was put back. `facts` are lines of the journal, `aside` is what stood there before, if anything did."""

    kind: str
    why: str
    epoch: int
    runs: dict[str, int]
    done: int
    facts: int
    bad: int
    first_bad: tuple[Bad, ...]
    salvaged: int
    aside: str | None
    last: Event | None


@contextmanager
def alone(where: Where) -> Iterator[Recovery]:
    """Let one process at a time put the ledger right."""
    os.makedirs(where.folder, mode=0o700, exist_ok=True)
    line = WaitingLine(os.path.join(where.folder, "accept-loss-line"), where.wait_seconds)
    try:
        with line, where.site.recovery() as recovery:
            yield recovery
    finally:
        line.close()


def recover(
    where: Where, loss: Loss, recovery: Recovery, jobs: Sequence[JobSpec], *, reason: str, by: str
) -> Recovered:
    """Accept the loss, and put back what is known. `jobs` are those of the configuration, for their schedules."""
    if loss.kind == BEHIND:
        return _carry_on(where, loss, jobs, reason, by)
    return _build_anew(where, loss, recovery, jobs, reason, by)


def _carry_on(where: Where, loss: Loss, jobs: Sequence[JobSpec], reason: str, by: str) -> Recovered:
    store = open_store(where.url, wait_seconds=where.wait_seconds)
    ledger = OpenLedger(store, folder=where.folder, wait_seconds=where.wait_seconds)
    last = next(iter(store.newest_events(1)), None)
    memory = Memory(where)
    memory.count()
    _declare_configured(store, jobs)
    told = list(memory.told(store.schedules))
    _place_jobs(store, told)
    counts = _Counts()
    counts.take(
        store.upkeep().take_in(
            Intake(told, loss=(reason, by), epoch=memory.epoch), lambda run, lease: works(ledger, run, lease)
        ),
        told,
    )
    epoch = store.upkeep().epochs()[-1].number
    _witness(where, store, epoch)
    return counts.recovered(loss, epoch, memory, 0, None, last)


def _build_anew(
    where: Where, loss: Loss, recovery: Recovery, jobs: Sequence[JobSpec], reason: str, by: str
) -> Recovered:
    risk = where.site.risk()
    recovery.halt()  # what is damaged may be good enough to write: nothing begins in it that nobody would remember
    old = Salvage(recovery.remains(where.ledger))
    memory, read = Memory(where), _journal_bytes(where)
    memory.count()
    store = recovery.begin(
        where.ledger,
        volatile=f"{risk.kind}: {risk.problem}" if risk else None,
        epoch=max(memory.epoch, old.epoch, 1),
    )
    counts, salvaged = _fill(store, old, memory, jobs)
    old.close()
    failpoint("loss:built")
    if _journal_bytes(where) != read:  # somebody has noted what was committed just before
        for batch in _batches(Memory(where).told(store.schedules)):
            _put(store, batch)
    last = next(iter(store.newest_events(1)), None)
    store.upkeep().accept_loss(reason, by)
    epoch = store.upkeep().epochs()[-1].number
    store.close()
    aside = recovery.take_place()
    failpoint("loss:in-place")
    _witness(where, open_store(where.url, wait_seconds=where.wait_seconds), epoch)
    return counts.recovered(loss, epoch, memory, salvaged, aside, last)


def _fill(store: Store, old: Salvage, memory: Memory, jobs: Sequence[JobSpec]) -> tuple[_Counts, int]:
    """Put back what can be read and what this host remembers; return what came of it, and of how much was only read."""
    old.declare(store)
    _declare_configured(store, jobs)
    counts = _Counts()
    for batch in _batches(old.told(sound=True)):
        counts.take(_put(store, batch), batch)
    salvaged = counts.windows
    for batch in _batches(memory.told(store.schedules)):
        counts.take(_put(store, batch), batch)
    from_journal = counts.windows - salvaged
    for batch in _batches(old.told(sound=False)):
        counts.take(_put(store, batch), batch)
    return counts, counts.windows - from_journal


def _journal_bytes(where: Where) -> int:
    try:
        return os.path.getsize(Journal(where.folder).path)
    except FileNotFoundError:
        return 0


class _Counts:
    """What became of the runs that were put back, and how many of them are done."""

    def __init__(self) -> None:
        self.runs: Counter[str] = Counter()
        self.windows = 0
        self.done = 0

    def take(self, taken: TakenIn, told: Sequence[Told]) -> None:
        self.runs.update(taken.counts)
        left = {key for key, _ in taken.left}
        self.windows += sum(one.run is not None and one.key not in left for one in told)
        self.done += sum(one.run is not None and one.run.status == DONE and one.key not in left for one in told)

    def recovered(
        self, loss: Loss, epoch: int, memory: Memory, salvaged: int, aside: str | None, last: Event | None
    ) -> Recovered:
        return Recovered(
            loss.kind,
            loss.why,
            epoch,
            dict(self.runs),
            self.done,
            memory.facts,
            memory.bad,
            tuple(memory.first_bad),
            salvaged,
            aside,
            last,
        )


def _place_jobs(store: Store, told: Sequence[Told]) -> None:
    """Give each job that is told of a row, where nobody has declared it."""
    for job in dict.fromkeys(one.key.job for one in told):
        if store.job(job) is None:
            store.record_schedule(Job(job, 0, time.time(), LATE_AFTER, MAX_ATTEMPTS), None, -1)


def _put(store: Store, told: Sequence[Told]) -> TakenIn:
    _place_jobs(store, told)
    return store.upkeep().take_in(Intake(told), nobody)


def _batches(told: Iterator[Told]) -> Iterator[list[Told]]:
    batch: list[Told] = []
    for one in told:
        batch.append(one)
        if len(batch) >= BATCH:
            yield batch
            batch = []
    if batch:
        yield batch


def _declare_configured(store: Store, jobs: Sequence[JobSpec]) -> None:
    """Declare the jobs of the configuration: the schedule says where their windows end."""
    now = time.time()
    for spec in jobs:
        if spec.every is None or store.schedules(spec.name):
            continue
        every = Schedule(spec.every, spec.tz, spec.dialect)
        version = ScheduleVersion(1, every.every, every.tz, every.dialect, spec.offset, None, now)
        known = store.job(spec.name)
        job = Job(spec.name, 0, now, spec.late_after, spec.max_attempts)
        store.record_schedule(job, version, known.version if known else -1)


def _witness(where: Where, store: Store, epoch: int) -> None:
    """Let the journal go on in the new epoch: a ledger that goes back behind it is noticed from now on."""
    os.makedirs(where.folder, mode=0o700, exist_ok=True)
    ledger = OpenLedger(store, folder=where.folder)
    ledger.journal = Journal(where.folder, epoch)
    note_last(ledger, next(iter(store.newest_events(1)), None))
    store.close()
