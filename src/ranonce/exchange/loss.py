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
from itertools import chain

from ranonce.exchange.diagnosis import BEHIND, Loss, Where
from ranonce.exchange.effects import BY_ITS_KEY, arrived
from ranonce.exchange.importing import BATCH, note_last, works
from ranonce.exchange.lines import Bad
from ranonce.exchange.reading import LATE_AFTER, MAX_ATTEMPTS
from ranonce.exchange.remembered import Memory
from ranonce.exchange.salvage import Salvage, nobody
from ranonce.failpoints import failpoint
from ranonce.journal import Journal
from ranonce.ledger import OpenLedger
from ranonce.lifecycle import DONE, Event, ScheduleVersion, Step
from ranonce.merging import Told
from ranonce.messages import MOST_MESSAGES, PENDING, SENDING, Message, Move
from ranonce.record import Record
from ranonce.stores import open_store
from ranonce.stores.base import Intake, Job, Wanted
from ranonce.stores.sqlite.line import WaitingLine
from ranonce.undelivered import every
from ranonce.windows import Schedule

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping, Sequence
    from typing import TypeVar

    from ranonce.jobspec import JobSpec
    from ranonce.lifecycle import RunKey
    from ranonce.stores.base import Recovery, Store, TakenIn

    T = TypeVar("T")

#: Messages are put back so many at a time: each may have a body of a quarter of a MiB.
BATCH_OF_BODIES = 200


class Recovered(Record):
    """What was put back. `facts` are lines of the journal, `aside` is what stood there before, if anything did.

    `messages` counts those that are there, by state, where any were put back or became doubtful; `forgotten` are those
    that runs have emitted with their outcome, and of which nothing is left. `by_key` are those of which only the key
    is: they stand in the way of others.
    """

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
    messages: Mapping[str, int] = {}
    steps: int = 0
    forgotten: int = 0
    by_key: int = 0


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
    messages = list(memory.messages.values())
    _place_jobs(store, [*(one.key.job for one in told), *(one.run.job for one in messages)])
    _doubt(store)  # before the loss is accepted: from then on everything that waits there goes out
    counts = _Counts()
    counts.take(
        store.upkeep().take_in(
            Intake(told, loss=(reason, by), epoch=memory.epoch, messages=messages),
            lambda run, lease: works(ledger, run, lease),
        ),
        told,
    )
    counts.count_messages(store)
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
        memory = Memory(where)
        for batch in _batches(memory.told(store.schedules)):
            _put(store, batch)
        _put_effects(store, memory.messages.values())
    counts.count_messages(store)
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
    counts.steps = _put_effects(store, old.steps())
    _put_effects(store, chain(old.messages(), memory.messages.values()))
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
        self.steps = 0
        self.messages: dict[str, int] = {}
        self.forgotten = 0
        self.by_key = 0
        self._emitted: dict[tuple[RunKey, int], int] = {}  # messages that went out with an outcome

    def take(self, taken: TakenIn, told: Sequence[Told]) -> None:
        self.runs.update(taken.counts)
        left = {key for key, _ in taken.left}
        self.windows += sum(one.run is not None and one.key not in left for one in told)
        self.done += sum(one.run is not None and one.run.status == DONE and one.key not in left for one in told)

        for one in told:
            sent = sum(_count(event.data.get("messages")) for event in one.events if event.event == DONE)
            where = (one.key, one.window_start)
            self._emitted[where] = max(sent, self._emitted.get(where, 0))

    def count_messages(self, store: Store) -> None:
        """Count the messages that are there, and those that are known to have been."""
        found: Counter[tuple[RunKey, int]] = Counter()
        states: Counter[str] = Counter()
        for message in every(store.outbox(), Wanted()):
            states[message.state] += 1
            self.by_key += message.resolution == BY_ITS_KEY
            found[message.run, message.window_start] += not message.item
        self.messages = dict(states)
        self.forgotten = sum(max(0, count - found[where]) for where, count in self._emitted.items())

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
            self.messages,
            self.steps,
            self.forgotten,
            self.by_key,
        )


def _count(told: object) -> int:
    """Return a number of messages as an event tells it, whatever stands there."""
    return told if isinstance(told, int) and not isinstance(told, bool) and 0 < told <= MOST_MESSAGES else 0


def _doubt(store: Store) -> None:
    """Let everything that waits in a store that went back be in doubt: it may have been sent since."""
    outbox, now = store.outbox(), time.time()
    waiting = every(outbox, Wanted(states=frozenset((PENDING, SENDING))))
    moves: dict[str, list[Move]] = {}
    for message in waiting:
        moves.setdefault(message.destination, []).append(Move(message, arrived(message, now, delivers_here=False)))
    for destination, those in moves.items():
        for batch in _batches(iter(those), BATCH_OF_BODIES):
            outbox.exchange(destination, batch)


def _place_jobs(store: Store, jobs: Iterable[str]) -> None:
    """Give each job that is told of a row, where nobody has declared it."""
    for job in dict.fromkeys(jobs):
        if store.job(job) is None:
            store.record_schedule(Job(job, 0, time.time(), LATE_AFTER, MAX_ATTEMPTS), None, -1)


def _put(store: Store, told: Sequence[Told]) -> TakenIn:
    _place_jobs(store, (one.key.job for one in told))
    return store.upkeep().take_in(Intake(told), nobody)


def _put_effects(store: Store, effects: Iterable[Message | Step]) -> int:
    """Put messages or steps back; return how many."""
    count = 0
    for batch in _batches(iter(effects), BATCH_OF_BODIES):
        _place_jobs(store, (one.run.job for one in batch))
        messages = [one for one in batch if isinstance(one, Message)]
        steps = [one for one in batch if isinstance(one, Step)]
        store.upkeep().take_in(Intake(messages=messages, steps=steps), nobody)
        count += len(batch)
    return count


def _batches(told: Iterator[T], size: int = BATCH) -> Iterator[list[T]]:
    batch: list[T] = []
    for one in told:
        batch.append(one)
        if len(batch) >= size:
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
