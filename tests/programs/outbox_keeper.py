"""A process that keeps the outbox of a ledger busy in one way, beside others; it ends with 0 once it has done so.

Usage: outbox_keeper URL WAY NUMBER TIMES. The ways: emit, take, prune, bring, say. Keys are few, and come in any order,
so that they meet. What a store may say while others are at work is no fault; anything else is.

With the way `deliver` it sends whatever waits until nothing does, whatever becomes of the server meanwhile, and prints
each key that it sends: what it was given is certainly sent, and nothing else is.
"""

from __future__ import annotations

import random
import sys
import time

from ranonce import messages as rules
from ranonce.errors import StoreUnavailable
from ranonce.ledger import OpenLedger
from ranonce.lifecycle import Claim, Policy, Retention
from ranonce.messages import DELIVERED, JOB, NOT_BEGUN, SENDING, UNKNOWN, Answer, Closing, Message, Route
from ranonce.stores import open_store
from ranonce.stores.base import Intake, LostReply, Wanted
from tests.contract.acting import ask, verdict
from tests.contract.emitting import mark, message

JOBS = ("a", "b", "c")
DESTINATIONS = ("web", "mail")
KEYS = [f"key-{number}" for number in range(60)]
#: A destination that forgets at once what it was sent: so no message is ever sent twice.
ROUTES = {name: Route(name, first_delay=0.01, longest_delay=0.01) for name in DESTINATIONS}


def told(ledger: OpenLedger, held: Claim, chance: random.Random) -> tuple[Message, ...]:
    """Return messages under keys of the job, which others emit at the same time in another order."""
    keys = chance.sample(KEYS, 20)
    return tuple(message(ledger, held, key, scope=JOB, destination=chance.choice(DESTINATIONS)) for key in keys)


def emit(ledger: OpenLedger, chance: random.Random) -> None:
    job, day = chance.choice(JOBS), chance.randrange(1000)
    answer = ledger.claim(ask(day, job=job, policy=Policy(max_attempts=1 << 20, overlap="allow")))
    if isinstance(answer, Claim):
        for number in range(2):
            assert mark(ledger, answer, f"item {number}", *told(ledger, answer, chance)) is None
        assert ledger.finish(answer, verdict(messages=told(ledger, answer, chance))) is None


def take(ledger: OpenLedger, chance: random.Random) -> None:
    outbox, name = ledger.store.outbox(), chance.choice(DESTINATIONS)
    queue = outbox.queue(name, 10)
    asked = rules.take(queue, ROUTES[name], str(chance.random()), 10)
    if asked is None or not outbox.exchange(name, take=asked).taken:
        return
    moves = [
        rules.settle(move.now, move.now, Answer(chance.choice((DELIVERED, NOT_BEGUN, UNKNOWN))), ROUTES[name], 0.0, 0.5)
        for move in asked.moves
    ]
    chance.shuffle(moves)
    opened = Closing(None, "opened")
    outbox.exchange(name, [move for move in moves if move], closing=opened if chance.random() < 0.3 else None)


def prune(ledger: OpenLedger, chance: random.Random) -> None:
    ledger.store.upkeep().prune(chance.choice(JOBS), Retention(4e9, 4e9), limit=20)


def bring(ledger: OpenLedger, chance: random.Random) -> None:
    """Import what is there already, in any order."""
    known = [ledger.store.outbox().message(one.key) for one in ledger.store.outbox().messages(Wanted(), limit=20)]
    chance.shuffle(known)
    taken = ledger.store.upkeep().take_in(
        Intake(messages=tuple(one for one in known if one)), lambda _run, _lease: False
    )
    assert taken.events == 0


def say(ledger: OpenLedger, chance: random.Random) -> None:
    """Say of messages that nobody knows of that they were sent."""
    outbox = ledger.store.outbox()
    for one in outbox.messages(Wanted(states=frozenset({"unsure"})), limit=5):
        move = rules.resolve(one, "sent", "looked", ledger.store.clock().wall)
        assert isinstance(move, rules.Move)
        outbox.exchange(one.destination, [move])


def deliver(url: str, name: str) -> None:
    """Send all that waits, as a deliverer does that no loss of the server disturbs."""
    route = Route("web", first_delay=0.01, longest_delay=0.01)
    store = _insisting(lambda: open_store(url, wait_seconds=2))
    outbox, sent = store.outbox(), set()
    while True:
        queue = _insisting(lambda: outbox.queue("web", 5))
        if not queue.due and not queue.sending:
            return
        asked = rules.take(queue, route, name, 5)
        if asked is None:
            continue
        try:
            given = [move.now for move in asked.moves] if outbox.exchange("web", take=asked).taken else []
        except LostReply:  # so it is asked which of them it has
            given = [one for one in _insisting(lambda: outbox.queue("web", 1)).sending if one.sender == name]
        except StoreUnavailable:
            continue
        for one in given:
            assert one.state == SENDING
            assert one.key not in sent
            sent.add(one.key)
            print(one.key, flush=True)
        answers = [rules.settle(one, one, Answer(DELIVERED), route, queue.wall, 0.5) for one in given]
        _insisting(lambda moves=answers: outbox.exchange("web", [move for move in moves if move]))


def _insisting(ask_for):
    """Ask until there is an answer; what was written then is as it was no more, so it may be asked twice."""
    give_up = time.monotonic() + 60
    while True:
        try:
            return ask_for()
        except StoreUnavailable:
            if time.monotonic() > give_up:
                raise
            time.sleep(0.02)


def main() -> None:
    url, way, number, times = sys.argv[1:]
    if way == "deliver":
        deliver(url, number)
        return
    ledger, chance = OpenLedger(open_store(url, wait_seconds=30), folder=None, wait_seconds=30), random.Random(number)
    do = {"emit": emit, "take": take, "prune": prune, "bring": bring, "say": say}[way]
    for _ in range(int(times)):
        do(ledger, chance)


if __name__ == "__main__":
    main()
