"""`ranonce emit`: inside a job, ask for a side effect that goes out once, when the work is done."""

from __future__ import annotations

import os

from ranonce import jsontext as json
from ranonce.cli.options import Command, Option
from ranonce.config import find_config, load
from ranonce.emission import JSON, OCTETS, TEXT, Emission, addressed, check_declared, checked
from ranonce.errors import EX_DONE, EX_PERSON_NEEDED, UsageError
from ranonce.messagefile import CONFLICT, add
from ranonce.messages import LONGEST_BODY, SCOPES, WINDOW
from ranonce.names import plain
from ranonce.receipts import say

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Mapping

    from ranonce.cli.options import Parsed

COMMAND = Command(
    "emit",
    ("DEST",),
    "Inside a job: emit a message that goes out once, when the work is done.",
    (
        Option("key", "What makes it this message and no other, such as an id.", "KEY"),
        Option("scope", "What the key is one of.", "SCOPE", "choice", SCOPES, default=WINDOW),
        Option("content-type", "What the payload is.", "TYPE"),
        Option("json", "The payload is JSON: refuse one that is not."),
    ),
    description="""Reads a payload from standard input and keeps it as a message to the destination DEST until the job
    ends. If the job is done, all of its messages are committed together with that, and `ranonce deliver` sends them; if
    it fails or is stopped, none goes out. In a step (`ranonce step`) they are committed with the step.

    A message has a key, by which it is the same message for ever. Without --key there is one message to DEST in each
    window; in a step, one to DEST for the step. The same key and payload again is there already; the same key with
    another payload is a conflict, which is recorded and not sent (exit 80).""",
)


def run(parsed: Parsed, environ: Mapping[str, str]) -> int:
    """Keep the message for the outcome of the job."""
    path = environ.get("RANONCE_MESSAGES", "")
    if not environ.get("RANONCE_OWNER"):
        raise UsageError(
            "this is not inside a job (RANONCE_OWNER is not set).", "Call it from a command of ranonce run."
        )
    if not path.startswith("/"):
        raise UsageError(
            "the job has no file for messages (RANONCE_MESSAGES is not set).",
            "Hand RANONCE_MESSAGES on to this command; a Python job emits by run.emit().",
        )
    config = load(find_config(None, environ), environ, job="none.is-meant")
    destination = parsed.arguments[0]
    check_declared(destination, config.destinations)
    body = _payload()
    emission = checked(
        Emission(
            destination,
            body,
            _content_type(parsed, body),
            parsed.get("key", "") or environ.get("RANONCE_STEP", ""),
            parsed.get("scope", WINDOW),
        )
    )
    table = config.destinations.get(destination)
    if add(path, addressed(emission, table.get("type") if isinstance(table, dict) else None)) == CONFLICT:
        name = plain(emission.key) or "(it has none)"
        say(
            f"ranonce: a message to {destination} with the key {name} stands for another payload already: this one is"
            " recorded as a conflict, and not sent. Give it a key of its own: --key KEY"
        )
        return EX_PERSON_NEEDED
    return EX_DONE


def _payload() -> bytes:
    """Return what standard input holds, no more than a message may. Raises UsageError."""
    if os.isatty(0):
        raise UsageError("the payload is read from standard input.", "Write: ranonce emit DEST < FILE")
    pieces, size = [], 0
    while piece := os.read(0, 1 << 16):
        pieces.append(piece)
        size += len(piece)
        if size > LONGEST_BODY:
            raise UsageError(
                f"the payload has more than {LONGEST_BODY} bytes.",
                "Put it where the receiver can fetch it, and send its address.",
            )
    return b"".join(pieces)


def _check_numbers(body: bytes) -> None:
    """Refuse what only Python takes for JSON: NaN and Infinity, which no receiver could read. Raises ValueError."""
    if b"NaN" in body or b"Infinity" in body:
        import json as standard  # all of it, which is slow to load

        def refuse(name: str) -> None:
            raise ValueError(f"it has {name}")

        standard.loads(body, parse_constant=refuse)


def _content_type(parsed: Parsed, body: bytes) -> str:
    """Return what the payload is: as it is said to be, else text where it is UTF-8. Raises UsageError."""
    said = parsed.get("content-type")
    if parsed.flag("json"):
        try:
            json.loads(body) if body else None
            _check_numbers(body)
        except ValueError as error:
            raise UsageError(f"the payload is not JSON: {error}.", "Leave --json away for other payloads.") from None
        return str(said or JSON)
    if said is not None:
        return str(said)
    try:
        body.decode()
    except UnicodeDecodeError:
        return OCTETS
    return TEXT
