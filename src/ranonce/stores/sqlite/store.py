"""A ledger in one SQLite file on a local disk: the embedded default.

WAL with `synchronous=FULL`: a commit that returned survives a power cut. Writers stand in a fair line (`line.py`) and
take the write lock at BEGIN, so that no transaction fails half-way for being late. Leases count by CLOCK_BOOTTIME,
which no clock setting moves. The file is private (0600 in a 0700 folder), never a symbolic link, and never created
except by `create`.
"""

from __future__ import annotations

import operator
import os
import sqlite3
import time

from ranonce import jsontext as json
from ranonce.errors import NotThisLedger
from ranonce.failpoints import failpoint
from ranonce.lifecycle import (
    Done,
    Event,
    Gate,
    Held,
    Run,
    RunKey,
    ScheduleVersion,
    Snapshot,
    at_the_write,
)
from ranonce.liveness import boot_clock, clock_domain, this_host
from ranonce.stores.base import Backlog, Clock, Identity, Job, Outline, Tombstone, ended, glanced, joined
from ranonce.stores.sqlite.file import APPLICATION_ID, FORMAT, LOST, SQL, private_file, quoted, translated
from ranonce.stores.sqlite.line import WaitingLine
from ranonce.stores.sqlite.rows import (
    event_of,
    event_row,
    gate_of,
    gate_row,
    held_of,
    job_of,
    lease_row,
    read_instant,
    run_of,
    run_row,
    schedule_of,
    schedule_row,
    starts_of,
    text_of,
    tombstone_of,
    verdict_row,
)
from ranonce.timefmt import format_instant

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any, Self

    from ranonce.lifecycle import Decision, Step
    from ranonce.stores.base import Glance, Scope
    from ranonce.stores.sqlite.outbox import SqliteOutbox
    from ranonce.stores.sqlite.upkeep import SqliteUpkeep

#: How much time is outlined at once: 100,000 windows of a job that runs every minute.
OUTLINE_SECONDS = 100_000 * 60

#: The first process to open the file after all others ended reads the whole WAL again: keep it short.
CHECKPOINT_PAGES = 200
#: One that has committed so often writes it back less often, as SQLite does by itself: each time is two more waits for
#: the disk.
MANY_COMMITS = 50
MANY_PAGES = 1000


