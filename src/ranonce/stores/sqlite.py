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
import stat
import time
from datetime import datetime
from functools import lru_cache

from ranonce import jsontext as json
from ranonce.errors import ConfigError, NotThisLedger, RanonceError, StoreUnavailable
from ranonce.failpoints import failpoint
from ranonce.lifecycle import (
    STATES,
    Done,
    Event,
    Gate,
    Held,
    Lease,
    Run,
    RunKey,
    ScheduleVersion,
    Snapshot,
    at_the_write,
)
from ranonce.liveness import boot_clock, clock_domain, this_host
from ranonce.stores.base import Backlog, Clock, Identity, Job, Outline
from ranonce.stores.line import WaitingLine
from ranonce.stores.statements import load
from ranonce.timefmt import format_instant, shown

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Sequence
    from typing import Any, Self

    from ranonce.lifecycle import Decision

APPLICATION_ID = 0x72616E6F  # "rano", in the file's header: whose file this is
FORMAT = 1  # of the tables, in the header's user_version
SQL = load("sqlite.sql")

#: More than anybody makes; a larger number is damage.
MOST_ATTEMPTS = 1 << 53

# The first process to open the file after all others ended reads the whole WAL again: keep it short.
CHECKPOINT_PAGES = 200


def create(path: str, ledger: str, *, volatile: str | None = None) -> None:
    """Create an empty ledger file at an absolute path. Refused where anything stands already.

    The file is built under another name and moved into place, so that nobody ever meets half a ledger.
    """
    folder = os.path.dirname(path)
    try:
        os.makedirs(folder, mode=0o700, exist_ok=True)
        building = f"{path}.{os.getpid()}.new"
        os.close(os.open(building, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600))
        try:
            _build(building, ledger, volatile)
            os.link(building, path)
        finally:
            for leftover in (building, building + "-wal", building + "-shm"):
                if os.path.lexists(leftover):
                    os.unlink(leftover)
        _sync_folder(folder)
    except FileExistsError as error:
        raise NotThisLedger(f"{path!r} exists already.", "Nothing was changed; name another path.") from error
    except OSError as error:
        raise StoreUnavailable(f"no ledger could be created at {path!r}: {error.strerror}.", "") from error
    except sqlite3.Error as error:
        raise _translated(error, path) from error


def _build(path: str, ledger: str, volatile: str | None) -> None:
    db = sqlite3.connect(f"file:{_quoted(path)}?mode=rw", uri=True, isolation_level=None)
    try:
        # The journal mode is set while nobody else can have the file open, so it cannot fail for being locked.
        mode = db.execute("PRAGMA journal_mode = WAL").fetchone()[0]
        if mode != "wal":
            raise StoreUnavailable(f"{path!r} cannot be put in WAL mode (it stays {mode}).", "Use a local disk.")
        db.execute("PRAGMA synchronous = FULL")
        schema = _read_schema()
        db.executescript(
            f"BEGIN; PRAGMA application_id = {APPLICATION_ID}; PRAGMA user_version = {FORMAT}; {schema} COMMIT;"
        )
        db.execute(SQL["create"], (ledger, format_instant(time.time(), precision="ms"), volatile))
        db.execute("PRAGMA wal_checkpoint(TRUNCATE)")
    finally:
        db.close()


def _read_schema() -> str:
    with open(os.path.join(os.path.dirname(__file__), "sqlite_schema.sql"), encoding="utf-8") as file:
        return file.read()


def _sync_folder(folder: str) -> None:
    fd = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(fd)
    finally:
        os.close(fd)


def _quoted(path: str) -> str:
    return path.replace("%", "%25").replace("?", "%3f").replace("#", "%23")


