"""Reading a key from a request, and telling requests apart. Pure.

Sources: RFC 8941 section 3.3.3 (strings), draft-ietf-httpapi-idempotency-key-header-07.
"""

from __future__ import annotations

from hashlib import sha256

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterable

LONGEST_KEY = 1000  # characters


def key_of(value: bytes) -> str | None:
    """Return the key that a header field holds, or None if it holds none.

    A string of RFC 8941, in quotes; or, as many senders write it, visible ASCII without them. No blanks around count.
    """
    try:
        text = value.decode("ascii").strip(" \t")
    except UnicodeDecodeError:
        return None
    key = _unquoted(text) if text.startswith('"') else text
    if key is None or not 0 < len(key) <= LONGEST_KEY or not all(" " <= each <= "~" for each in key):
        return None
    return None if not text.startswith('"') and any(each in ' ",;' for each in key) else key


def _unquoted(text: str) -> str | None:
    """Return what stands in a quoted string, with `\\"` and `\\\\` resolved; None if it is not one, whole."""
    pieces: list[str] = []
    at = 1
    while at < len(text):
        each = text[at]
        if each == '"':
            return "".join(pieces) if at == len(text) - 1 else None
        if each == "\\":
            at += 1
            if at == len(text) or text[at] not in '"\\':
                return None
        pieces.append(text[at])
        at += 1
    return None


def fingerprint_of(method: str, path: bytes, query: bytes, content_type: bytes, body: Iterable[bytes]) -> str:
    """Return the digest (SHA-256) by which two requests of one key are told apart."""
    digest = sha256()
    for part in (method.encode(), path, query, content_type):
        digest.update(b"%d:" % len(part))
        digest.update(part)
    for part in body:
        digest.update(part)
    return digest.hexdigest()
