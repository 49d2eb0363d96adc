"""What nobody could have written of messages and steps into a ledger in Redis: said, and never believed."""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Iterator

import pytest

from ranonce import messages as rules
from ranonce.emission import Emission, message_of
from ranonce.errors import NotThisLedger, RanonceError
from ranonce.lifecycle import Claim, Policy, Retention, Step
from ranonce.messages import SENT, STATES, UNDELIVERED, Closing, Move, Route
from ranonce.stores import open_store, site_of
from ranonce.stores.base import Wanted
from ranonce.stores.redis.store import RedisStore
from tests.contract.acting import START, claim, ledger_over, verdict
from tests.contract.stores import LEDGER
from tests.servers import Places
from tests.test_redis_damage import NO_VALUES, STRANGE

DAY = 86400
HASHES = ["messages", "message_keys", "bodies", "destinations", "results:job"]
INDEXES = ["numbers", "emitted:job", "undelivered:job", "steps:job", "pending:web", "sending:web", "aside:web"]
EVERYWHERE = Policy(overlap="allow")


class Scene:
    """A ledger in which messages were left, that can be put back as it was."""

    def __init__(self, url: str) -> None:
        opened = open_store(url, wait_seconds=0.3)
        assert isinstance(opened, RedisStore)
        self.store = opened
        self.ledger = ledger_over(self.store)
        self.ledger.wait_seconds = 0.3
        old = claim(self.ledger, 1)
        self.leave(old)
        self.ledger.finish(old, verdict())
        self.ledger.finish(claim(self.ledger, 2), verdict())
        self.held = claim(self.ledger, 4, policy=EVERYWHERE)
        self.keys = self.leave(self.held)
        self._kept = [(name, self.store.connection.ask(("DUMP", name))[0]) for name in self._names()]

    def leave(self, held: Claim) -> list[str]:
        """Leave a step, a message in each state, one that is due, and a destination that is closed."""
        made = [message_of(Emission("web", b"x", key=own), held, START, item="i") for own in [*sorted(STATES), "due"]]
        step = Step(held.key, held.window.start, 1, "i", 1, float(START), b"result")
        assert self.ledger.mark(held, step, made) is None
        outbox = self.store.outbox()
        there = outbox.known([each.key for each in made])
        moves = [
            Move(there[each.key], there[each.key].replace(state=state, sender="s", tries=1))
            for each, state in zip(made, sorted(STATES), strict=False)
        ]
        assert len(outbox.exchange("web", moves, closing=Closing(5.0, "429")).moved) == len(STATES)
        return [each.key for each in made]

    def _names(self) -> list[bytes]:
        return list(self.store.connection.ask(("KEYS", f"{self.store.keys.prefix}*"))[0])

    def put_back(self) -> None:
        self.store.connection.ask(("UNLINK", *self._names()))
        self.store.connection.ask(*(("RESTORE", name, 0, value) for name, value in self._kept))

    def questions(self) -> list[Callable[[], object]]:
        """What deliverers and people ask, and what they write."""
        store, upkeep, box = self.store, self.store.upkeep(), self.store.outbox()
        key, start = self.held.key, self.held.window.start
        return [
            lambda: upkeep.problems(deep=True),
            lambda: box.known(self.keys),
            lambda: [box.message(name) for name in (1, 2, *self.keys)],
            lambda: [box.messages(wanted) for wanted in (Wanted(), Wanted(job="job"), Wanted(states=UNDELIVERED))],
            box.destinations,
            lambda: box.tally("web", 9e9),
            lambda: box.waiting("job", 0, 1 << 40),
            lambda: store.steps(key, start, 1),
            lambda: store.step(key, start, 1, "i"),
            self.view,
            lambda: box.queue("web", 5),
            self.take,
            self.move,
            self.emit,
            lambda: upkeep.prune("job", Retention(START + 9 * DAY, START + 9 * DAY)),
        ]

    def view(self) -> None:
        upkeep = self.store.upkeep()
        with upkeep.view():
            list(upkeep.all_messages())
            list(upkeep.all_steps())

    def take(self) -> None:
        box = self.store.outbox()
        box.exchange("web", closing=Closing(None, ""))
        if (taking := rules.take(box.queue("web", 5), Route("web"), "me", 5)) is not None:
            box.exchange("web", take=taking, closing=Closing(7.0, "429"))

    def move(self) -> None:
        box = self.store.outbox()
        there = box.messages(Wanted(states=UNDELIVERED))
        box.exchange("web", [Move(each, each.replace(state=SENT)) for each in there])

    def emit(self) -> None:
        """Emit one more message with a step."""
        own, start = os.urandom(4).hex(), self.held.window.start
        step = Step(self.held.key, start, 1, own, 1, float(START))
        message = message_of(Emission("web", b"x", key=own), self.held, START, item=own)
        assert self.ledger.mark(self.held, step, [message]) is None

    def told(self) -> list[str]:
        """Ask everything; return what was said of damage, and put all back."""
        said: list[str] = []
        for question in self.questions():
            try:
                found = question()
            except NotThisLedger as error:
                said.append(error.sentence)
            except RanonceError:
                pass
            else:
                said += [each for each in found if isinstance(each, str)] if isinstance(found, list) else []
        self.put_back()
        return [each for each in said if each not in ("web", "i")]