class SqliteStore:
    """An open ledger file. Not for several threads: `reopen` gives each its own."""

    def __init__(self, path: str, *, wait_seconds: float = 30.0) -> None:
        self.path = path
        self.wait_seconds = wait_seconds
        self._file = _private_file(path)
        self._line = WaitingLine(path + "-line", wait_seconds)
        self._domain = clock_domain(this_host())
        self._schedules: dict[str, tuple[ScheduleVersion, ...]] = {}
        try:
            self._db = sqlite3.connect(
                f"file:{_quoted(path)}?mode=rw",
                uri=True,
                isolation_level=None,
                timeout=wait_seconds,
                check_same_thread=False,
                cached_statements=64,
            )
            self._identity = self._recognise()
        except sqlite3.Error as error:
            raise _translated(error, path) from error
        except UnicodeDecodeError as error:  # what SQLite has to say of the damage is damaged, too
            raise NotThisLedger(f"{path!r} is damaged or not a ledger.", _LOST) from error

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
                "Use the version of ranonce that wrote it.",
            )
        self._db.execute("PRAGMA synchronous = FULL")
        self._db.execute(f"PRAGMA wal_autocheckpoint = {CHECKPOINT_PAGES}")
        row = self._db.execute(SQL["identity"]).fetchone()
        if row is None:
            raise NotThisLedger(f"{self.path!r} has lost its identity.", "Restore it from a backup.")
        return Identity(row[0], _read(row[1]), row[2], row[3])

    # --- the port ---

    def identity(self) -> Identity:
        return self._identity

    def clock(self) -> Clock:
        return Clock(self._domain, boot_clock(), time.time())

    def read(self, key: RunKey, window_start: int) -> Snapshot:
        db = self._db
        job = key.job
        try:
            db.execute("BEGIN")
            try:
                found = db.execute(SQL["run_of_job"], (window_start, key.window, key.input, job)).fetchone()
                version, count, *columns = found or (-1, 0, None)
                run = None if columns[0] is None else _run(columns)
                schedules = self._schedules_known(job, count)
                leases = db.execute(SQL["leases"], (job,)).fetchall()
                gates = db.execute(SQL["gates"]).fetchall()
            finally:
                db.execute("COMMIT")
        except sqlite3.Error as error:
            raise _translated(error, self.path) from error
        own, rivals = None, []
        for row in leases:
            held = _held(job, row)
            if held.key == key:
                own = held.lease
            else:
                rivals.append(held)
        return Snapshot(
            version=version,
            run=run,
            lease=own,
            rivals=tuple(rivals),
            gates=tuple(map(_gate, gates)),
            schedules=schedules,
            horizon=None,
            domain=self._domain,
            now=boot_clock(),
            wall=time.time(),
        )

    def _schedules_known(self, job: str, count: int) -> tuple[ScheduleVersion, ...]:
        """Return the versions of a schedule, read again only if their number has changed: they are never rewritten."""
        known = self._schedules.get(job, ())
        if len(known) != count:
            known = tuple(map(_schedule, self._db.execute(SQL["schedules"], (job,)).fetchall()))
            self._schedules[job] = known
        return known

    def witnessed(self, key: RunKey, window_start: int, generation: int | None) -> bool:
        place = (key.job, window_start, key.window, key.input)
        return bool(self._all("witnessed", *place, generation, generation))

    def commit(self, decision: Decision, key: RunKey, after: int) -> tuple[Event, ...] | None:
        with _Transaction(self) as transaction:
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
                self._db.execute(SQL["put_lease"], _lease_row(key, start, decision.lease))
                failpoint("commit:after-lease")
            for held in decision.sighted:
                self._db.execute(SQL["put_lease"], _lease_row(held.key, held.window_start, held.lease))
            if decision.drop_lease and decision.run is not None:
                self._db.execute(SQL["drop_lease"], (key.job, decision.run.window_start, key.window, key.input))
                failpoint("commit:after-drop")
            written = tuple(self._add(event) for event in decision.events)
            failpoint("commit:after-events")
            for gate in decision.gates:
                self._db.execute(SQL["put_gate"], _gate_row(gate))
            failpoint("commit:before-commit")
        failpoint("commit:after-commit")
        return written

    def _stands(self, decision: Decision, key: RunKey, after: int) -> bool:
        """Say whether the decision still fits what is in the store; take the job's next version if it does."""
        if decision.guarded and self._db.execute(SQL["move_version"], (key.job, after)).rowcount == 0:
            return False
        return all(self._as_read(held) for held in decision.unchanged)

    def _put_run(self, run: Run, *, settled: bool) -> bool:
        """Write a run's new state; False if it is a verdict on an attempt that has the run no more."""
        if settled:
            return self._db.execute(SQL["settle_run"], _verdict_row(run)).rowcount == 1
        self._db.execute(SQL["put_run"], _run_row(run))
        return True

    def _as_read(self, held: Held) -> bool:
        key, lease = held.key, held.lease
        place = (key.job, held.window_start, key.window, key.input)
        found = self._db.execute(SQL["lease_unchanged"], (*place, lease.owner, lease.attempt, lease.expires))
        return found.fetchone() is not None

    def _add(self, event: Event) -> Event:
        at = round(event.at, 3)
        key = event.key
        values = (
            format_instant(at, precision="ms"),
            key.job,
            event.window_start,
            key.window,
            key.input,
            event.event,
            event.reason,
            event.attempt,
            event.generation,
            event.owner,
            event.trigger,
            event.version,
            event.host,
            json.dumps(event.data) if event.data else "{}",
            event.output,
        )
        seq = self._db.execute(SQL["add_event"], values).lastrowid
        return event.replace(seq=seq, at=at)

    def same_file(self) -> None:
        """Refuse to write into a file that was deleted, replaced or emptied under our hands."""
        try:
            now = os.stat(self.path)
        except OSError as error:
            raise NotThisLedger(f"the ledger {self.path!r} is gone: {error.strerror}.", _LOST) from error
        if (now.st_dev, now.st_ino) != self._file or now.st_size == 0:
            raise NotThisLedger(f"the ledger {self.path!r} was replaced or emptied while it was open.", _LOST)

    def record_schedule(self, job: Job, schedule: ScheduleVersion | None, after: int) -> bool:
        with _Transaction(self) as transaction:
            declared = format_instant(job.declared_at, precision="ms")
            self._db.execute(SQL["add_job"], (job.name, declared, job.late_after, job.max_attempts))
            if self._db.execute(SQL["move_version"], (job.name, max(after, 0))).rowcount == 0:
                transaction.abandon()
                return False
            more = 0 if schedule is None else 1
            self._db.execute(SQL["put_job"], (job.late_after, job.max_attempts, more, job.name))
            if schedule is not None:
                self._db.execute(SQL["add_schedule"], _schedule_row(job.name, schedule))
            failpoint("schedule:before-commit")
        failpoint("schedule:after-commit")
        return True

    def done(self, key: RunKey, window_start: int) -> Done | None:
        rows = self._all("done", key.job, window_start, key.window, key.input)
        return Done(*rows[0]) if rows else None

    # --- questions for people ---

    def job(self, name: str) -> Job | None:
        rows = self._all("job", name)
        return _job(rows[0]) if rows else None

    def jobs(self) -> list[Job]:
        return [_job(row) for row in self._all("jobs")]

    def schedules(self, job: str) -> tuple[ScheduleVersion, ...]:
        return tuple(map(_schedule, self._all("schedules", job)))

    def gates(self) -> tuple[Gate, ...]:
        return tuple(map(_gate, self._all("gates")))

    def runs(self, job: str, since: int, until: int) -> list[Run]:
        return [_run(row) for row in self._all("runs", job, since, until)]

    def stopped(self, job: str, before: int) -> list[Run]:
        return [_run(row) for row in self._all("stopped", job, before)]

    def latest(self, job: str, limit: int) -> list[Run]:
        return [_run(row) for row in self._all("latest", job, limit)]

    def last_done(self, job: str, before: int) -> Run | None:
        rows = self._all("last_done", job, before)
        return _run(rows[0]) if rows else None

    def runs_named(self, job: str, window: str) -> list[Run]:
        return [_run(row) for row in self._all("runs_named", job, window)]

    def outline(self, job: str, since: int, until: int) -> Outline:
        starts, notable, began, ended = self._all("outline", job, since, until)[0]
        if starts is None:
            return Outline(range(0), [], True, None)
        # Instants are text of one width here, so they sort as they are: nothing needs to be parsed to compare them.
        begins, ends = began.split(","), ended.split(",")
        in_turn = all(map(operator.le, ends, begins[1:]))
        latest = max(begins[-1], ends[-1]) if in_turn else max(*begins, *ends)
        return Outline(_starts(starts), json.loads(f"[{notable or ''}]"), in_turn, _read(latest))

    def notable(self, job: str, since: int, until: int) -> list[Run]:
        return [_run(row) for row in self._all("notable", job, since, until)]

    def backlog(self, job: str, before: int, max_attempts: int, now: float) -> list[Backlog]:
        rows = self._all("backlog", max_attempts, _text(now), job, before)
        return [Backlog(status, bool(spent), bool(waiting), *rest) for status, spent, waiting, *rest in rows]

    def unfinished(self, job: str, before: int, limit: int) -> list[Run]:
        return [_run(row) for row in self._all("unfinished", job, before, limit)]

    def last_started_end(self, job: str, schedule: int, before: float) -> int | None:
        end = self._all("last_started_end", job, schedule, int(before))[0][0]
        return int(end) if end is not None else None

    def events(self, job: str, since: int, until: int) -> list[Event]:
        return [_event(row) for row in self._all("events", job, since, until)]

    def notable_events(self, job: str, since: int, until: int) -> list[Event]:
        return [_event(row) for row in self._all("notable_events", job, since, until)]

    def output(self, seq: int) -> bytes | None:
        rows = self._all("output", seq)
        return rows[0][0] if rows else None

    def newest_events(self, limit: int) -> list[Event]:
        return [_event(row) for row in self._all("newest_events", limit)]

    def event(self, seq: int) -> Event | None:
        rows = self._all("event", seq)
        return _event(rows[0]) if rows else None

    def leases(self, job: str) -> list[Held]:
        return [_held(job, row) for row in self._all("leases", job)]

    def _all(self, statement: str, *values: object) -> list[tuple[Any, ...]]:
        try:
            return self._db.execute(SQL[statement], values).fetchall()
        except sqlite3.Error as error:
            raise _translated(error, self.path) from error

    def reopen(self, wait_seconds: float) -> Self:
        other = type(self)(self.path, wait_seconds=wait_seconds)
        if (other._file, other._identity) != (self._file, self._identity):
            raise NotThisLedger(f"the ledger {self.path!r} was replaced while it was open.", _LOST)
        return other

    def close(self) -> None:
        self._db.close()
        self._line.close()


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
            raise _translated(error, self._store.path) from error
        return self

    def __exit__(self, kind: object, error: BaseException | None, _: object) -> None:
        try:
            if kind is None and not self._abandoned:
                self._db.execute("COMMIT")
            if self._db.in_transaction:
                self._db.execute("ROLLBACK")
        except sqlite3.Error as failed:
            error = failed
            if self._db.in_transaction:
                self._db.execute("ROLLBACK")
        finally:
            self._store._line.__exit__()
        if isinstance(error, (sqlite3.Error, OSError)):
            raise _translated(error, self._store.path) from error