class SqliteStore:
    """An open ledger file. Not for several threads: `reopen` gives each its own."""

    def __init__(self, path: str, *, wait_seconds: float = 30.0) -> None:
        self.path = path
        self.beside: str | None = os.path.dirname(path)
        self.wait_seconds = wait_seconds
        self._file = private_file(path)
        self._line = WaitingLine(path + "-line", wait_seconds)
        self._domain = clock_domain(this_host())
        self._schedules: dict[str, tuple[ScheduleVersion, ...]] = {}
        self._commits = 0
        try:
            self._db = sqlite3.connect(
                f"file:{quoted(path)}?mode=rw",
                uri=True,
                isolation_level=None,
                timeout=wait_seconds,
                check_same_thread=False,
                cached_statements=64,
            )
            self._identity = self._recognise()
        except sqlite3.Error as error:
            raise translated(error, path) from error
        except UnicodeDecodeError as error:  # what SQLite has to say of the damage is damaged, too
            raise NotThisLedger(f"{path!r} is damaged or not a ledger.", LOST) from error

    def _recognise(self) -> Identity:
        application = self._db.execute("PRAGMA application_id").fetchone()[0]
        if application != APPLICATION_ID:
            raise NotThisLedger(
                f"{self.path!r} is a SQLite file of something else, not a ranonce ledger.",
                "Nothing was changed; name the ledger's own path.",
            )
        version = self._db.execute("PRAGMA user_version").fetchone()[0]
        if version != FORMAT:
            raise NotThisLedger(
                f"{self.path!r} has table format {version}; this ranonce knows format {FORMAT}.",
                "Bring it up to date: ranonce init" if 0 < version < FORMAT else "Use the version that wrote it.",
            )
        self._db.execute("PRAGMA synchronous = FULL")
        self._db.execute(f"PRAGMA wal_autocheckpoint = {CHECKPOINT_PAGES}")
        row = self._db.execute(SQL["identity"]).fetchone()
        if row is None:
            raise NotThisLedger(f"{self.path!r} has lost its identity.", LOST)
        return Identity(row[0], read_instant(row[1]), row[2], row[3])

    # --- the port ---

    def identity(self) -> Identity:
        return self._identity

    def clock(self) -> Clock:
        return Clock(self._domain, boot_clock(), time.time())

    def read(self, key: RunKey, window_start: int) -> Snapshot:
        db = self._db
        job = key.job
        try:
            self._begin_reading()
            try:
                found = db.execute(SQL["run_of_job"], (window_start, key.window, key.input, job)).fetchone()
                version, count, *columns = found or (-1, 0, None)
                run = None if columns[0] is None else run_of(columns)
                schedules = self._schedules_known(job, count)
                leases = db.execute(SQL["leases"], (job,)).fetchall()
                gates = db.execute(SQL["gates"]).fetchall()
                pruned = self._pruned(job, window_start) if run is None else None
            finally:
                self._end_reading()
        except sqlite3.Error as error:
            raise translated(error, self.path) from error
        own, rivals = None, []
        for row in leases:
            held = held_of(job, row)
            if held.key == key:
                own = held.lease
            else:
                rivals.append(held)
        return Snapshot(
            version=version,
            run=run,
            lease=own,
            rivals=tuple(rivals),
            gates=tuple(map(gate_of, gates)),
            schedules=schedules,
            pruned=pruned,
            domain=self._domain,
            now=boot_clock(),
            wall=time.time(),
        )

    def _begin_reading(self) -> None:
        self._db.execute("BEGIN")

    def _end_reading(self) -> None:
        self._db.execute("COMMIT")

    def _schedules_known(self, job: str, count: int) -> tuple[ScheduleVersion, ...]:
        """Return the versions of a schedule, read again only if their number has changed: they are never rewritten."""
        known = self._schedules.get(job, ())
        if len(known) != count:
            known = tuple(map(schedule_of, self._db.execute(SQL["schedules"], (job,)).fetchall()))
            self._schedules[job] = known
        return known

    def _pruned(self, job: str, window_start: int) -> str | None:
        stone = self._db.execute(SQL["tombstone_before"], (job, window_start)).fetchone()
        return ended(*stone[1:]) if stone is not None and window_start < stone[0] else None

    def witnessed(self, key: RunKey, window_start: int, generation: int | None) -> bool:
        place = (key.job, window_start, key.window, key.input)
        return bool(self._all("witnessed", *place, generation, generation))

    def commit(self, decision: Decision, key: RunKey, after: int) -> tuple[Event, ...] | None:
        with self.transaction() as transaction:
            if not self._stands(decision, key, after):
                transaction.abandon()
                return None
            # The clocks are read again now that nobody is waited for any more: no lease begins in the past.
            decision = at_the_write(decision, boot_clock(), time.time())
            failpoint("commit:before-writes")
            if decision.run is not None:
                if not self._put_run(decision.run, settled=decision.drop_lease):
                    transaction.abandon()
                    return None
                failpoint("commit:after-run")
            if decision.lease is not None:
                start = decision.run.window_start if decision.run else decision.unchanged[0].window_start
                self._db.execute(SQL["put_lease"], lease_row(key, start, decision.lease))
                failpoint("commit:after-lease")
            for held in decision.sighted:
                self._db.execute(SQL["put_lease"], lease_row(held.key, held.window_start, held.lease))
            if decision.drop_lease and decision.run is not None:
                self._db.execute(SQL["drop_lease"], (key.job, decision.run.window_start, key.window, key.input))
                failpoint("commit:after-drop")
            written = tuple(self._add(event) for event in decision.events)
            failpoint("commit:after-events")
            for gate in decision.gates:
                self._db.execute(SQL["put_gate"], gate_row(gate))
            if (decision.steps or decision.messages or decision.moves) and not self._write_effects(decision):
                transaction.abandon()
                return None
            failpoint("commit:before-commit")
        failpoint("commit:after-commit")
        return written

    def _stands(self, decision: Decision, key: RunKey, after: int) -> bool:
        """Say whether the decision still fits what is in the store; take the job's next version if it does."""
        if decision.guarded and self._db.execute(SQL["move_version"], (key.job, after)).rowcount == 0:
            return False
        if decision.fence is not None:
            from ranonce.stores.sqlite.effects import is_fenced

            if not is_fenced(self._db, decision.fence):
                return False
        return all(self._as_read(held) for held in decision.unchanged)

    def _write_effects(self, decision: Decision) -> bool:
        from ranonce.stores.sqlite.effects import write_effects

        return write_effects(self._db, decision)

    def _put_run(self, run: Run, *, settled: bool) -> bool:
        """Write a run's new state; False if it is a verdict on an attempt that has the run no more."""
        if settled:
            return self._db.execute(SQL["settle_run"], verdict_row(run)).rowcount == 1
        self._db.execute(SQL["put_run"], run_row(run))
        return True

    def _as_read(self, held: Held) -> bool:
        key, lease = held.key, held.lease
        place = (key.job, held.window_start, key.window, key.input)
        found = self._db.execute(SQL["lease_unchanged"], (*place, lease.owner, lease.attempt, lease.expires))
        return found.fetchone() is not None

    def _add(self, event: Event) -> Event:
        at = round(event.at, 3)
        values = event_row(event, at, json.dumps(event.data) if event.data else "{}")
        seq = self._db.execute(SQL["add_event"], values).lastrowid
        return event.replace(seq=seq, at=at)

    def same_file(self) -> None:
        """Refuse to write into a file that was deleted, replaced or emptied under our hands."""
        try:
            now = os.stat(self.path)
        except OSError as error:
            raise NotThisLedger(f"the ledger {self.path!r} is gone: {error.strerror}.", LOST) from error
        if (now.st_dev, now.st_ino) != self._file or now.st_size == 0:
            raise NotThisLedger(f"the ledger {self.path!r} was replaced or emptied while it was open.", LOST)

    def record_schedule(self, job: Job, schedule: ScheduleVersion | None, after: int) -> bool:
        with self.transaction() as transaction:
            declared = format_instant(job.declared_at, precision="ms")
            self._db.execute(SQL["add_job"], (job.name, declared, job.late_after, job.max_attempts))
            if self._db.execute(SQL["move_version"], (job.name, max(after, 0))).rowcount == 0:
                transaction.abandon()
                return False
            more = 0 if schedule is None else 1
            self._db.execute(SQL["put_job"], (job.late_after, job.max_attempts, more, job.name))
            if schedule is not None:
                self._db.execute(SQL["add_schedule"], schedule_row(job.name, schedule))
            failpoint("schedule:before-commit")
        failpoint("schedule:after-commit")
        return True

    def done(self, key: RunKey, window_start: int) -> Done | None:
        rows = self._all("done", key.job, window_start, key.window, key.input)
        return Done(*rows[0]) if rows else None

    # --- questions for people ---

    def job(self, name: str) -> Job | None:
        rows = self._all("job", name)
        return job_of(rows[0]) if rows else None

    def jobs(self) -> list[Job]:
        return [job_of(row) for row in self._all("jobs")]

    def schedules(self, job: str) -> tuple[ScheduleVersion, ...]:
        return tuple(map(schedule_of, self._all("schedules", job)))

    def gates(self) -> tuple[Gate, ...]:
        return tuple(map(gate_of, self._all("gates")))

    def runs(self, job: str, since: int, until: int) -> list[Run]:
        return [run_of(row) for row in self._all("runs", job, since, until)]

    def stopped(self, job: str, before: int) -> list[Run]:
        return [run_of(row) for row in self._all("stopped", job, before)]

    def latest(self, job: str, limit: int) -> list[Run]:
        return [run_of(row) for row in self._all("latest", job, limit)]

    def last_done(self, job: str, before: int) -> Run | None:
        rows = self._all("last_done", job, before)
        return run_of(rows[0]) if rows else None

    def runs_named(self, job: str, window: str) -> list[Run]:
        return [run_of(row) for row in self._all("runs_named", job, window)]

    def outline(self, job: str, since: int, until: int) -> Outline:
        if until - since > OUTLINE_SECONDS:  # in parts, so that a million windows do not stand in memory as text
            first, last = self._all("reach", *(job, since, until) * 2)[0]
            if first is not None and last - first > OUTLINE_SECONDS:
                starts = range(first, last + 1, OUTLINE_SECONDS)
                return joined([self._outline(job, start, min(start + OUTLINE_SECONDS, last + 1)) for start in starts])
        return self._outline(job, since, until)

    def _outline(self, job: str, since: int, until: int) -> Outline:
        starts, notable, began, ended = self._all("outline", job, since, until)[0]
        if starts is None:
            return Outline(range(0), [], True, None, None)
        # Instants are text of one width here, so they sort as they are: nothing needs to be parsed to compare them.
        begins, ends = began.split(","), ended.split(",")
        in_turn = all(map(operator.le, ends, begins[1:]))
        latest = max(begins[-1], ends[-1]) if in_turn else max(*begins, *ends)
        plain = json.loads(f"[{notable or ''}]")
        return Outline(starts_of(starts), plain, in_turn, read_instant(latest), read_instant(min(begins)))

    def notable(self, job: str, since: int, until: int) -> list[Run]:
        return [run_of(row) for row in self._all("notable", job, since, until)]

    def backlog(self, job: str, before: int, max_attempts: int, now: float) -> list[Backlog]:
        rows = self._all("backlog", max_attempts, text_of(now), job, before)
        return [Backlog(status, bool(spent), bool(waiting), *rest) for status, spent, waiting, *rest in rows]

    def unfinished(self, job: str, before: int, limit: int) -> list[Run]:
        return [run_of(row) for row in self._all("unfinished", job, before, limit)]

    def last_started_end(self, job: str, schedule: int, before: float) -> int | None:
        end = self._all("last_started_end", job, schedule, int(before))[0][0]
        return int(end) if end is not None else None

    def events(self, job: str, since: int, until: int) -> list[Event]:
        return [event_of(row) for row in self._all("events", job, since, until)]

    def notable_events(self, job: str, since: int, until: int) -> list[Event]:
        return [event_of(row) for row in self._all("notable_events", job, since, until)]

    def output(self, seq: int) -> bytes | None:
        rows = self._all("output", seq)
        return rows[0][0] if rows else None

    def newest_events(self, limit: int) -> list[Event]:
        return [event_of(row) for row in self._all("newest_events", limit)]

    def event(self, seq: int) -> Event | None:
        rows = self._all("event", seq)
        return event_of(rows[0]) if rows else None

    def leases(self, job: str) -> list[Held]:
        return [held_of(job, row) for row in self._all("leases", job)]

    def glance(self, job: str, scope: Scope) -> Glance:
        return glanced(self, job, scope)

    def tombstones(self, job: str, since: int, until: int) -> list[Tombstone]:
        rows = self._all("tombstones", job, since, until)
        return [tombstone_of(job, row) for row in rows]

    def steps(self, key: RunKey, window_start: int, generation: int) -> list[str]:
        from ranonce.stores.sqlite.effects import SQL, place_of

        return [name for (name,) in self.ask(SQL["steps"], *place_of(key, window_start), generation)]

    def step(self, key: RunKey, window_start: int, generation: int, name: str) -> Step | None:
        from ranonce.stores.sqlite.effects import SQL, place_of, step_of

        rows = self.ask(SQL["step"], *place_of(key, window_start), generation, name)
        return step_of(rows[0]) if rows else None

    def outbox(self) -> SqliteOutbox:
        from ranonce.stores.sqlite.outbox import SqliteOutbox

        return SqliteOutbox(self)

    def upkeep(self) -> SqliteUpkeep:
        from ranonce.stores.sqlite.upkeep import SqliteUpkeep

        return SqliteUpkeep(self)

    def inside(self, connection: object) -> SqliteStore:
        """Return this store as the caller's open transaction sees it: what it commits becomes part of that one.

        Raises UsageError for anything but a transaction on the ledger's own file.
        """
        from ranonce.stores.sqlite.inside import InsideStore

        return InsideStore(self, connection)

    def take_back(self, connection: object, transaction: str | None) -> None:
        """Roll back a transaction of the caller's, if it is still open: one that was written to, or on this file."""
        from ranonce.stores.sqlite.inside import take_back

        take_back(self, connection, wrote=transaction is not None)

    # --- for the modules beside this one ---

    @property
    def connection(self) -> sqlite3.Connection:
        """The connection of this store's thread."""
        return self._db

    def transaction(self) -> _Transaction:
        """Return a write transaction, taken in line: committed after its block, or abandoned."""
        return _Transaction(self)

    def reading(self) -> _Reading:
        """Return a block whose questions are all answered as of one moment."""
        return _Reading(self)

    def committed(self) -> None:
        """Note that a transaction of this store was committed."""
        self._commits += 1
        if self._commits == MANY_COMMITS:
            self._db.execute(f"PRAGMA wal_autocheckpoint = {MANY_PAGES}")

    def ask(self, statement: str, *values: object) -> list[tuple[Any, ...]]:
        """Return the rows of a statement that only reads."""
        try:
            return self._db.execute(statement, values).fetchall()
        except sqlite3.Error as error:
            raise translated(error, self.path) from error

    def _all(self, statement: str, *values: object) -> list[tuple[Any, ...]]:
        return self.ask(SQL[statement], *values)

    def reopen(self, wait_seconds: float) -> Self:
        other = type(self)(self.path, wait_seconds=wait_seconds)
        if (other._file, other._identity) != (self._file, self._identity):
            raise NotThisLedger(f"the ledger {self.path!r} was replaced while it was open.", LOST)
        return other

    def close(self) -> None:
        self._db.close()
        self._line.close()


