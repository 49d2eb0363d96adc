"""The upkeep of a ledger in Redis: prune it, go through all of it, accept a loss, look for damage.

Apart from the store itself, since no plain run needs any of this.
"""

from __future__ import annotations

import time
from contextlib import contextmanager

from ranonce.errors import StoreUnavailable
from ranonce.stores.base import FIRST, Epoch
from ranonce.stores.redis.chapters import Pass, through
from ranonce.stores.redis.keys import following, gate_rest, instant, number_of, read, text_of
from ranonce.stores.redis.plan import Plan
from ranonce.stores.values import damaged

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from typing import TypeVar

    from ranonce.lifecycle import Event, Gate, Lease, Retention, Run, Step
    from ranonce.messages import Message
    from ranonce.stores.base import Intake, Place, Pruned, TakenIn
    from ranonce.stores.redis.store import RedisStore

    Result = TypeVar("Result")


class RedisUpkeep:
    """The upkeep of one open ledger."""

    def __init__(self, store: RedisStore) -> None:
        self._store = store
        self._jobs: list[str] | None = None  # those of a view
        self._edition = ""
        self._last: int | None = None  # the number of the last message that a view tells
        self._pass: Pass | None = None

    # --- prune ---

    def pruned_seq(self) -> int:
        return number_of(self._field("pruned_seq") or b"0")

    def prune(self, job: str, keep: Retention, *, after: Place = FIRST, limit: int = 500) -> Pruned:
        from ranonce.stores.redis.pruning import prune

        return prune(self._store, job, keep, after, limit)

    # --- all of it ---

    def problems(self, *, deep: bool) -> list[str]:
        """Return what does not fit in the indexes that scripts keep beside the records."""
        from ranonce.stores.redis.problems import problems

        return problems(self._store, deep=deep)

    def all_runs(self) -> Iterator[Run]:
        chapters = self._joined().join(runs=True)
        return (run for chapter in chapters for run in chapter.runs)

    def all_events(self) -> Iterator[Event]:
        since, last = "-inf", -1
        while True:
            words = ("ZRANGEBYSCORE", self._store.keys("pages"), since, "+inf", "LIMIT", 0, 1)
            (page,) = self._store.connection.ask(words)[0] or (None,)
            if page is None:
                return
            if (number := number_of(page)) <= last:
                raise damaged(page)  # it stands where another belongs
            yield from self._with_output(self._store.rows.page(number))
            since, last = f"({number}", number

    def _with_output(self, events: list[Event]) -> list[Event]:
        outputs = self._store.rows.values(self._store.keys("output"), [event.seq or 0 for event in events])
        return [event.replace(output=output) for event, output in zip(events, outputs, strict=True)]

    def events_by_window(self, *, output: bool = False) -> Iterator[Event]:
        chapters = self._joined().join(events=True, output=output)
        return (event if output else event.replace(output=None) for chapter in chapters for event in chapter.events)

    def all_messages(self) -> Iterator[Message]:
        from ranonce.stores.redis.whole import all_messages

        return all_messages(self._store, self._edition, self._last)

    def all_steps(self) -> Iterator[Step]:
        from ranonce.stores.redis.whole import all_steps

        return all_steps(self._store, self._edition, self._named())

    @contextmanager
    def view(self) -> Iterator[None]:
        (edition, last), jobs = self._store.connection.ask(
            ("HMGET", self._store.keys("ledger"), "edition", "message_seq"), ("HKEYS", self._store.keys("jobs"))
        )
        self._edition, self._jobs = text_of(edition or b"0"), sorted(map(text_of, jobs))
        self._last = number_of(last or b"0")
        try:
            yield
        finally:
            self._edition, self._jobs, self._last, self._pass = "", None, None, None

    def _named(self) -> list[str]:
        """Return the jobs whose windows are gone through."""
        return [job.name for job in self._store.jobs()] if self._jobs is None else self._jobs

    def _joined(self) -> Pass:
        """Return the pass that is about to begin: in a view, those who ask before it does go through it together."""
        if self._pass is not None and not self._pass.begun:
            return self._pass
        made = Pass(through(self._store.rows, self._named()), self._edition)
        if self._jobs is not None:
            self._pass = made
        return made

    # --- gates and losses ---

    def set_gate(self, gate: Gate) -> None:
        plan = Plan(self._store.keys)
        plan.set(plan.key("gates"), gate.name, instant(gate.until), gate_rest(gate))
        self._store.write(plan)

    def epochs(self) -> list[Epoch]:
        found = self._store.connection.ask(("LRANGE", self._store.keys("epochs"), 0, -1))[0]
        return [_epoch_of(value) for value in found]

    def accept_loss(self, reason: str, by: str, *, after: int = 0) -> Epoch:
        def plan() -> tuple[Plan, int]:
            made = Plan(self._store.keys)
            return made, self.open_epoch(made, reason, by, after=after)

        number, now = until_written(self._store, plan)
        return Epoch(number, (now + 500) // 1000 / 1000, reason, by)

    def open_epoch(self, plan: Plan, reason: str, by: str, *, after: int = 0) -> int:
        """Let a plan open a new epoch, and return its number."""
        ledger = plan.key("ledger")
        known = number_of(self._field("epoch") or b"1")
        number = max(known, after) + 1
        plan.unless_field(ledger, "epoch", str(known))
        plan.put(ledger, "epoch", str(number))
        plan.push(plan.key("epochs"), "now", following(number, reason, by))
        plan.move(ledger, "edition")
        return number

    # --- what another ledger tells ---

    def take_in(self, intake: Intake, lives: Callable[[Run, Lease | None], bool]) -> TakenIn:
        from ranonce.stores.redis.intake import take_in

        return take_in(self._store, self, intake, lives)

    def _field(self, name: str) -> bytes | None:
        found: bytes | None = self._store.connection.ask(("HGET", self._store.keys("ledger"), name))[0]
        return found


def until_written(store: RedisStore, make: Callable[[], tuple[Plan, Result]]) -> tuple[Result, int]:
    """Make a plan, and make it anew as long as others change what it relies on; return what came with it, and when it
    was written (microseconds, by the server's clock). An empty plan needs no writing."""
    give_up = time.monotonic() + store.wait_seconds
    while True:
        plan, result = make()
        if plan.empty:
            return result, 0
        written = store.write(plan)
        if written is not None:
            return result, written[0]
        if time.monotonic() > give_up:
            raise StoreUnavailable("the ledger changed faster than it could be written to.", "Try again later.")


def _epoch_of(value: bytes) -> Epoch:
    try:
        began_at, number, reason, by = read(value)
    except ValueError as error:
        raise damaged(value) from error
    return Epoch(number, began_at, reason, by)
