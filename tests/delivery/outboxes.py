"""An outbox that tests fill, look into, and move the time of; and receivers that say what has come to them."""

from __future__ import annotations

import sys
from collections import Counter
from collections.abc import Iterable, Sequence
from pathlib import Path

from ranonce.messages import PENDING, SENDING, Message, Move
from ranonce.stores.base import Store, Wanted
from tests.contract.acting import ledger_over
from tests.contract.emitting import emit
from tests.world import World

#: Receives a message: one line with its key, appended at once, in one write.
RECEIVER = """\
import os, sys
sys.stdin.buffer.read()
line = (os.environ["RANONCE_MESSAGE_KEY"] + "\\n").encode()
os.write(os.open(sys.argv[1], os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600), line)
print("received", os.environ["RANONCE_MESSAGE_KEY"])
"""


def fill(
    store: Store, keys: Iterable[str], *, day: int = 0, destination: str = "web", body: bytes = b"payload"
) -> None:
    """Let a run of a day end, with messages of these keys."""
    emit(ledger_over(store), day, *keys, destination=destination, body=body)


def messages(store: Store, destination: str = "web") -> list[Message]:
    """Return all messages to a destination, in order."""
    return store.outbox().messages(Wanted(destination=destination), limit=100_000)


def states(store: Store, destination: str = "web") -> dict[str, int]:
    """Count the messages to a destination by state."""
    return dict(Counter(message.state for message in messages(store, destination)))


def let_leases_end(store: Store, destination: str = "web") -> None:
    """Let time pass for the messages: no lease is good any more, and what waits is due."""
    moves = []
    for message in messages(store, destination):
        if message.state == SENDING:
            moves.append(Move(message, message.replace(lease_until=0.0)))
        elif message.state == PENDING:
            moves.append(Move(message, message.replace(due_at=message.created_at)))
    if moves:
        store.outbox().exchange(destination, moves)


def declare(world: World, name: str = "web", **settings: object) -> None:
    """Add a destination to the configuration of a world."""
    lines = "".join(f"{key} = {toml(value)}\n" for key, value in settings.items())
    with world.config.open("a") as file:
        file.write(f"\n[destinations.{name}]\n{lines}")


def toml(value: object) -> str:
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, (list, tuple)):
        return f"[{', '.join(map(toml, value))}]"
    return str(value) if isinstance(value, (int, float)) else "'" + str(value) + "'"


def receiver(world: World, name: str = "web", **settings: object) -> Path:
    """Declare a destination whose program appends keys to a file; return the file."""
    script, file = world.root / "receiver.py", world.root / f"received by {name}"
    script.write_text(RECEIVER)
    declare(world, name, type="command", command=[sys.executable, "-S", str(script), str(file)], **settings)
    return file


def shell(world: World, script: str, name: str = "web", **settings: object) -> None:
    """Declare a destination whose program is a shell script."""
    declare(world, name, type="command", command=["/bin/sh", "-c", script], **settings)


def received(file: Path) -> Sequence[str]:
    """Return the keys that have come to a receiver, in order."""
    return file.read_text().splitlines() if file.exists() else []
