"""Take into a SQLite ledger what another one tells. Apart from the rest, since no plain run needs it.

A batch is one transaction: the rows, their events and the job's next version, so that whoever decides meanwhile
decides anew. Windows of which nothing is known here, the ordinary case, are written without asking for each.
"""

from __future__ import annotations

from collections import Counter
from itertools import groupby

from ranonce import jsontext as json
from ranonce.failpoints import failpoint
from ranonce.lifecycle import RUNNING
from ranonce.merging import ADDED, ADVANCED, BESIDES, merge
from ranonce.stores.base import TakenIn
from ranonce.stores.sqlite.effects import put_effects
from ranonce.stores.sqlite.file import SQL as MAIN
from ranonce.stores.sqlite.rows import event_of, event_row, gate_row, held_of, run_of, run_row
from ranonce.stores.statements import load

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from typing import Any

    from ranonce.lifecycle import Event, Lease, Run, RunKey
    from ranonce.merging import Told
    from ranonce.stores.base import Intake
    from ranonce.stores.sqlite.store import SqliteStore
    from ranonce.stores.sqlite.upkeep import SqliteUpkeep

SQL = load("sqlite/intake.sql")
UPKEEP = load("sqlite/upkeep.sql")


def take_in(
    store: SqliteStore, upkeep: SqliteUpkeep, intake: Intake, lives: Callable[[Run, Lease | None], bool]
) -> TakenIn:
    """Take in one batch."""
    with store.transaction():
        taking = _Taking(store, intake, lives)
        for _, told in groupby(intake.told, key=lambda told: told.key.job):
            taking.windows(list(told))
        failpoint("import:after-runs")
        for stone in intake.tombstones:
            if not store.ask(SQL["covering"], stone.job, stone.since, stone.until):
                upkeep.put_tombstone(stone)
        for gate in intake.gates:
            store.connection.execute(MAIN["put_gate"], gate_row(gate))
        put_effects(store.connection, intake.messages, intake.steps)
        if intake.pruned_seq:
            upkeep.forget_until(intake.pruned_seq)
        taken = taking.result()
        if intake.loss is not None:
            upkeep.open_epoch(*intake.loss, after=intake.epoch)
        failpoint("import:before-commit")
    failpoint("import:after-commit")
    return taken


class _Taking:
    """One batch on its way into the tables."""

    def __init__(self, store: SqliteStore, intake: Intake, lives: Callable[[Run, Lease | None], bool]) -> None:
        self.store = store
        self.db = store.connection
        self.intake = intake
        self.lives = lives
        self.counts: Counter[str] = Counter()
        self.left: list[tuple[RunKey, str]] = []
        self.events = 0

    def windows(self, told: list[Told]) -> None:
        """Take in windows of one job."""
        job = told[0].key.job
        starts = [one.window_start for one in told]
        if self.store.ask(SQL["rows_between"], job, min(starts), max(starts))[0][0] or len(set(starts)) < len(starts):
            changed = [self._one(one) for one in told]
        else:
            changed = [bool(told)]
            self._write([one.run for one in told if one.run], [event for one in told for event in one.events])
            self.counts[ADDED] += len(told)
        if any(changed):
            self.db.execute(UPKEEP["job_changed"], (job,))

    def _one(self, told: Told) -> bool:
        key, start = told.key, told.window_start
        place = (key.job, start, key.window, key.input)
        rows = self.store.ask(SQL["run"], *place)
        known = run_of(rows[0]) if rows else None
        lease = self._lease(place) if known and known.status == RUNNING else None
        known_events = self._story(told, known, place)
        merged = merge(
            told,
            known,
            known_events,
            live=known is not None and known.status == RUNNING and self.lives(known, lease),
            pruned=known is None and bool(self.store.tombstones(key.job, start, start + 1)),
        )
        self.counts[merged.outcome] += 1
        if merged.outcome not in (ADDED, ADVANCED):
            self.left.append((key, merged.outcome))
            return False
        if lease is not None:
            self.db.execute(MAIN["drop_lease"], place)
        after = known_events[-1].seq or 0 if known_events else 0
        self._write([merged.run] if merged.run else [], merged.events, after)
        return True

    def _story(self, told: Told, known: Run | None, place: tuple[Any, ...]) -> list[Event]:
        if known is not None and known == told.run and all(event.event not in BESIDES for event in told.events):
            return []  # nothing of it can be new
        return [event_of(row) for row in self.store.ask(SQL["story"], *place)]

    def _lease(self, place: tuple[Any, ...]) -> Lease | None:
        rows = self.store.ask(SQL["lease"], *place)
        return held_of(place[0], rows[0]).lease if rows else None

    def _write(self, runs: Sequence[Run], events: Sequence[Event], after: int = 0) -> None:
        """Write rows and events; the numbers of the first story's events are to follow `after`."""
        self.db.executemany(MAIN["put_run"], map(run_row, runs))
        self.events += len(events)
        if not self.intake.keep_numbers:
            self.db.executemany(SQL["add_numbered_event"], (_numbered(event, None) for event in events))
            return
        for _, story in groupby(events, key=lambda event: event.key):
            for event in story:
                kept = (
                    event.seq is not None and event.seq > after and not self.store.ask(SQL["seq_is_taken"], event.seq)
                )
                row = _numbered(event, event.seq if kept else None)
                after = self.db.execute(SQL["add_numbered_event"], row).lastrowid or 0
            after = 0

    def result(self) -> TakenIn:
        """Return what has become of the batch; the newest event is told, for the journal."""
        last = self.store.event(self.store.ask(SQL["last_event"])[0][0]) if self.events else None
        return TakenIn(dict(self.counts), tuple(self.left), self.events, last)


def _numbered(event: Event, seq: int | None) -> tuple[Any, ...]:
    return (seq, *event_row(event, event.at, _data_text(event.data)))


_LAST: list[tuple[object, str]] = [({}, "{}")]


def _data_text(data: object) -> str:
    """Return an event's data as JSON. Most events of an import share one object: it is written once."""
    if data is not _LAST[0][0]:
        _LAST[0] = (data, json.dumps(data) if data else "{}")
    return _LAST[0][1]
