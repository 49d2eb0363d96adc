"""Destinations of type http: one request a message, under the message's key.

A destination that dedupes gets its messages over connections that are kept. One that does not gets a fresh connection
for each: a kept one may be closed by the other side at the moment in which a message is written, and then nobody can
know whether it was received.

Sources: draft-ietf-httpapi-idempotency-key-header-07 (the key is a structured field, so it stands in quotes), Standard
Webhooks 1.0.0.
"""

from __future__ import annotations

import re
import time

from ranonce import __version__
from ranonce.delivery.base import Spec
from ranonce.delivery.credentials import credential
from ranonce.delivery.httpanswers import answer_of, masked
from ranonce.delivery.httpline import NotSentError, header_problem, request
from ranonce.delivery.httppeer import address_of, headers, url
from ranonce.delivery.httpwire import UnansweredError, Wire
from ranonce.delivery.pool import Pool
from ranonce.delivery.signing import secrets_of, signed
from ranonce.delivery.spec import DELIVERER, from_environment
from ranonce.errors import ConfigError, UsageError
from ranonce.messages import NOT_RECEIVED, REFUSED, UNFIT, UNKNOWN, Answer, Message
from ranonce.record import Record
from ranonce.settings import nearest, text
from ranonce.storeurl import StoreText, expand
from ranonce.timefmt import shown

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from ranonce.delivery.base import Sender
    from ranonce.delivery.httppeer import Address

#: A part of an address that is shorter is no secret: it would be found in any text.
SHORTEST_PART = 8  # characters
METHODS = ("POST", "PUT", "PATCH")
KEY_HEADER = "Idempotency-Key"


def method(value: object) -> str:
    """Return the method of the requests."""
    written = text(value).upper()
    if written not in METHODS:
        raise UsageError(f"{shown(value)} is no method that sends something.", nearest(written, METHODS))
    return written


def header_name(value: object) -> str:
    """Return the name of the header that the key stands in."""
    return next(iter({KEY_HEADER: 0} if text(value).lower() == KEY_HEADER.lower() else headers({value: "key"})))


def signing_secret(value: object) -> str:
    """Return `${NAME}` of a signing secret, or several with blanks between them, as while one is replaced."""
    return " ".join(credential(one) for one in text(value).split())


def expectation(value: object) -> dict[str, object]:
    """Return what an answer's body must say: JSON pointers, each with its value."""
    if not hasattr(value, "items"):
        raise UsageError(f"{shown(value)} is not a table.", 'Write it like { "/ok" = true }.')
    for pointer, wanted in value.items():
        if pointer and not pointer.startswith("/"):
            raise UsageError(f"{shown(pointer)} is no JSON pointer.", f"It begins with a slash: /{pointer}")
        if not isinstance(wanted, (str, int, float, bool, list)):
            raise UsageError(f"{shown(wanted)} is not compared with.", "Write text, a number, true or false.")
    return dict(value.items())


KEYS: Mapping[str, Callable[[object], object]] = {
    "url": url,
    "method": method,
    "headers": headers,
    "secret": signing_secret,
    "key_header": header_name,
    "expect": expectation,
    "ca": text,
}
REQUIRED = ("url",)


def dedupes(settings: Mapping[str, object]) -> float:
    """Nobody knows of a web server whether it heeds the key, until somebody says so."""
    return 0.0


class Requests(Record):
    """How the messages of a destination become requests."""

    spec: Spec
    address: Address
    method: str
    fixed: Mapping[str, str]
    key_header: str
    expect: Mapping[str, object]
    signing: tuple[bytes, ...]
    secrets: tuple[str, ...]
    credentials: str

    @property
    def dedupes(self) -> bool:
        """Whether the destination takes one message of each key."""
        return self.spec.route.dedupes > 0

    def headers(self, message: Message, wall: float) -> dict[str, str]:
        """Return the headers of a message's request, sent at an instant (unix seconds)."""
        key = self.spec.key(message)
        assert message.body is not None, "a message is sent with its body"
        signature = signed(key, message.body, wall, self.signing) if self.signing else {}
        return {
            "Host": self.address.host,
            "User-Agent": f"ranonce/{__version__}",
            "Accept-Encoding": "identity",
            "Content-Type": message.content_type,
            self.key_header: quoted_key(key) if self.key_header.lower() == KEY_HEADER.lower() else key,
            **signature,
            **({} if self.dedupes else {"Connection": "close"}),
            **self.fixed,
        }


def quoted_key(key: str) -> str:
    """Return a key as a structured field's text. Source: RFC 9651, section 4.1.6."""
    escaped = key.replace("\\", "\\\\").replace('"', '\\"')
    return f'"{escaped}"'


def open_sender(spec: Spec, environ: Mapping[str, str]) -> Sender:
    """Return what sends to a destination. Raises ConfigError for what its settings and the environment do not have."""
    requests = requests_of(spec, environ)
    return Pool(lambda: HttpCarrier(requests), spec.route.concurrency)


