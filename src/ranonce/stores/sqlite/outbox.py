"""The outbox of a SQLite ledger, and its steps. Apart from the store, since a run without messages needs none of it.

Instants are text to the millisecond, as in the other tables; a lease's end is a number on the boot clock.
"""

from __future__ import annotations

from functools import lru_cache

from ranonce.failpoints import failpoint
from ranonce.lifecycle import RunKey, Step
from ranonce.messages import STATES, UNDELIVERED, WINDOW, Message, Queue, Tally, Waiting, scope_of
from ranonce.stores.base import Exchanged
from ranonce.stores.sqlite.rows import damaged, instant_of, read_instant
from ranonce.stores.sqlite.rows import text_of as written
from ranonce.stores.statements import load

TYPE_CHECKING = False
if TYPE_CHECKING:
    import sqlite3
    from collections.abc import Iterable, Sequence
    from typing import Any

    from ranonce.lifecycle import Claim, Decision
    from ranonce.messages import Closing, Move, Take
    from ranonce.stores.base import Wanted
    from ranonce.stores.sqlite.store import SqliteStore

SQL = load("sqlite/outbox.sql")
#: A destination of which nothing is known: nobody took, nothing closed it, any rate lets go.
NEW_LINE = (0, None, None, 0.0)
MOST = (1 << 63) - 1  # that a number can be in SQLite


@lru_cache(maxsize=1024)
def text_of(instant: float | None) -> str | None:
    """Write an instant as the other tables do. Messages share most of theirs, and have many."""
    return written(instant)


# --- rows -----------------------------------------------------------------------------------------------------------


def message_row(message: Message) -> tuple[Any, ...]:
    """Return the row of a message, without its number."""
    run = message.run
    return (
        message.key,
        run.job,
        run.window,
        run.input,
        message.window_start,
        message.destination,
        message.content_type,
        message.digest,
        message.generation,
        message.attempt,
        message.item,
        text_of(message.created_at),
        text_of(message.due_at),
        message.state,
        message.tries,
        message.failures,
        message.sender,
        message.lease_domain,
        message.lease_until,
        text_of(message.taken_at),
        message.lease_seconds,
        text_of(message.doubt_since),
        text_of(message.settled_at),
        message.receipt,
        message.error,
        message.resolution,
        message.body,
    )


def move_row(move: Move) -> tuple[Any, ...]:
    """Return what a move changes, and of which message as it was."""
    was, now = move.was, move.now
    return (
        text_of(now.due_at),
        now.state,
        now.tries,
        now.failures,
        now.sender,
        now.lease_domain,
        now.lease_until,
        text_of(now.taken_at),
        now.lease_seconds,
        text_of(now.doubt_since),
        text_of(now.settled_at),
        now.receipt,
        now.error,
        now.resolution,
        was.key,
        was.state,
        was.tries,
        was.sender,
    )


def message_of(row: Sequence[Any]) -> Message:
    """Return the message of a row, with its body if the row has it."""
    key, job, window, digest, start, destination, content_type, body_digest, generation, attempt, item = row[:11]
    created, due, state, tries, failures, sender, domain, until, taken, seconds, doubt, settled = row[11:23]
    receipt, error, resolution, seq, *body = row[23:]
    if state not in STATES or type(tries) is not int or type(failures) is not int:
        raise damaged((state, tries, failures))
    return Message(
        key,
        RunKey(job, window, digest),
        start,
        destination,
        content_type,
        body_digest,
        body[0] if body else None,
        generation,
        attempt,
        item,
        read_instant(created),
        read_instant(due),
        state,
        tries,
        failures,
        sender,
        domain,
        until,
        instant_of(taken),
        seconds,
        instant_of(doubt),
        instant_of(settled),
        receipt,
        error,
        resolution,
        seq,
    )


def step_row(step: Step) -> tuple[Any, ...]:
    """Return the row of a step."""
    return (
        *_place(step.run, step.window_start),
        step.generation,
        step.name,
        step.attempt,
        text_of(step.at),
        step.result,
    )


def step_of(row: Sequence[Any]) -> Step:
    """Return the step of a row."""
    job, window, digest, start, generation, name, attempt, at, result = row
    return Step(RunKey(job, window, digest), start, generation, name, attempt, read_instant(at), result)


def _place(key: RunKey, window_start: int) -> tuple[Any, ...]:
    return (key.job, window_start, key.window, key.input)


# --- what a commit writes -------------------------------------------------------------------------------------------


def is_fenced(db: sqlite3.Connection, claim: Claim) -> bool:
    """Say whether a claim still has its run."""
    place = _place(claim.key, claim.window.start)
    return db.execute(SQL["fenced"], (*place, claim.attempt, claim.owner)).fetchone() is not None


def write_effects(db: sqlite3.Connection, decision: Decision) -> bool:
    """Write a decision's steps, messages and moves; False if one of them no longer fits what is there."""
    for step in decision.steps:
        if not db.execute(SQL["add_step"], step_row(step)).rowcount:
            return False
    failpoint("commit:after-steps")
    for message in decision.messages:
        if not db.execute(SQL["add_message"], message_row(message)).rowcount:
            return False
    failpoint("commit:after-messages")
    for move in decision.moves:
        if not db.execute(SQL["move"], move_row(move)).rowcount:
            return False
    failpoint("commit:after-moves")
    return True


def put_effects(db: sqlite3.Connection, messages: Iterable[Message], steps: Iterable[Step]) -> None:
    """Add those messages and steps that are not known, as they are."""
    db.executemany(SQL["add_message"], map(message_row, messages))
    db.executemany(SQL["add_step"], map(step_row, steps))


