"""What is to be written into a ledger in Redis: what must still be so, then all that is written, in one script.

A plan is the arguments of the script `write`. Everything that changes a ledger is one: a decision, a schedule, a batch
of pruning or of an import, an accepted loss.
"""

from __future__ import annotations

from ranonce.lifecycle import FAILED, HELD, RUNNING, STOPPED, at_the_write
from ranonce.stores.redis.keys import (
    MOMENT,
    event_rest,
    gate_rest,
    holder,
    instant,
    lease_rest,
    microseconds,
    place_of,
    plain,
    run_rest,
    tombstone_value,
)

TYPE_CHECKING = False
if TYPE_CHECKING:
    from ranonce.lifecycle import Claim, Decision, Event, Gate, Held, Lease, Run, RunKey
    from ranonce.stores.base import Tombstone
    from ranonce.stores.redis.keys import Keys

#: States of runs that wait for somebody.
WAITING = frozenset({FAILED, STOPPED, HELD})
#: Events that every run has.
WORK = frozenset({"start", "done"})
#: The keys that the script knows by their place.
FIXED = ("ledger", "events", "pages", "fill", "output")
#: Those that it is told first where messages are written, in this order.
OUTBOX = ("messages", "message_keys", "bodies", "numbers", "destinations")


class Plan:
    """One write in the making."""

    def __init__(self, keys: Keys) -> None:
        self._names = keys
        self._numbers: dict[str, int] = {}
        self._checks: list[str | bytes | int] = []
        self._events: list[str | bytes | int] = []
        self._writes: list[str | bytes | int] = []
        self.events = 0
        self.messages: int | None = None  # how many are new; None: the outbox is not touched
        for what in FIXED:
            self.key(what)

    def key(self, what: str, job: str | None = None) -> int:
        """Return the number by which the script knows a key."""
        return self._numbers.setdefault(self._names(what, job), len(self._numbers) + 1)

    @property
    def keys(self) -> list[str]:
        """All keys that may be touched."""
        return list(self._numbers)

    def arguments(self, ledger: str) -> tuple[str | bytes | int, ...]:
        """Return the arguments of the script. `ledger` is the id of the ledger that is meant; none for a new one."""
        room = ("room", self.events) if self.events > 1 else ()
        outbox = () if self.messages is None else ("outbox", *map(self.key, OUTBOX), self.messages)
        return (ledger, *outbox, *self._checks, *room, *self._events, *self._writes)

    @property
    def empty(self) -> bool:
        """Whether there is nothing to write."""
        return not (self._events or self._writes)

    def check(self, *words: str | bytes | int) -> None:
        """Write nothing unless a step of the script says so."""
        self._checks += words

    def write(self, *words: str | bytes | int) -> None:
        """Write what a step of the script does."""
        self._writes += words

    # --- what must still be so ---

    def unless_denied(self) -> None:
        """Write nothing unless the user of the connection may do all that a write takes."""
        self._checks.append("may")

    def unless_field(self, key: int, field: str, value: str) -> None:
        """Write nothing unless a field has this value (empty: unless there is none)."""
        self._checks += ("is", key, field, value)

    def unless_version(self, job: str, version: int | None) -> None:
        """Write nothing if the job has moved on."""
        self.unless_field(self.key("versions"), job, "" if version is None else str(version))

    def unless_as_read(self, held: Held) -> None:
        """Write nothing unless a lease is as it was read."""
        lease, place = held.lease, place_of(held.key, held.window_start)
        start = f"[{microseconds(lease.expires)},{holder(lease.attempt, lease.owner)}"
        self._checks += ("begins", self.key("leases", held.key.job), place, start)

    def unless_unclaimed(self, key: RunKey, window_start: int) -> None:
        """Write nothing if somebody has claimed a run that nobody had."""
        self._checks += ("lacks", self.key("leases", key.job), place_of(key, window_start))

    def unless_held_by(self, run: Run) -> None:
        """Write nothing unless a run's attempt still has it."""
        place = place_of(run.key, run.window_start)
        self._checks += ("holds", self.key("runs", run.key.job), place, holder(run.attempt, run.owner))

    def unless_running(self, claim: Claim) -> None:
        """Write nothing unless a claim still has its run, which is running."""
        place = place_of(claim.key, claim.window.start)
        part = f'{holder(claim.attempt, claim.owner)}"{RUNNING}",'
        self._checks += ("holds", self.key("runs", claim.key.job), place, part)

    def unless_nothing(self, key: int) -> None:
        """Write nothing if anything is there."""
        self._checks += ("none", key)

    # --- what is written ---

    def put(self, key: int, field: str, value: str) -> None:
        """Set a field."""
        self._writes += ("put", key, field, value)

    def set(self, key: int, field: str, head: str, rest: str) -> None:
        """Set a field to a list that begins with an instant."""
        self._writes += ("set", key, field, head, rest)

    def push(self, key: int, head: str, rest: str) -> None:
        """Append such a list to a list."""
        self._writes += ("push", key, head, rest)

    def move(self, key: int, field: str) -> None:
        """Let a number rise by one."""
        self._writes += ("move", key, field)

    def at_least(self, key: int, field: str, number: int) -> None:
        """Let a number be no less than this."""
        self._writes += ("least", key, field, number)

    def run(self, run: Run, *, settled: bool = False) -> None:
        """Write the new state of a run; `settled`: it is the verdict on an attempt, which began when it began."""
        job, place, start = run.key.job, place_of(run.key, run.window_start), run.window_start
        if settled:
            self._writes += ("keep", self.key("runs", job), place, run_rest(run))
        else:
            self.set(self.key("runs", job), place, instant(run.started_at), run_rest(run))
            self._writes += ("add", self.key("order", job), start, place)
        self._member(self.key("notable", job), start, place, there=not plain(run))
        if run.status != RUNNING or run.attempt > 1:
            self._member(self.key("waiting", job), start, place, there=run.status in WAITING)

    def _member(self, key: int, start: int, place: str, *, there: bool) -> None:
        self._writes += ("add", key, start, place) if there else ("rem", key, place)

    def lease(self, key: RunKey, window_start: int, lease: Lease, *, from_now: bool = False) -> None:
        """Write a lease; `from_now`: its end is so many seconds after the moment of the write."""
        ends = f"+{microseconds(lease.seconds)}" if from_now else str(microseconds(lease.expires))
        self.set(self.key("leases", key.job), place_of(key, window_start), ends, lease_rest(lease))

    def drop_lease(self, key: RunKey, window_start: int) -> None:
        """Remove a lease."""
        self._writes += ("del", self.key("leases", key.job), place_of(key, window_start))

    def event(self, event: Event, *, wanted: int = 0, after: int = 0) -> None:
        """Append an event: under the number it had elsewhere (`wanted`), if that comes after the others of its story
        (`after`, and those that this plan has appended) and nobody has it; else under the next one."""
        index = self.key("work" if event.event in WORK else "besides", event.key.job)
        output = b"" if event.output is None else b"=" + event.output
        told = (index, event.window_start, instant(event.at), event_rest(event), output)
        story = f"{event.key.job}\0{place_of(event.key, event.window_start)}"
        self._events += ("event", *told, wanted, story, after)
        self.events += 1

    def gate(self, gate: Gate) -> None:
        """Close a gate, unless it is closed for longer."""
        until, closed = instant(gate.until), instant(gate.closed_at)
        value = f"[{until}{gate_rest(gate)}"
        self._writes += ("gate", self.key("gates"), gate.name, until, closed, value)

    # --- pruning ---

    def prune_run(self, run: Run) -> None:
        """Remove the row of a run."""
        job, place = run.key.job, place_of(run.key, run.window_start)
        self._writes += ("del", self.key("runs", job), place)
        for what in ("order", "notable", "waiting"):
            self._writes += ("rem", self.key(what, job), place)

    def prune_event(self, event: Event) -> None:
        """Remove an event."""
        index = self.key("work" if event.event in WORK else "besides", event.key.job)
        self._writes += ("prune", index, str(event.seq))

    def bury(self, stone: Tombstone) -> None:
        """Put up a tombstone."""
        self._writes += ("add", self.key("tombstones", stone.job), stone.since, tombstone_value(stone))

    def unearth(self, stone: Tombstone) -> None:
        """Take a tombstone away, for a larger one."""
        self._writes += ("rem", self.key("tombstones", stone.job), tombstone_value(stone))


