"""The upkeep of a SQLite ledger: prune it, go through all of it, copy it while jobs run, accept a loss.

Apart from the store itself, since no plain run needs any of this.
"""

from __future__ import annotations

import errno
import os
import sqlite3
import time
from contextlib import contextmanager
from itertools import islice

from ranonce.errors import StoreUnavailable, UsageError
from ranonce.failpoints import failpoint
from ranonce.lifecycle import prunable
from ranonce.messages import UNDELIVERED
from ranonce.stores import values
from ranonce.stores.base import FIRST, Epoch, Place, Pruned, buried, spared
from ranonce.stores.sqlite.create import sync_folder
from ranonce.stores.sqlite.effects import SQL as EFFECTS
from ranonce.stores.sqlite.effects import message_of, prune_effects, step_of
from ranonce.stores.sqlite.file import quoted, translated
from ranonce.stores.sqlite.rows import damaged, event_of, gate_row, read_instant, run_of, text_of, tombstone_of
from ranonce.stores.statements import load

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from typing import Any

    from ranonce.lifecycle import Event, Gate, Lease, Retention, Run, Step
    from ranonce.messages import Message
    from ranonce.stores.base import Intake, TakenIn, Tombstone
    from ranonce.stores.sqlite.store import SqliteStore

SQL = load("sqlite/upkeep.sql")

#: Lines of what an integrity check found that a person is shown.
PROBLEMS_SHOWN = 20
#: Pages that a backup copies before it lets others at the disk.
BACKUP_PAGES = 1000
#: Steps of SQLite's machine after which a check of the copy asks whether to go on.
CHECK_STEPS = 100_000
#: What SQLite says only of a file that it writes: in a backup, that is the copy.
WRITE_ERRORS = {
    sqlite3.SQLITE_FULL: errno.ENOSPC,
    sqlite3.SQLITE_IOERR_WRITE: errno.EIO,
    sqlite3.SQLITE_IOERR_FSYNC: errno.EIO,
}
#: What a file system says that has no hard links (a USB stick's, say).
NO_LINKS = frozenset({errno.EPERM, errno.EOPNOTSUPP, errno.ENOSYS, errno.EMLINK})
FAR = 1 << 62