_LOST = (
    "Nothing was run. Put the ledger back (restore it from a backup); a new ledger would run finished windows again."
)


def _private_file(path: str) -> tuple[int, int]:
    """Return device and inode of a ledger file that may be used, or say why this one may not."""
    try:
        seen = os.lstat(path)
    except FileNotFoundError as error:
        raise NotThisLedger(f"there is no ledger at {path!r}.", _LOST_OR_NEW) from error
    except OSError as error:
        raise NotThisLedger(
            f"the ledger {path!r} cannot be reached: {error.strerror}.", f"You are {_user(os.geteuid())}."
        ) from error
    if stat.S_ISLNK(seen.st_mode):
        raise NotThisLedger(f"{path!r} is a symbolic link.", "Name the ledger's real path.")
    if stat.S_ISDIR(seen.st_mode):
        raise NotThisLedger(f"{path!r} is a directory.", "Name the ledger file in it.")
    if not stat.S_ISREG(seen.st_mode):
        raise NotThisLedger(f"{path!r} is not a regular file.", "Name the ledger file.")
    if seen.st_size == 0:
        raise NotThisLedger(f"the ledger {path!r} is empty (0 bytes).", _LOST)
    if not os.access(path, os.R_OK | os.W_OK) or not os.access(os.path.dirname(path), os.W_OK | os.X_OK):
        raise NotThisLedger(
            f"the ledger {path!r} belongs to {_user(seen.st_uid)}, and {_user(os.geteuid())} may not write it.",
            "Run the job as its owner, or give this user a ledger of its own (ranonce init).",
        )
    if seen.st_mode & 0o022:
        raise NotThisLedger(
            f"others may write the ledger {path!r} (mode {stat.S_IMODE(seen.st_mode):04o}).", f"chmod 600 {path}"
        )
    return seen.st_dev, seen.st_ino


