"""The outbox and the steps of a ledger in Redis: what is its own, beside what is true of every store."""

from __future__ import annotations

import random
from collections.abc import Iterator
from itertools import count

import pytest

from ranonce.emission import digest_of
from ranonce.lifecycle import Decision, RunKey
from ranonce.messages import DEAD, PENDING, SENDING, STATES, UNDELIVERED, UNSURE, Closing, Message, Move, Take
from ranonce.stores import open_store, site_of
from ranonce.stores.base import Store, Wanted
from ranonce.stores.memory.store import MemoryStore
from ranonce.stores.redis.store import RedisStore
from tests.contract.acting import START, ledger_over
from tests.contract.stores import LEDGER
from tests.servers import Places

DAY = 86400


@pytest.fixture
def url(valkey: Places) -> Iterator[str]:
    with valkey.place() as address:
        site_of(address, wait_seconds=20).create(LEDGER)
        yield address


@pytest.fixture
def store(url: str) -> Iterator[RedisStore]:
    opened = open_store(url, wait_seconds=20)
    assert isinstance(opened, RedisStore)
    ledger_over(opened)
    yield opened
    opened.close()


def message(own: str, day: int = 0, destination: str = "web", body: bytes = b"hello", **changes: object) -> Message:
    start = START + day * DAY
    key = f"job:{start}/{destination}/{own}"
    made = Message(
        key=key,
        run=RunKey("job", str(start)),
        window_start=start,
        destination=destination,
        content_type="text/plain",
        digest=digest_of("text/plain", body),
        body=body,
        generation=1,
        attempt=1,
        item="",
        created_at=float(START),
        due_at=float(START),
    )
    return made.replace(**changes)


def emit(store: Store, *messages: Message) -> bool:
    decision = Decision("mark", guarded=False, messages=messages)
    return store.commit(decision, messages[0].run, -1) is not None


def without_clock(queue: object) -> object:
    return queue.replace(domain="", now=0.0, wall=0.0)  # type: ignore[attr-defined]


# --- as in memory ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("seed", range(4))
def test_whatever_happens_to_messages_all_questions_are_answered_as_in_memory(store, seed):
    """Random emissions, moves, closings and takes, some of them about what is not so any more."""
    chance, memory, numbers = random.Random(seed), MemoryStore(LEDGER), count()
    seen: list[Message] = []
    for _ in range(150):
        kind = chance.choice(["emit", "emit", "again", "settle", "take", "stale", "close"])
        destination, day = chance.choice(["web", "mail"]), chance.randrange(3)
        if kind == "emit" or not seen:
            due = chance.choice([START, START + 0.125, 4e9, 4e9 + 1])
            new = [message(f"{next(numbers)}é", day, destination, due_at=due) for _ in range(chance.randrange(1, 12))]
            told = [emit(each, *new) for each in (memory, store)]
            seen += new
        elif kind == "again":
            known = chance.choice(seen)
            told = [emit(each, message(f"no {next(numbers)}", day, destination), known) for each in (memory, store)]
        else:
            how = chance.randrange(1 << 30)
            known = list(memory.outbox().known([each.key for each in seen]).values())
            told = [exchange(each, kind, random.Random(how), destination, known) for each in (memory, store)]
        assert told[0] == told[1]
        if chance.random() < 0.15:
            assert_same(memory, store)
    assert_same(memory, store)
    assert store.upkeep().problems(deep=True) == []


def exchange(store: Store, kind: str, chance: random.Random, destination: str, known: list[Message]) -> object:
    theirs = [each for each in known if each.destination == destination]
    some = chance.sample(theirs, min(len(theirs), 5))
    if kind == "stale":
        some = [each.replace(tries=each.tries + 1) if chance.random() < 0.5 else each for each in some]
    moves = [Move(each, moved(each, chance)) for each in some]
    queue = store.outbox().queue(destination, 3)
    closing = Closing(chance.choice([None, 5.0, 7.5, 6.0]), 'why, "not"]') if kind == "close" else None
    take = None
    if kind in ("take", "stale"):
        after = queue.version + (kind == "stale" and chance.random() < 0.5)
        taken = tuple(
            Move(
                each,
                each.replace(
                    state=SENDING, tries=each.tries + 1, sender="s", lease_domain="d", lease_until=2.5, taken_at=1.5
                ),
            )
            for each in queue.due
        )
        take = Take(after, chance.random(), taken)
    return store.outbox().exchange(destination, [] if kind == "take" else moves, closing=closing, take=take)


def moved(message: Message, chance: random.Random) -> Message:
    return message.replace(
        state=chance.choice(sorted(STATES)),
        tries=message.tries + chance.randrange(2),
        sender=chance.choice(["", "a", 'b,"]']),
        due_at=chance.choice([START, START + 0.5, 4e9]),
        error=chance.choice([None, "x\n,y"]),
        settled_at=chance.choice([None, 17.125]),
        failures=chance.randrange(3),
    )


def assert_same(memory: MemoryStore, store: RedisStore) -> None:
    one, other = memory.outbox(), store.outbox()
    wants = [
        Wanted(),
        Wanted(job="job"),
        Wanted(window_start=START),
        Wanted(job="job", window_start=START, states=UNDELIVERED),
        Wanted(destination="web", states=frozenset({PENDING, UNSURE})),
        Wanted(destination="mail", states=frozenset({"sent", DEAD})),
        Wanted(states=frozenset({SENDING})),
        Wanted(job="other"),
    ]
    for ask in (
        lambda box: [without_clock(box.queue(name, most)) for name in ("web", "mail", "none") for most in (0, 3, 100)],
        lambda box: [box.messages(wanted, after=after, limit=7) for wanted in wants for after in (0, 5)],
        lambda box: [box.message(name) for name in (1, 3, 10_000, message("0é").key, "none")],
        lambda box: box.destinations(),
        lambda box: [box.tally(name, START + at) for name in ("web", "none") for at in (0, 1)],
        lambda box: [box.waiting(job, START, START + n * DAY) for job in ("job", "none") for n in (0, 1, 9)],
    ):
        assert ask(other) == ask(one)
    assert list(store.upkeep().all_messages()) == list(memory.all_messages())
