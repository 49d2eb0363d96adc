"""The questions that people ask of a ledger in Redis: what ran, what did not, what waits."""

from __future__ import annotations

import operator

from ranonce import jsontext as json
from ranonce.lifecycle import DONE, FAILED, HELD, STOPPED, attempts_left
from ranonce.stores.base import Backlog, Glance, Outline, glanced, joined
from ranonce.stores.redis.keys import (
    PAGE,
    event_of,
    gate_of,
    held_of,
    job_of,
    number_of,
    run_of,
    schedule_of,
    start_of,
    text_of,
    tombstone_of,
)
from ranonce.stores.redis.rows import named
from ranonce.stores.values import MOST, damaged

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence
    from typing import Any

    from ranonce.lifecycle import Event, Gate, Held, Run, ScheduleVersion
    from ranonce.stores.base import Job, Scope, Tombstone
    from ranonce.stores.redis.connection import Connection
    from ranonce.stores.redis.keys import Keys
    from ranonce.stores.redis.rows import Rows

#: The newest done run is looked for in pieces of so many.
LOOK_BACK = 100
#: What is more than this, a survey is told in pieces.
MOST_AT_A_GLANCE = 2000
#: What the script `glance` reads besides the ledger and its events, in this order.
_GLANCED = (("order", "runs", "notable"), ("besides", "leases", "waiting", "tombstones"))


class AskedStore:
    """What a store is asked by people; it has the connection, the names of the keys, and the rows."""

    _connection: Connection
    keys: Keys
    rows: Rows

    def job(self, name: str) -> Job | None:
        version, value = self._connection.ask(("HGET", self.keys("versions"), name), ("HGET", self.keys("jobs"), name))
        return None if version is None else job_of(name, version, value)

    def jobs(self) -> list[Job]:
        found = pairs(self._connection.ask(("HGETALL", self.keys("jobs")))[0])
        names = sorted(name for name, _ in found)
        versions = dict(zip(names, self.rows.values(self.keys("versions"), names), strict=True))
        return [job_of(text_of(name), versions[name] or b"0", value) for name, value in sorted(found)]

    def schedules(self, job: str) -> tuple[ScheduleVersion, ...]:
        return tuple(map(schedule_of, self._connection.ask(("LRANGE", self.keys("schedules", job), 0, -1))[0]))

    def gates(self) -> tuple[Gate, ...]:
        return gates_in(self._connection.ask(("HVALS", self.keys("gates")))[0])

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
        return _backlog(self._waiting(job, before), max_attempts, now)

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
        last = number_of(self._connection.ask(("HGET", self.keys("ledger"), "seq"))[0] or b"0")
        if 0 < limit <= min(last, PAGE):
            found = self.rows.events(b"%d" % seq for seq in range(last - limit + 1, last + 1))
            if len(found) == limit:  # as nearly always: none of them was pruned
                return found[::-1]
        found = []
        for events in self._pages_backwards():
            found += events[: limit - len(found)]
            if len(found) >= limit:
                break
        return found

    def _pages_backwards(self) -> Iterator[list[Event]]:
        """Go back through the events in pieces, newest first."""
        until, last = "+inf", MOST
        while True:
            words = ("ZREVRANGEBYSCORE", self.keys("pages"), until, "-inf", "LIMIT", 0, 1)
            (page,) = self._connection.ask(words)[0] or (None,)
            if page is None:
                return
            if (number := number_of(page)) >= last:
                raise damaged(page)  # it stands where another belongs
            yield self.rows.page(number)[::-1]
            until, last = f"({number}", number

    def event(self, seq: int) -> Event | None:
        value = self._connection.ask(("HGET", self.keys("events"), seq))[0]
        return None if value is None else event_of(seq, value)

    def leases(self, job: str) -> list[Held]:
        return held_in(job, self._connection.ask(("HGETALL", self.keys("leases", job)))[0])

    def glance(self, job: str, scope: Scope) -> Glance:
        keys = [self.keys("ledger"), *(self.keys(what, job) for what in _GLANCED[0]), self.keys("events")]
        keys += [self.keys(what, job) for what in _GLANCED[1]]
        told = (self.rows.ledger, scope.since, f"({scope.until}", scope.future, MOST_AT_A_GLANCE)
        answer = self.rows.checked(self._connection.ask_script(named("glance"), keys, *told))
        return glanced(self, job, scope) if answer[0] == b"many" else _glance(job, scope, answer)  # type: ignore[arg-type]

    def tombstones(self, job: str, since: int, until: int) -> list[Tombstone]:
        key = self.keys("tombstones", job)
        before, within = self._connection.ask(
            ("ZREVRANGEBYSCORE", key, since, "-inf", "LIMIT", 0, 1), ("ZRANGEBYSCORE", key, f"({since}", f"({until}")
        )
        return _stones(job, [*before, *within], since, until)


