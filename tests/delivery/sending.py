"""Messages for a sender of one kind, and what it answers."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from ranonce.delivery.base import Sender
from ranonce.emission import digest_of
from ranonce.lifecycle import RunKey
from ranonce.messages import SENDING, Answer, Message

OCTETS = "application/octet-stream"
EMITTED = 1_794_000_000.0  # 2026-11-06
#: The fields of a message that is being sent for the first time.
TAKEN = {"state": SENDING, "tries": 1, "sender": "us", "taken_at": EMITTED, "lease_seconds": 60.0}


def emitted(destination: str, body: bytes = b"x", content_type: str = OCTETS, **others: Any) -> Message:
    """Return a message that a run has left."""
    told: dict[str, Any] = {"run": RunKey("report", "2026-11-07"), "created_at": EMITTED, "due_at": 0.0, **others}
    return Message(
        window_start=0,
        destination=destination,
        content_type=content_type,
        digest=digest_of(content_type, body),
        body=body,
        generation=1,
        attempt=1,
        item="",
        **told,
    )


def many(count: int, message: Callable[[bytes, str], Message]) -> list[Message]:
    """Return so many messages, each of its own body and key."""
    return [message(f"body {number}".encode(), f"key {number}") for number in range(count)]


def sends(sender: Sender, *messages: Message, may_begin: Callable[[Message], bool] = lambda _: True) -> list[Answer]:
    """Send messages, and return the answer to each, in their order."""
    answers: dict[str, Answer] = {}
    for settled in sender.send(messages, may_begin):
        if settled is not None:
            assert settled[0].key not in answers
            answers[settled[0].key] = settled[1]
    return [answers[each.key] for each in messages]


def kinds(answers: list[Answer]) -> set[str]:
    """Return what kinds of answers there were."""
    return {answer.kind for answer in answers}
