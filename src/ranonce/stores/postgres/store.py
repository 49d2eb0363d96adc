"""A ledger in a schema of a PostgreSQL database: for many hosts.

Correct at READ COMMITTED, which its own statements run at: all that a decision depends on is read by one statement, and
written by one (functions beside the tables), after the job's version and the leases have been locked and compared.
Only rows are locked, and nothing is kept in a session, so a pooler may stand between. Leases count by the server's own
clock. A connection that breaks is made again; a commit whose answer did not come is a lost reply, never repeated here.
"""

from __future__ import annotations

from binascii import a2b_base64, b2a_base64

from ranonce import jsontext as json
from ranonce.errors import NotThisLedger
from ranonce.failpoints import failpoint
from ranonce.lifecycle import Done, Event, Snapshot
from ranonce.stores.base import Backlog, Clock, Glance, Identity, Outline, ended
from ranonce.stores.postgres.connection import Connection, Denied, Race
from ranonce.stores.postgres.text import dumps, loads
from ranonce.stores.statements import load
from ranonce.stores.values import (
    LOST,
    event_of,
    event_values,
    gate_of,
    held_of,
    held_values,
    job_of,
    run_of,
    run_values,
    schedule_of,
    tombstone_of,
)

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Sequence
    from typing import Any, Self

    from ranonce.lifecycle import Decision, Gate, Held, Run, RunKey, ScheduleVersion, Step
    from ranonce.stores.base import Job, Scope, Tombstone
    from ranonce.stores.postgres.connection import Row
    from ranonce.stores.postgres.inside import InsideStore
    from ranonce.stores.postgres.outbox import PostgresOutbox
    from ranonce.stores.postgres.upkeep import PostgresUpkeep

FORMAT = 2  # of the tables and functions
SQL = load("postgres/store.sql")
NOTHING = Outline(range(0), [], True, None, None)
#: The clock that leases count in: the server's. One constant, since there is one server that writes.
DOMAIN = "server"


