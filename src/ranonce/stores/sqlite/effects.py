"""Messages and steps of a SQLite ledger: their rows, and what a commit, an import and a pruning make of them.

Apart from the store, since a run without them needs none of it. Instants are text to the millisecond, as in the
other tables; a lease's end is a number on the boot clock.
"""

from __future__ import annotations

import sqlite3
from functools import lru_cache

from ranonce.failpoints import failpoint
from ranonce.lifecycle import RunKey, Step
from ranonce.messages import STATES, WINDOW, Message, scope_of
from ranonce.stores.sqlite.rows import damaged, text_of
from ranonce.stores.sqlite.rows import read_instant as read
from ranonce.stores.statements import load

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence
    from typing import Any

    from ranonce.lifecycle import Claim, Decision
    from ranonce.messages import Move

SQL = load("sqlite/effects.sql")


@lru_cache(maxsize=1024)
def read_instant(text: str) -> float:
    """Read an instant as the other tables have it. Messages that are read together share most of theirs."""
    return read(text)


def instant_of(text: str | None) -> float | None:
    """Read one that may be absent."""
    return None if text is None else read_instant(text)


# --- rows -----------------------------------------------------------------------------------------------------------


def message_row(message: Message) -> tuple[Any, ...]:
    """Return the row of a message, without its number and its body."""
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
        was.seq,
        was.key,
        was.state,
        was.tries,
        was.sender,
    )


@lru_cache(maxsize=64)
def _run_of(job: str, window: str, digest: str) -> RunKey:
    """Return the run of a message. Those that are read together are of few."""
    return RunKey(job, window, digest)


def message_of(row: Sequence[Any]) -> Message:
    """Return the message of a row, with its body if the row has it."""
    key, job, window, digest, start, destination, content_type, body_digest, generation, attempt, item = row[:11]
    created, due, state, tries, failures, sender, domain, until, taken, seconds, doubt, settled = row[11:23]
    receipt, error, resolution, seq, *body = row[23:]
    if state not in STATES or type(tries) is not int or type(failures) is not int:
        raise damaged((state, tries, failures))
    if body and not isinstance(body[0], bytes | None):
        raise damaged(body[0])
    return Message(
        key,
        _run_of(job, window, digest),
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
        *place_of(step.run, step.window_start),
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


def place_of(key: RunKey, window_start: int) -> tuple[Any, ...]:
    """Return where a run stands in the tables."""
    return (key.job, window_start, key.window, key.input)


# --- what a commit writes -------------------------------------------------------------------------------------------


def is_fenced(db: sqlite3.Connection, claim: Claim) -> bool:
    """Say whether a claim still has its run."""
    place = place_of(claim.key, claim.window.start)
    return db.execute(SQL["fenced"], (*place, claim.attempt, claim.owner)).fetchone() is not None


def write_effects(db: sqlite3.Connection, decision: Decision) -> bool:
    """Write a decision's steps, messages and moves; False if one of them no longer fits what is there."""
    for step in decision.steps:
        if not db.execute(SQL["add_step"], step_row(step)).rowcount:
            return False
    failpoint("commit:after-steps")
    for message in decision.messages:
        if not _add_message(db, message):
            return False
    failpoint("commit:after-messages")
    for move in decision.moves:
        if not db.execute(SQL["move"], move_row(move)).rowcount:
            return False
    failpoint("commit:after-moves")
    return True


def _add_message(db: sqlite3.Connection, message: Message) -> bool:
    """Add a message with its body; False if its key is there already."""
    try:
        seq = db.execute(SQL["add_message"], message_row(message)).lastrowid
    except sqlite3.IntegrityError as error:
        if error.sqlite_errorcode != sqlite3.SQLITE_CONSTRAINT_TRIGGER:
            raise
        return False
    if message.body is not None:
        db.execute(SQL["add_body"], (seq, message.body))
    return True


def put_effects(db: sqlite3.Connection, messages: Iterable[Message], steps: Iterable[Step]) -> None:
    """Add those messages and steps that are not known, as they are."""
    for message in messages:
        _add_message(db, message)
    db.executemany(SQL["add_step"], map(step_row, steps))


def prune_effects(db: sqlite3.Connection, place: tuple[Any, ...]) -> None:
    """Remove what a pruned run leaves: its steps, and of its messages those that nobody waits for, as far as nobody can
    emit them again; the others of them lose their bodies."""
    db.execute(SQL["drop_steps"], place)
    for seq, key in db.execute(SQL["over"], place).fetchall():
        db.execute(SQL["drop_message" if scope_of(key) == WINDOW else "empty_message"], (seq,))
