"""The outbox and the steps of a ledger in Redis: what is its own, beside what is true of every store."""

from __future__ import annotations

import random
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from itertools import count

import pytest

from ranonce import messages as rules
from ranonce.emission import digest_of
from ranonce.errors import ConfigError, StoreUnavailable
from ranonce.exchange.salvage import nobody
from ranonce.lifecycle import Decision, Retention, RunKey, Step
from ranonce.messages import (
    DEAD,
    PENDING,
    SENDING,
    SENT,
    STATES,
    UNDELIVERED,
    UNSURE,
    Closing,
    Message,
    Move,
    Route,
    Take,
)
from ranonce.stores import open_store, site_of
from ranonce.stores.base import FIRST, Intake, LostReply, Store, Wanted
from ranonce.stores.memory.store import MemoryStore
from ranonce.stores.redis import pruning, whole
from ranonce.stores.redis.keys import KINDS
from ranonce.stores.redis.rows import named
from ranonce.stores.redis.store import RedisStore
from tests.contract.acting import START, claim, ledger_over, verdict
from tests.contract.stores import LEDGER
from tests.proxies import ANSWERED, Cut, Proxy
from tests.test_redis_server import RIGHTS, as_user, counted, own, port_of, through, url

__all__ = ["own", "url"]

DAY = 86400


@pytest.fixture
def store(url: str) -> Iterator[RedisStore]:
    opened = open_store(url, wait_seconds=20)
    assert isinstance(opened, RedisStore)
    ledger_over(opened)
    yield opened
    opened.close()


def message(
    own: str, day: int = 0, destination: str = "web", body: bytes | None = b"hello", **changes: object
) -> Message:
    start = START + day * DAY
    key = f"job:{start}/{destination}/{own}"
    made = Message(
        key=key,
        run=RunKey("job", str(start)),
        window_start=start,
        destination=destination,
        content_type="text/plain",
        digest=digest_of("text/plain", b"hello"),
        body=b"hello",
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


# --- many at once, and a server that goes away ----------------------------------------------------------------------

EMITTERS = TAKERS = 8
WINDOWS = 15


def test_eight_emitters_and_eight_takers_lose_and_double_nothing_while_the_server_is_killed(own, tmp_path):
    url = own.url("ledger")
    site_of(url, wait_seconds=20).create(LEDGER)
    ledger_over(open_store(url, wait_seconds=20))
    sent = tmp_path / "sent"
    emitters = [worker(url, "emit", number, WINDOWS) for number in range(EMITTERS)]
    takers = [worker(url, "deliver", number, sent) for number in range(TAKERS)]
    strikes = 0
    while any(emitter.poll() is None for emitter in emitters):
        time.sleep(0.4)
        own.stop(signal.SIGKILL)
        own.start()
        strikes += 1
    assert strikes >= 2
    assert [emitter.wait(60) for emitter in emitters] == [0] * EMITTERS
    for taker in takers:
        taker.stdin.close()
    for emitter in emitters:
        emitter.stdin.close()
    assert [taker.wait(60) for taker in takers] == [0] * TAKERS
    keys = sent.read_text().splitlines()
    assert len(keys) == EMITTERS * WINDOWS * 3
    assert len(set(keys)) == len(keys)
    store = open_store(url, wait_seconds=20)
    assert {message.key for message in store.upkeep().all_messages() if message.state == SENT} == set(keys)
    assert [message.seq for message in store.upkeep().all_messages()] == list(range(1, len(keys) + 1))
    assert store.upkeep().problems(deep=True) == []


def worker(url: str, role: str, number: int, last: object) -> subprocess.Popen[bytes]:
    command = [sys.executable, "-m", "tests.programs.outbox_worker", url, role, str(number), str(last)]
    return subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.DEVNULL)