class PostgresStore:
    """An open ledger in a schema. Not for several threads: `reopen` gives each its own."""

    beside: str | None = None

    def __init__(self, url: str, *, wait_seconds: float = 30.0) -> None:
        self.url = url
        self.wait_seconds = wait_seconds
        self._connection = Connection(url, wait_seconds)
        self.schema = self._connection.server.namespace
        self._sql = statements(self.schema)
        self._schedules: dict[str, tuple[ScheduleVersion, ...]] = {}
        self._witness: tuple[RunKey, int, bool, int] | None = None
        self._identity = self._recognise()

    def _recognise(self) -> Identity:
        try:
            rows = self._all("identity")
        except Denied as error:
            raise self._unseen(error) from error
        if not rows:
            raise self._anonymous()
        ledger, created_at, epoch, volatile, version = rows[0]
        if int(version or 0) != FORMAT:
            raise another_format(self._connection.shown, int(version or 0))
        return Identity(str(ledger), float(created_at or 0), int(epoch or 1), volatile)

    def _unseen(self, error: Denied) -> Denied:
        """Return the refusal of a role that may not even look, with what would let it run jobs."""
        from ranonce.stores.postgres.promise import granting

        return Denied(error.sentence, f"Nothing was run. Let the owner say: {granting(self._connection)}")

    def _anonymous(self) -> NotThisLedger:
        return NotThisLedger(f"{self._connection.shown} has lost its identity.", LOST)

    # --- the port ---

    def identity(self) -> Identity:
        return self._identity

    def clock(self) -> Clock:
        now = _number(self._all("clock")[0][0])
        return Clock(DOMAIN, now, now)

    def read(self, key: RunKey, window_start: int) -> Snapshot:
        known = self._schedules.get(key.job, ())
        place = (key.job, window_start, key.window, key.input)
        told = loads(self._all("read_run", *place, len(known))[0][0])
        version, run, leases, gates, schedules, pruned, witness, now, ledger = told
        self.refuse_another(ledger)
        self._witness = (key, window_start, bool(witness[0]), witness[1] or 0)
        if schedules is not None:
            known = self._schedules[key.job] = tuple(map(schedule_of, schedules))
        own, rivals = None, []
        for values in leases or ():
            held = held_of(key.job, values)
            if held.key == key:
                own = held.lease
            else:
                rivals.append(held)
        return Snapshot(
            version=-1 if version is None else version,
            run=None if run is None else run_of(run),
            lease=own,
            rivals=tuple(rivals),
            gates=tuple(map(gate_of, gates or ())),
            schedules=known,
            pruned=None if pruned is None else ended(*pruned),
            domain=DOMAIN,
            now=now,
            wall=now,
        )

    def done(self, key: RunKey, window_start: int) -> Done | None:
        rows = self._all("done", key.job, window_start, key.window, key.input, self._identity.ledger)
        if not rows:
            return None
        attempt, owner, fingerprint = rows[0]
        return Done(int(attempt or 0), str(owner), fingerprint)

    def witnessed(self, key: RunKey, window_start: int, generation: int | None) -> bool:
        seen_of, start, started, done = self._witness or (None, 0, False, 0)
        if (seen_of, start) == (key, window_start):  # the events were asked when the run was read
            return started if generation is None else done >= generation
        return bool(self._all("witnessed", key.job, window_start, key.window, key.input, generation))

    def commit(self, decision: Decision, key: RunKey, after: int) -> tuple[Event, ...] | None:
        failpoint("commit:before-writes")
        try:
            rows = self._commit(decision, told(decision, key, after))
        except Race:
            return None
        failpoint("commit:after-commit")
        return written(decision, rows[0][0])

    def _commit(self, decision: Decision, values: tuple[object, ...]) -> list[Row]:
        if not (decision.steps or decision.messages or decision.moves or decision.fence):
            return self.write(self._sql["commit"], *values)
        from ranonce.stores.postgres.outbox import told_more

        return self.write(self._sql["commit_more"], *values, *told_more(decision))

    def record_schedule(self, job: Job, schedule: ScheduleVersion | None, after: int) -> bool:
        version = None if schedule is None else dumps(list(schedule.as_dict().values()))
        settings = (job.declared_at, job.late_after, job.max_attempts)
        try:
            rows = self.write(self._sql["record_schedule"], job.name, max(after, 0), *settings, version)
        except Race:
            return False
        failpoint("schedule:after-commit")
        return rows[0][0] == "t"

    def _lock_wait(self) -> int | None:
        """Return how many milliseconds a statement may wait for a lock: less than we wait for its answer."""
        return max(1, int(self.wait_seconds * 900))

    # --- questions for people ---

    def job(self, name: str) -> Job | None:
        rows = self._all("job", name)
        return job_of(loads(rows[0][0])) if rows else None

    def jobs(self) -> list[Job]:
        return [job_of(loads(row[0])) for row in self._all("jobs")]

    def schedules(self, job: str) -> tuple[ScheduleVersion, ...]:
        return tuple(schedule_of(loads(row[0])) for row in self._all("schedules", job))

    def gates(self) -> tuple[Gate, ...]:
        return tuple(gate_of(loads(row[0])) for row in self._all("gates"))

    def runs(self, job: str, since: int, until: int) -> list[Run]:
        return self._runs("runs", job, since, until)

    def stopped(self, job: str, before: int) -> list[Run]:
        return self._runs("stopped", job, before)

    def latest(self, job: str, limit: int) -> list[Run]:
        return self._runs("latest", job, limit)

    def last_done(self, job: str, before: int) -> Run | None:
        found = self._runs("last_done", job, before)
        return found[0] if found else None

    def runs_named(self, job: str, window: str) -> list[Run]:
        return self._runs("runs_named", job, window)

    def outline(self, job: str, since: int, until: int) -> Outline:
        starts, notable, in_turn, latest, earliest = self._all("outline", job, since, until)[0]
        if starts is None:
            return NOTHING
        plain = json.loads(f"[{notable or ''}]")
        return Outline(starts_of(starts), plain, in_turn != "f", _number(latest), _number(earliest))

    def notable(self, job: str, since: int, until: int) -> list[Run]:
        return self._runs("notable", job, since, until)

    def backlog(self, job: str, before: int, max_attempts: int, now: float) -> list[Backlog]:
        return [
            Backlog(str(status), spent == "t", waiting == "t", *(int(number or 0) for number in numbers))
            for status, spent, waiting, *numbers in self._all("backlog", job, before, max_attempts, now)
        ]

    def unfinished(self, job: str, before: int, limit: int) -> list[Run]:
        return self._runs("unfinished", job, before, limit)

    def last_started_end(self, job: str, schedule: int, before: float) -> int | None:
        end = self._all("last_started_end", job, schedule, int(before))[0][0]
        return None if end is None else int(end)

    def events(self, job: str, since: int, until: int) -> list[Event]:
        return self._events("events", job, since, until)

    def notable_events(self, job: str, since: int, until: int) -> list[Event]:
        return self._events("notable_events", job, since, until)

    def output(self, seq: int) -> bytes | None:
        rows = self._all("output", seq)
        return a2b_base64(rows[0][0]) if rows and rows[0][0] is not None else None

    def newest_events(self, limit: int) -> list[Event]:
        return self._events("newest_events", limit)

    def event(self, seq: int) -> Event | None:
        found = self._events("event", seq)
        return found[0] if found else None

    def leases(self, job: str) -> list[Held]:
        return [held_of(job, loads(row[0])) for row in self._all("leases", job)]

    def glance(self, job: str, scope: Scope) -> Glance:
        seen = loads(self._all("glance", job, *scope.as_dict().values())[0][0])
        (starts, in_turn, latest, earliest), notable, events, held, backlog, tombstones, later = seen
        runs = [run_of(values) for values in notable or ()]
        outline = NOTHING
        if starts is not None:
            plain = [run.window_start for run in runs]
            outline = Outline(starts_of(starts), plain, in_turn is not False, latest, earliest)
        return Glance(
            outline,
            runs,
            [event_of(values, seq) for values, seq in events or ()],
            [held_of(job, values) for values in held or ()],
            [Backlog(*values) for values in backlog or ()],
            [tombstone_of(values) for values in tombstones or ()],
            [run_of(values) for values in later or ()],
        )

    def tombstones(self, job: str, since: int, until: int) -> list[Tombstone]:
        return [tombstone_of(loads(row[0])) for row in self._all("tombstones", job, since, until)]

    def steps(self, key: RunKey, window_start: int, generation: int) -> list[str]:
        from ranonce.stores.postgres.outbox import steps

        return steps(self, key, window_start, generation)

    def step(self, key: RunKey, window_start: int, generation: int, name: str) -> Step | None:
        from ranonce.stores.postgres.outbox import step

        return step(self, key, window_start, generation, name)

    def outbox(self) -> PostgresOutbox:
        from ranonce.stores.postgres.outbox import PostgresOutbox

        return PostgresOutbox(self)

    def upkeep(self) -> PostgresUpkeep:
        from ranonce.stores.postgres.upkeep import PostgresUpkeep

        return PostgresUpkeep(self)

    # --- inside transactions of the caller's ---

    def inside(self, connection: object) -> InsideStore:
        """Return this store as the caller's open transaction sees it: what it commits becomes part of that one.

        Raises UsageError for anything but a transaction in the ledger's own database.
        """
        from ranonce.stores.postgres.inside import InsideStore

        return InsideStore(self, connection)

    def is_open(self, transaction: str) -> bool:
        """Say whether a transaction, by its id, may still be committed: also one whose COMMIT is on its way."""
        return self.ask("SELECT pg_catalog.pg_xact_status($1::xid8) = 'in progress'", transaction)[0][0] == "t"

    def take_back(self, connection: object, transaction: str | None) -> None:
        """Roll back a transaction of the caller's in which something was committed, if it is still open."""
        from ranonce.stores.postgres.inside import take_back

        if transaction is not None:
            take_back(self, connection, transaction)

    # --- for the modules beside this one ---

    @property
    def connection(self) -> Connection:
        """The connection of this store's thread."""
        return self._connection

    def ask(self, statement: str, *values: object) -> list[Row]:
        """Return the rows of a statement that only reads, in which `{schema}` stands for the ledger's."""
        return self._connection.ask(in_schema(statement, self.schema), *values)

    def write(self, statement: str, *values: object) -> list[Row]:
        """Carry out one of the functions that write: they are told whose ledger this is, and how long to wait."""
        return self._connection.tell(statement, self._identity.ledger, self._lock_wait(), *values)

    def refuse_another(self, ledger: str | None) -> None:
        """Raise NotThisLedger where another ledger answers than the one that was opened: a connection that is made
        anew, or a pooler, may lead elsewhere."""
        if ledger is None:
            raise self._anonymous()
        if ledger != self._identity.ledger:
            raise NotThisLedger(f"{self._connection.shown} holds another ledger now: {ledger}.", LOST)

    def _all(self, statement: str, *values: object) -> list[Row]:
        return self._connection.ask(self._sql[statement], *values)

    def _runs(self, statement: str, *values: object) -> list[Run]:
        return [run_of(loads(row[0])) for row in self._all(statement, *values)]

    def _events(self, statement: str, *values: object) -> list[Event]:
        return [event_of(loads(row[0]), int(row[1] or 0)) for row in self._all(statement, *values)]

    def reopen(self, wait_seconds: float) -> Self:
        other = type(self)(self.url, wait_seconds=wait_seconds)
        if other._identity != self._identity:
            raise NotThisLedger(f"the ledger {self._connection.shown} was replaced while it was open.", LOST)
        return other

    def close(self) -> None:
        self._connection.close()


