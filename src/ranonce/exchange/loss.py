"""Accept that a ledger was lost, and put back what is still known of it: the one recorded way on.

What can be known: what this host's journal saw committed, outcomes that wait on this host to be recorded, and whatever
can still be read of a damaged file. All of it is put back before the ledger may be used again, so that nothing this
host remembers as finished runs a second time. What other hosts did is not known here; their journals can be imported.

A store that is there and sound, but behind, is carried on, in one transaction with its new epoch. Any other is built
anew beside the old place, under the same id, and takes that place when it is whole. The old files are moved aside and
never deleted.
"""

from __future__ import annotations

import glob
import os
import time
from collections import Counter
from contextlib import contextmanager
from itertools import groupby

from ranonce.errors import NotThisLedger, RanonceError, StoreUnavailable, UsageError
from ranonce.exchange.facts import JournalReader, placed
from ranonce.exchange.importing import BATCH, NAMED, note_last, works
from ranonce.exchange.lines import Bad, blocks
from ranonce.exchange.lookup import Find, Lookup, Place
from ranonce.exchange.native import settled
from ranonce.exchange.recognise import open_plain
from ranonce.failpoints import failpoint
from ranonce.filesystem import file_system_of
from ranonce.folding import disagreements
from ranonce.journal import Journal, decode
from ranonce.ledger import OpenLedger, outcome_of
from ranonce.lifecycle import DONE, Event, Run, RunKey, ScheduleVersion
from ranonce.liveness import unrecorded
from ranonce.merging import Told, folded, state_of
from ranonce.record import Record
from ranonce.stores import open_store
from ranonce.stores.base import Intake, Job
from ranonce.stores.line import WaitingLine
from ranonce.stores.sqlite import SqliteStore
from ranonce.stores.sqlite_create import create, sync_folder
from ranonce.stores.sqlite_file import APPLICATION_ID, FORMAT, private_file
from ranonce.timefmt import format_instant
from ranonce.windows import Schedule

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from ranonce.folding import Story
    from ranonce.jobspec import JobSpec
    from ranonce.lifecycle import Lease
    from ranonce.stores.base import Store, TakenIn

MAGIC = b"SQLite format 3\0"
# How a ledger was lost.
MISSING, DAMAGED, BEHIND = "missing", "damaged", "behind"


class Where(Record):
    """Which ledger it is about: its id, its file, its URL, and this host's folder for it."""

    ledger: str
    path: str
    url: str
    folder: str
    wait_seconds: float = 30.0


class Loss(Record):
    """How the ledger was lost, and the sentence that says so."""

    kind: str
    why: str


class Recovered(Record):
    """What was put back. `facts` are lines of the journal, `aside` is where the old file is now, if there was one."""

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
def alone(where: Where) -> Iterator[None]:
    """Let one process at a time put the ledger right, and remove what one that was killed has left."""
    os.makedirs(where.folder, mode=0o700, exist_ok=True)
    line = WaitingLine(os.path.join(where.folder, "accept-loss-line"), where.wait_seconds)
    try:
        with line:
            for leftover in glob.glob(f"{glob.escape(where.path)}.*.recovered*"):
                os.unlink(leftover)
            yield
    finally:
        line.close()


# --- what is wrong --------------------------------------------------------------------------------------------------


def diagnose(where: Where) -> Loss | None:
    """Say how the ledger was lost; None where nothing is wrong with it.

    Raises NotThisLedger for what is no loss of this ledger: another one, somebody else's file, a wrong mode.
    """
    if not os.path.lexists(where.path):
        return Loss(MISSING, f"there is no file at {where.path!r}")
    if (broken := _no_ledger_file(where.path)) is not None:
        return broken
    try:
        store = open_store(where.url, wait_seconds=where.wait_seconds)
    except NotThisLedger as error:
        return Loss(DAMAGED, error.sentence)
    try:
        identity = store.identity()
        if identity.ledger != where.ledger:
            raise NotThisLedger(
                f"the store {where.url} is ledger {identity.ledger}, and {where.ledger} is expected there.",
                "Nothing was changed. Name the right store; a ledger that only moved is no loss.",
            )
        return _damage(store) or _behind(store, where)
    finally:
        store.close()


