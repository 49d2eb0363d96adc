"""Read what can still be read of a damaged ledger. Nothing is changed in it."""

from __future__ import annotations

import time
from contextlib import suppress
from itertools import groupby

from ranonce.errors import RanonceError
from ranonce.exchange.effects import arrived
from ranonce.exchange.facts import placed
from ranonce.exchange.lookup import Lookup, Place
from ranonce.exchange.native import settled
from ranonce.folding import disagreements
from ranonce.lifecycle import DONE, Event, Run, RunKey
from ranonce.merging import Told, fitted, folded
from ranonce.stores.base import Intake

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterator
    from typing import TypeVar

    from ranonce.folding import Story
    from ranonce.lifecycle import Lease, Step
    from ranonce.messages import Message
    from ranonce.stores.base import Store

    T = TypeVar("T")


def stories(store: Store, *, damaged: bool = False) -> Iterator[tuple[Run | None, list[Event]]]:
    """Go through all runs with their events, and through events of runs that have no row.

    Of a `damaged` store runs and events are read as far as each can be: either may be gone altogether.
    """
    upkeep = store.upkeep()
    all_runs, all_events = upkeep.all_runs(), upkeep.events_by_window()
    if damaged:
        all_runs, all_events = _readable(all_runs), _readable(all_events)
    runs = groupby(all_runs, key=lambda run: (run.key.job, run.window_start))
    events = groupby(all_events, key=lambda event: (event.key.job, event.window_start))
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


def _readable(things: Iterator[T]) -> Iterator[T]:
    """Return what comes before the damage."""
    with suppress(RanonceError):
        yield from things


def nobody(run: Run, lease: Lease | None) -> bool:
    """Nobody works on a run of a ledger that is being built."""
    return False


class Salvage:
    """What can still be read of a damaged ledger, or of one that was moved aside before; None: nothing can."""

    def __init__(self, store: Store | None) -> None:
        self.store = store
        self.epoch = 1 if store is None else store.identity().epoch

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
        into.upkeep().take_in(Intake(tombstones=stones, gates=self.store.gates()), nobody)

    def told(self, *, sound: bool) -> Iterator[Told]:
        """Yield what can be read, window by window, until something cannot: first what row and events agree about,
        and, after what the journal knows better, the rest."""
        if self.store is None:
            return
        now = time.time()
        try:
            for run, events in stories(self.store, damaged=True):
                story = folded(events)
                agreed = not any(disagreements(run, story))
                if agreed != sound:
                    continue
                told = Told(run, tuple(events)) if agreed else self._believed(run, story, events)
                if told is not None:
                    yield settled(told, now)
        except RanonceError:
            return

    def messages(self) -> Iterator[Message]:
        """Yield what can be read of messages. Whether one that waits was sent since, nobody can know."""
        now = time.time()
        if self.store is not None:
            for message in _readable(self.store.upkeep().all_messages()):
                yield arrived(message, now, delivers_here=False)

    def steps(self) -> Iterator[Step]:
        """Yield what can be read of steps."""
        if self.store is not None:
            yield from _readable(self.store.upkeep().all_steps())

    def close(self) -> None:
        """Let go of it."""
        if self.store is not None:
            self.store.close()

    def _believed(self, run: Run | None, story: Story, events: list[Event]) -> Told | None:
        """Return a story whose row and events contradict each other: done where one of them says so. What is not
        done, of a window that is none, is damage and nothing else."""
        first = run or events[0]
        done = DONE in (story.status, run.status if run else None)
        if not done and self._found(first.key, first.window_start) == "":
            return None
        bare = run or self._bare(events[0])
        return fitted(run, events, bare, "salvaged") if bare is not None else None

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
