"""Take into a ledger in Redis what another one tells. Apart from the rest, since no plain run needs it.

What is here of each window is read first, in few round trips; then the batch is written whole, if none of its jobs has
moved on since and no claim was taken or renewed that would be ended by it.
"""

from __future__ import annotations

from collections import Counter
from itertools import chain

from ranonce.failpoints import failpoint
from ranonce.lifecycle import RUNNING, Held
from ranonce.merging import ADDED, ADVANCED, merge
from ranonce.record import Record
from ranonce.stores.base import TakenIn
from ranonce.stores.redis.keys import event_of, held_of, number_of, place_of, run_of, tombstone_of
from ranonce.stores.redis.plan import Plan
from ranonce.stores.redis.pruning import bury
from ranonce.stores.redis.upkeep import until_written

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence
    from typing import Any

    from ranonce.lifecycle import Event, Lease, Run, RunKey
    from ranonce.merging import Merged, Told
    from ranonce.messages import Message
    from ranonce.stores.base import Intake
    from ranonce.stores.redis.store import RedisStore
    from ranonce.stores.redis.upkeep import RedisUpkeep

#: Windows that are asked for in one round trip.
ASKED_AT_ONCE = 200
#: What is asked of each.
QUESTIONS = 5


class _Here(Record):
    """What this ledger has of a window."""

    run: Run | None
    held: Held | None
    events: list[Event]
    pruned: bool


def take_in(
    store: RedisStore, upkeep: RedisUpkeep, intake: Intake, lives: Callable[[Run, Lease | None], bool]
) -> TakenIn:
    """Take in one batch."""

    def plan() -> tuple[Plan, _Taking]:
        taking = _Taking(store, intake, lives)
        taking.all()
        if intake.loss is not None:
            upkeep.open_epoch(taking.plan, *intake.loss, after=intake.epoch)
        failpoint("import:before-commit")
        return taking.plan, taking

    taking, _ = until_written(store, plan)
    failpoint("import:after-commit")
    events = taking.plan.events
    last = store.newest_events(1)[0] if events else None
    return TakenIn(dict(taking.counts), tuple(taking.left), events, last)


