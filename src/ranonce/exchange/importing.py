"""Bring what another ledger tells into this one, batch by batch, while jobs go on.

Each batch is one transaction, and what is told twice changes nothing: an import that was ended in the middle is simply
done again. What could not be read is counted and located, and never keeps the rest from coming in.
"""

from __future__ import annotations

from collections import Counter

from ranonce.exchange.arriving import Arrivals
from ranonce.exchange.handmade import Tally
from ranonce.exchange.lines import Bad
from ranonce.exchange.native import Declared, Head
from ranonce.exchange.reading import LATE_AFTER, MAX_ATTEMPTS, Reading
from ranonce.lifecycle import DONE, FAILED, HELD, Gate, Step, lease_ends
from ranonce.merging import BUSY, KEPT, PRUNED, Told
from ranonce.messages import Message
from ranonce.record import Record
from ranonce.stores.base import Intake, Job, Tombstone

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from ranonce.exchange.native import Item
    from ranonce.exchange.reading import Source
    from ranonce.ledger import OpenLedger
    from ranonce.lifecycle import Event, Lease, Run, RunKey
    from ranonce.stores.base import Store

#: So many windows, or so many bytes of output, are written in one transaction: a fifth of a second, in which jobs wait.
BATCH = 2000
BATCH_BYTES = 4 << 20
#: So many bad places, and windows that were left as they are, are named; all are counted.
NAMED = 10


class Report(Record):
    """What an import came to. `runs` counts by outcome, `left` names windows that were not taken, and why.

    `windows` counts what a rehearsal found, `held` the windows whose end the file does not tell. `messages` counts
    those that are new here by the states they have now, `there` those that were here already by the states that they
    keep, `conflicts` those of them that have another body here, of which the first are named; `steps` all that were
    told of.
    """

    format: str
    runs: dict[str, int]
    events: int
    bad: int
    first_bad: tuple[Bad, ...]
    left: tuple[tuple[RunKey, str], ...] = ()
    unsent: int = 0
    windows: Mapping[str, int] = {}
    held: int = 0
    messages: Mapping[str, int] = {}
    steps: int = 0
    there: Mapping[str, int] = {}
    conflicts: int = 0
    first_conflicts: tuple[str, ...] = ()


class Import:
    """One import into an open ledger."""

    def __init__(self, ledger: OpenLedger, source: Source) -> None:
        self.ledger = ledger
        self.source = source
        self.reading = Reading(ledger, source, declare=True)
        self.counts: Counter[str] = Counter()
        self.events = 0
        self.held = 0
        self.bad = _BadOnes()
        self.left: list[tuple[RunKey, str]] = []
        self.arrivals = Arrivals(ledger, source)
        self.steps = 0
        self._batch: list[Told] = []
        self._messages: list[Message] = []
        self._steps: list[Step] = []
        self._bytes = 0  # of output, bodies and results in it
        self._others: list[Tombstone | Gate] = []
        self._head: Head | None = None
        self._keep_numbers = False
        self._highest = 0  # number of an event, where they are kept
        self._left_out: dict[str, str] = {}  # jobs that cannot come in, and why
        self._placed: set[str] = set()  # jobs the ledger has a row of

    def carry_out(self) -> Report:
        """Import all of it. Raises UsageError or ConfigError where that cannot even begin."""
        lacking = self.ledger.remembers_more()
        if not lacking:
            self.ledger.settle_unrecorded()
        for item in self.reading.items():
            self._take(item)
        self._commit(last=True)
        if lacking and not self.ledger.remembers_more():
            self.ledger.settle_unrecorded()  # before, the ledger did not know the attempts that they are of
        report = Report(
            self.reading.format,
            dict(self.counts),
            self.events,
            self.bad.count,
            tuple(self.bad.first),
            tuple(self.left),
            self.reading.unsent,
            held=self.held,
            steps=self.steps,
        )
        return _with_messages(report, self.arrivals)

    # --- what comes ---

    def _take(self, item: Item) -> None:
        if isinstance(item, Told):
            if item.key.job in self._left_out:
                self._note_left(item.key, self._left_out[item.key.job])
                return
            self._place(item.key.job)
            self._batch.append(item)
            self.held += item.run is not None and item.run.status == HELD
            if self._keep_numbers:
                self._highest = max(self._highest, *(event.seq or 0 for event in item.events), 0)
            self._bytes += sum(len(event.output) for event in item.events if event.output)
            if len(self._batch) >= BATCH or self._bytes >= BATCH_BYTES:
                self._commit()
        elif isinstance(item, Bad):
            self.bad.add(item)
        elif isinstance(item, (Message, Step)):
            self._take_effect(item)
        elif isinstance(item, Declared):
            self._declare(item)
        elif isinstance(item, Head):
            self._head = self.arrivals.head = item
            self._keep_numbers = item.whole and self.source.job is None and untouched(self.ledger.store)
        else:
            self._others.append(item)

    def _take_effect(self, item: Message | Step) -> None:
        """Take what a run left: a message, as far as it may go on here, or a step that is done."""
        job = item.run.job
        if job in self._left_out:
            self._note_left(item.run, self._left_out[job])
            return
        self._place(job)
        if isinstance(item, Step):
            self._steps.append(item)
            self._bytes += len(item.result or b"")
        else:
            self._messages.append(self.arrivals.of(item))
            self._bytes += len(item.body or b"")
        if len(self._messages) + len(self._steps) >= BATCH or self._bytes >= BATCH_BYTES:
            self._commit()

    def _place(self, job: str) -> None:
        """Make sure that the ledger has heard of a job, if only its name."""
        self.arrivals.look_at(job)
        if job in self._placed:
            return
        if self.ledger.store.job(job) is None:
            self.ledger.store.record_schedule(Job(job, 0, self.ledger.now(), LATE_AFTER, MAX_ATTEMPTS), None, -1)
        self._placed.add(job)

    def _declare(self, told: Declared) -> None:
        """Take a job's schedule over; leave out a job that is on another one here."""
        self._commit()
        store, name = self.ledger.store, told.job.name
        here = store.schedules(name)
        for known, new in zip(here, told.versions, strict=False):
            if known.replace(recorded_at=0.0) != new.replace(recorded_at=0.0):
                self._left_out[name] = "its job has another schedule here"
                why = f"the job {name} is on {new.every!r} in {new.tz}, and on {known.every!r} in {known.tz} here"
                self.bad.add(Bad(why, place="schedules"))
                return
        known_job = store.job(name)
        if known_job is None and not told.versions:
            store.record_schedule(told.job, None, -1)
        for version in told.versions[len(here) :]:
            known_job = store.job(name)
            settings = known_job or told.job
            store.record_schedule(settings, version, known_job.version if known_job else -1)
        self._placed.add(name)

    def _note_left(self, key: RunKey, why: str) -> None:
        self.counts[why] += 1
        if len(self.left) < NAMED:
            self.left.append((key, why))

    def _commit(self, *, last: bool = False) -> None:
        """Write what has come so far. How far events were pruned is noted last: until then the numbers are kept."""
        whole = last and self._keep_numbers and not self.bad.count
        # An export that claims more were pruned than there are would blind whoever looks for lost ones.
        pruned_seq = min(self._head.pruned_seq, self._highest) if self._head and whole else 0
        if not (self._batch or self._others or self._messages or self._steps or pruned_seq):
            return
        stones = [one for one in self._others if isinstance(one, Tombstone) and one.job not in self._left_out]
        for stone in stones:
            self._place(stone.job)
        intake = Intake(
            self._batch,
            stones,
            [one for one in self._others if isinstance(one, Gate)],
            keep_numbers=self._keep_numbers,
            pruned_seq=pruned_seq,
            messages=self._messages,
            steps=self._steps,
        )
        self.arrivals.count(self._messages)
        taken = self.ledger.store.upkeep().take_in(intake, lambda run, lease: works(self.ledger, run, lease))
        note_last(self.ledger, taken.last)
        self.counts.update(taken.counts)
        self.events += taken.events
        told = [(key, why) for key, why in taken.left if why in (KEPT, BUSY, PRUNED)]
        self.left += told[: max(0, NAMED - len(self.left))]
        self.steps += len(self._steps)
        self._batch, self._others, self._bytes = [], [], 0
        self._messages, self._steps = [], []