def test_cut_after_any_byte_of_its_answer_an_exchange_may_be_repeated_and_is_written_once(url, store):
    box, numbers, seen = store.outbox(), count(), {"written": 0, "not written": 0}

    def asking() -> dict[str, object]:
        number = next(numbers)
        emit(store, message(f"a{number}"), message(f"b{number}", due_at=4e9))
        later = box.message(message(f"b{number}").key)
        taking = rules.take(box.queue("web", 1), Route("web"), "me", 1)
        return {"moves": [Move(later, later.replace(state=DEAD, error="x"))], "take": taking}

    def length_of_an_answer() -> int:
        with Proxy(port_of(url)) as proxy:
            there = RedisStore(through(proxy, url), wait_seconds=20)
            there.outbox().exchange("web", **asking())  # the script is known from now on
            asked = asking()
            before = counted(proxy, ANSWERED)
            assert there.outbox().exchange("web", closing=Closing(5.0, "429"), **asked).taken
            there.close()
            return counted(proxy, ANSWERED) - before

    length = length_of_an_answer()
    assert 20 < length < 200
    for after in range(length):
        with Proxy(port_of(url)) as proxy:
            there = RedisStore(through(proxy, url), wait_seconds=2)
            asked = asking()
            (moving,), (taking,), version = asked["moves"], asked["take"].moves, box.queue("web", 1).version
            proxy._cut = Cut(counted(proxy, ANSWERED) + after, ANSWERED)
            if after == 0:
                proxy.cut()
            with pytest.raises(LostReply):
                there.outbox().exchange("web", **asked)
            proxy.mend()
            written = box.queue("web", 1).version > version
            seen["written" if written else "not written"] += 1
            again = there.outbox().exchange("web", **asked)
            there.close()
        assert (again.taken, moving.was.key in again.moved) == (not written, not written)
        now = box.known([moving.was.key, taking.was.key])
        assert [(each.state, each.tries) for each in now.values()] == [(DEAD, 0), (SENDING, 1)]
        assert box.queue("web", 1).version == version + 1
    assert seen["written"] >= length - 1
    assert store.upkeep().problems(deep=True) == []


def test_a_full_server_takes_no_message_and_no_verdict_that_has_one(own):
    url = own.url("ledger")
    site_of(url, wait_seconds=20).create(LEDGER)
    ledger = ledger_over(RedisStore(url, wait_seconds=1))
    ledger.wait_seconds = 1
    store, held = ledger.store, claim(ledger)
    emit(store, message("first"))
    (first,) = store.outbox().queue("web", 5).due
    store.connection.ask(("CONFIG", "SET", "maxmemory", "1mb"))
    with pytest.raises(StoreUnavailable, match="has no memory left"):
        ledger.finish(held, verdict(messages=(message("second"),)))
    with pytest.raises(StoreUnavailable, match="has no memory left"):
        store.outbox().exchange("web", [Move(first, first.replace(state=DEAD))])
    store.connection.ask(("CONFIG", "SET", "maxmemory", "0"))
    assert [each.key for each in store.upkeep().all_messages()] == [first.key]
    assert store.outbox().known([first.key])[first.key].state == PENDING
    assert store.upkeep().problems(deep=True) == []
    assert ledger.finish(held, verdict(messages=(message("second"),))) is None
    assert len(list(store.upkeep().all_messages())) == 2


@pytest.mark.parametrize("right", ["hset", "zadd", "zrem", "hdel", "hsetnx"])
def test_whoever_may_not_write_all_of_a_message_writes_nothing_of_it(own, right):
    url = own.url("ledger")
    site_of(url, wait_seconds=20).create(LEDGER)
    admin = RedisStore(url, wait_seconds=20)
    ledger_over(admin)
    emit(admin, message("first"))
    admin.connection.ask(("ACL", "SETUSER", "reader", "on", ">p", *RIGHTS, f"-{right}"))
    other = RedisStore(as_user(url, "reader:p"), wait_seconds=1)
    (first,) = other.outbox().queue("web", 5).due
    for refused in (
        lambda: emit(other, message("second")),
        lambda: other.outbox().exchange("web", [Move(first, first.replace(state=DEAD))]),
    ):
        with pytest.raises(ConfigError, match="not do this"):
            refused()
    assert [(each.key, each.state) for each in admin.upkeep().all_messages()] == [(first.key, PENDING)]
    assert admin.upkeep().problems(deep=True) == []


# --- what is kept, and what goes ------------------------------------------------------------------------------------


def test_a_run_without_messages_is_written_by_the_script_that_knows_none(store, monkeypatch):
    told = []
    tell = type(store.connection).tell_script
    monkeypatch.setattr(
        type(store.connection),
        "tell_script",
        lambda line, script, *more: (told.append(script), tell(line, script, *more))[1],
    )
    ledger = ledger_over(store)
    ledger.finish(claim(ledger), verdict())
    plain = set(told)
    assert plain == {named("write")}
    assert "MESSAGES" not in named("write").text
    ledger.finish(claim(ledger, 1), verdict(messages=(message("a", 1),)))
    assert set(told) == {named("write"), named("write messages")}