class _Taking:
    """One batch on its way into a plan."""

    def __init__(self, store: RedisStore, intake: Intake, lives: Callable[[Run, Lease | None], bool]) -> None:
        self.store = store
        self.intake = intake
        self.lives = lives
        self.plan = Plan(store.keys)
        self.counts: Counter[str] = Counter()
        self.left: list[tuple[RunKey, str]] = []
        self._changed: set[str] = set()

    def all(self) -> None:
        """Plan all of it."""
        jobs = sorted({told.key.job for told in self.intake.told} | {stone.job for stone in self.intake.tombstones})
        versions = self.store.rows.values(self.store.keys("versions"), jobs)  # before anything else is read
        here = self._here()
        for told in self.intake.told:
            self._one(told, here)
        failpoint("import:after-runs")
        for job in jobs:
            self._bury(job)
        for gate in self.intake.gates:
            self.plan.gate(gate)
        if self.intake.pruned_seq:
            self.plan.at_least(self.plan.key("ledger"), "pruned_seq", self.intake.pruned_seq)
        for job, version in zip(jobs, versions, strict=True):
            self.plan.unless_version(job, None if version is None else number_of(version))
            if job in self._changed:
                self.plan.move(self.plan.key("versions"), job)
        self._take_messages()
        if self._changed:
            self.plan.move(self.plan.key("ledger"), "edition")

    def _take_messages(self) -> None:
        """Plan messages and steps of whose key there is none here."""
        if not (self.intake.messages or self.intake.steps):
            return
        from ranonce.stores.redis.posting import missing, post, write_step

        messages: dict[str, Message] = {}
        for message in self.intake.messages:
            messages.setdefault(message.key, message)
        known = self.store.outbox().known(list(messages))
        for key, message in messages.items():
            if key not in known:
                post(self.plan, message)
        for step in missing(self.store.rows, self.intake.steps):
            write_step(self.plan, step)

    # --- windows ---

    def _one(self, told: Told, here: dict[tuple[RunKey, int], _Here]) -> None:
        window = (told.key, told.window_start)
        known = here[window]
        merged = self._merged(told, known)
        self.counts[merged.outcome] += 1
        if merged.outcome not in (ADDED, ADVANCED):
            self.left.append((told.key, merged.outcome))
            return
        self._changed.add(told.key.job)
        if merged.run is not None:
            self._put(merged.run, known.held)
        after = max((event.seq or 0 for event in known.events), default=0)
        for event in merged.events:
            wanted = event.seq if self.intake.keep_numbers and event.seq is not None else 0
            self.plan.event(event, wanted=wanted, after=after)
        # Told of again in this batch, it is as it will be then.
        run = merged.run or known.run
        here[window] = _Here(run, None if merged.run else known.held, [*known.events, *merged.events], known.pruned)

    def _merged(self, told: Told, known: _Here) -> Merged:
        run = known.run
        lease = known.held.lease if known.held else None
        live = run is not None and run.status == RUNNING and self.lives(run, lease)
        return merge(told, run, known.events, live=live, pruned=run is None and known.pruned)

    def _put(self, run: Run, held: Held | None) -> None:
        self.plan.run(run)
        if held is None:
            self.plan.unless_unclaimed(run.key, run.window_start)
            return
        self.plan.unless_as_read(held)
        self.plan.drop_lease(held.key, held.window_start)

    def _bury(self, job: str) -> None:
        new = [stone for stone in self.intake.tombstones if stone.job == job]
        if not new:
            return
        first, last = min(stone.since for stone in new), max(stone.until for stone in new)
        known = self.store.tombstones(job, first, last)
        new = [
            stone for stone in new if not any(one.since <= stone.since and stone.until <= one.until for one in known)
        ]
        if new:
            bury(self.store, self.plan, job, new)
            self._changed.add(job)

    # --- what is here of them ---

    def _here(self) -> dict[tuple[RunKey, int], _Here]:
        windows = list(dict.fromkeys((told.key, told.window_start) for told in self.intake.told))
        found: dict[tuple[RunKey, int], _Here] = {}
        for first in range(0, len(windows), ASKED_AT_ONCE):
            part = windows[first : first + ASKED_AT_ONCE]
            answers = self.store.connection.ask(*chain.from_iterable(self._questions(*window) for window in part))
            seqs = [[*answers[at + 2], *answers[at + 3]] for at in range(0, len(answers), QUESTIONS)]
            events = self._events([seq for those in seqs for seq in those])
            for number, (key, start) in enumerate(part):
                told = [events[seq] for seq in sorted(seqs[number], key=number_of) if seq in events]
                story = [event for event in told if event.key == key]
                found[key, start] = _here_of(key, start, story, answers[number * QUESTIONS :])
        return found

    def _questions(self, key: RunKey, start: int) -> Iterator[tuple[str | int, ...]]:
        keys, job, place = self.store.keys, key.job, place_of(key, start)
        yield "HGET", keys("runs", job), place
        yield "HGET", keys("leases", job), place
        yield "ZRANGEBYSCORE", keys("work", job), start, start
        yield "ZRANGEBYSCORE", keys("besides", job), start, start
        yield "ZREVRANGEBYSCORE", keys("tombstones", job), start, "-inf", "LIMIT", 0, 1

    def _events(self, seqs: Sequence[bytes]) -> dict[bytes, Event]:
        values = self.store.rows.values(self.store.keys("events"), seqs)
        return {
            seq: event_of(number_of(seq), value) for seq, value in zip(seqs, values, strict=True) if value is not None
        }


def _here_of(key: RunKey, start: int, story: list[Event], answers: list[Any]) -> _Here:
    run, lease, _, _, stones = answers[:QUESTIONS]
    place = place_of(key, start).encode("utf-8", "surrogatepass")
    return _Here(
        None if run is None else run_of(key.job, place, run),
        None if lease is None else held_of(key.job, place, lease),
        story,
        bool(stones) and start < tombstone_of(key.job, stones[0]).until,
    )
