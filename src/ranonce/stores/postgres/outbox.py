"""The outbox of a PostgreSQL ledger: what deliverers and people ask about messages. No plain run loads any of this.

To look at a queue and to exchange moves is one round trip each: functions beside the tables lock rows in one order, so
nobody waits for each other. Where others were faster (SERIALIZABLE), an exchange is tried again until the wait is over.
"""

from __future__ import annotations

import time
from binascii import a2b_base64
from operator import attrgetter

from ranonce.failpoints import failpoint
from ranonce.messages import Message, Queue, Tally, Waiting
from ranonce.stores.base import Exchanged
from ranonce.stores.postgres.connection import FIRST_PAUSE_SECONDS, LONGEST_PAUSE_SECONDS, Race
from ranonce.stores.postgres.store import DOMAIN, in_schema
from ranonce.stores.postgres.text import dumps, loads
from ranonce.stores.statements import load
from ranonce.stores.values import message_of, message_values, step_of, step_values

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence
    from typing import Any

    from ranonce.lifecycle import Decision, RunKey, Step
    from ranonce.messages import Closing, Move, Take
    from ranonce.stores.base import Wanted
    from ranonce.stores.postgres.connection import Row
    from ranonce.stores.postgres.store import PostgresStore

SQL = load("postgres/outbox.sql")
LARGEST_NUMBER_BITS = 63
CREATED_AT, DUE_AT, STEP_AT = 11, 12, 7  # among the values of a message, and of a step
#: What of a message a move changes: all that it has from `due_at` on, but its number.
_moving = attrgetter(*Message._fields[Message._fields.index("due_at") : -1])


class PostgresOutbox:
    """The outbox of one open ledger."""

    def __init__(self, store: PostgresStore) -> None:
        self._store = store

    def _ask(self, statement: str, *values: object) -> list[Row]:
        return self._store.connection.ask(in_schema(SQL[statement], self._store.schema), *values)

    # --- deliverers ---

    def queue(self, destination: str, most: int, *, sending: bool = True) -> Queue:
        statement = in_schema(SQL["queue"], self._store.schema)
        told, bodies = self._store.connection.fetch(statement, destination, most, sending)[0]
        ledger, version, closed_until, closed_why, next_at, due, sent, next_due, now = loads((told or b"").decode())
        self._store.refuse_another(ledger)
        return Queue(
            destination,
            version or 0,
            closed_until,
            closed_why,
            float(next_at or 0.0),
            tuple(_with_bodies(due or (), bodies or b"")),
            tuple(message_of(values, None, seq) for values, seq in sent or ()),
            next_due,
            DOMAIN,
            now,
            now,
        )

    def exchange(
        self, destination: str, moves: Sequence[Move] = (), *, closing: Closing | None = None, take: Take | None = None
    ) -> Exchanged:
        values = (
            destination,
            told_moves(moves),
            None if closing is None else dumps([closing.until, closing.why]),
            None if take is None else dumps([take.after, take.next_at, [*map(_told_move, take.moves)]]),
        )
        statement = in_schema(SQL["exchange"], self._store.schema)
        give_up = time.monotonic() + self._store.wait_seconds
        pause = FIRST_PAUSE_SECONDS
        failpoint("exchange:before-commit")
        while True:
            try:
                moved, taken = loads(self._store.write(statement, *values)[0][0])
                break
            except Race:
                if time.monotonic() + pause > give_up:
                    raise
            time.sleep(pause)
            pause = min(pause * 2, LONGEST_PAUSE_SECONDS)
        failpoint("exchange:after-commit")
        return Exchanged(frozenset(moved), taken)

    # --- questions ---

    def known(self, keys: Sequence[str]) -> dict[str, Message]:
        found = [_message_of(row) for row in self._ask("known", dumps(list(keys)))] if keys else []
        return {message.key: message for message in found}

    def message(self, name: int | str) -> Message | None:
        if isinstance(name, int) and name.bit_length() > LARGEST_NUMBER_BITS:
            return None
        rows = self._ask("by_seq" if isinstance(name, int) else "by_key", name)
        return message_with_body(rows[0]) if rows else None

    def messages(self, wanted: Wanted, *, after: int = 0, limit: int = 100) -> list[Message]:
        statement = in_schema(SQL["messages"], self._store.schema)
        values: list[object] = [after, limit]
        for column, value in wanted.as_dict().items():
            if column == "states" and value is not None:
                values.append("{" + ",".join(sorted(value)) + "}")
                statement += f" AND o.state = ANY (${len(values)}::text[])"
            elif value is not None:
                values.append(value)
                statement += f" AND o.{column} = ${len(values)}"
        rows = self._store.connection.ask(f"{statement} ORDER BY o.seq LIMIT $2", *values)
        return [_message_of(row) for row in rows]

    def destinations(self) -> list[str]:
        return [str(row[0]) for row in self._ask("destinations")]

    def tally(self, destination: str, late_before: float) -> list[Tally]:
        return [Tally(*loads(row[0])) for row in self._ask("tally", destination, late_before)]

    def waiting(self, job: str, since: int, until: int) -> list[Waiting]:
        return [Waiting(*loads(row[0])) for row in self._ask("waiting", job, since, until)]


