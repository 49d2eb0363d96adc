"""What a job emits, before it is committed: is it something that can be sent, and which message is it?

The same rules for `ranonce emit` and for `run.emit`.
"""

from __future__ import annotations

from hashlib import sha256

from ranonce import jsontext as json
from ranonce.errors import ConfigError, UsageError
from ranonce.messages import LONGEST_BODY, LONGEST_OWN_KEY, SCOPES, WINDOW, Message, message_key
from ranonce.names import check_name
from ranonce.record import Record
from ranonce.settings import nearest
from ranonce.timefmt import shown

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterable

    from ranonce.lifecycle import Claim

OCTETS = "application/octet-stream"
TEXT = "text/plain; charset=utf-8"
JSON = "application/json"
LONGEST_CONTENT_TYPE = 200  # characters


class Emission(Record):
    """One side effect that a job asks for. `key` is the message's own; empty for the only one of its scope and
    destination."""

    destination: str
    body: bytes
    content_type: str = OCTETS
    key: str = ""
    scope: str = WINDOW


def checked(emission: Emission) -> Emission:
    """Return an emission unchanged, or refuse it. Raises UsageError."""
    check_name("destination", emission.destination)
    if not emission.body:
        raise UsageError("the payload is empty, so there is nothing to send.", "Give it one: ranonce emit DEST < FILE")
    _check_size(emission.body)
    if emission.scope not in SCOPES:
        raise UsageError(f"{shown(emission.scope)} is no scope of a key.", f"It is one of {', '.join(SCOPES)}.")
    _check_key(emission.key)
    _check_content_type(emission.content_type)
    return emission


def _check_size(body: bytes) -> None:
    if len(body) > LONGEST_BODY:
        raise UsageError(
            f"the payload has {len(body)} bytes; a message holds {LONGEST_BODY}.",
            "Put it where the receiver can fetch it, and send its address.",
        )


def _check_key(key: str) -> None:
    try:
        size = len(key.encode("utf-8"))
    except UnicodeEncodeError:
        raise UsageError(f"the key {shown(key)} is no text.", "Write it in UTF-8.") from None
    if size > LONGEST_OWN_KEY:
        raise UsageError(
            f"the key has {size} bytes; it may have {LONGEST_OWN_KEY}.", "Name the thing by its id, or by a digest."
        )
    if not key.isprintable() or key != key.strip():
        raise UsageError(
            f"the key {shown(key)} has characters that cannot be seen.", "Write it without line breaks and blanks."
        )


def _check_content_type(content_type: str) -> None:
    if not isinstance(content_type, str):
        raise UsageError(f"{shown(content_type)} is no content type.", f"Write one like {JSON}.")
    kind, slash, rest = content_type.partition("/")
    plain = content_type.isascii() and content_type.isprintable() and len(content_type) <= LONGEST_CONTENT_TYPE
    if not (plain and slash and kind.strip() and rest.strip()):
        raise UsageError(f"{shown(content_type)} is no content type.", f"Write one like {JSON}.")


def check_declared(destination: str, declared: Iterable[str]) -> None:
    """Refuse a destination that a configuration with any destinations does not declare. Raises ConfigError."""
    check_name("destination", destination)
    known = set(declared)
    if known and destination not in known:
        raise ConfigError(f"no destination {destination!r} is declared.", nearest(destination, known))


def check_item(kind: str, name: str) -> str:
    """Return the name of an item or a step unchanged, or refuse it: it becomes the key of what is emitted there.

    Raises UsageError.
    """
    if not name:
        raise UsageError(f"the name of {kind} is empty.", "Name it by what it works on: an id, a path.")
    try:
        _check_key(name)
    except UsageError as error:
        raise UsageError(f"{kind}: {error.sentence}", error.next_step) from None
    return name


def addressed(emission: Emission, type_: object) -> list[Emission]:
    """Return an emission as the messages that it becomes: mail has one for each recipient.

    So a recipient whose server was away gets it later, and the others not again. `type_` is the destination's. The
    recipient is added to the key. Raises UsageError.
    """
    if type_ != "smtp" or emission.content_type.partition(";")[0].strip().lower() != JSON:
        return [emission]
    try:
        told = json.loads(emission.body)
    except ValueError as error:
        raise UsageError(f"the payload is not JSON: {error}.", "Give it another content type.") from None
    recipients = told.get("to") if isinstance(told, dict) else None
    if not isinstance(recipients, list):
        return [emission]
    if not recipients or not all(isinstance(each, str) and each for each in recipients):
        raise UsageError(f'"to" is {shown(recipients)}.', "It is an address, or a list of some.")
    return [_to(recipient, emission, told) for recipient in dict.fromkeys(recipients)]


def _to(recipient: str, emission: Emission, told: dict[str, object]) -> Emission:
    """Return the mail for one recipient. Its key may be longer than a job's own, as that of a step in an item is."""
    _check_key(recipient)
    body = json.compact({**told, "to": recipient}).encode()
    _check_size(body)
    return emission.replace(body=body, key=f"{emission.key}/{recipient}" if emission.key else recipient)


def digest_of(content_type: str, body: bytes) -> str:
    """Return the digest by which two bodies are told apart: all of SHA-256, over content type and body."""
    return sha256(content_type.encode() + b"\0" + body).hexdigest()


def message_of(emission: Emission, claim: Claim, now: float, *, item: str = "", resend: bool = False) -> Message:
    """Return the message that an attempt emits: in an item, or (empty) with its outcome.

    `now` in unix seconds, by the ledger's clock. `resend`: the run was begun again to send again.
    """
    return Message(
        key=message_key(
            emission.scope,
            claim.key,
            emission.destination,
            emission.key,
            generation=claim.generation if resend else 0,
        ),
        run=claim.key,
        window_start=claim.window.start,
        destination=emission.destination,
        content_type=emission.content_type,
        digest=digest_of(emission.content_type, emission.body),
        body=emission.body,
        generation=claim.generation,
        attempt=claim.attempt,
        item=item,
        created_at=now,
        due_at=now,
    )