def requests_of(spec: Spec, environ: Mapping[str, str]) -> Requests:
    """Return how the messages of a destination become requests. Raises ConfigError."""
    settings = spec.settings
    if not spec.prefix.isascii():
        raise ConfigError(f"{spec.place}.prefix: {shown(spec.prefix)} is not ASCII.", "It becomes part of a header.")
    authority = settings.get("ca")
    written = from_environment(spec, "url", environ)
    assert written is not None, "url is required"
    address = address_of(
        written,
        environ,
        spec.place,
        authority=None if authority is None else str(authority),
        folder=spec.folder,
    )
    fixed = _fixed_headers(spec, environ)
    if address.authorization is not None:
        if any(name.lower() == "authorization" for name in fixed):
            raise ConfigError(f"{spec.place}: both its url and its headers say who asks.", "Leave one of them.")
        fixed["Authorization"] = address.authorization
    key_header = str(settings.get("key_header", KEY_HEADER))
    if any(name.lower() == key_header.lower() for name in fixed):
        raise ConfigError(f"{spec.place}: the header {key_header} is for the key.", "Take it out of the headers.")
    expect = settings.get("expect")
    return Requests(
        spec,
        address,
        str(settings.get("method", "POST")),
        fixed,
        key_header,
        expect if isinstance(expect, dict) else {},
        _signing(spec, environ),
        (*address.secrets, *secret_values(_texts(spec), environ)),
        _where_credentials_are(spec),
    )


def _fixed_headers(spec: Spec, environ: Mapping[str, str]) -> dict[str, str]:
    found = {}
    for name, written in _headers_of(spec).items():
        place = f"{spec.place}.headers.{name}"
        value = expand(StoreText(written, spec.name, place, needed=DELIVERER), environ)
        problem = header_problem(value)
        if problem is not None:
            raise ConfigError(f"{place}: with its variables put in, {problem}.", "Set the variable to what is meant.")
        found[name] = value
    return found


def _signing(spec: Spec, environ: Mapping[str, str]) -> tuple[bytes, ...]:
    written = from_environment(spec, "secret", environ)
    if written is None:
        return ()
    try:
        return secrets_of(written)
    except UsageError as error:
        raise ConfigError(f"{spec.place}.secret: {error.sentence}", error.next_step) from None


def _headers_of(spec: Spec) -> dict[str, str]:
    found = spec.settings.get("headers")
    return found if isinstance(found, dict) else {}


def _texts(spec: Spec) -> list[str]:
    return [str(spec.settings.get("url", "")), str(spec.settings.get("secret", "")), *_headers_of(spec).values()]


def secret_values(texts: list[str], environ: Mapping[str, str]) -> set[str]:
    """Return the values of all variables in some settings, and the parts of those that are addresses: their paths may
    be the secret (as with the webhooks of chat services), and whoever answers may repeat a part of one."""
    found: set[str] = set()
    for name in re.findall(r"\$\{(\w+)\}", " ".join(texts)):
        value = environ.get(name, "")
        path = "/" + value.partition("://")[2].partition("/")[2]
        parts = {path, path.partition("?")[0]} - {"/"}
        parts |= {part for part in re.split("[/?&=]", path) if len(part) >= SHORTEST_PART}
        found |= {value, *value.split(), *parts}
    return found


def _where_credentials_are(spec: Spec) -> str:
    """Return which settings of a destination hold credentials, for whoever has to look at them."""
    held = [f"headers.{name}" for name, value in _headers_of(spec).items() if "${" in value]
    held += ["url"] if "${" in str(spec.settings.get("url")) else []
    held += ["secret"] if "secret" in spec.settings else []
    return " and ".join(held) or "headers (it has none that hold any)"


class HttpCarrier:
    """Sends one message at a time."""

    def __init__(self, requests: Requests) -> None:
        self._requests = requests
        self._wire = Wire(requests.address.peer, keeps=requests.dedupes)

    def carry(self, message: Message) -> Answer:
        """Send a message and return what became of it."""
        how = self._requests
        headers = how.headers(message, time.time())
        for name, value in headers.items():
            problem = header_problem(value)
            if problem is not None:
                return Answer(REFUSED, f"{UNFIT}{shown(value)} cannot be the header {name}, {problem}")
        assert message.body is not None, "a message is sent with its body"
        try:
            written = request(how.method, how.address.target, headers, message.body)
            reply = self._wire.exchange(how.method, written, how.spec.route.timeout)
        except NotSentError as error:
            return Answer(NOT_RECEIVED, str(error))
        except UnansweredError as error:
            return Answer(UNKNOWN, str(error))
        reply = masked(reply, how.secrets)
        proxied = how.address.target.startswith("http:")
        return answer_of(reply, dedupes=how.dedupes, proxied=proxied, expect=how.expect, credentials=how.credentials)

    def close(self) -> None:
        """Let go of the connection."""
        self._wire.close()
