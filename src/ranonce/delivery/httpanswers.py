"""What an HTTP answer says of a message: the rules of every destination that is asked over HTTP, and what is kept of
its words.

    status           meaning
    2xx              delivered, if the answer is whole and says what was expected
    408 425 5xx      unknown: it may have been taken in before, by whoever stands behind a gateway
    409              unknown where the destination dedupes (the same message is being worked on there); else refused
    407              not received, where a proxy hands requests on: it wants to know who asks
    429              throttled
    3xx, other 4xx   refused: nobody looks elsewhere, and it will not be better the next time

Sources: RFC 9110, RFC 6585 (429), RFC 8470 (425), draft-ietf-httpapi-idempotency-key-header (409).
"""

from __future__ import annotations

import time
from urllib.parse import quote

from ranonce.jsontext import dumps, loads
from ranonce.messages import DELIVERED, NOT_RECEIVED, REFUSED, THROTTLED, UNKNOWN, Answer
from ranonce.names import plain
from ranonce.settings import http_date, retry_after

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping
    from typing import Any

    from ranonce.delivery.httpwire import Reply

LONGEST_QUOTE = 200  # characters of a body
SHORTEST_SECRET = 4  # characters: what is shorter would be found in any text
MASK = b"***"
_NAMES = {"id", "message_id", "messageId", "request_id", "sid", "ts"}
_ABSENT = object()


def answer_of(reply: Reply, *, dedupes: bool, proxied: bool, expect: Mapping[str, object], credentials: str) -> Answer:
    """Return what a reply means for the message it answers. `credentials` names the settings that hold some, `proxied`
    says that a proxy may have answered in the destination's place."""
    status, words = reply.status, quoted(reply)
    if 200 <= status < 300:
        problem = reply.broken or unmet(reply.body, expect)
        if problem is None:
            return Answer(DELIVERED, words)
        return Answer(UNKNOWN, f"it answered {words}, but {problem}", wait_of(reply), answered=True)
    if status == 429:
        return Answer(THROTTLED, f"it answered {words}", wait_of(reply), answered=True)
    if status in (408, 425) or status >= 500 or status < 200:
        return Answer(UNKNOWN, f"it answered {words}", wait_of(reply), answered=True)
    if status == 409 and dedupes:
        words = f"it is working on this message: {words}"
        return Answer(UNKNOWN, words, wait_of(reply), answered=True, for_this=True)
    if status == 407 and proxied:
        return Answer(NOT_RECEIVED, f"the proxy wants credentials (407): see HTTPS_PROXY. {words}")
    if status in (401, 403):
        return Answer(REFUSED, f"it refused the credentials, see {credentials}: {words}", answered=True)
    if status < 400:
        return Answer(REFUSED, f"it answered {status}: the address has moved, and is not followed", answered=True)
    return Answer(REFUSED, f"it answered {words}", answered=True)


def wait_of(reply: Reply) -> float | None:
    """Return for how many seconds a destination wants to be left alone; None where it says nothing that can be read.

    A date is counted from that of the answer: the clock there may not be the one here.
    """
    said = retry_after((reply.head.get("retry-after") or "").strip())
    if said is None:
        return None
    now = http_date((reply.head.get("date") or "").strip()) or time.time()
    return said.counted(now) - now


def quoted(reply: Reply) -> str:
    """Return a reply in a few words: its status, and its body's id or beginning."""
    status = "202 accepted" if reply.status == 202 else str(reply.status)
    name = _id_of(reply.body)
    if name is not None and reply.status < 300:
        return f"{status}; {name}"
    text = " ".join(reply.body[: 4 * LONGEST_QUOTE].decode("utf-8", "replace").split())
    beginning = text if len(text) <= LONGEST_QUOTE else f"{text[:LONGEST_QUOTE]}…"
    return f"{status}; {plain(beginning)}" if beginning else status


def _id_of(body: bytes) -> str | None:
    value = parsed(body)
    if isinstance(value, dict):
        for name in value:
            if name in _NAMES and isinstance(value[name], (str, int)) and not isinstance(value[name], bool):
                return plain(f"{name}={value[name]}")[:LONGEST_QUOTE]
    return None


def parsed(body: bytes) -> Any:
    """Return the JSON value of a body, or None."""
    try:
        return loads(body)
    except ValueError:
        return None


def masked(reply: Reply, secrets: Iterable[str]) -> Reply:
    """Return a reply in whose body none of the secrets stands: whoever answers may repeat what was sent to him."""
    body = reply.body
    for secret in sorted(secrets, key=len, reverse=True):
        if len(secret) >= SHORTEST_SECRET:
            for written in {secret, secret.replace("/", "\\/"), quote(secret, safe=""), dumps(secret)[1:-1]}:
                body = body.replace(written.encode(), MASK)
    return reply if body == reply.body else reply.replace(body=body)


# --- what a body must say -------------------------------------------------------------------------------------------


def unmet(body: bytes, expect: Mapping[str, object]) -> str | None:
    """Return what a body does not say although it must; None if it says all of it."""
    if not expect:
        return None
    try:
        value = loads(body)
    except ValueError:
        return "its body is not JSON, and something of it is expected"
    for pointer, wanted in expect.items():
        found = at_pointer(value, pointer)
        if found is _ABSENT:
            return f"there is no {pointer} in its body, which is to be {wanted!r}"
        if not same(found, wanted):
            return f"{pointer} of its body is {plain(repr(found))[:80]}, not {wanted!r}"
    return None


def at_pointer(value: Any, pointer: str) -> Any:
    """Return what a JSON pointer names in a value. Source: RFC 6901."""
    for part in pointer.split("/")[1:]:
        name = part.replace("~1", "/").replace("~0", "~")
        if isinstance(value, dict) and name in value:
            value = value[name]
        elif (
            isinstance(value, list) and name.isascii() and name.isdigit() and len(name) < 10 and int(name) < len(value)
        ):
            value = value[int(name)]
        else:
            return _ABSENT
    return value


def same(found: object, wanted: object) -> bool:
    """Whether two JSON values are the same: true is not 1."""
    if isinstance(found, bool) or isinstance(wanted, bool):
        return found is wanted
    return found == wanted
