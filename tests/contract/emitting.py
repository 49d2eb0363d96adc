"""What contract tests do with messages: emit them with a verdict or a mark, take them, and settle them."""

from __future__ import annotations

from ranonce import messages as rules
from ranonce.emission import OCTETS, Emission, message_of
from ranonce.ledger import OpenLedger
from ranonce.lifecycle import Claim, Refusal, Step
from ranonce.messages import DELIVERED, SENDING, WINDOW, Answer, Message, Move, Route
from ranonce.stores.base import Store, Wanted
from tests.contract.acting import claim, verdict

#: A destination that does not dedupe, and one that does for an hour.
ROUTE = Route("web")
DEDUPING = Route("web", dedupes=3600.0)
SENT_NOW = Answer(DELIVERED, "200 thanks")


def message(
    ledger: OpenLedger,
    held: Claim,
    key: str = "",
    *,
    body: bytes = b"payload",
    destination: str = "web",
    scope: str = WINDOW,
    content_type: str = OCTETS,
    item: str = "",
    resend: bool = False,
) -> Message:
    """Return a message that an attempt emits now."""
    emission = Emission(destination, body, content_type, key, scope)
    return message_of(emission, held, ledger.store.clock().wall, item=item, resend=resend)


def emit(ledger: OpenLedger, day: int = 0, *keys: str, outcome: str = "done", **more: object) -> Claim:
    """Run a day's window to its end, with a message for each key."""
    held = claim(ledger, day)
    told = tuple(message(ledger, held, key, **more) for key in keys or ("",))
    assert ledger.finish(held, verdict(outcome, messages=told)) is None
    return held


def step(ledger: OpenLedger, held: Claim, name: str, result: bytes | None = None) -> Step:
    """Return the mark of an item that is done now."""
    return Step(held.key, held.window.start, held.generation, name, held.attempt, ledger.store.clock().wall, result)


def mark(ledger: OpenLedger, held: Claim, name: str, *told: Message, result: bytes | None = None) -> Refusal | None:
    return ledger.mark(held, step(ledger, held, name, result), told)


def take(store: Store, most: int = 100, *, route: Route = ROUTE, sender: str = "me") -> list[Message]:
    """Take what is due at a destination, as a deliverer does; nothing if another was faster."""
    outbox = store.outbox()
    asked = rules.take(outbox.queue(route.destination, most), route, sender, most)
    if asked is None or not outbox.exchange(route.destination, take=asked).taken:
        return []
    return [move.now for move in asked.moves if move.now.state == SENDING]


def settled(store: Store, taken: Message, answer: Answer = SENT_NOW, *, route: Route = ROUTE) -> Move | None:
    """Return what an answer makes of a message as it stands."""
    current = store.outbox().message(taken.key)
    assert current is not None
    return rules.settle(current, taken, answer, route, store.clock().wall, 0.5)


def settle(store: Store, taken: Message, answer: Answer = SENT_NOW, *, route: Route = ROUTE) -> str:
    """Write what an answer makes of a message, and return what it is now."""
    move = settled(store, taken, answer, route=route)
    if move is not None:
        store.outbox().exchange(route.destination, [move])
    return state(store, taken.key)


def state(store: Store, key: str) -> str:
    known = store.outbox().message(key)
    assert known is not None
    return known.state


def states(store: Store) -> list[str]:
    """Return the state of every message, in the order of their numbers."""
    return [known.state for known in store.outbox().messages(Wanted())]
