"""The upkeep of a PostgreSQL ledger: prune it, go through all of it, accept a loss.

Apart from the store itself, since no plain run needs any of this. Whatever changes the tables of a job locks the job's
row before anything else, as every decision does. All of it is gone through in pages, by key, so that neither this
process nor the server holds more than one.
"""

from __future__ import annotations

import time
from binascii import a2b_base64
from bisect import bisect_left, bisect_right
from contextlib import contextmanager

from ranonce import jsontext as json
from ranonce.errors import StoreUnavailable
from ranonce.failpoints import failpoint
from ranonce.lifecycle import prunable
from ranonce.stores.base import FIRST, Epoch, LostReply, Place, Pruned, buried, spared
from ranonce.stores.postgres.connection import Denied
from ranonce.stores.postgres.store import in_schema
from ranonce.stores.postgres.text import dumps, loads
from ranonce.stores.statements import load
from ranonce.stores.values import event_of, run_of, tombstone_of

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator
    from typing import TypeVar

    from ranonce.lifecycle import Event, Gate, Lease, Retention, Run, Step
    from ranonce.messages import Message
    from ranonce.stores.base import Intake, TakenIn, Tombstone
    from ranonce.stores.postgres.connection import Row, Transaction
    from ranonce.stores.postgres.store import PostgresStore

    T = TypeVar("T")

SQL = load("postgres/upkeep.sql")
#: Whose is the schema, and are we that role?
OWNER = (
    "SELECT pg_catalog.pg_get_userbyid(nspowner), pg_catalog.pg_has_role(nspowner, 'USAGE')"
    " FROM pg_catalog.pg_namespace WHERE nspname = $1"
)

#: So many rows are asked for at once; of events with their output, which may be 64 KiB each, fewer.
PAGE_ROWS = 2000
PAGE_OUTPUTS = 200
PAGE_BODIES = 50  # of 256 KiB each, perhaps
#: One state for all that is read, however long that takes.
VIEW = "BEGIN ISOLATION LEVEL REPEATABLE READ READ ONLY; SET LOCAL idle_in_transaction_session_timeout = 0"
#: Between two batches of a pruning, so that a job that had to decide anew because of the first comes before the second.
TURN_SECONDS = 0.01
FIRST_PAUSE_SECONDS = 0.01
LONGEST_PAUSE_SECONDS = 1.0
FAR = 1 << 62