def _no_ledger_file(path: str) -> Loss | None:
    """Look at the file itself. Raises NotThisLedger where it is not ours to replace."""
    if not os.path.islink(path) and os.path.isfile(path) and os.path.getsize(path) == 0:
        return Loss(DAMAGED, f"the ledger {path!r} is empty (0 bytes).")
    private_file(path)
    with open(path, "rb") as file:
        header = file.read(100)
    if not header.startswith(MAGIC) or len(header) < 100:
        return Loss(DAMAGED, f"{path!r} is no database any more.")
    application, version = (int.from_bytes(header[at : at + 4], "big") for at in (68, 60))
    if application != APPLICATION_ID:
        raise NotThisLedger(
            f"{path!r} is a SQLite file of something else, not a ranonce ledger.",
            "Nothing was changed. Move it away yourself if the ledger was overwritten, and say so again.",
        )
    if version != FORMAT:
        raise NotThisLedger(
            f"{path!r} has table format {version}; this ranonce knows format {FORMAT}.",
            "Bring it up to date: ranonce init" if 0 < version < FORMAT else "Use the version that wrote it.",
        )
    return None


def _damage(store: Store) -> Loss | None:
    """Look for damage inside: pages and indexes, and rows that their own events contradict."""
    try:
        if problems := store.upkeep().problems(deep=True):
            return Loss(DAMAGED, f"the file is damaged: {problems[0]}")
        with store.upkeep().view():
            for run, events in _stories(store):
                told = folded(events)
                if told.status == DONE and (run is None or (run.status, run.generation) != (DONE, told.generation)):
                    return Loss(DAMAGED, f"its events know {events[0].key} as done, and its runs do not")
                if run is None and told.status is not None:
                    return Loss(DAMAGED, f"its events know of {events[0].key}, and its runs do not")
    except NotThisLedger as error:
        return Loss(DAMAGED, error.sentence)
    return None


def _behind(store: Store, where: Where) -> Loss | None:
    journal = Journal(where.folder, store.identity().epoch)
    try:
        journal.check(journal.tail(), store)
    except NotThisLedger as error:
        return Loss(BEHIND, error.sentence)
    return None


def _stories(store: Store) -> Iterator[tuple[Run | None, list[Event]]]:
    """Go through all runs with their events, and through events of runs that have no row."""
    upkeep = store.upkeep()
    runs = groupby(upkeep.all_runs(), key=lambda run: (run.key.job, run.window_start))
    events = groupby(upkeep.events_by_window(), key=lambda event: (event.key.job, event.window_start))
    run_group, event_group = next(runs, None), next(events, None)
    while run_group is not None or event_group is not None:
        places = [group[0] for group in (run_group, event_group) if group is not None]
        place = min(places)
        here: list[Run] = []
        told: list[Event] = []
        if run_group is not None and run_group[0] == place:
            here = list(run_group[1])
            run_group = next(runs, None)
        if event_group is not None and event_group[0] == place:
            told = list(event_group[1])
            event_group = next(events, None)
        keys = {run.key: run for run in here}
        for key in dict.fromkeys([*keys, *(event.key for event in told)]):
            yield keys.get(key), [event for event in told if event.key == key]


# --- what is still known --------------------------------------------------------------------------------------------


class Memory:
    """What this host still knows of the ledger: its journal, and outcomes that wait to be recorded."""

    def __init__(self, where: Where) -> None:
        self.where = where
        self.facts = 0
        self.epoch = 0
        self.bad = 0
        self.first_bad: list[Bad] = []

    def told(self, versions: Callable[[str], Sequence[ScheduleVersion]]) -> Iterator[Told]:
        """Yield what is known, window by window; `versions` of a job's schedule say where its windows end."""
        reader = JournalReader(Find(versions, float("inf")))
        try:
            with open_plain(Journal(self.where.folder).path) as file:
                for block in blocks(file):
                    for item in (block,) if isinstance(block, Bad) else reader.take(block):
                        yield from self._item(item)
        except UsageError:
            if os.path.lexists(Journal(self.where.folder).path):
                raise
        for owner, text in unrecorded(self.where.folder):
            self._outcome(reader, owner, text)
        for item in reader.rest():
            yield from self._item(item)

    def _item(self, item: Told | Bad) -> Iterator[Told]:
        if isinstance(item, Told):
            yield item
            return
        self.bad += 1
        if len(self.first_bad) < NAMED:
            self.first_bad.append(item)

    def _outcome(self, reader: JournalReader, owner: str, text: str) -> None:
        outcome = outcome_of(text)
        if outcome is None:
            self.first_bad.append(Bad(f"the outcome kept for attempt {owner} cannot be read", place="attempts"))
            self.bad += 1
            return
        held, verdict = outcome
        event = Event(
            verdict.at,
            held.key,
            held.window.start,
            verdict.outcome,
            held.attempt,
            held.generation,
            verdict.reason,
            held.owner,
            held.trigger,
            held.version,
            data={"imported": "outcome", "exit": verdict.exit, "started_at": held.started_at},
        )
        reader.facts.add(event, Place(held.window, 1))

    def count(self) -> None:
        """Count the journal's facts, and find its last epoch."""
        try:
            with open_plain(Journal(self.where.folder).path) as file:
                for block in blocks(file):
                    for line in () if isinstance(block, Bad) else block.data.split(b"\n"):
                        if line and (fact := _whole(line)) is not None:
                            self.facts += 1
                            self.epoch = max(self.epoch, fact)
        except UsageError:
            return  # there is none: this host saw nothing