def decided(keys: Keys, decision: Decision, key: RunKey, after: int) -> Plan:
    """Return the plan of a decision about a run that was taken after a version of its job.

    Instants that mean the moment of the write are marked (see `lifecycle.at_the_write`): the script puts in its own.
    """
    plan = Plan(keys)
    if decision.guarded:
        plan.unless_version(key.job, after)
        plan.move(plan.key("versions"), key.job)
    for held in decision.unchanged:
        plan.unless_as_read(held)
    if decision.fence is not None:
        plan.unless_running(decision.fence)
    marked = at_the_write(decision, 0.0, MOMENT)
    run, lease = marked.run, marked.lease
    settled = run is not None and decision.drop_lease
    if run is not None:
        if settled:
            plan.unless_held_by(run)
        plan.run(run, settled=settled)
    if lease is not None:
        start = run.window_start if run else decision.unchanged[0].window_start
        plan.lease(key, start, lease, from_now=decision.wall is not None)
    for held in decision.sighted:
        plan.lease(held.key, held.window_start, held.lease)
    if settled and run is not None:
        plan.drop_lease(key, run.window_start)
    for event in marked.events:
        plan.event(event)
    for gate in decision.gates:
        plan.gate(gate)
    if decision.steps or decision.messages or decision.moves:
        from ranonce.stores.redis.posting import leave

        leave(plan, marked)
    return plan


def written(decision: Decision, now: int, numbers: list[bytes]) -> tuple[Event, ...]:
    """Return the events of a decision as they were written, at `now` in microseconds by the server's clock."""
    moment = (now + 500) // 1000 / 1000  # as the script prints it
    return tuple(
        event.replace(seq=int(seq), at=moment if event.at == MOMENT else round(event.at, 3))
        for event, seq in zip(at_the_write(decision, 0.0, MOMENT).events, numbers, strict=True)
    )
