"""What nobody could have written into a ledger in Redis, and answers that no server gives: said, never believed."""

from __future__ import annotations

import contextlib
import json
from collections.abc import Callable, Iterator, Sequence

import pytest

from ranonce.errors import ConfigError, NotThisLedger, RanonceError, StoreUnavailable
from ranonce.ledger import OpenLedger
from ranonce.lifecycle import Claim, Gate, Policy, Retention
from ranonce.stores import open_store, site_of
from ranonce.stores.base import LostReply
from ranonce.stores.redis.rows import named
from ranonce.stores.redis.store import RedisStore
from ranonce.stores.redis.wire import LONGEST_ANSWER, MOST_NESTED, Command, Wire
from ranonce.survey import Span, Survey
from tests.contract.acting import START, ask, claim, ledger_over, verdict
from tests.contract.stores import LEDGER
from tests.servers import Places
from tests.test_redis_server import Fake

DAY = 86400
#: What is put in the place of whatever a value has there.
STRANGE = ["x", None, [], {}, 1e300, True]
NO_VALUES = [b"", b"null", b"[]", b"{", b"[NaN]", b"\xff\xfe", b"-5 ", b"[" * 5000]


@pytest.fixture
def url(valkey: Places) -> Iterator[str]:
    with valkey.place() as address:
        site_of(address, wait_seconds=20).create(LEDGER)
        yield address


@pytest.fixture
def store(url: str) -> Iterator[RedisStore]:
    opened = open_store(url, wait_seconds=0.3)
    assert isinstance(opened, RedisStore)
    both = Policy(overlap="allow")
    ledger = ledger_over(opened)
    for day in range(3):
        ledger.finish(claim(ledger, day), verdict())
        if day == 1:
            opened.upkeep().prune("job", Retention(4e9, 4e9))
    ledger.finish(claim(ledger, 3), verdict("failed"))
    claim(ledger, 4, policy=both)
    opened.upkeep().set_gate(Gate("g", 9e9, "429", "job", float(START)))
    opened.upkeep().accept_loss("a test", "ann@host")
    yield opened
    opened.close()


def asked(store: RedisStore) -> list[Callable[[], object]]:
    """What runs and people ask of a ledger."""
    ledger, upkeep = OpenLedger(store, folder=None, wait_seconds=0.3), store.upkeep()

    def seen_whole() -> None:
        with upkeep.view():
            list(upkeep.all_runs())
            list(upkeep.events_by_window(output=True))

    return [
        lambda: ledger.claim(ask(3)),
        lambda: ledger.claim(ask(6)),
        lambda: ledger.declared("job"),
        lambda: Survey(store, None, START + 9 * DAY).job("job", Span(START, START + 9 * DAY, False), spec=None),
        lambda: store.outline("job", 0, 1 << 40),
        lambda: store.last_started_end("job", 0, 1e12),
        lambda: store.newest_events(5),
        lambda: store.backlog("job", 1 << 40, 3, 1.0),
        lambda: upkeep.problems(deep=True),
        lambda: list(upkeep.all_events()),
        seen_whole,
        upkeep.pruned_seq,
        upkeep.epochs,
        lambda: upkeep.prune("job", Retention(START + 9 * DAY, START + 9 * DAY)),
    ]


def only_sentences(store: RedisStore) -> None:
    """Ask everything: whatever is wrong is told as what it is."""
    for question in asked(store):
        with contextlib.suppress(RanonceError):
            question()


HASHES = ["ledger", "events", "jobs", "versions", "gates", "runs:job", "leases:job"]


@pytest.mark.parametrize("what", [*HASHES, "schedules:job", "epochs"])
def test_a_value_that_nobody_could_have_written_is_damage_and_no_traceback(store, what):
    key = store.keys(what)
    of_a_list = store.keys.kind(key) == "l"
    fields = [0] if of_a_list else sorted(store.connection.ask(("HKEYS", key))[0])[-2:]
    for field in fields:
        (value,) = store.connection.ask(("LINDEX" if of_a_list else "HGET", key, field))
        listed = json.loads(value) if value.startswith(b"[") else []
        strange = [json.dumps([*listed[:at], each, *listed[at + 1 :]]) for at in range(len(listed)) for each in STRANGE]
        for other in (*NO_VALUES, *strange[:: 1 if what in ("leases:job", "gates") else 5]):
            store.connection.ask(("LSET" if of_a_list else "HSET", key, field, other))
            only_sentences(store)
            with contextlib.suppress(RanonceError):
                open_store(store.url, wait_seconds=0.3).close()
            store.connection.ask(("LSET" if of_a_list else "HSET", key, field, value))


