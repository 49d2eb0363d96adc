"""Go through all messages and all steps of a ledger in Redis, in pieces, while jobs go on.

In a view, messages end with the last that there was when it was begun, so that all runs that they come from are told in
it too; and nothing is read under another edition of the ledger, since what was pruned would be missing.
"""

from __future__ import annotations

from ranonce.stores.redis.chapters import EARLIEST, LATEST, changed
from ranonce.stores.redis.keys import start_of, text_of
from ranonce.stores.redis.outbox import RedisOutbox
from ranonce.stores.redis.posting import message_of, step_of, step_order
from ranonce.stores.values import damaged

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

    from ranonce.lifecycle import Step
    from ranonce.messages import Message
    from ranonce.stores.redis.store import RedisStore
    from ranonce.stores.redis.wire import Command

#: Messages that are read at once, each with a body of up to 256 KiB; and steps, each with its result.
MESSAGES = 64
STEPS = 200


def all_messages(store: RedisStore, edition: str, last: int | None) -> Iterator[Message]:
    """Yield every message in order of the numbers, with its body, up to the number `last`, if any."""
    for numbers in RedisOutbox(store).numbers(0, MESSAGES):
        values, bodies = _read(store, edition, [("messages", None), ("bodies", None)], numbers)
        for number, value, body in zip(numbers, values, bodies, strict=True):
            if value is None:
                _unless_pruned(store, store.keys("numbers"), number)
                continue
            message = message_of(number, value, body)
            if last is not None and (message.seq or 0) > last:
                return
            yield message


def all_steps(store: RedisStore, edition: str, jobs: Iterable[str]) -> Iterator[Step]:
    """Yield every step of jobs, in the order of their runs, with its result."""
    for job in jobs:
        key = store.keys("steps", job)
        for piece in store.rows.pieces(key, EARLIEST, LATEST):
            places = sorted(piece, key=lambda place: (start_of(place), step_order(place)))
            for first in range(0, len(places), STEPS):
                part = places[first : first + STEPS]
                (values,) = _read(store, edition, [("results", job)], part)
                for place, value in zip(part, values, strict=True):
                    if value is None:
                        _unless_pruned(store, key, place)
                    else:
                        yield step_of(job, place, value)


def _read(
    store: RedisStore, edition: str, what: Sequence[tuple[str, str | None]], fields: Sequence[bytes]
) -> list[list[bytes | None]]:
    """Return the values of fields in some hashes, of the ledger's edition that is meant, if one is."""
    asked: list[Command] = [("HMGET", store.keys(*each), *fields) for each in what]
    *found, now = store.connection.ask(*asked, ("HGET", store.keys("ledger"), "edition"))
    if edition and text_of(now or b"0") != edition:
        raise changed(store.rows)
    return found


def _unless_pruned(store: RedisStore, index: str, member: bytes) -> None:
    if store.connection.ask(("ZSCORE", index, member))[0] is not None:
        raise damaged(member)