def test_a_batch_of_pruning_ends_where_what_was_left_is_much(store, monkeypatch):
    monkeypatch.setattr(pruning, "MOST_EVENTS", 25)
    ledger = ledger_over(store)
    for day in range(8):
        held = claim(ledger, day)
        for item in range(3):
            step = Step(held.key, held.window.start, 1, f"i{item}", 1, float(START), b"r")
            assert (
                ledger.mark(held, step, [message(f"{day} {item}", day, run=held.key, window_start=held.window.start)])
                is None
            )
        ledger.finish(held, verdict())
    there = list(store.upkeep().all_messages())
    store.outbox().exchange("web", [Move(each, each.replace(state=SENT)) for each in there[1:]])
    batches, after = [], FIRST
    while after is not None:
        pruned = store.upkeep().prune("job", Retention(4e9, 4e9), after=after)
        batches.append(pruned.runs)
        after = pruned.upto
    assert sum(batches) == 7
    assert max(batches) <= 5
    assert [each.key for each in store.upkeep().all_messages()] == [there[0].key, *(each.key for each in there[-3:])]
    assert [step.window_start for step in store.upkeep().all_steps()] == [START + 7 * DAY] * 3
    counted = {
        what: store.connection.ask(("HLEN", store.keys(what)))[0] for what in ("messages", "message_keys", "bodies")
    }
    assert counted == {"messages": 4, "message_keys": 4, "bodies": 4}
    assert store.upkeep().problems(deep=True) == []


def test_a_view_tells_no_message_of_a_run_that_came_after_it_was_begun(store, url):
    ledger, upkeep = ledger_over(store), store.upkeep()
    ledger.finish(claim(ledger), verdict(messages=(message("first"),)))
    with upkeep.view():
        ledger.finish(claim(ledger, 1), verdict(messages=(message("second", 1),)))
        told = [each.key for each in upkeep.all_messages()]
    assert told == [message("first").key]
    assert len(list(upkeep.all_messages())) == 2


def test_a_view_in_which_messages_were_pruned_says_so(store, monkeypatch):
    monkeypatch.setattr(whole, "MESSAGES", 1)
    ledger, upkeep = ledger_over(store), store.upkeep()
    for day in range(3):
        held = claim(ledger, day)
        told = message(str(day), day, run=held.key, window_start=held.window.start)
        ledger.mark(held, Step(held.key, held.window.start, 1, "i", 1, float(START)), [told])
        ledger.finish(held, verdict())
    there = list(upkeep.all_messages())
    store.outbox().exchange("web", [Move(each, each.replace(state=SENT)) for each in there])
    for through_all in (upkeep.all_messages, upkeep.all_steps):
        with upkeep.view():
            going = through_all()
            if through_all == upkeep.all_messages:
                next(going)
            upkeep.accept_loss("a test", "ann@host")
            with pytest.raises(StoreUnavailable, match="meanwhile"):
                list(going)


def test_what_is_taken_in_twice_is_there_once_and_moves_nothing(store):
    ledger_over(store)
    made = [message("a", state=SENT, tries=3), message("b", body=None, state="dropped"), message("c"), message("a")]
    steps = [Step(RunKey("job", "w"), START, 1, name, 1, 5.0, result) for name, result in (("x", b"\n"), ("y", None))]
    for _ in range(2):
        store.upkeep().take_in(Intake(messages=made, steps=[*steps, steps[0].replace(at=6.0)]), nobody)
        assert [each.replace(seq=None) for each in store.upkeep().all_messages()] == made[:3]
        assert [each.seq for each in store.upkeep().all_messages()] == [1, 2, 3]
        assert list(store.upkeep().all_steps()) == steps
    assert store.upkeep().problems(deep=True) == []


def test_what_was_lost_is_moved_aside_with_its_messages_and_they_are_taken_into_the_new_one(store, url):
    ledger = ledger_over(store)
    held = claim(ledger)
    ledger.mark(held, Step(held.key, held.window.start, 1, "i", 1, float(START), b"r"), [message("a")])
    store.outbox().exchange("web", closing=Closing(9e9, "429"))
    with site_of(url, wait_seconds=20).recovery() as recovery:
        recovery.halt()
        assert store.connection.ask(("EXISTS", *map(store.keys, KINDS)))[0] == 0
        remains = recovery.remains(LEDGER)
        new = recovery.begin(LEDGER, volatile=None, epoch=2)
        ledger_over(new)
        told = Intake(messages=list(remains.upkeep().all_messages()), steps=list(remains.upkeep().all_steps()))
        new.upkeep().take_in(told, nobody)
        remains.close()
        new.close()
        recovery.take_place()
    again = open_store(url, wait_seconds=20)
    assert [each.body for each in again.outbox().queue("web", 5).due] == [b"hello"]
    assert again.steps(held.key, held.window.start, 1) == ["i"]
    assert again.upkeep().problems(deep=True) == []