class _Reading:
    """Questions that are answered as of one moment."""

    def __init__(self, store: SqliteStore) -> None:
        self._store = store

    def __enter__(self) -> None:
        try:
            self._store._begin_reading()
        except sqlite3.Error as error:
            raise translated(error, self._store.path) from error

    def __exit__(self, _: object, error: BaseException | None, __: object) -> None:
        self._store._end_reading()
        if isinstance(error, sqlite3.Error):
            raise translated(error, self._store.path) from error


class _Transaction:
    """A write transaction, taken in line: committed after its block, rolled back if abandoned or left by an error."""

    def __init__(self, store: SqliteStore) -> None:
        self._store = store
        self._db = store._db
        self._abandoned = False

    def abandon(self) -> None:
        """Write nothing after all."""
        self._abandoned = True

    def __enter__(self) -> Self:
        line = self._store._line
        try:
            line.__enter__()
            try:
                self._store.same_file()
                self._db.execute("BEGIN IMMEDIATE")
            except BaseException:
                line.__exit__()
                raise
        except (sqlite3.Error, OSError) as error:
            raise translated(error, self._store.path) from error
        return self

    def __exit__(self, kind: object, error: BaseException | None, _: object) -> None:
        try:
            if kind is None and not self._abandoned:
                self._db.execute("COMMIT")
                self._store.committed()
            if self._db.in_transaction:
                self._db.execute("ROLLBACK")
        except sqlite3.Error as failed:
            error = failed
            if self._db.in_transaction:
                self._db.execute("ROLLBACK")
        finally:
            self._store._line.__exit__()
        if isinstance(error, (sqlite3.Error, OSError)):
            raise translated(error, self._store.path) from error
