"""Signatures of messages, by which a receiver knows who has sent them and that nobody has changed them.

Source: Standard Webhooks 1.0.0 (standardwebhooks.com), the symmetric scheme `v1`: HMAC-SHA256 over the id, the time and
the body, with full stops between them.
"""

from __future__ import annotations

import hmac
from base64 import b64decode, b64encode

from ranonce.errors import UsageError

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Sequence

PREFIX = "whsec_"
SHORTEST_SECRET = 24  # bytes, as the specification has it


def secrets_of(written: str) -> tuple[bytes, ...]:
    """Return the secrets in a text, with blanks between them: while one is replaced, both sign.

    Raises UsageError, which shows nothing of any of them.
    """
    found = []
    for one in written.split():
        if not one.startswith(PREFIX):
            raise UsageError(
                f"this is no signing secret: it does not begin with {PREFIX}.",
                f"Write {PREFIX} and the secret's bytes in base64, as whoever receives the messages has it.",
            )
        try:
            secret = b64decode(one[len(PREFIX) :] + "=" * (-len(one[len(PREFIX) :]) % 4), validate=True)
        except ValueError:
            raise UsageError(
                f"this is no signing secret: what follows {PREFIX} is not base64.", "Copy it again, whole."
            ) from None
        if len(secret) < SHORTEST_SECRET:
            raise UsageError(
                f"this signing secret has {len(secret)} bytes, and could be guessed.",
                f"Make one of {SHORTEST_SECRET} or more: echo {PREFIX}$(openssl rand -base64 32)",
            )
        found.append(secret)
    if not found:
        raise UsageError("the signing secret is empty.", "Set it, or leave the setting away.")
    return tuple(found)


def message_id(key: str) -> str:
    """Return a message's key as its id. Full stops stand between what is signed, so none may be within: each is %2E,
    which no key holds otherwise."""
    return key.replace(".", "%2E")


def signed(key: str, body: bytes, wall: float, secrets: Sequence[bytes]) -> dict[str, str]:
    """Return the headers of a signed message: its id, when it is sent (unix seconds), and one signature a secret."""
    name, when = message_id(key), str(int(wall))
    content = f"{name}.{when}.".encode("ascii") + body
    signatures = [b64encode(hmac.digest(secret, content, "sha256")).decode("ascii") for secret in secrets]
    return {
        "webhook-id": name,
        "webhook-timestamp": when,
        "webhook-signature": " ".join(f"v1,{signature}" for signature in signatures),
    }
