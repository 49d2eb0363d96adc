"""A ledger in a name space of a Redis or Valkey server: for many hosts, within what that server promises.

All that a decision depends on is read by one script, and written by one, after it has seen that the job has not moved
on and the leases are as they were: the server serves nobody else meanwhile, and its own clock is the ledger's. No key
has a time to live: nothing that is finished becomes claimable by growing old. What was answered is as durable as the
server's settings make it (see `promise`).
"""

from __future__ import annotations

from ranonce.errors import NotThisLedger
from ranonce.failpoints import failpoint
from ranonce.lifecycle import DONE, Done, Event, Snapshot
from ranonce.stores.base import Clock, Identity, Job, LostReply, ended
from ranonce.stores.redis.connection import Connection
from ranonce.stores.redis.keys import (
    DOMAIN,
    Keys,
    event_of,
    instant,
    job_rest,
    number_of,
    place_of,
    run_of,
    schedule_of,
    schedule_rest,
    tombstone_of,
)
from ranonce.stores.redis.plan import Plan, decided, written
from ranonce.stores.redis.promise import identified
from ranonce.stores.redis.questions import AskedStore, gates_in, held_in
from ranonce.stores.redis.rows import WRITE_MESSAGES, Rows, named
from ranonce.stores.values import LOST

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any, Self

    from ranonce.lifecycle import Decision, RunKey, ScheduleVersion, Step
    from ranonce.stores.redis.outbox import RedisOutbox
    from ranonce.stores.redis.upkeep import RedisUpkeep

#: What the script `read` reads besides the ledger, the versions and the gates.
_OF_A_JOB = ("schedules", "tombstones", "work")