def prune_effects(db: sqlite3.Connection, place: tuple[Any, ...]) -> None:
    """Remove what a pruned run leaves: its steps, and of its messages those that nobody waits for, as far as nobody can
    emit them again; the others of them lose their bodies."""
    db.execute(SQL["drop_steps"], place)
    for seq, key in db.execute(SQL["over"], place).fetchall():
        db.execute(SQL["drop_message" if scope_of(key) == WINDOW else "empty_message"], (seq,))


# --- the port -------------------------------------------------------------------------------------------------------


class SqliteOutbox:
    """The outbox of one open ledger file."""

    def __init__(self, store: SqliteStore) -> None:
        self._store = store
        self._db = store.connection

    def queue(self, destination: str, most: int) -> Queue:
        with self._store.reading():
            clock = self._store.clock()
            now = text_of(clock.wall)
            line = self._db.execute(SQL["line"], (destination,)).fetchone() or NEW_LINE
            due = self._db.execute(SQL["due"], (destination, now, most)).fetchall()
            sending = self._db.execute(SQL["sending"], (destination,)).fetchall()
            next_due = self._db.execute(SQL["next_due"], (destination, now)).fetchone()[0]
        version, closed_until, closed_why, next_at = line
        return Queue(
            destination,
            version,
            instant_of(closed_until),
            closed_why,
            next_at,
            tuple(map(message_of, due)),
            tuple(map(message_of, sending)),
            instant_of(next_due),
            clock.domain,
            clock.now,
            clock.wall,
        )

    def exchange(
        self, destination: str, moves: Sequence[Move] = (), *, closing: Closing | None = None, take: Take | None = None
    ) -> Exchanged:
        with self._store.transaction():
            db = self._db
            moved = frozenset(move.was.key for move in moves if db.execute(SQL["move"], move_row(move)).rowcount)
            failpoint("exchange:after-moves")
            taken = False
            if closing is not None or take is not None:
                taken = self._change_line(destination, closing, take)
            failpoint("exchange:before-commit")
        failpoint("exchange:after-commit")
        return Exchanged(moved, taken)

    def _change_line(self, destination: str, closing: Closing | None, take: Take | None) -> bool:
        """Close or open a destination, and take messages; say whether they were taken."""
        line = self._db.execute(SQL["line"], (destination,)).fetchone() or NEW_LINE
        version, closed_until, closed_why, next_at = line
        if closing is not None:
            until = text_of(closing.until)
            if until is None or closed_until is None or until > closed_until:
                closed_until, closed_why = until, closing.why
        taken = take is not None and take.after == version and self._take(take.moves)
        if take is not None and taken:
            version, next_at = version + 1, take.next_at
        now = (version, closed_until, closed_why, next_at)
        if now != line:
            self._db.execute(SQL["put_line"], (destination, *now))
        return taken

    def _take(self, moves: Sequence[Move]) -> bool:
        """Write all moves, or none if one of the messages is not as it was."""
        db = self._db
        db.execute("SAVEPOINT taking")
        taken = all(db.execute(SQL["move"], move_row(move)).rowcount for move in moves)
        if not taken:
            db.execute("ROLLBACK TO taking")
        db.execute("RELEASE taking")
        return taken

    def known(self, keys: Sequence[str]) -> dict[str, Message]:
        found = {}
        for key in dict.fromkeys(keys):
            for row in self._store.ask(SQL["message_of_key"], key):
                found[key] = message_of(row)
        return found

    def message(self, name: int | str) -> Message | None:
        if isinstance(name, int) and not 0 < name <= MOST:
            return None
        by = (name, None) if isinstance(name, int) else (None, name)
        rows = self._store.ask(SQL["message"], *by)
        return message_of(rows[0]) if rows else None

    def messages(self, wanted: Wanted, *, after: int = 0, limit: int = 100) -> list[Message]:
        states = None if wanted.states is None else f" {' '.join(sorted(wanted.states))} "
        statement = "messages"
        if wanted.job is not None and wanted.window_start is not None:
            statement = "messages_of_window"
        elif wanted.states is not None and wanted.states <= UNDELIVERED:
            statement = "messages_undelivered"
        asked = (after, wanted.job, wanted.window_start, wanted.destination, states, limit)
        return [message_of(row) for row in self._store.ask(SQL[statement], *asked)]

    def destinations(self) -> list[str]:
        return [destination for (destination,) in self._store.ask(SQL["destinations"])]

    def tally(self, destination: str, late_before: float) -> list[Tally]:
        rows = self._store.ask(SQL["tally"], text_of(late_before), destination)
        return [
            Tally(job, destination, state, bool(late), count, read_instant(oldest))
            for job, destination, state, late, count, oldest in rows
        ]

    def waiting(self, job: str, since: int, until: int) -> list[Waiting]:
        return [Waiting(*row) for row in self._store.ask(SQL["waiting"], job, since, until)]

    # --- steps ---

    def steps(self, key: RunKey, window_start: int, generation: int) -> list[str]:
        """Return the names of a run's steps that are done in a generation."""
        return [name for (name,) in self._store.ask(SQL["steps"], *_place(key, window_start), generation)]

    def step(self, key: RunKey, window_start: int, generation: int, name: str) -> Step | None:
        """Return a step that is done."""
        rows = self._store.ask(SQL["step"], *_place(key, window_start), generation, name)
        return step_of(rows[0]) if rows else None