# --- what goes there and comes back ---------------------------------------------------------------------------------


def another_format(shown: str, version: int) -> NotThisLedger:
    """Return the error for a ledger whose tables are of another format than ours."""
    return NotThisLedger(
        f"{shown} has table format {version}; this ranonce knows format {FORMAT}.",
        "Bring it up to date: ranonce init" if 0 < version < FORMAT else "Use the version that wrote it.",
    )


def in_schema(statement: str, schema: str) -> str:
    """Return a statement for the ledger in a schema, whose name is plain enough to need no quotes but to be safe."""
    return statement.replace("{schema}", f'"{schema}"')


_statements: dict[str, dict[str, str]] = {}


def statements(schema: str) -> dict[str, str]:
    """Return the named statements for a schema."""
    if schema not in _statements:
        _statements[schema] = {name: in_schema(statement, schema) for name, statement in SQL.items()}
    return _statements[schema]


def told(decision: Decision, key: RunKey, after: int) -> tuple[object, ...]:
    """Return a decision as the values that `commit_decision` takes, after the ledger and the wait.

    Instants that mean the moment of the write are left out: the server puts in its own (see `lifecycle.at_the_write`).
    """
    run, lease, wall = decision.run, decision.lease, decision.wall
    start = run.window_start if run else decision.unchanged[0].window_start if decision.unchanged else 0
    values = None if run is None else run_values(run)
    if values is not None and wall is not None and run is not None and run.started_at == wall:
        values[12] = None
    own = [key.window, key.input, start]
    return (
        key.job,
        after if decision.guarded else None,
        _array([held_values(held) for held in _in_order(decision.unchanged)]),
        None if values is None else dumps(values),
        decision.drop_lease and run is not None,
        None if lease is None else dumps([*own, *lease.as_dict().values()]),
        wall is not None,
        dumps(own) if decision.drop_lease and run is not None else None,
        _array([held_values(held) for held in _in_order(decision.sighted)]),
        _array([_told_event(event, wall) for event in decision.events]),
        _array(sorted(list(gate.as_dict().values()) for gate in decision.gates)),  # locked in the order of their names
    )


