"""Prune a ledger in Redis batch by batch, each written whole; between them jobs go on.

What may go is read first and decided as everywhere (`lifecycle.prunable`); the batch is written only if the job has
not moved on since. A batch is bounded by its events, too: a window of a month may have tens of thousands of refused
triggers.
"""

from __future__ import annotations

from ranonce.failpoints import failpoint
from ranonce.lifecycle import prunable
from ranonce.record import Record
from ranonce.stores.base import Place, Pruned, buried, spared
from ranonce.stores.redis.chapters import Chapter, Wanted, chapters
from ranonce.stores.redis.keys import tombstone_of
from ranonce.stores.redis.plan import Plan
from ranonce.stores.redis.upkeep import until_written

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterable

    from ranonce.lifecycle import Event, Retention, Run
    from ranonce.stores.base import Tombstone
    from ranonce.stores.redis.store import RedisStore

#: A batch that has so many events to prune ends with its window: some hundredths of a second.
MOST_EVENTS = 10_000
FAR = 1 << 62


class _Batch(Record):
    """What one batch lets go, and where it ended: at the run it looked at last (None: there are no more)."""

    runs: list[Run]
    events: list[Event]
    upto: Place | None
    whole: bool  # all windows were looked at, or as many runs as were wanted
    left: bool  # there are steps or messages of the job


def prune(store: RedisStore, job: str, keep: Retention, after: Place, limit: int) -> Pruned:
    """Prune the next runs of a job."""
    events = 0
    while True:
        batch, _ = until_written(store, lambda: _planned(store, job, keep, after, limit))
        failpoint("prune:after-commit")
        events += len(batch.events)
        if batch.whole or batch.runs:
            return Pruned(len(batch.runs), events, batch.upto)
        # So many facts about windows without a run that they were a batch of their own.


def _planned(store: RedisStore, job: str, keep: Retention, after: Place, limit: int) -> tuple[Plan, _Batch]:
    plan = Plan(store.keys)
    known = store.job(job)
    if known is None:
        return plan, _Batch([], [], None, whole=True, left=False)
    batch = _chosen(store, job, keep, after, limit)
    if batch.runs or batch.events:
        plan.unless_version(job, known.version)
    for event in batch.events:
        plan.prune_event(event)
    if batch.events:
        plan.at_least(plan.key("ledger"), "pruned_seq", max(event.seq or 0 for event in batch.events))
    for run in batch.runs:
        plan.prune_run(run)
    if batch.left:
        from ranonce.stores.redis.posting import prune_what_they_left

        prune_what_they_left(store, plan, job, batch.runs)
    failpoint("prune:after-runs")
    if batch.runs:
        bury(store, plan, job, buried(batch.runs, store.clock().wall))
        plan.move(plan.key("versions"), job)
        plan.move(plan.key("ledger"), "edition")
    failpoint("prune:before-commit")
    return plan, batch


def _chosen(store: RedisStore, job: str, keep: Retention, after: Place, limit: int) -> _Batch:
    """Choose what goes, going through the windows from where the last batch ended."""
    before = int(min(max(keep.done_before, keep.failed_before), FAR))
    staying, newest = spared(store, job), store.newest_events(1)
    begin = (after.window_start, after.window, after.input)
    looked: list[Run] = []
    going: list[Run] = []
    events: list[Event] = []
    left = _Left(store, job)
    for chapter in chapters(store.rows, job, Wanted(), str(after.window_start), f"({before}"):
        come = [run for run in chapter.runs if _place(run) > begin][: limit - len(looked)]
        come, heavy = left.no_more_than(MOST_EVENTS, come)
        looked += come
        full = heavy or len(looked) == limit
        end = looked[-1].window_start if full else None
        lets_go = [run for run in come if run.window_start not in staying and prunable(run, keep)]
        going += lets_go
        events += [event for event in _events(chapter, lets_go, end, keep) if event not in newest]
        if full:
            return _Batch(going, events, Place(*_place(looked[-1])), whole=True, left=left.any)
        if len(events) >= MOST_EVENTS:
            return _Batch(going, events, Place(*_place(looked[-1])) if looked else None, whole=False, left=left.any)
    return _Batch(going, events, None, whole=True, left=left.any)


class _Left:
    """How many steps and messages the runs of a batch have left, so that it ends where they are many."""

    def __init__(self, store: RedisStore, job: str) -> None:
        self._connection = store.connection
        self._keys = [store.keys(what, job) for what in ("steps", "emitted")]
        self.any = bool(self._connection.ask(("EXISTS", *self._keys))[0])
        self._count = 0

    def no_more_than(self, most: int, runs: list[Run]) -> tuple[list[Run], bool]:
        """Return the runs up to the one with which there are that many, and whether there is one."""
        if not (self.any and runs):
            return runs, False
        starts = [run.window_start for run in runs]
        counts = self._connection.ask(*(("ZCOUNT", key, start, start) for start in starts for key in self._keys))
        for number in range(len(runs)):
            self._count += counts[2 * number] + counts[2 * number + 1]
            if self._count >= most:
                return runs[: number + 1], True
        return runs, False


def _events(chapter: Chapter, going: list[Run], end: int | None, keep: Retention) -> list[Event]:
    """Return the events that go: those of runs that go, and old facts about windows that have no run.

    `end` is where the batch ends, if it does in this chapter: what starts there may have a run that is yet to come.
    """
    gone = {(run.key, run.window_start) for run in going}
    stay = {run.window_start for run in chapter.runs if (run.key, run.window_start) not in gone}
    return [
        event
        for event in chapter.events
        if (event.key, event.window_start) in gone
        or (
            event.window_start not in stay and event.at < keep.done_before and (end is None or event.window_start < end)
        )
    ]


def _place(run: Run) -> tuple[int, str, str]:
    return run.window_start, run.key.window, run.key.input


def bury(store: RedisStore, plan: Plan, job: str, stones: Iterable[Tombstone]) -> None:
    """Let a plan put up tombstones: each takes in those it overlaps or touches."""
    new = list(stones)
    first, last = min(stone.since for stone in new), max(stone.until for stone in new)
    key = store.keys("tombstones", job)
    before, within = store.connection.ask(
        ("ZREVRANGEBYSCORE", key, f"({first}", "-inf", "LIMIT", 0, 1), ("ZRANGEBYSCORE", key, first, last)
    )
    known = [tombstone_of(job, value) for value in [*before, *within]]
    now = known
    for stone in new:
        whole, taken = stone.grown(now)
        now = [*(one for one in now if one not in taken), whole]
    for stone in known:
        if stone not in now:
            plan.unearth(stone)
    for stone in now:
        if stone not in known:
            plan.bury(stone)