def _whole(line: bytes) -> int | None:
    """Return the epoch of a whole line of the journal, or None."""
    try:
        fact = decode(line)
        return int(fact["epoch"]) if fact is not None else None
    except (ValueError, KeyError, TypeError):
        return None


# --- the way on -----------------------------------------------------------------------------------------------------


def recover(where: Where, loss: Loss, jobs: Sequence[JobSpec], *, reason: str, by: str) -> Recovered:
    """Accept the loss, and put back what is known. `jobs` are those of the configuration, for their schedules."""
    if loss.kind == BEHIND:
        return _carry_on(where, loss, jobs, reason, by)
    return _build_anew(where, loss, jobs, reason, by)


def _carry_on(where: Where, loss: Loss, jobs: Sequence[JobSpec], reason: str, by: str) -> Recovered:
    store = open_store(where.url, wait_seconds=where.wait_seconds)
    ledger = OpenLedger(store, folder=where.folder, wait_seconds=where.wait_seconds)
    last = next(iter(store.newest_events(1)), None)
    memory = Memory(where)
    memory.count()
    _declare_configured(store, jobs)
    told = list(memory.told(store.schedules))
    for job in dict.fromkeys(one.key.job for one in told):
        if store.job(job) is None:
            store.record_schedule(Job(job, 0, time.time(), 3600.0, 3), None, -1)
    counts = _Counts()
    counts.take(
        store.upkeep().take_in(Intake(told, loss=(reason, by)), lambda run, lease: works(ledger, run, lease)), told
    )
    epoch = store.upkeep().epochs()[-1].number
    _witness(where, store, epoch)
    return counts.recovered(loss, epoch, memory, 0, None, last)


def _build_anew(where: Where, loss: Loss, jobs: Sequence[JobSpec], reason: str, by: str) -> Recovered:
    building = f"{where.path}.{os.getpid()}.recovered"
    place = file_system_of(os.path.dirname(where.path))
    old = _Salvage(where)
    memory = Memory(where)
    memory.count()
    create(
        building,
        where.ledger,
        volatile=f"{place.kind}: {place.problem}" if place.problem else None,
        epoch=max(memory.epoch, old.epoch, 1),
    )
    try:
        store = SqliteStore(building, wait_seconds=where.wait_seconds)
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
        salvaged = counts.windows - from_journal
        old.close()
        last = next(iter(store.newest_events(1)), None)
        store.upkeep().accept_loss(reason, by)
        epoch = store.upkeep().epochs()[-1].number
        store.close()
        _give_to_owner(building)
        failpoint("loss:built")
        aside = _move_aside(where.path)
        failpoint("loss:moved-aside")
        os.link(building, where.path)
        failpoint("loss:in-place")
    except OSError as error:
        raise StoreUnavailable(f"no ledger could be built at {where.path!r}: {error.strerror}.", "") from error
    finally:
        for leftover in ("", "-wal", "-shm", "-line"):
            if os.path.lexists(building + leftover):
                os.unlink(building + leftover)
    sync_folder(os.path.dirname(where.path))
    _witness(where, open_store(where.url, wait_seconds=where.wait_seconds), epoch)
    return counts.recovered(loss, epoch, memory, salvaged, aside, last)


def _give_to_owner(path: str) -> None:
    """Root looking after a user's ledger must not leave a file that the user cannot use."""
    if os.geteuid() == 0:
        owner = os.stat(os.path.dirname(path))
        os.chown(path, owner.st_uid, owner.st_gid)


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


def _put(store: Store, told: Sequence[Told]) -> TakenIn:
    for job in dict.fromkeys(one.key.job for one in told):
        if store.job(job) is None:
            store.record_schedule(Job(job, 0, time.time(), 3600.0, 3), None, -1)
    return store.upkeep().take_in(Intake(told), _nobody)


