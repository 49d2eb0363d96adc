"""Take into a PostgreSQL ledger what another one tells. Apart from the rest, since no plain run needs it.

A batch is one transaction: the rows, their events and the jobs' next versions, so that whoever decides meanwhile
decides anew. What is here of all its windows is asked in one question, and all that comes of it is written in one
statement, so that a batch over a network takes no longer than one beside the server.
"""

from __future__ import annotations

from binascii import b2a_base64
from collections import Counter

from ranonce.failpoints import failpoint
from ranonce.lifecycle import RUNNING
from ranonce.merging import ADDED, ADVANCED, merge
from ranonce.stores.base import TakenIn
from ranonce.stores.postgres.store import in_schema
from ranonce.stores.postgres.text import dumps, loads
from ranonce.stores.statements import load
from ranonce.stores.values import event_of, event_values, held_of, run_of, run_values

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Sequence
    from typing import Any

    from ranonce.lifecycle import Event, Lease, Run, RunKey
    from ranonce.merging import Merged, Told
    from ranonce.stores.base import Intake
    from ranonce.stores.postgres.connection import Row, Transaction
    from ranonce.stores.postgres.store import PostgresStore
    from ranonce.stores.postgres.upkeep import PostgresUpkeep

SQL = load("postgres/intake.sql")


def take_in(
    store: PostgresStore, upkeep: PostgresUpkeep, intake: Intake, lives: Callable[[Run, Lease | None], bool]
) -> TakenIn:
    """Take in one batch."""
    jobs = {told.key.job for told in intake.told} | {stone.job for stone in intake.tombstones}

    def written(transaction: Transaction) -> TakenIn:
        taking = _Taking(store, transaction, intake, lives)
        for windows in _told_once(intake.told):
            taking.windows(windows)
        failpoint("import:after-runs")
        upkeep.put_tombstones(transaction, intake.tombstones, told=True)
        taking.messages()
        taking.gates()
        upkeep.forget_until(transaction, intake.pruned_seq)
        taken = taking.result()
        if intake.loss is not None:
            upkeep.open_epoch(transaction, *intake.loss, after=intake.epoch)
        failpoint("import:before-commit")
        return taken

    taken = upkeep.writing(jobs, written)
    failpoint("import:after-commit")
    return taken


def _told_once(told: Iterable[Told]) -> Iterator[list[Told]]:
    """Return what is told in its order, in parts that tell of no window twice: the second time, more is known."""
    part: list[Told] = []
    places: set[tuple[RunKey, int]] = set()
    for one in told:
        if (one.key, one.window_start) in places:
            yield part
            part, places = [], set()
        part.append(one)
        places.add((one.key, one.window_start))
    if part:
        yield part


class _Known:
    """What is here of one window."""

    def __init__(self, job: str, row: Row) -> None:
        _, run, lease, story, pruned = row
        self.run = None if run is None else run_of(loads(run))
        self.lease = None if lease is None else held_of(job, loads(lease)).lease
        self.story = [event_of(values, seq) for values, seq in loads(story) or ()]
        self.pruned = pruned == "t"


class _Taking:
    """One batch on its way into the tables."""

    def __init__(
        self,
        store: PostgresStore,
        transaction: Transaction,
        intake: Intake,
        lives: Callable[[Run, Lease | None], bool],
    ) -> None:
        self.store = store
        self.transaction = transaction
        self.intake = intake
        self.lives = lives
        self.counts: Counter[str] = Counter()
        self.left: list[tuple[RunKey, str]] = []
        self.events = 0

    def _tell(self, statement: str, *values: object) -> list[Row]:
        return self.transaction.execute(in_schema(SQL[statement], self.store.schema), *values)

    def windows(self, told: Sequence[Told]) -> None:
        """Take in windows, each of them told once."""
        places = dumps([[one.key.job, one.window_start, one.key.window, one.key.input] for one in told])
        known = {int(row[0] or 0): _Known(told[int(row[0] or 0)].key.job, row) for row in self._tell("known", places)}
        over: list[tuple[Any, ...]] = []
        runs: list[list[Any]] = []
        events: list[list[Any]] = []
        jobs = set()
        for number, one in enumerate(told):
            here = known.get(number)
            merged = self._merged(one, here)
            self.counts[merged.outcome] += 1
            if merged.outcome not in (ADDED, ADVANCED):
                self.left.append((one.key, merged.outcome))
                continue
            jobs.add(one.key.job)
            if here is not None and here.lease is not None:
                over.append((one.key.job, one.window_start, one.key.window, one.key.input))
            if merged.run is not None:
                runs.append(run_values(merged.run))
            events += _numbered(merged.events, here.story if here else [])
        self.events += len(events)
        if jobs:
            self._tell("take_in", dumps(sorted(over)), dumps(runs), dumps(events), self.intake.keep_numbers)
            self._tell("jobs_changed", dumps(sorted(jobs)))

    def _merged(self, told: Told, here: _Known | None) -> Merged:
        if here is None:
            return merge(told, None, (), live=False, pruned=False)
        run = here.run
        live = run is not None and run.status == RUNNING and self.lives(run, here.lease)
        return merge(told, run, here.story, live=live, pruned=run is None and here.pruned)

    def messages(self) -> None:
        """Take in steps and messages."""
        if not (self.intake.messages or self.intake.steps):
            return
        from ranonce.stores.postgres.outbox import Bodies, told_messages, told_steps

        bodies = Bodies()
        told = told_steps(self.intake.steps, bodies), told_messages(self.intake.messages, bodies)
        self._tell("take_in_messages", *told, bodies.all())

    def gates(self) -> None:
        """Take over which gates are closed."""
        if self.intake.gates:
            self._tell("put_gates", dumps([list(gate.as_dict().values()) for gate in self.intake.gates]))

    def result(self) -> TakenIn:
        """Return what has become of the batch; the newest event is told, for the journal."""
        last = self.store.newest_events(1)[0] if self.events else None
        return TakenIn(dict(self.counts), tuple(self.left), self.events, last)


def _numbered(events: Sequence[Event], story: Sequence[Event]) -> Iterator[list[Any]]:
    """Return the events as values with the number each had, and the one that the first of them must come after."""
    after: int | None = (story[-1].seq or 0) if story else 0
    for event in events:
        *values, data = event_values(event)
        output = None if event.output is None else b2a_base64(event.output, newline=False).decode()
        yield [[*values, dumps(data), output], event.seq, after]
        after = None