def rehearse(ledger: OpenLedger, source: Source) -> Report:
    """Read all of it and say what it tells, without writing anything."""
    reading = Reading(ledger, source, declare=False)
    bad = _BadOnes()
    windows: Counter[str] = Counter()
    arrivals = Arrivals(ledger, source)
    steps = 0
    if reading.format == "lines":
        tally = Tally(reading.find(), source.now)
        for block in reading.blocks():
            for each in (block,) if isinstance(block, Bad) else tally.take(block):
                bad.add(each)
        windows.update(tally.counts())
    else:
        for item in reading.items():
            if isinstance(item, Bad):
                bad.add(item)
            elif isinstance(item, Told):
                windows.update(_kinds(item))
            elif isinstance(item, Head):
                arrivals.head = item
            elif isinstance(item, Message):
                arrivals.count([arrivals.of(item)])
            steps += isinstance(item, Step)
    found = Report(reading.format, {}, 0, bad.count, tuple(bad.first), unsent=reading.unsent)
    return _with_messages(found, arrivals).replace(windows=dict(windows), steps=steps)


def _with_messages(report: Report, arrivals: Arrivals) -> Report:
    return report.replace(
        messages=dict(arrivals.new),
        there=dict(arrivals.there),
        conflicts=arrivals.conflicts,
        first_conflicts=tuple(arrivals.first_conflicts),
    )


class _BadOnes:
    """The bad places: all counted, the first of them kept."""

    def __init__(self) -> None:
        self.count = 0
        self.first: list[Bad] = []

    def add(self, bad: Bad) -> None:
        self.count += 1
        if len(self.first) < NAMED:
            self.first.append(bad)


def _kinds(told: Told) -> Iterator[str]:
    run = told.run
    if run is None:
        return
    yield "windows"
    yield "done" if run.status == DONE else "failed" if run.status == FAILED else "unfinished"
    if sum(event.event == DONE and event.generation == run.generation for event in told.events) > 1:
        yield "dupes"


def works(ledger: OpenLedger, run: Run, lease: Lease | None) -> bool:
    """Say whether somebody works on a run that is running by its record, as far as this host can tell."""
    sighting = ledger.sighting(run.owner, lease.process if lease else "")
    if sighting.state == "alive":
        return True
    if lease is None or sighting.state == "dead":
        return False
    clock = ledger.store.clock()
    return clock.now < lease_ends(lease, clock.domain, clock.now, clock.wall)


def untouched(store: Store) -> bool:
    """Say whether nothing has happened in a ledger itself: what is in it, if anything, was brought from elsewhere."""
    born = store.identity().created_at
    return store.upkeep().pruned_seq() == 0 and all(event.at < born for event in store.newest_events(1))


def note_last(ledger: OpenLedger, last: Event | None) -> None:
    """Let this host remember the newest event of what it has just brought in: a store without it went back in time."""
    if ledger.journal is None or last is None or ledger.remembers_more():
        return
    try:
        ledger.journal.append((last,))
    except OSError as error:
        ledger.warnings.append(f"the journal {ledger.journal.path!r} could not be written: {error.strerror}")