_LOST_OR_NEW = (
    "Nothing was run. If it was lost, restore it from a backup; if there never was one, create it: ranonce init"
)


def _user(uid: int) -> str:
    import pwd

    try:
        return f"{pwd.getpwuid(uid).pw_name} (uid {uid})"
    except KeyError:
        return f"uid {uid}"


def _translated(error: sqlite3.Error | OSError, path: str) -> RanonceError:
    """Turn an error of SQLite or the system into a sentence: what a person must mend is 78, what may pass is 69."""
    if isinstance(error, OSError):
        return StoreUnavailable(f"the ledger {path!r} cannot be locked: {error.strerror}.", "")
    code = getattr(error, "sqlite_errorcode", 0) & 0xFF
    if code in (sqlite3.SQLITE_BUSY, sqlite3.SQLITE_LOCKED):
        return StoreUnavailable(
            f"the ledger {path!r} was locked by another program until the wait was over.",
            "Nothing was started; look for what holds it (fuser).",
        )
    if code in (sqlite3.SQLITE_NOTADB, sqlite3.SQLITE_CORRUPT, sqlite3.SQLITE_CONSTRAINT, sqlite3.SQLITE_SCHEMA):
        return NotThisLedger(f"{path!r} is damaged or not a ledger: {error}.", _LOST)
    if code == sqlite3.SQLITE_FULL:
        return StoreUnavailable(f"the disk of the ledger {path!r} is full.", "Nothing was lost; free some space.")
    if code in (sqlite3.SQLITE_READONLY, sqlite3.SQLITE_PERM, sqlite3.SQLITE_CANTOPEN, sqlite3.SQLITE_AUTH):
        return ConfigError(f"the ledger {path!r} cannot be opened for writing: {error}.", "Check owner and mode.")
    if isinstance(error, sqlite3.OperationalError) and "no such table" in str(error):
        return NotThisLedger(f"{path!r} has lost tables: {error}.", _LOST)
    return StoreUnavailable(f"the ledger {path!r} cannot be used: {error}.", "")