def _in_order(claims: Sequence[Held]) -> list[Held]:
    """Return claims in the one order in which rows are locked, so that nobody waits for each other."""
    return sorted(claims, key=lambda held: (held.window_start, held.key.window, held.key.input))


def _told_event(event: Event, wall: float | None) -> list[Any]:
    at, *values, data = event_values(event)
    output = None if event.output is None else b2a_base64(event.output, newline=False).decode()
    return [None if at == wall else at, *values, dumps(data), output]


def _array(values: list[Any]) -> str | None:
    return dumps(values) if values else None


def written(decision: Decision, answer: str | None) -> tuple[Event, ...] | None:
    """Return the events of a decision as they were written, from the answer of `commit_decision`."""
    if answer is None:
        return None
    now, numbers = json.loads(answer)
    return tuple(
        event.replace(seq=seq, at=round(now if event.at == decision.wall else event.at, 3))
        for event, seq in zip(decision.events, numbers, strict=True)
    )


def starts_of(text: str) -> Sequence[int]:
    """Return starts from the text that lists them in order: a range where they are evenly spaced."""
    starts: list[int] = json.loads(f"[{text}]")
    first, last, count = starts[0], starts[-1], len(starts)
    step, uneven = divmod(last - first, count - 1) if count > 1 else (1, 0)
    evenly = range(first, last + 1, step) if step > 0 and not uneven else None
    return evenly if evenly is not None and list(evenly) == starts else starts


def _number(text: str | None) -> float:
    return float(text or 0)