@pytest.fixture
def scene(valkey: Places) -> Iterator[Scene]:
    with valkey.place() as url:
        site_of(url, wait_seconds=20).create(LEDGER)
        made = Scene(url)
        yield made
        made.store.close()


def test_of_what_was_left_in_order_nothing_is_told(scene):
    assert scene.told() == []


@pytest.mark.parametrize("what", HASHES)
def test_a_value_that_nobody_could_have_written_is_told_of_as_damage(scene, what):
    key, ask = scene.store.keys(what), scene.store.connection.ask
    fields = sorted(ask(("HKEYS", key))[0])
    for field in (fields[0], fields[-1]):
        (value,) = ask(("HGET", key, field))
        head, line, rest = value.partition(b"\n")
        listed = json.loads(head) if value.startswith(b"[") else []
        strange = [json.dumps([*listed[:at], each, *listed[at + 1 :]]) for at in range(len(listed)) for each in STRANGE]
        for other in (*NO_VALUES, *(each.encode() + line + rest for each in strange[::4])):
            ask(("HSET", key, field, other))
            said = scene.told()
            assert said or what == "bodies" or other not in NO_VALUES, other
        ask(("HDEL", key, field))
        # A destination that nobody has taken from or closed has no line; what was delivered may have lost its body.
        assert scene.told() or what == "destinations" or (what == "bodies" and field != fields[0])


@pytest.mark.parametrize("what", INDEXES)
def test_an_index_that_nobody_could_have_written_is_told_of_as_damage(scene, what):
    key, ask = scene.store.keys(what), scene.store.connection.ask
    member, score, *_ = ask(("ZRANGE", key, 0, -1, "WITHSCORES"))[0]
    for other in (b"", b"abc", b"\xff", b"99", b"0000000000000099", b"1\0\0", b"[]"):
        ask(("ZREM", key, member), ("ZADD", key, score, other))
        assert scene.told(), other
    for other in ("+inf", "-inf", "7"):
        ask(("ZADD", key, other, member))
        assert scene.told() or what == "steps:job", other
    ask(("ZREM", key, member))
    assert scene.told()


@pytest.mark.parametrize("what", [*HASHES, *INDEXES])
def test_a_key_of_another_type_is_named_and_no_half_of_a_message_is_written(scene, what):
    key, ask, box = scene.store.keys(what), scene.store.connection.ask, scene.store.outbox()
    box.exchange("web", closing=Closing(None, ""))
    taking = rules.take(box.queue("web", 5), Route("web"), "me", 5)
    ask(("UNLINK", key), ("RPUSH", key, "x"))
    assert any(key in sentence for sentence in scene.store.upkeep().problems(deep=False))
    refused = 0
    for writing in (scene.emit, lambda: box.exchange("web", take=taking)):
        kept = [(name, ask(("DUMP", name))[0]) for name in scene._names()]
        try:
            writing()
        except NotThisLedger:
            refused += 1
            assert [(name, ask(("DUMP", name))[0]) for name in scene._names()] == kept
    assert refused > 0 or what == "aside:web"  # where neither of the two has anything to do
    assert scene.told()


@pytest.mark.parametrize("value", ["x", "", "-1", "0", "3", "1e3"])
def test_a_counter_that_cannot_be_gives_no_number_twice(scene, value):
    there = scene.store.connection.ask(("HGETALL", scene.store.keys("messages")))
    scene.store.connection.ask(("HSET", scene.store.keys("ledger"), "message_seq", value))
    with pytest.raises(NotThisLedger, match="is damaged"):
        scene.emit()
    assert scene.store.connection.ask(("HGETALL", scene.store.keys("messages"))) == there


def test_steps_of_a_ledger_without_messages_are_looked_at_too(valkey):
    with valkey.place() as url:
        site_of(url, wait_seconds=20).create(LEDGER)
        store = open_store(url, wait_seconds=20)
        ledger = ledger_over(store)
        held = claim(ledger)
        ledger.mark(held, Step(held.key, held.window.start, 1, "i", 1, float(START)))
        assert store.upkeep().problems(deep=True) == []
        (place,) = store.connection.ask(("HKEYS", store.keys("results", "job")))[0]
        store.connection.ask(("HSET", store.keys("results", "job"), place, "x"))
        assert any("is damaged" in sentence for sentence in store.upkeep().problems(deep=True))
        store.connection.ask(("UNLINK", store.keys("results", "job")))
        assert store.upkeep().problems(deep=False) == ["the job 'job' has not as many steps as places of steps"]
