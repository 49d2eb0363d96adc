"""How one message is shown: to people, so that whatever stands in it moves no cursor, and to machines."""

from __future__ import annotations

import sys

from ranonce.cli.report import instant, kept, with_instants
from ranonce.errors import UsageError
from ranonce.messages import DEAD, DROPPED, PENDING, SENDING, SENT, UNSURE, lease_over
from ranonce.names import plain
from ranonce.timefmt import format_instant
from ranonce.undelivered import is_payload

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping
    from typing import Any

    from ranonce.lifecycle import Event
    from ranonce.messages import Message
    from ranonce.stores.base import Clock

#: So much of a body is shown; `--body` writes all of it.
SHOWN_BYTES = 4096


def counted(states: Mapping[str, int]) -> str:
    """Return how many messages are in which state: `3 sent, 1 unsure`."""
    return ", ".join(f"{count:,} {state}" for state, count in sorted(states.items()))


def story(
    message: Message, *, late: bool, declared: bool, there: Mapping[str, str], clock: Clock, closed: float | None
) -> Iterator[str]:
    """Tell all that is known of a message, without its body. `there` is by what its destination knows it, `closed`
    until when that is closed."""
    yield plain(f"message {message.seq} to {message.destination}: {message.state}{', and late' if late else ''}.")
    origin = f"{message.run.job} {message.run.window}, attempt {message.attempt}, generation {message.generation}"
    told = {
        "key": message.key,
        "from": origin + (f", item {message.item}" if message.item else ""),
        "emitted": instant(message.created_at),
        "tries": f"taken {_times(message.tries)}, of them failed: {message.failures}",
        "due": _when_due(message, closed) if message.state == PENDING else None,
        "taken": instant(message.taken_at) if message.taken_at is not None else None,
        "sender": message.sender or None,
        "lease": (standing_of(message, clock, None) or "").removeprefix("lease ") if message.state == SENDING else None,
        "settled": instant(message.settled_at) if message.settled_at is not None else None,
        "in doubt": f"since {instant(message.doubt_since)}" if message.doubt_since is not None else None,
        "receipt": message.receipt,
        "error": message.error,
        "resolved": message.resolution,
        "type": message.content_type,
        "digest": message.digest,
    }
    yield from (plain(f"  {name:<9} {value}") for name, value in told.items() if value)
    yield from (plain(f"  known as  {name}: {value}") for name, value in there.items())
    if not declared:
        yield "  the configuration here does not declare its destination"
    if (step := what_to_do(message, clock)) is not None:
        yield plain(f"  next      {step}")


def _times(count: int) -> str:
    return "once" if count == 1 else f"{count} times"


def _when_due(message: Message, closed: float | None) -> str:
    shut = f"; its destination is closed until {format_instant(closed)}" if closed is not None else ""
    return f"{format_instant(message.due_at)}{shut}"


def standing_of(message: Message, clock: Clock, closed: float | None) -> str | None:
    """Say until when a message is left as it is: its next try, or its deliverer's lease; None where nothing is to come.

    `closed` is until when its destination is closed.
    """
    if message.state == PENDING:
        due = max(message.due_at, closed or 0.0)
        return f"next {time_of(due, clock.wall)}" if due > clock.wall else "now"
    if message.state != SENDING:
        return None
    if lease_over(message, clock.domain, clock.now, clock.wall):
        return f"its deliverer vanished; lease over since {time_of(lease_end(message, clock), clock.wall)}"
    return f"lease until {time_of(lease_end(message, clock), clock.wall)}"


def lease_end(message: Message, clock: Clock) -> float:
    """Return when the lease of a message that is being sent ends, or has ended (unix seconds)."""
    if message.lease_domain == clock.domain:
        return clock.wall + message.lease_until - clock.now
    return (message.taken_at or 0.0) + message.lease_seconds


def time_of(at: float, now: float) -> str:
    """Print an instant as short as it is clear: of this day, only its time."""
    whole = format_instant(max(at, 0.0))
    return whole[11:] if whole[:10] == format_instant(now)[:10] else whole