# --- rows and records -----------------------------------------------------------------------------------------------


def _text(instant: float | None) -> str | None:
    """Write an instant in the one form this store uses: UTC to the millisecond."""
    return None if instant is None else format_instant(instant, precision="ms")


def _instant(text: str | None) -> float | None:
    return None if text is None else _read(text)


def _read(text: str) -> float:
    """Read an instant in that form: half the work of `parse_instant`, which takes every form."""
    try:
        return datetime.fromisoformat(text).timestamp()
    except (ValueError, TypeError, OverflowError) as error:
        raise _damaged(text) from error


def _read_data(text: str) -> dict[str, Any]:
    try:
        data = json.loads(text)
    except (ValueError, TypeError) as error:
        raise _damaged(text) from error
    if not isinstance(data, dict):
        raise _damaged(text)
    return data


def _damaged(cell: object) -> NotThisLedger:
    return NotThisLedger(f"the ledger is damaged: it has {shown(cell)} where that cannot be.", _LOST)


def _starts(text: str) -> Sequence[int]:
    """Return starts from the text that lists them: a range where they are evenly spaced, without reading each."""
    first, last, count = int(text.partition(",")[0]), int(text.rpartition(",")[2]), text.count(",") + 1
    step, uneven = divmod(last - first, count - 1) if count > 1 else (1, 0)
    if step > 0 and not uneven and text == _listed(first, step, count):
        return range(first, last + 1, step)
    return sorted(json.loads(f"[{text}]"))