@pytest.mark.parametrize("what", ["pages", "order", "notable", "waiting", "work", "besides", "tombstones"])
def test_a_member_that_nobody_could_have_put_into_an_index_is_damage_and_ends(store, what):
    key = store.keys(what, None if what == "pages" else "job")
    (members,) = store.connection.ask(("ZRANGE", key, 0, -1, "WITHSCORES"))
    for other in (b"", b"abc", b"\xff", b"1\0\0", b"[]"):
        store.connection.ask(("ZREM", key, members[0]), ("ZADD", key, members[1], other))
        only_sentences(store)
        store.connection.ask(("ZREM", key, other), ("ZADD", key, members[1], members[0]))
    for score in ("+inf", "-inf"):
        store.connection.ask(("ZADD", key, score, members[0]))
        only_sentences(store)


@pytest.mark.parametrize(
    ("what", "field", "value"),
    [
        ("versions", "job", b"x"),
        ("versions", "job", b"3 "),
        ("ledger", "seq", b"x"),
        ("fill", "0", b"x"),
        ("leases", None, b'[1,{},"o","server",300.0,"","",0.0,0.0]'),
        ("gates", "g", b'["x",1.0,"g","x","job"]'),
    ],
)
def test_what_a_run_meets_of_it_is_told_as_damage_and_nothing_is_run(store, what, field, value):
    key = store.keys(what, "job" if what == "leases" else None)
    if field is None:
        (field,) = store.connection.ask(("HKEYS", key))[0]
    store.connection.ask(("HSET", key, field, value))
    ledger = OpenLedger(store, folder=None, wait_seconds=0.3)
    with pytest.raises(NotThisLedger, match="damaged"):
        ledger.claim(ask(6, policy=Policy(overlap="allow", uses=("g",))))
    assert all(run.key != ask(6).key for run in store.runs("job", 0, 1 << 40))


# --- answers that no server gives -----------------------------------------------------------------------------------

BULK = b"$3\r\nabc\r\n"
ANSWERS = {
    "a number": b":1\r\n",
    "a word": b"+OK\r\n",
    "an odd list": b"*3\r\n" + BULK * 3,
    "a list of numbers": b"*2\r\n:1\r\n:2\r\n",
    "a list of nothing": b"*2\r\n$-1\r\n$-1\r\n",
    "lists in lists": b"*1\r\n" * 100_000,
    "lists too deep": b"*1\r\n" * (MOST_NESTED + 1) + b":1\r\n",
    "no end after a value": b"*2\r\n$3\r\nabcd\n" + BULK,
    "a number that is none": b":1_0\r\n",
    "more than anything holds": b"*%d\r\n" % (LONGEST_ANSWER + 1) + BULK,
    "longer than anything is": b"$%d\r\n" % (LONGEST_ANSWER + 1),
    "RESP 3": b"%1\r\n$2\r\nid\r\n$1\r\nx\r\n",
}


@pytest.mark.parametrize("said", ANSWERS.values(), ids=ANSWERS)
def test_an_answer_of_another_shape_is_no_servers(said):
    with Fake(said + said) as fake, pytest.raises(ConfigError, match="no Redis or Valkey server"):
        open_store(fake.url, wait_seconds=0.5)


def test_an_answer_that_nobody_asked_for_is_not_taken_for_the_next_ones(monkeypatch, store):
    wire = store.connection._wire
    assert wire is not None
    real, doubled = wire._sock, []

    class Doubling:
        """Says the next answer twice."""

        def recv(self, size: int, *flags: int) -> bytes:
            piece = real.recv(size, *flags)
            if not doubled and b"$4\r\nread\r\n" in piece:
                doubled.append(piece)
                return piece + piece
            return bytes(piece)

        def __getattr__(self, name: str) -> object:
            return getattr(real, name)

    monkeypatch.setattr(wire, "_sock", Doubling())
    ledger = OpenLedger(store, folder=None, wait_seconds=5)
    held = ledger.claim(ask(6, policy=Policy(overlap="allow")))
    assert doubled
    assert isinstance(held, Claim)
    assert store.read(held.key, held.window.start).run.owner == held.owner


def test_a_write_that_is_answered_with_something_else_may_have_happened(monkeypatch, store):
    exchange = Wire.exchange
    answers: list[object] = [
        b"OK",
        [b"written"],
        [b"written", b"x", []],
        [b"written", b"1", []],
        [b"other"],
        [b"raced", b"by whom"],
        [b"lost", b"x"],
        [b"moved", 1],
    ]

    def tampered(wire: Wire, commands: Sequence[Command], give_up: float) -> list[object]:
        told: list[object] = exchange(wire, commands, give_up)
        return [answers[-1]] if named("write").digest in [word for one in commands for word in one] else told

    monkeypatch.setattr(Wire, "exchange", tampered)
    ledger = OpenLedger(store, folder=None, wait_seconds=0)
    while answers:
        with pytest.raises((LostReply, StoreUnavailable)):
            ledger.claim(ask(10 + len(answers), policy=Policy(overlap="allow")))
        answers.pop()