# --- what comes back ------------------------------------------------------------------------------------------------


def pairs(flat: list[bytes]) -> list[tuple[bytes, bytes]]:
    """Return the fields and values of a hash, as it is answered."""
    return list(zip(flat[::2], flat[1::2], strict=True))


def held_in(job: str, flat: list[bytes]) -> list[Held]:
    """Return the claims that stand in the hash of a job's leases."""
    return [held_of(job, place, value) for place, value in pairs(flat)]


def gates_in(found: list[bytes]) -> tuple[Gate, ...]:
    """Return the gates of values, by name."""
    return tuple(sorted(map(gate_of, found), key=lambda gate: gate.name))


def _outline(answer: list[Any]) -> Outline:
    """Return what the script `outline` found in some windows."""
    _, _, starts, began, ended_at, notable = answer
    begins, ends = _instants(began), _instants(ended_at)
    in_turn = all(map(operator.le, begins, ends)) and all(map(operator.le, ends, begins[1:]))
    latest = max(*begins, *ends)
    return Outline(_starts(starts.decode()), [start_of(place) for place in notable], in_turn, latest, min(begins))


def _instants(text: bytes) -> list[float]:
    """Return the instants that a text lists."""
    try:
        told: list[float] = json.loads(b"[%b]" % text)
    except ValueError as error:
        raise damaged(text[:80]) from error
    if not set(map(type, told)) <= {int, float} or not all(-MOST <= each <= MOST for each in told):
        raise damaged(text[:80])
    return told


def _starts(text: str) -> Sequence[int]:
    """Return starts from the text that lists them: a range where they are evenly spaced."""
    starts: list[int] = json.loads(f"[{text}]")
    first, last, count = starts[0], starts[-1], len(starts)
    step, uneven = divmod(last - first, count - 1) if count > 1 else (1, 0)
    evenly = range(first, last + 1, step) if step > 0 and not uneven else None
    return evenly if evenly is not None and list(evenly) == starts else starts


def _runs(job: str, places: list[bytes], values: list[bytes | None]) -> list[Run]:
    return [run_of(job, place, value) for place, value in zip(places, values, strict=True)]


def _backlog(runs: Iterable[Run], max_attempts: int, now: float) -> list[Backlog]:
    kinds: dict[tuple[str, bool, bool], list[int]] = {}
    for run in runs:
        if run.status in (STOPPED, FAILED, HELD):
            spent = run.status == FAILED and not attempts_left(run, max_attempts)
            waits = run.resume_at is not None and run.resume_at > now
            kinds.setdefault((run.status, spent, waits), []).append(run.window_start)
    return [Backlog(*kind, len(starts), starts[0], starts[-1]) for kind, starts in sorted(kinds.items())]


def _stones(job: str, found: list[bytes], since: int, until: int) -> list[Tombstone]:
    stones = [tombstone_of(job, value) for value in found]
    return [stone for stone in stones if stone.until > since and stone.since < until]


def _glance(job: str, scope: Scope, answer: list[Any]) -> Glance:
    """Return what the script `glance` has seen."""
    _, *outline, notable, of_notable, seqs, events, leases, waiting, of_waiting, before, within, later, of_later = (
        answer
    )
    told = [event_of(number_of(seq), value) for seq, value in zip(seqs, events, strict=True)]
    return Glance(
        joined([_outline([b"", b"", *outline, notable])] if outline[0] else []),
        _runs(job, notable, of_notable),
        sorted(told, key=lambda event: event.seq or 0),
        held_in(job, leases),
        _backlog(_runs(job, waiting, of_waiting), scope.max_attempts, scope.now),
        _stones(job, [*before, *within], scope.since, scope.until),
        _runs(job, later, of_later),
    )