def own_key(message: Message) -> str:
    """Return what tells a message from others of its window and destination; empty where nothing does."""
    own = message.key.split("/", 2)[-1]
    return own[1:] if own == "-" or own.startswith("-#") else own  # "#2": of a rerun that sends again


def as_json(message: Message, *, late: bool) -> dict[str, Any]:
    """Return a message for machines, without its body."""
    return with_instants(
        {
            "message": message.seq,
            "key": message.key,
            "state": message.state,
            "late": late,
            "destination": message.destination,
            "job": message.run.job,
            "window": message.run.window,
            "input": message.run.input or None,
            "item": message.item or None,
            "generation": message.generation,
            "attempt": message.attempt,
            "tries": message.tries,
            "failures": message.failures,
            "created_at": message.created_at,
            "due_at": message.due_at if message.state == PENDING else None,
            "taken_at": message.taken_at,
            "doubt_since_at": message.doubt_since,
            "settled_at": message.settled_at,
            "sender": message.sender or None,
            "receipt": message.receipt,
            "error": message.error,
            "resolution": message.resolution,
            "content_type": message.content_type,
            "digest": message.digest,
        }
    )


def since(message: Message) -> float:
    """Return since when a message is what it is."""
    settled = message.settled_at if message.state not in (PENDING, SENDING) else None
    return message.created_at if settled is None else settled


def last_words(message: Message) -> str:
    """Return what was said of a message last."""
    said = message.resolution if message.state in (SENT, DROPPED) else None
    return said or (message.receipt if message.state == SENT else message.error) or "-"


def is_about(event: Event, message: Message) -> bool:
    """Say whether an event of a window tells of a message."""
    numbers = event.data.get("outbox")
    return (isinstance(numbers, list) and message.seq in numbers) or event.data.get("message") == message.key


def what_to_do(message: Message, clock: Clock) -> str | None:
    """Return the command that helps."""
    if message.state == SENDING:
        if lease_over(message, clock.domain, clock.now, clock.wall):
            return "ranonce deliver decides what becomes of it: tried again where that can do no harm, else unsure"
        return "wait for its deliverer"
    if message.state == UNSURE:
        return f"see whether it arrived: ranonce outbox resolve {message.seq} --as sent|not-sent --reason TEXT"
    if message.state == DEAD and is_payload(message.error):
        anew = f"ranonce rerun {message.run.job} {message.run.window} --resend --reason TEXT"
        dropped = f"ranonce outbox resolve {message.seq} --as dropped --reason TEXT"
        return f"a payload stays as it is: {dropped}; then mend the job and have it emitted anew: {anew}"
    if message.state == DEAD:
        again = f"ranonce outbox retry {message.seq}"
        return f"mend what it says, then {again}, or: ranonce outbox resolve {message.seq} --as dropped --reason TEXT"
    if message.state == PENDING:
        return "ranonce deliver sends it when it is due"
    return None


# --- bodies ---------------------------------------------------------------------------------------------------------


def write_body(message: Message) -> int:
    """Write a body byte for byte. Raises UsageError where it is kept no more."""
    if message.body is None:
        raise UsageError(f"the body of message {message.seq} was pruned.", "Its digest is all that is left of it.")
    sys.stdout.flush()
    sys.stdout.buffer.write(message.body)
    sys.stdout.buffer.flush()
    return 0


def body_lines(message: Message) -> list[str]:
    """Return the beginning of a body, for people: whatever is in it moves no cursor."""
    body = message.body
    if body is None:
        return ["", "Its body was pruned."]
    lines = ["", f"body ({len(body):,} bytes):", *kept(body[:SHOWN_BYTES]).rstrip("\n").split("\n")]
    if len(body) > SHOWN_BYTES:
        lines.append(f"({len(body) - SHOWN_BYTES:,} bytes more: ranonce outbox show {message.seq} --body)")
    return lines


def body_as_json(message: Message) -> dict[str, Any]:
    """Return a body for machines: as text where it is UTF-8, else in base64."""
    body = message.body
    if body is None:
        return {"body": None}
    try:
        return {"bytes": len(body), "body": body.decode("utf-8")}
    except UnicodeDecodeError:
        from base64 import b64encode

        return {"bytes": len(body), "body_base64": b64encode(body).decode()}
