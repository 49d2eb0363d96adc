"""A ledger in a name space of a Redis or Valkey server: for many hosts, within what that server promises.

All that a decision depends on is read by one script, and written by one, after it has seen that the job has not moved
on and the leases are as they were: the server serves nobody else meanwhile, and its own clock is the ledger's. No key
has a time to live: nothing that is finished becomes claimable by growing old. What was answered is as durable as the
server's settings make it (see `redis_promise`).
"""

from __future__ import annotations

import operator

from ranonce import jsontext as json
from ranonce.errors import NotThisLedger
from ranonce.failpoints import failpoint
from ranonce.lifecycle import DONE, FAILED, HELD, STOPPED, Done, Event, Snapshot, attempts_left
from ranonce.stores.base import Backlog, Clock, Identity, Job, Outline, ended, glanced, joined
from ranonce.stores.redis_connection import Connection
from ranonce.stores.redis_keys import (
    DOMAIN,
    Keys,
    event_of,
    gate_of,
    held_of,
    instant,
    job_of,
    job_rest,
    place_of,
    run_of,
    schedule_of,
    schedule_rest,
    start_of,
    tombstone_of,
)
from ranonce.stores.redis_plan import Plan, decided, written
from ranonce.stores.redis_promise import identified
from ranonce.stores.redis_rows import SCRIPTS, Rows
from ranonce.stores.values import LOST

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence
    from typing import Any, Self

    from ranonce.lifecycle import Decision, Gate, Held, Run, RunKey, ScheduleVersion
    from ranonce.stores.base import Glance, Scope, Tombstone
    from ranonce.stores.redis_upkeep import RedisUpkeep

#: What the script `read` reads besides the ledger, the versions and the gates.
_OF_A_JOB = ("schedules", "tombstones", "work")
#: The newest done run is looked for in pieces of so many.
LOOK_BACK = 100