class SqliteUpkeep:
    """The upkeep of one open ledger file."""

    def __init__(self, store: SqliteStore) -> None:
        self._store = store
        self._db = store.connection

    # --- prune ---

    def pruned_seq(self) -> int:
        return int(self._store.ask(SQL["pruned_seq"])[0][0])

    def prune(self, job: str, keep: Retention, *, after: Place = FIRST, limit: int = 500) -> Pruned:
        with self._store.transaction():
            db = self._db
            before = int(min(max(keep.done_before, keep.failed_before), FAR))
            rows = db.execute(SQL["runs_from"], (job, *after.as_dict().values(), before, limit)).fetchall()
            runs = [run_of(row) for row in rows]
            staying = spared(self._store, job)
            going = [run for run in runs if run.window_start not in staying and prunable(run, keep)]
            end = runs[-1].window_start if len(runs) == limit else before
            db.execute(SQL["open_door"], (job,))
            gone = [seq for run in going for seq in self._drop(run)]
            failpoint("prune:after-runs")
            for stone in buried(going, time.time()):
                self.put_tombstone(stone)
            loose = (job, after.window_start, end, text_of(keep.done_before))
            gone += [seq for (seq,) in db.execute(SQL["drop_loose_events"], loose)]
            db.execute(SQL["shut_door"])
            self.forget_until(max(gone, default=0))
            if going:
                db.execute(SQL["job_changed"], (job,))
            failpoint("prune:before-commit")
        failpoint("prune:after-commit")
        last = runs[-1] if len(runs) == limit else None
        upto = Place(last.window_start, last.key.window, last.key.input) if last else None
        return Pruned(len(going), len(gone), upto)

    def _drop(self, run: Run) -> list[int]:
        place = (run.key.job, run.window_start, run.key.window, run.key.input)
        self._db.execute(SQL["drop_run"], place)
        prune_effects(self._db, place)
        return [seq for (seq,) in self._db.execute(SQL["drop_events"], place)]

    def put_tombstone(self, stone: Tombstone) -> None:
        """Note a span as pruned."""
        rows = self._db.execute(SQL["touching"], (stone.job, stone.since, stone.until)).fetchall()
        whole, taken = stone.grown(tombstone_of(stone.job, row) for row in rows)
        for other in taken:
            self._db.execute(SQL["drop_tombstone"], (other.job, other.since))
        told = (whole.job, whole.since, whole.until, whole.runs, whole.failed, text_of(whole.pruned_at))
        self._db.execute(SQL["put_tombstone"], told)

    # --- all of it ---

    def problems(self, *, deep: bool) -> list[str]:
        """Return what SQLite's own check finds. Source: sqlite.org/pragma.html#pragma_integrity_check.

        A deep one also compares the messages with what they were when they were emitted.
        """
        check = "integrity_check" if deep else "quick_check"
        lines = [str(row[0]) for row in self._store.ask(f"PRAGMA {check}({PROBLEMS_SHOWN})")]
        if lines != ["ok"]:
            return [line for text in lines for line in text.split("\n") if line.strip("* ")]
        flaws = filter(None, map(_flaw, self.all_messages())) if deep else iter(())
        return list(islice(flaws, PROBLEMS_SHOWN))

    def all_runs(self) -> Iterator[Run]:
        return map(run_of, self._rows(SQL["all_runs"]))

    def all_events(self) -> Iterator[Event]:
        return (event_of(row[:-1]).replace(output=row[-1]) for row in self._rows(SQL["all_events"]))

    def events_by_window(self, *, output: bool = False) -> Iterator[Event]:
        if not output:
            return map(event_of, self._rows(SQL["events_by_window"]))
        return (event_of(row[:-1]).replace(output=row[-1]) for row in self._rows(SQL["events_by_window_with_output"]))

    def all_messages(self) -> Iterator[Message]:
        return map(_sound_message, map(message_of, self._rows(EFFECTS["all_messages"])))

    def all_steps(self) -> Iterator[Step]:
        return map(_sound_step, map(step_of, self._rows(EFFECTS["all_steps"])))

    @contextmanager
    def view(self) -> Iterator[None]:
        self._db.execute("BEGIN")
        try:
            yield
        finally:
            self._db.execute("COMMIT")

    def _rows(self, statement: str) -> Iterator[tuple[Any, ...]]:
        try:
            yield from self._db.execute(statement)
        except sqlite3.Error as error:
            raise translated(error, self._store.path) from error

    # --- gates ---

    def set_gate(self, gate: Gate) -> None:
        with self._store.transaction():
            self._db.execute(SQL["set_gate"], gate_row(gate))

    # --- losses ---

    def epochs(self) -> list[Epoch]:
        return [Epoch(row[0], read_instant(row[1]), *row[2:]) for row in self._store.ask(SQL["epochs"])]

    def accept_loss(self, reason: str, by: str, *, after: int = 0) -> Epoch:
        with self._store.transaction():
            return self.open_epoch(reason, by, after=after)

    def open_epoch(self, reason: str, by: str, *, after: int = 0) -> Epoch:
        """Open a new epoch, inside a transaction."""
        now = round(time.time(), 3)
        number = self._db.execute(SQL["new_epoch"], (after,)).fetchone()[0]
        self._db.execute(SQL["add_epoch"], (number, text_of(now), reason, by))
        return Epoch(number, now, reason, by)

    # --- what another ledger tells ---

    def take_in(self, intake: Intake, lives: Callable[[Run, Lease | None], bool]) -> TakenIn:
        from ranonce.stores.sqlite.intake import take_in

        return take_in(self._store, self, intake, lives)

    def forget_until(self, seq: int) -> None:
        """Note that events up to a number may have been pruned, inside a transaction."""
        self._db.execute(SQL["forgotten"], (seq,))

    # --- backup ---

    def backup(self, path: str, *, go_on: Callable[[], bool] = lambda: True) -> int | None:
        """Copy the ledger to a new private file while jobs run; return the number of its last event.

        The copy is one consistent state, checked, synced, and only then given its name. Once `go_on` says no, nothing
        is left of it, and None is returned. Raises UsageError where something stands at the path, StoreUnavailable
        where it cannot be written. Source: sqlite.org/backup.html.
        """
        building = f"{path}.{os.urandom(4).hex()}.part"  # by chance, as in `create`
        try:
            os.close(os.open(building, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600))
            try:
                last = self._copy(building, go_on)
                failpoint("backup:copied")
                _give_name(building, path)
            finally:
                for leftover in (building, building + "-wal", building + "-shm", building + "-journal"):
                    if os.path.lexists(leftover):
                        os.unlink(leftover)
            sync_folder(os.path.dirname(os.path.abspath(path)))
        except _ToldToEnd:
            return None
        except FileExistsError as error:
            raise UsageError(f"{path!r} exists already.", "Nothing was written; name a new file.") from error
        except OSError as error:
            raise StoreUnavailable(f"no backup could be written to {path!r}: {error.strerror}.", "") from error
        return last

    def _copy(self, building: str, go_on: Callable[[], bool]) -> int:
        def copied(*_: int) -> None:
            if not go_on():
                raise _ToldToEnd

        copy = sqlite3.connect(f"file:{quoted(building)}?mode=rw", uri=True, isolation_level=None)
        try:
            self._db.execute("BEGIN")  # one state, however long the copying takes
            try:
                self._db.backup(copy, pages=BACKUP_PAGES, progress=copied)
            finally:
                self._db.execute("COMMIT")
            copy.set_progress_handler(lambda: not go_on(), CHECK_STEPS)
            found = copy.execute("PRAGMA integrity_check(1)").fetchone()[0]
            if found != "ok":
                raise StoreUnavailable(f"the ledger {self._store.path!r} is damaged: {found}.", "See: ranonce doctor")
            return int(copy.execute("SELECT coalesce(max(seq), 0) FROM events").fetchone()[0])
        except sqlite3.Error as error:
            copied()
            number = WRITE_ERRORS.get(getattr(error, "sqlite_errorcode", 0))
            if number is not None:
                raise OSError(number, os.strerror(number)) from error
            raise translated(error, self._store.path) from error
        finally:
            copy.close()
            _sync(building)