def _nobody(run: Run, lease: Lease | None) -> bool:
    return False


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


def _move_aside(path: str) -> str | None:
    """Give the old files another name, all of them; return it, or None where there are none."""
    if not os.path.lexists(path):
        return None
    aside = f"{path}.lost-{format_instant(time.time()).replace(':', '')}"
    while os.path.lexists(aside):
        aside += "-"
    for suffix in ("-wal", "-shm", "-journal", ""):
        if os.path.lexists(path + suffix):
            os.rename(path + suffix, aside + suffix)
    return aside


def _witness(where: Where, store: Store, epoch: int) -> None:
    """Let the journal go on in the new epoch: a ledger that goes back behind it is noticed from now on."""
    os.makedirs(where.folder, mode=0o700, exist_ok=True)
    ledger = OpenLedger(store, folder=where.folder)
    ledger.journal = Journal(where.folder, epoch)
    note_last(ledger, next(iter(store.newest_events(1)), None))
    store.close()


class _Salvage:
    """What can still be read of a damaged file, or of one that was moved aside before. Nothing is changed in it."""

    def __init__(self, where: Where) -> None:
        self.store: SqliteStore | None = None
        self.epoch = 1
        aside = sorted(glob.glob(f"{glob.escape(where.path)}.lost-*[0-9Z-]"), reverse=True)
        for path in (where.path, *aside[:1]):
            try:
                store = SqliteStore(path, wait_seconds=where.wait_seconds)
            except (RanonceError, OSError):
                continue
            if store.identity().ledger == where.ledger:
                self.store, self.epoch = store, store.identity().epoch
                return

    def declare(self, into: Store) -> None:
        """Take jobs, schedules, pruned spans and gates over, as far as they can be read."""
        if self.store is None:
            return
        for part in (self._jobs, self._rest):
            try:
                part(into)
            except RanonceError:
                continue  # what is damaged there is lost; the rest may not be

    def _jobs(self, into: Store) -> None:
        assert self.store is not None
        for job in self.store.jobs():
            into.record_schedule(job, None, -1)
            for version in self.store.schedules(job.name):
                known = into.job(job.name)
                into.record_schedule(job, version, known.version if known else -1)

    def _rest(self, into: Store) -> None:
        assert self.store is not None
        stones = [stone for job in into.jobs() for stone in self.store.tombstones(job.name, -(1 << 62), 1 << 62)]
        into.upkeep().take_in(Intake(tombstones=stones, gates=self.store.gates()), _nobody)

    def told(self, *, sound: bool) -> Iterator[Told]:
        """Yield what can be read, window by window, until something cannot: first what row and events agree about,
        and, after what the journal knows better, the rest."""
        if self.store is None:
            return
        now = time.time()
        try:
            for run, events in _stories(self.store):
                story = folded(events)
                agreed = not any(disagreements(run, story))
                if agreed != sound:
                    continue
                told = Told(run, tuple(events)) if agreed else self._believed(run, story, events)
                if told is not None:
                    yield settled(told, now)
        except RanonceError:
            return

    def close(self) -> None:
        """Let go of the old file."""
        if self.store is not None:
            self.store.close()

    def _believed(self, run: Run | None, story: Story, events: list[Event]) -> Told | None:
        """Return a story whose row and events contradict each other: done where one of them says so. What is not
        done, of a window that is none, is damage and nothing else."""
        first = run or events[0]
        done = DONE in (story.status, run.status if run else None)
        if not done and self._found(first.key, first.window_start) == "":
            return None
        if run is not None and (run.status == DONE or story.status is None or story.started_at is None):
            return Told(run, tuple(events))
        bare = run or self._bare(events[0])
        return Told(state_of(story, bare), tuple(events)) if bare is not None else None

    def _found(self, key: RunKey, start: int) -> Place | str | None:
        """Return the place of a window; "" where its job has none of that name then, None where nobody can know."""
        assert self.store is not None
        versions = self.store.schedules(key.job)
        if not versions:
            return None
        place = Lookup(versions, float("inf"))(key.window)
        return place if isinstance(place, Place) and place.window.start == start else ""

    def _bare(self, event: Event) -> Run | None:
        """Return a run without a state, for events whose run has vanished; None where its window is not known."""
        key, start = event.key, event.window_start
        found = self._found(key, start)
        place = found if isinstance(found, Place) else None
        window = place.window if place else placed(key.window, start)
        if window is None:
            return None
        schedule = place.schedule if place else 1
        return Run(key, start, window.end, "", 1, 1, event.owner, 0, schedule, event.trigger, event.at)