class RedisStore:
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
        answer = self.rows.checked(self._connection.ask_script(SCRIPTS["read"], touched, *told))
        _, version, run, leases, gates, schedules, stone, story, *clock = answer
        self._told = (key, window_start, story)
        own, rivals = None, []
        for held in _held(job, leases):
            if held.key == key and held.window_start == window_start:
                own = held.lease
            elif held.key != key:
                rivals.append(held)
        now = _instant(*clock)
        return Snapshot(
            version=-1 if version is None else int(version),
            run=None if run is None else run_of(job, place.encode("utf-8", "surrogatepass"), run),
            lease=own,
            rivals=tuple(rivals),
            gates=_gates(gates),
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
        recorded = self.write(plan) is not None
        failpoint("schedule:after-commit")
        return recorded

    # --- questions for people ---

    def job(self, name: str) -> Job | None:
        version, value = self._connection.ask(("HGET", self.keys("versions"), name), ("HGET", self.keys("jobs"), name))
        return None if version is None else job_of(name, version, value)

    def jobs(self) -> list[Job]:
        found = _pairs(self._connection.ask(("HGETALL", self.keys("jobs")))[0])
        names = sorted(name for name, _ in found)
        versions = dict(zip(names, self.rows.values(self.keys("versions"), names), strict=True))
        return [job_of(name.decode(), versions[name] or b"0", value) for name, value in sorted(found)]

    def schedules(self, job: str) -> tuple[ScheduleVersion, ...]:
        return tuple(map(schedule_of, self._connection.ask(("LRANGE", self.keys("schedules", job), 0, -1))[0]))

    def gates(self) -> tuple[Gate, ...]:
        return _gates(self._connection.ask(("HVALS", self.keys("gates")))[0])

    def runs(self, job: str, since: int, until: int) -> list[Run]:
        return self.rows.runs(job, self.rows.members("order", job, since, until))

    def stopped(self, job: str, before: int) -> list[Run]:
        return [run for run in self._waiting(job, before) if run.status == STOPPED]

    def latest(self, job: str, limit: int) -> list[Run]:
        return self.rows.runs(job, self.rows.newest("order", job, "+inf", limit))

    def last_done(self, job: str, before: int) -> Run | None:
        skip = 0
        while places := self.rows.newest("order", job, before, LOOK_BACK, skip):
            done = next((run for run in self.rows.runs(job, places) if run.status == DONE), None)
            if done is not None:
                return done
            skip += LOOK_BACK
        return None

    def runs_named(self, job: str, window: str) -> list[Run]:
        named = f"\0{window}\0".encode("utf-8", "surrogatepass")
        places = self.rows.members("order", job, "-inf", "+inf")
        found = self.rows.runs(job, [place for place in places if named in place])
        return [run for run in found if run.key.window == window]

    def outline(self, job: str, since: int, until: int) -> Outline:
        parts = self.rows.spans("outline", ("order", "runs", "notable"), job, since, until)
        return joined([_outline(answer) for answer in parts if len(answer) > 2])

    def notable(self, job: str, since: int, until: int) -> list[Run]:
        return self.rows.runs(job, self.rows.members("notable", job, since, until))

    def _waiting(self, job: str, before: int) -> list[Run]:
        return self.rows.runs(job, self.rows.members("waiting", job, "-inf", before))

    def backlog(self, job: str, before: int, max_attempts: int, now: float) -> list[Backlog]:
        kinds: dict[tuple[str, bool, bool], list[int]] = {}
        for run in self._waiting(job, before):
            if run.status in (STOPPED, FAILED, HELD):
                spent = run.status == FAILED and not attempts_left(run, max_attempts)
                waits = run.resume_at is not None and run.resume_at > now
                kinds.setdefault((run.status, spent, waits), []).append(run.window_start)
        return [Backlog(*kind, len(starts), starts[0], starts[-1]) for kind, starts in sorted(kinds.items())]

    def unfinished(self, job: str, before: int, limit: int) -> list[Run]:
        return self.rows.runs(job, self.rows.newest("waiting", job, before, limit))

    def last_started_end(self, job: str, schedule: int, before: float) -> int | None:
        spans = self.rows.spans("ends", ("order", "runs"), job, -(1 << 62), int(before) + 1, schedule)
        found = [int(answer[2]) for answer in spans if len(answer) > 2 and answer[2] is not None]
        return max(found, default=None)

    def events(self, job: str, since: int, until: int) -> list[Event]:
        members = self.rows.members
        return self.rows.events([*members("work", job, since, until), *members("besides", job, since, until)])

    def notable_events(self, job: str, since: int, until: int) -> list[Event]:
        return self.rows.events(self.rows.members("besides", job, since, until))

    def output(self, seq: int) -> bytes | None:
        found: bytes | None = self._connection.ask(("HGET", self.keys("output"), seq))[0]
        return found

    def newest_events(self, limit: int) -> list[Event]:
        found: list[Event] = []
        for events in self._pages_backwards():
            found += events[: limit - len(found)]
            if len(found) >= limit:
                break
        return found

    def _pages_backwards(self) -> Iterator[list[Event]]:
        """Go back through the events in pieces, newest first."""
        until = "+inf"
        while True:
            words = ("ZREVRANGEBYSCORE", self.keys("pages"), until, "-inf", "LIMIT", 0, 1)
            (page,) = self._connection.ask(words)[0] or (None,)
            if page is None:
                return
            yield self.rows.page(int(page))[::-1]
            until = f"({page.decode()}"

    def event(self, seq: int) -> Event | None:
        value = self._connection.ask(("HGET", self.keys("events"), seq))[0]
        return None if value is None else event_of(seq, value)

    def leases(self, job: str) -> list[Held]:
        return _held(job, self._connection.ask(("HGETALL", self.keys("leases", job)))[0])

    def glance(self, job: str, scope: Scope) -> Glance:
        return glanced(self, job, scope)

    def tombstones(self, job: str, since: int, until: int) -> list[Tombstone]:
        key = self.keys("tombstones", job)
        before, within = self._connection.ask(
            ("ZREVRANGEBYSCORE", key, since, "-inf", "LIMIT", 0, 1), ("ZRANGEBYSCORE", key, f"({since}", f"({until}")
        )
        found = [tombstone_of(job, value) for value in [*before, *within]]
        return [stone for stone in found if stone.until > since and stone.since < until]

    def upkeep(self) -> RedisUpkeep:
        if self._upkeep is None:
            from ranonce.stores.redis_upkeep import RedisUpkeep

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
        if not self._may_write:
            plan.unless_denied()
        arguments = plan.arguments(self._identity.ledger)
        answer = self.rows.checked(self._connection.tell_script(SCRIPTS["write"], plan.keys, *arguments))
        self._may_write = True
        return None if answer[0] == b"raced" else (int(answer[1]), answer[2])

    def promise(self) -> list[tuple[str, str]]:
        """Return what this server promises, and where it does not: a level (ok, note, problem) and a sentence each."""
        from ranonce.stores.redis_promise import promise

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


def _pairs(flat: list[bytes]) -> list[tuple[bytes, bytes]]:
    return list(zip(flat[::2], flat[1::2], strict=True))


def _held(job: str, flat: list[bytes]) -> list[Held]:
    return [held_of(job, place, value) for place, value in _pairs(flat)]


def _gates(found: list[bytes]) -> tuple[Gate, ...]:
    return tuple(sorted(map(gate_of, found), key=lambda gate: gate.name))


def _pruned(job: str, stones: list[bytes], window_start: int) -> str | None:
    """Return how a window ended that lies in the last span of pruned windows before it, if it does."""
    stone = tombstone_of(job, stones[0]) if stones else None
    return ended(stone.runs, stone.failed) if stone is not None and window_start < stone.until else None


def _outline(answer: list[Any]) -> Outline:
    """Return what the script `outline` found in some windows."""
    _, _, starts, began, ended_at, notable = answer
    begins, ends = json.loads(f"[{began.decode()}]"), json.loads(f"[{ended_at.decode()}]")
    in_turn = all(map(operator.le, begins, ends)) and all(map(operator.le, ends, begins[1:]))
    latest = max(*begins, *ends)
    return Outline(_starts(starts.decode()), [start_of(place) for place in notable], in_turn, latest, min(begins))


def _starts(text: str) -> Sequence[int]:
    """Return starts from the text that lists them: a range where they are evenly spaced."""
    starts: list[int] = json.loads(f"[{text}]")
    first, last, count = starts[0], starts[-1], len(starts)
    step, uneven = divmod(last - first, count - 1) if count > 1 else (1, 0)
    evenly = range(first, last + 1, step) if step > 0 and not uneven else None
    return evenly if evenly is not None and list(evenly) == starts else starts