@lru_cache(maxsize=8)
def _listed(first: int, step: int, count: int) -> str:
    return ",".join(map(str, range(first, first + step * count, step)))


def _run(row: Sequence[Any]) -> Run:
    job, window, digest, start, end, status, generation, attempt, owner, failures, schedule, trigger = row[:12]
    started, version, fingerprint, finished, resume, reason, code, late, reconciling, granted = row[12:]
    if status not in STATES or not 0 < attempt < MOST_ATTEMPTS:
        raise _damaged((status, attempt))
    return Run(
        RunKey(job, window, digest),
        start,
        end,
        status,
        generation,
        attempt,
        owner,
        failures,
        schedule,
        trigger,
        _read(started),
        version,
        fingerprint,
        _instant(finished),
        _instant(resume),
        reason,
        code,
        bool(late),
        bool(reconciling),
        bool(granted),
    )


def _run_row(run: Run) -> tuple[Any, ...]:
    key = run.key
    return (
        key.job,
        key.window,
        key.input,
        run.window_start,
        run.window_end,
        run.status,
        run.generation,
        run.attempt,
        run.owner,
        run.failures,
        run.schedule,
        run.trigger,
        _text(run.started_at),
        run.version,
        run.fingerprint,
        _text(run.finished_at),
        _text(run.resume_at),
        run.reason,
        run.exit,
        int(run.late),
        int(run.reconciling),
        int(run.granted),
    )


def _verdict_row(run: Run) -> tuple[Any, ...]:
    key = run.key
    outcome = (run.status, run.failures, _text(run.finished_at), _text(run.resume_at), run.reason, run.exit)
    flags = (int(run.late), int(run.reconciling), int(run.granted))
    return (*outcome, *flags, key.job, run.window_start, key.window, key.input, run.attempt, run.owner)


def _lease_row(key: RunKey, window_start: int, lease: Lease) -> tuple[Any, ...]:
    place = (key.job, window_start, key.window, key.input)
    clock = (lease.domain, lease.expires, lease.seconds)
    return (
        *place,
        lease.owner,
        lease.attempt,
        *clock,
        lease.process,
        lease.seen_domain,
        lease.seen_at,
        lease.seen_wall,
    )


def _held(job: str, row: tuple[Any, ...]) -> Held:
    return Held(RunKey(job, row[0], row[1]), row[2], Lease(*row[3:]))


def _gate(row: tuple[Any, ...]) -> Gate:
    return Gate(row[0], _read(row[1]), row[2], row[3], _read(row[4]))


def _gate_row(gate: Gate) -> tuple[Any, ...]:
    return (gate.name, _text(gate.until), gate.reason, gate.job, _text(gate.closed_at))


def _schedule(row: tuple[Any, ...]) -> ScheduleVersion:
    number, every, tz, dialect, offset, valid_from, recorded_at = row
    return ScheduleVersion(number, every, tz, dialect, offset, valid_from, _read(recorded_at))


def _schedule_row(job: str, version: ScheduleVersion) -> tuple[Any, ...]:
    rule = (version.every, version.tz, version.dialect, version.offset)
    return (job, version.number, *rule, version.valid_from, _text(version.recorded_at))


def _job(row: tuple[Any, ...]) -> Job:
    return Job(row[0], row[1], _read(row[2]), row[3], row[4])


def _event(row: tuple[Any, ...]) -> Event:
    at, job, window, digest, start, event, attempt, generation, reason, owner, trigger, version, host, data, seq = row
    return Event(
        _read(at),
        RunKey(job, window, digest),
        start,
        event,
        attempt,
        generation,
        reason,
        owner,
        trigger,
        version,
        host,
        _read_data(data),
        None,
        seq,
    )