class RedisStore(AskedStore):
    """An open ledger in a name space. Not for several threads: `reopen` gives each its own."""

    def __init__(self, url: str, *, wait_seconds: float = 30.0) -> None:
        self.url = url
        self.beside: str | None = None
        self.wait_seconds = wait_seconds
        self._connection = Connection(url, wait_seconds)
        self.keys = Keys(self._connection.server.namespace)
        self._identity = identified(self._connection, self.keys)
        self.rows = Rows(self._connection, self.keys, self._identity.ledger)
        self._upkeep: RedisUpkeep | None = None
        self._may_write = False  # as far as is known
        self._told: tuple[RunKey, int, list[bytes] | None] | None = None  # the starts and ends that `read` found

    # --- the port ---

    def identity(self) -> Identity:
        return self._identity

    def clock(self) -> Clock:
        seconds, micros = self._connection.ask(("TIME",))[0]
        now = _instant(seconds, micros)
        return Clock(DOMAIN, now, now)

    def read(self, key: RunKey, window_start: int) -> Snapshot:
        job, place = key.job, place_of(key, window_start)
        keys = self.keys
        touched = [keys("ledger"), keys("versions"), keys("runs", job), keys("leases", job), keys("gates")]
        touched += [*(keys(what, job) for what in _OF_A_JOB), keys("events")]
        told = (self._identity.ledger, job, place, window_start)
        answer = self.rows.checked(self._connection.ask_script(named("read"), touched, *told))
        _, version, run, leases, gates, schedules, stone, story, *clock = answer
        self._told = (key, window_start, story)
        own, rivals = None, []
        for held in held_in(job, leases):
            if held.key == key and held.window_start == window_start:
                own = held.lease
            elif held.key != key:
                rivals.append(held)
        now = _instant(*clock)
        return Snapshot(
            version=-1 if version is None else number_of(version),
            run=None if run is None else run_of(job, place.encode("utf-8", "surrogatepass"), run),
            lease=own,
            rivals=tuple(rivals),
            gates=gates_in(gates),
            schedules=tuple(map(schedule_of, schedules)),
            pruned=_pruned(job, stone, window_start),
            domain=DOMAIN,
            now=now,
            wall=now,
        )

    def done(self, key: RunKey, window_start: int) -> Done | None:
        place = place_of(key, window_start)
        ledger, value = self._connection.ask(
            ("HGET", self.keys("ledger"), "id"), ("HGET", self.keys("runs", key.job), place)
        )
        if value is None or ledger != self._identity.ledger.encode():
            return None  # whoever asks reads on, and is told whose ledger this is
        run = run_of(key.job, place.encode("utf-8", "surrogatepass"), value)
        return Done(run.attempt, run.owner, run.fingerprint) if run.status == DONE else None

    def witnessed(self, key: RunKey, window_start: int, generation: int | None) -> bool:
        wanted = ("start", None) if generation is None else (DONE, generation)
        events = self._story(key, window_start)
        return any(
            event.key == key and (event.event, None if generation is None else event.generation) == wanted
            for event in events
        )

    def _story(self, key: RunKey, window_start: int) -> list[Event]:
        """Return the starts and ends of a window: of the state that was read last, if that was about this run."""
        told, self._told = self._told, None
        if told is not None and told[:2] == (key, window_start) and told[2] is not None:
            return [event_of(0, value) for value in told[2]]
        return self.rows.events(self.rows.members("work", key.job, window_start, window_start + 1))

    def commit(self, decision: Decision, key: RunKey, after: int) -> tuple[Event, ...] | None:
        failpoint("commit:before-writes")
        answer = self.write(decided(self.keys, decision, key, after))
        if answer is None:
            return None
        failpoint("commit:after-commit")
        return written(decision, *answer)

    def record_schedule(self, job: Job, schedule: ScheduleVersion | None, after: int) -> bool:
        known = self.job(job.name)
        if (known.version if known else 0) != max(after, 0):
            return False
        plan = Plan(self.keys)
        plan.unless_version(job.name, known.version if known else None)
        plan.move(plan.key("versions"), job.name)
        declared = known.declared_at if known else job.declared_at
        plan.set(plan.key("jobs"), job.name, instant(declared), job_rest(job))
        if schedule is not None:
            plan.push(plan.key("schedules", job.name), instant(schedule.recorded_at), schedule_rest(schedule))
            if known is not None:
                plan.move(plan.key("ledger"), "edition")
        failpoint("schedule:before-commit")
        if self.write(plan) is None:
            return False
        failpoint("schedule:after-commit")
        return True

    def steps(self, key: RunKey, window_start: int, generation: int) -> list[str]:
        from ranonce.stores.redis.posting import names_of

        return names_of(self.rows, key, window_start, generation)

    def step(self, key: RunKey, window_start: int, generation: int, name: str) -> Step | None:
        from ranonce.stores.redis.posting import step_of, step_place

        place = step_place(key, window_start, generation, name)
        value = self._connection.ask(("HGET", self.keys("results", key.job), place))[0]
        return None if value is None else step_of(key.job, place.encode("utf-8", "surrogatepass"), value)

    def outbox(self) -> RedisOutbox:
        from ranonce.stores.redis.outbox import RedisOutbox

        return RedisOutbox(self)

    def upkeep(self) -> RedisUpkeep:
        if self._upkeep is None:
            from ranonce.stores.redis.upkeep import RedisUpkeep

            self._upkeep = RedisUpkeep(self)  # one, since a view is a store's
        return self._upkeep

    # --- for the modules beside this one ---

    @property
    def connection(self) -> Connection:
        """The connection of this store's thread."""
        return self._connection

    def write(self, plan: Plan) -> tuple[int, list[bytes]] | None:
        """Write a plan, whole or not: None if something has changed that it relies on.

        Returns the moment of the write (microseconds, by the server's clock) and the numbers of its events. Raises
        LostReply, NotThisLedger, StoreUnavailable, ConfigError.
        """
        answer = self.tell(plan)
        return None if answer is None else (int(answer[1]), answer[2])

    def tell(self, plan: Plan) -> list[Any] | None:
        """Write a plan in the same way, and return all that the script answers."""
        if not self._may_write:
            plan.unless_denied()
        with_messages = plan.messages is not None
        arguments, told = plan.arguments(self._identity.ledger), named(WRITE_MESSAGES if with_messages else "write")
        answer = self.rows.checked(self._connection.tell_script(told, plan.keys, *arguments))
        self._may_write = True
        if answer[0] == b"raced":
            return None
        if len(answer[2]) != plan.events or len(answer) != 3 + with_messages:
            raise LostReply(f"the answer of {self._connection.shown} is not about what was asked.", "Try again later.")
        return answer

    def promise(self) -> list[tuple[str, str]]:
        """Return what this server promises, and where it does not: a level (ok, note, problem) and a sentence each."""
        from ranonce.stores.redis.promise import promise

        return promise(self._connection, self._identity.volatile)

    def reopen(self, wait_seconds: float) -> Self:
        other = type(self)(self.url, wait_seconds=wait_seconds)
        if other._identity.ledger != self._identity.ledger:
            raise NotThisLedger(f"the ledger at {self._connection.shown} was replaced while it was open.", LOST)
        return other

    def close(self) -> None:
        self._connection.close()


# --- what comes back ------------------------------------------------------------------------------------------------


def _instant(seconds: bytes, micros: bytes) -> float:
    return (int(seconds) * 1_000_000 + int(micros)) / 1_000_000


def _pruned(job: str, stones: list[bytes], window_start: int) -> str | None:
    """Return how a window ended that lies in the last span of pruned windows before it, if it does."""
    stone = tombstone_of(job, stones[0]) if stones else None
    return ended(stone.runs, stone.failed) if stone is not None and window_start < stone.until else None