class PostgresUpkeep:
    """The upkeep of one open ledger."""

    def __init__(self, store: PostgresStore) -> None:
        self._store = store
        self._db = store.connection
        self._sql = {name: in_schema(statement, store.schema) for name, statement in SQL.items()}

    # --- writing ---

    def writing(self, jobs: Iterable[str], work: Callable[[Transaction], T]) -> T:
        """Do something in one transaction that has locked these jobs; again from its start where others were faster.

        Raises LostReply where nobody knows whether it was committed.
        """
        locked = dumps(sorted(set(jobs)))
        give_up = time.monotonic() + self._store.wait_seconds
        pause = FIRST_PAUSE_SECONDS
        while True:
            try:
                with self._db.begin() as transaction:
                    self._tell(transaction, "begin", self._store.identity().ledger, self._store._lock_wait(), locked)
                    return work(transaction)
            except LostReply:
                raise
            except StoreUnavailable:
                if time.monotonic() + pause > give_up:
                    raise
            time.sleep(pause)
            pause = min(pause * 2, LONGEST_PAUSE_SECONDS)

    @contextmanager
    def owners(self, what: str) -> Iterator[None]:
        """Say of what is denied who does it."""
        try:
            yield
        except Denied as error:
            owner, mine = self._db.ask(OWNER, self._store.schema)[0]
            if mine == "t":
                raise  # so it is not the owner's rights that are missing
            raise Denied(
                f"only the role that owns the ledger ({owner}) {what}.", f"Nothing was changed. Ask as {owner}."
            ) from error

    def _tell(self, transaction: Transaction, statement: str, *values: object) -> list[Row]:
        return transaction.execute(self._sql[statement], *values)

    # --- prune ---

    def pruned_seq(self) -> int:
        return int(self._db.ask(self._sql["pruned_seq"])[0][0] or 0)

    def prune(self, job: str, keep: Retention, *, after: Place = FIRST, limit: int = 500) -> Pruned:
        with self.owners("prunes"):
            pruned = self.writing([job], lambda transaction: self._prune(transaction, job, keep, after, limit))
        failpoint("prune:after-commit")
        if pruned.runs and pruned.upto is not None:
            time.sleep(TURN_SECONDS)
        return pruned

    def _prune(self, transaction: Transaction, job: str, keep: Retention, after: Place, limit: int) -> Pruned:
        before = int(min(max(keep.done_before, keep.failed_before), FAR))
        rows = self._tell(transaction, "runs_from", job, *after.as_dict().values(), before, limit)
        runs = [run_of(loads(row[0])) for row in rows]
        staying = spared(self._store, job)
        going = [run for run in runs if run.window_start not in staying and prunable(run, keep)]
        end = runs[-1].window_start if len(runs) == limit else before
        places = [[run.window_start, run.key.window, run.key.input] for run in going]
        gone, last = json.loads(self._tell(transaction, "drop_runs", job, dumps(places))[0][0] or "")
        failpoint("prune:after-runs")
        self.put_tombstones(transaction, buried(going, self._store.clock().wall))
        loose = self._tell(transaction, "end_pruning", job, after.window_start, end, keep.done_before)
        more, last_loose = json.loads(loose[0][0] or "")
        self.forget_until(transaction, max(last, last_loose))
        if going:
            self._tell(transaction, "jobs_changed", dumps([job]))
        failpoint("prune:before-commit")
        upto = Place(runs[-1].window_start, runs[-1].key.window, runs[-1].key.input) if len(runs) == limit else None
        return Pruned(len(going), gone + more, upto)

    def put_tombstones(self, transaction: Transaction, stones: Iterable[Tombstone], *, told: bool = False) -> None:
        """Note spans as pruned. Those that are only `told`, and that is known already, change nothing."""
        by_job: dict[str, list[Tombstone]] = {}
        for stone in stones:
            by_job.setdefault(stone.job, []).append(stone)
        for job, new in by_job.items():
            reach = (min(stone.since for stone in new), max(stone.until for stone in new))
            known = [tombstone_of(loads(row[0])) for row in self._tell(transaction, "touching", job, *reach)]
            replaced, put = grown_together(known, new, told=told)
            if put:
                keys = dumps([[stone.job, stone.since] for stone in replaced])
                self._tell(transaction, "put_tombstones", keys, dumps([list(one.as_dict().values()) for one in put]))

    def forget_until(self, transaction: Transaction, seq: int) -> None:
        """Note that events up to a number may have been pruned."""
        if seq:
            self._tell(transaction, "forget_until", seq)

    # --- all of it ---

    def problems(self, *, deep: bool) -> list[str]:
        from ranonce.stores.postgres.check import problems

        return problems(self._store, deep=deep)

    def all_runs(self) -> Iterator[Run]:
        place = ("", FIRST.window_start, "", "")
        while True:
            rows = self._db.ask(self._sql["all_runs"], *place, PAGE_ROWS)
            runs = [run_of(loads(row[0])) for row in rows]
            yield from runs
            if len(runs) < PAGE_ROWS:
                return
            key = runs[-1].key
            place = (key.job, runs[-1].window_start, key.window, key.input)

    def all_events(self) -> Iterator[Event]:
        seq = FIRST.window_start
        while True:
            events = list(map(_event_of, self._db.ask(self._sql["all_events"], seq, PAGE_OUTPUTS)))
            yield from events
            if len(events) < PAGE_OUTPUTS:
                return
            seq = events[-1].seq or 0

    def events_by_window(self, *, output: bool = False) -> Iterator[Event]:
        size = PAGE_OUTPUTS if output else PAGE_ROWS
        place = ("", FIRST.window_start, 0)
        while True:
            events = list(map(_event_of, self._db.ask(self._sql["events_by_window"], *place, output, size)))
            yield from events
            if len(events) < size:
                return
            place = (events[-1].key.job, events[-1].window_start, events[-1].seq or 0)

    def all_messages(self) -> Iterator[Message]:
        from ranonce.stores.postgres.outbox import message_with_body

        seq = FIRST.window_start
        while True:
            rows = self._db.ask(self._sql["all_messages"], seq, PAGE_BODIES)
            messages = list(map(message_with_body, rows))
            yield from messages
            if len(messages) < PAGE_BODIES:
                return
            seq = messages[-1].seq or 0

    def all_steps(self) -> Iterator[Step]:
        from ranonce.stores.postgres.outbox import step_with_result

        place = ("", FIRST.window_start, "", "", 0, "")
        while True:
            steps = list(map(step_with_result, self._db.ask(self._sql["all_steps"], *place, PAGE_BODIES)))
            yield from steps
            if len(steps) < PAGE_BODIES:
                return
            key, last = steps[-1].run, steps[-1]
            place = (key.job, last.window_start, key.window, key.input, last.generation, last.name)

    @contextmanager
    def view(self) -> Iterator[None]:
        with self._db.begin(VIEW) as transaction:
            transaction.abandon()  # there is nothing to commit
            yield

    # --- gates ---

    def set_gate(self, gate: Gate) -> None:
        told = dumps(list(gate.as_dict().values()))
        self.writing([], lambda transaction: self._tell(transaction, "set_gate", told))

    # --- losses ---

    def epochs(self) -> list[Epoch]:
        return [Epoch(*loads(row[0])) for row in self._db.ask(self._sql["epochs"])]

    def accept_loss(self, reason: str, by: str, *, after: int = 0) -> Epoch:
        with self.owners("accepts a loss"):
            return self.writing([], lambda transaction: self.open_epoch(transaction, reason, by, after=after))

    def open_epoch(self, transaction: Transaction, reason: str, by: str, *, after: int = 0) -> Epoch:
        """Open a new epoch."""
        number, began_at = json.loads(self._tell(transaction, "open_epoch", after, reason, by)[0][0] or "")
        return Epoch(number, began_at, reason, by)

    # --- what another ledger tells ---

    def take_in(self, intake: Intake, lives: Callable[[Run, Lease | None], bool]) -> TakenIn:
        from ranonce.stores.postgres.intake import take_in

        with self.owners("imports, and accepts a loss"):
            return take_in(self._store, self, intake, lives)


def _event_of(row: Row) -> Event:
    told, seq, output = loads(row[0])
    return event_of(told, seq, None if output is None else a2b_base64(output))


def grown_together(
    known: list[Tombstone], new: Iterable[Tombstone], *, told: bool
) -> tuple[list[Tombstone], list[Tombstone]]:
    """Return which of a job's known tombstones are replaced when new ones come, and by which. `known` are sorted."""
    stones = list(known)
    for stone in new:
        begin = bisect_left(stones, stone.since, key=lambda one: one.until)  # no two overlap, so both are in order
        end = bisect_right(stones, stone.until, key=lambda one: one.since)
        touching = stones[begin:end]
        if told and any(one.since <= stone.since and one.until >= stone.until for one in touching):
            continue
        whole, taken = stone.grown(touching)
        stones[begin:end] = sorted([whole, *(one for one in touching if one not in taken)], key=lambda one: one.since)
    return [one for one in known if one not in stones], [one for one in stones if one not in known]
