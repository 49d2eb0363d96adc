"""What waits in the outbox of a ledger under test."""

from __future__ import annotations

from ranonce.messages import Message
from ranonce.stores.base import Wanted
from tests.ledgers import Asked


def messages(world: Asked) -> list[Message]:
    """Return all messages in the order of their numbers, with their bodies."""
    with world.opened() as store:
        outbox = store.outbox()
        found = [outbox.message(message.key) for message in outbox.messages(Wanted(), limit=100_000)]
    return [message for message in found if message is not None]


def bodies(world: Asked) -> dict[str, bytes | None]:
    """Return the bodies of all messages, by their keys."""
    return {message.key: message.body for message in messages(world)}


def declare(world: object, *tables: str) -> None:
    """Declare destinations in the configuration of a world."""
    path = world.config  # type: ignore[attr-defined]
    path.write_text(path.read_text() + "\n" + "\n".join(tables) + "\n")
