"""Look whether the keys of messages and steps in Redis fit each other."""

from __future__ import annotations

from ranonce.messages import UNDELIVERED
from ranonce.stores.redis.outbox import OF_A_DESTINATION, PIECE, RedisOutbox
from ranonce.stores.redis.posting import INDEXES, step_of
from ranonce.stores.redis.rows import named

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from ranonce.messages import Message
    from ranonce.stores.redis.store import RedisStore
    from ranonce.stores.redis.wire import Command

#: The keys that the script `sums` knows by their place.
_ALL = ("ledger", "messages", "message_keys", "numbers")
#: Jobs and destinations come and go while they are counted: what differs for a moment is looked at again.
LOOKS = 3


def wrong(store: RedisStore, *, deep: bool) -> Iterator[str]:
    """Tell what does not fit, worst first."""
    found: list[str] = []
    for _ in range(LOOKS):
        found = list(_counted(store))
        if not found:
            break
    yield from found
    if deep and not found:
        yield from _messages(store)
        for job in _jobs(store):
            yield from _steps(store, job)


def _jobs(store: RedisStore) -> list[str]:
    return [job.name for job in store.jobs()]


def _counted(store: RedisStore) -> Iterator[str]:
    jobs, destinations = _jobs(store), RedisOutbox(store).every_destination()
    keys = [store.keys(what) for what in _ALL]
    keys += [store.keys(what, job) for job in jobs for what in ("emitted", "undelivered", "steps", "results")]
    keys += [store.keys(what, each) for each in destinations for what in OF_A_DESTINATION]
    asked = store.connection.ask_script(named("sums"), keys, store.identity().ledger, len(jobs))
    _, messages, by_key, numbers, emitted, undelivered, waiting, odd = store.rows.checked(asked)
    for count, where in ((by_key, "keys of messages"), (numbers, "numbers of messages")):
        if count != messages:
            yield f"there are {messages:,} messages, and {count:,} {where}"
    if emitted != messages:
        yield f"there are {messages:,} messages, and {emitted:,} in the indexes of the jobs"
    if undelivered != waiting:
        yield f"{undelivered:,} messages are not delivered by the indexes of the jobs, and {waiting:,} by the others"
    for number in odd:
        yield f"the job {jobs[number]!r} has not as many steps as places of steps"


def _messages(store: RedisStore) -> Iterator[str]:
    outbox = RedisOutbox(store)
    for numbers in outbox.numbers(0):
        messages = outbox.read(numbers)
        for message, at, other in zip(messages, _places(store, messages), _keys(store, messages), strict=True):
            if at or other:  # it may have moved between the two questions: it is looked at once more, by itself
                again = outbox.read([b"%d" % (message.seq or 0)])
                yield from (
                    f"message {message.seq}: {said}" for look in (_places, _keys) for said in look(store, again) if said
                )


def _places(store: RedisStore, messages: Sequence[Message]) -> list[str]:
    """Return of each message what is wrong with its place in the indexes, or nothing."""
    asked: list[Command] = []
    for message in messages:
        number, keys = message.seq or 0, store.keys
        asked += [("ZSCORE", keys(what, message.destination), f"{number:016d}") for what in OF_A_DESTINATION]
        asked += [("ZSCORE", keys(what, message.run.job), number) for what in ("undelivered", "emitted")]
        asked.append(("ZSCORE", keys("numbers"), number))
        asked.append(("HEXISTS", keys("bodies"), number))
    answers = store.connection.ask(*asked) if asked else []
    told, size = [], len(OF_A_DESTINATION) + 4
    for first, message in enumerate(messages):
        *scores, body = answers[first * size : (first + 1) * size]
        index = INDEXES.get(message.state)
        due = [None if what != index else message.due_at for what in OF_A_DESTINATION]
        start = float(message.window_start)
        waits = start if message.state in UNDELIVERED else None
        found = [None if score is None else float(score) for score in scores]
        if found != [*due, waits, start, float(message.seq or 0)]:
            told.append(f"it is {message.state}, and its indexes say otherwise")
        elif not body and message.state in UNDELIVERED:
            told.append("its body is gone")
        else:
            told.append("")
    return told


def _keys(store: RedisStore, messages: Sequence[Message]) -> list[str]:
    numbers = store.rows.values(store.keys("message_keys"), [message.key for message in messages])
    return [
        "" if number == b"%d" % (message.seq or 0) else "its key stands for another one"
        for message, number in zip(messages, numbers, strict=True)
    ]


def _steps(store: RedisStore, job: str) -> Iterator[str]:
    for places in store.rows.pieces(store.keys("steps", job), "-inf", "+inf"):
        for first in range(0, len(places), PIECE):
            part = places[first : first + PIECE]
            values = store.rows.values(store.keys("results", job), part)
            for place, value in zip(part, values, strict=True):
                if value is not None:
                    step_of(job, place, value)
                elif store.connection.ask(("ZSCORE", store.keys("steps", job), place))[0] is not None:
                    yield f"a step of {job!r} has a place and no record: {place!r}"
