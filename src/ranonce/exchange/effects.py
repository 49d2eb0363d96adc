"""Messages and steps in an export, and what becomes of messages that come from another ledger.

Who sends a message, and under which lease, is not told: that means nothing in another ledger. Whoever reads an export
cannot know whether the ledger that it comes from goes on sending. So what waits there is in doubt here, unless somebody
says that the other ledger delivers no more.
"""

from __future__ import annotations

from base64 import b64encode

from ranonce.emission import OCTETS, digest_of
from ranonce.errors import UsageError
from ranonce.exchange.form import bytes_of, instant_text, key_form, what_is_set
from ranonce.lifecycle import Step
from ranonce.messages import DROPPED, PENDING, SENDING, STATES, UNDELIVERED, UNSURE, Message
from ranonce.names import check_name
from ranonce.timefmt import shown

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterator
    from typing import Any

    from ranonce.exchange.form import Fields

#: Why a message that came from elsewhere is in doubt.
MOVED = "moved from another ledger, which may have sent it"
PRUNED_HERE = "its window was pruned here, and it may have been sent before"
#: What is said of a message that only the journal remembers.
BY_ITS_KEY = "only its key is remembered: it may have been sent, and is not sent again"
LONGEST_KEY = 2000  # characters: names and a key of its own, each byte of it percent-encoded
_INSTANTS = ("window_start", "created_at", "due_at", "taken_at", "doubt_since", "settled_at")
_NOT_TOLD = ("run", "sender", "lease_domain", "lease_until", "lease_seconds", "seq", "body")


def message_form(message: Message) -> dict[str, Any]:
    """Return a message as it stands in an export."""
    told = {name: value for name, value in message.as_dict().items() if name not in _NOT_TOLD}
    for name in _INSTANTS:
        told[name] = instant_text(told[name])
    told["item"] = message.item or None
    told["body"] = None if message.body is None else b64encode(message.body).decode()
    return {"kind": "message", **key_form(message.run), **what_is_set(told)}


def step_form(step: Step) -> dict[str, Any]:
    """Return a step that is done as it stands in an export."""
    told = step.as_dict()
    del told["run"]
    told["window_start"], told["at"] = instant_text(step.window_start), instant_text(step.at)
    told["result"] = None if step.result is None else b64encode(step.result).decode()
    return {"kind": "step", **key_form(step.run), **what_is_set(told)}


def message_of(fields: Fields) -> Message:
    """Return the message that an object tells of. UsageError for one that is none, or whose body was changed."""
    key, state, kind = fields.text("key"), fields.text("state"), fields.text("content_type")
    if not 0 < len(key) <= LONGEST_KEY or not key.isascii() or not key.isprintable():
        raise UsageError(f"{shown(key)} is no key of a message.")
    if state not in STATES:
        raise UsageError(f"state is {shown(state)}.")
    digest, body = fields.text("digest"), bytes_of(fields, "body")
    if body is not None and digest_of(kind, body) != digest:
        raise UsageError("its body is not the one that its digest is of.")
    if body is None and state in UNDELIVERED:
        raise UsageError("its body is missing.")
    return Message(
        key,
        fields.key(),
        fields.second("window_start"),
        check_name("destination", fields.text("destination")),
        kind,
        digest,
        body,
        fields.whole("generation", 1),
        fields.whole("attempt"),
        fields.text_or_none("item") or "",
        fields.instant("created_at"),
        fields.instant("due_at"),
        state,
        fields.whole("tries"),
        fields.whole("failures"),
        taken_at=fields.instant_or_none("taken_at"),
        doubt_since=fields.instant_or_none("doubt_since"),
        settled_at=fields.instant_or_none("settled_at"),
        receipt=fields.text_or_none("receipt"),
        error=fields.text_or_none("error"),
        resolution=fields.text_or_none("resolution"),
    )


def remembered(fields: Fields, window_start: int) -> Iterator[Message]:
    """Return the messages whose keys a fact of a journal tells. Their bodies are lost; they stand in the way of others.

    UsageError for what is no key.
    """
    keys = fields.told.get("keys")
    if not isinstance(keys, dict):
        raise UsageError(f"keys is {shown(keys)}.")
    at = fields.instant("at")
    for key, digest in keys.items():
        of, _, rest = key.partition("/")
        destination, _, own = rest.partition("/")
        if not (of and own and 0 < len(key) <= LONGEST_KEY and key.isascii() and key.isprintable()):
            raise UsageError(f"{shown(key)} is no key of a message.")
        if not isinstance(digest, str):
            raise UsageError(f"digest is {shown(digest)}.")
        yield Message(
            key,
            fields.key(),
            window_start,
            check_name("destination", destination),
            OCTETS,
            digest,
            None,
            fields.whole("generation", 1),
            fields.whole("attempt"),
            fields.text_or_none("item") or "",
            at,
            at,
            DROPPED,
            settled_at=at,
            resolution=BY_ITS_KEY,
        )


def step_of(fields: Fields) -> Step:
    """Return the step that an object tells of."""
    return Step(
        fields.key(),
        fields.second("window_start"),
        fields.whole("generation", 1),
        fields.text("name"),
        fields.whole("attempt"),
        fields.instant("at"),
        bytes_of(fields, "result"),
    )


def arrived(message: Message, at: float, *, delivers_here: bool, why: str = MOVED) -> Message:
    """Return a message as it comes into another ledger; `at` is when it was told of (unix seconds).

    `delivers_here`: the ledger that it comes from delivers no more. Then what had not begun there goes out from here.
    `why` is said of one that is in doubt.
    """
    if message.state == UNSURE:
        return message.replace(sender="")
    if message.state not in (PENDING, SENDING) or (message.state == PENDING and delivers_here):
        return message
    since = message.doubt_since or message.taken_at or message.created_at
    return message.replace(state=UNSURE, sender="", error=why, doubt_since=since, settled_at=max(at, since))