# --- steps ----------------------------------------------------------------------------------------------------------


def steps(store: PostgresStore, key: RunKey, window_start: int, generation: int) -> list[str]:
    """Return the names of the steps of a run that are done in a generation."""
    statement = in_schema(SQL["steps"], store.schema)
    rows = store.connection.ask(statement, key.job, window_start, key.window, key.input, generation)
    return [loads(row[0]) for row in rows]


def step(store: PostgresStore, key: RunKey, window_start: int, generation: int, name: str) -> Step | None:
    """Return a step that is done, with its result."""
    statement = in_schema(SQL["step"], store.schema)
    rows = store.connection.ask(statement, key.job, window_start, key.window, key.input, generation, name)
    return step_with_result(rows[0]) if rows else None


# --- what goes there and comes back ---------------------------------------------------------------------------------


class Bodies:
    """Bodies of messages and results of steps on their way, one after the other; `place` says where each is."""

    def __init__(self) -> None:
        self._parts: list[bytes] = []
        self._size = 0

    def place(self, body: bytes | None) -> list[int | None]:
        """Put one behind the others; return where it begins and how long it is."""
        if body is None:
            return [None, None]
        begin, self._size = self._size, self._size + len(body)
        self._parts.append(body)
        return [begin, len(body)]

    def all(self) -> bytes | None:
        """Return all of them in one."""
        return b"".join(self._parts) if self._parts else None


def told_more(decision: Decision) -> tuple[object, ...]:
    """Return what a decision says of steps and messages, as the last values that `commit_decision` takes."""
    fence, bodies, wall = decision.fence, Bodies(), decision.wall
    place = None
    if fence is not None:
        key = fence.key
        place = dumps([key.job, fence.window.start, key.window, key.input, fence.attempt, fence.owner])
    told = told_steps(decision.steps, bodies, wall), told_messages(decision.messages, bodies, wall)
    return (place, *told, bodies.all(), told_moves(decision.moves))


def told_messages(messages: Iterable[Message], bodies: Bodies, wall: float | None = None) -> str | None:
    """Return new messages as they are told, with their bodies apart; those emitted at `wall` are at the write."""
    told = []
    for message in messages:
        values = message_values(message)
        if wall is not None and message.created_at == message.due_at == wall:
            values[CREATED_AT] = values[DUE_AT] = None
        told.append([*values, *bodies.place(message.body)])
    return dumps(told) if told else None


def told_steps(done: Iterable[Step], bodies: Bodies, wall: float | None = None) -> str | None:
    """Return steps as they are told, with their results apart; those done at `wall` are at the write."""
    told = []
    for one in done:
        values = step_values(one)
        if one.at == wall:
            values[STEP_AT] = None
        told.append([*values, *bodies.place(one.result)])
    return dumps(told) if told else None


def told_moves(moves: Sequence[Move]) -> str | None:
    """Return moves as they are told; None for none."""
    return dumps([*map(_told_move, moves)]) if moves else None


def _told_move(move: Move) -> list[Any]:
    was = move.was
    return [was.key, was.state, was.tries, was.sender, *_moving(move.now)]


def _with_bodies(told: Iterable[Any], bodies: bytes) -> Iterable[Message]:
    begin = 0
    for values, seq, size in told:
        body = None if size is None else bodies[begin : begin + size]
        begin += size or 0
        yield message_of(values, body, seq)


def _message_of(row: Row) -> Message:
    values, seq = loads(row[0])
    return message_of(values, None, seq)


def message_with_body(row: Row) -> Message:
    """Return a message from what is told of it, and its body."""
    told, body = row
    values, seq = loads(told)
    return message_of(values, None if body is None else a2b_base64(body), seq)


def step_with_result(row: Row) -> Step:
    """Return a step from what is told of it, and its result."""
    told, result = row
    return step_of(loads(told), None if result is None else a2b_base64(result))