def _sound_message(message: Message) -> Message:
    """Return a message that the tables of another ledger would take, too. A damaged file holds others."""
    values.message_of(values.message_values(message), message.body, message.seq)
    counts = (message.generation, message.attempt, message.tries + 1, message.failures + 1, len(message.digest) - 63)
    if not (message.key and message.run.job and message.run.window and message.destination) or min(counts) < 1:
        raise damaged(message.key)
    return message


def _sound_step(step: Step) -> Step:
    values.step_of(values.step_values(step), step.result)
    named = step.run.job and step.run.window and step.name
    if not named or min(step.generation, step.attempt) < 1 or not isinstance(step.result, bytes | None):
        raise damaged(step.name)
    return step


def _flaw(message: Message) -> str | None:
    """Say what is wrong with a message that nobody could have written so; None if nothing is."""
    from ranonce.emission import digest_of

    name = f"message {message.seq} ({message.key})"
    if message.body is None:
        return f"{name} is {message.state} and has no body" if message.state in UNDELIVERED else None
    if digest_of(message.content_type, message.body) != message.digest:
        return f"{name} has another body than the one that was emitted"
    return None


class _ToldToEnd(Exception):
    """A backup is not wanted any more."""


def _give_name(building: str, path: str) -> None:
    """Give a finished file its name, unless something has it. Raises FileExistsError then."""
    try:
        os.link(building, path)
    except OSError as error:
        if error.errno not in NO_LINKS:
            raise
        os.close(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600))  # the name is ours now
        os.replace(building, path)


def _sync(path: str) -> None:
    fd = os.open(path, os.O_RDONLY)
    try:
        os.fsync(fd)
    finally:
        os.close(fd)
