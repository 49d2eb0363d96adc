"""What a drill does with the outbox of its scratch ledger: emit, let time pass, and see what has become of each
message."""

from __future__ import annotations

import time

from ranonce.drill.asking import ask, new_owner, window_of
from ranonce.drill.outcome import Broken
from ranonce.emission import Emission, message_of
from ranonce.lifecycle import Claim, Verdict
from ranonce.messages import PENDING, SENDING, Move, message_key
from ranonce.stores.base import Wanted

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Collection, Iterator

    from ranonce.ledger import OpenLedger
    from ranonce.messages import Message

LEASE_SECONDS = 300.0
#: No scenario leaves more messages than this to a destination.
MOST = 10_000


def emit(ledger: OpenLedger, job: str, day: int, destinations: Collection[str], own_keys: Collection[str]) -> None:
    """Let a day's run end with a message for each destination and key, deliverable at once."""
    claim = ledger.claim(ask(job, day, new_owner(), LEASE_SECONDS))
    if not isinstance(claim, Claim):
        raise Broken(f"window {day + 1} was new, and could not be claimed: {claim.sentence}")
    now = ledger.now()
    told = [Emission(name, f"{name} {key}".encode(), key=key) for name in destinations for key in own_keys]
    messages = tuple(message_of(emission, claim, now) for emission in told)
    if (refusal := ledger.finish(claim, Verdict("done", time.time(), messages=messages))) is not None:
        raise Broken(f"window {day + 1} was done, with its messages, and that was refused: {refusal.sentence}")


def key_at(job: str, day: int, destination: str, own_key: str) -> str:
    """Return the key under which the destination must get a message, whoever sends it and however often."""
    return message_key("window", ask(job, day, "", LEASE_SECONDS).key, destination, own_key)


def messages_to(ledger: OpenLedger, destination: str) -> dict[str, Message]:
    """Return the messages to a destination, by their keys."""
    found = ledger.store.outbox().messages(Wanted(destination=destination), limit=MOST)
    return {message.key: message for message in found}


def messages_of(ledger: OpenLedger, job: str, day: int) -> list[Message]:
    """Return the messages of a day's run."""
    return ledger.store.outbox().messages(Wanted(job=job, window_start=window_of(day).start))


def is_open(message: Message) -> bool:
    """Say whether deliverers still have something to do about a message."""
    return message.state in (PENDING, SENDING)


def let_time_pass(ledger: OpenLedger, destination: str) -> bool:
    """End the leases of what is being sent, and the back-off of what waits, as time would; say whether anything is
    open."""
    moves = list(_later(messages_to(ledger, destination).values()))
    if moves:
        ledger.store.outbox().exchange(destination, moves)
    return bool(moves)


def _later(messages: Collection[Message]) -> Iterator[Move]:
    for message in messages:
        if message.state == SENDING:
            yield Move(message, message.replace(lease_until=0.0))
        elif message.state == PENDING:
            yield Move(message, message.replace(due_at=message.created_at))


def process_of(message: Message) -> str:
    """Return the process id of the deliverer that has a message: a sender is HOST:PID:TAKE."""
    return message.sender.rpartition(":")[0].rpartition(":")[2]
