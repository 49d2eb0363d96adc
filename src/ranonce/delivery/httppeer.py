"""Addresses of HTTP destinations: how they are written, whom they lead to, and which proxy stands in between."""

from __future__ import annotations

import os
import re
import ssl
from base64 import b64encode
from urllib.parse import SplitResult, unquote, urlsplit

from ranonce.delivery.authority import trusting
from ranonce.delivery.httpline import Peer, Proxy
from ranonce.errors import ConfigError, UsageError
from ranonce.names import shown_path
from ranonce.record import Record
from ranonce.settings import text

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Mapping

_VARIABLE = re.compile(r"\$\{\w*\}")
_SECRET_WORD = re.compile(r"auth|cookie|token|secret|password|passwd|api.?key|signature", re.IGNORECASE)
#: Headers that follow from the message, the address and the connection.
_OURS = frozenset(
    {
        *("host", "content-length", "content-type", "transfer-encoding", "accept-encoding", "idempotency-key"),
        *("connection", "keep-alive", "expect", "te", "trailer", "upgrade", "proxy-authorization", "proxy-connection"),
    }
)
_PORTS = {"http": 80, "https": 443}


class Address(Record):
    """Where requests go: the peer, what stands in their first line, and what the address says of who asks."""

    peer: Peer
    host: str  # as the Host header has it
    target: str
    authorization: str | None
    secrets: tuple[str, ...]  # nobody may see these


def url(value: object) -> str:
    """Return the address of a destination as it is written, `${NAME}` still in it. Raises UsageError."""
    written = _printable(value, "this address")
    scheme = written.partition(":")[0].lower()
    if not written.startswith("${") and scheme not in _PORTS:
        raise UsageError("this is no address that begins with https:// or http://.", "Write https://HOST/PATH.")
    rest = written.partition("://")[2] or written
    user = _without_variables(rest).partition("/")[0].rpartition("@")[0]
    if user and not user.endswith(":"):
        raise _literal("the address holds a password, or a user without one")
    for option in _without_variables(rest).partition("?")[2].split("&"):
        name, _, secret = option.partition("=")
        if secret and _SECRET_WORD.search(name):
            raise _literal(f"the address holds a value of {name}")
    return written


def headers(value: object) -> dict[str, str]:
    """Return a table of headers, `${NAME}` still in their values. Raises UsageError."""
    if not hasattr(value, "items"):
        raise UsageError("this is not a table of headers.", 'Write it like { Authorization = "Bearer ${TOKEN}" }.')
    found: dict[str, str] = {}
    for name, written in value.items():
        if not re.fullmatch(r"[A-Za-z0-9!#$%&'*+.^_`|~-]+", name):
            raise UsageError(f"{name!r} is not the name of a header.", "Write it in letters, digits and hyphens.")
        if name.lower() in (other.lower() for other in found):
            raise UsageError(f"the header {name} is written twice.", "Leave one of them.")
        if name.lower() in _OURS or name.lower().startswith("webhook-"):
            raise UsageError(
                f"the header {name} is not set here.", "It follows from the message and from the other settings."
            )
        found[name] = _printable(written, f"the header {name}")
        if _SECRET_WORD.search(name) and not _VARIABLE.search(found[name]):
            raise _literal(f"the header {name} holds a secret")
    return found


def _printable(value: object, what: str) -> str:
    """Return text on one line, or refuse it without showing it: there may be a secret in it."""
    if isinstance(value, str) and value and not value.isprintable():
        raise UsageError(f"{what} holds control characters.", "Take them out.")
    return text(value)


def address_of(
    written: str, environ: Mapping[str, str], place: object, *, authority: str | None = None, folder: str | None = None
) -> Address:
    """Return whom an address leads to, `${NAME}` already replaced in it. `authority` is a file of certificates.

    Raises ConfigError, which shows nothing of the address: there may be a secret in each part of it.
    """
    parts = _parts_of(written, place)
    host = parts.hostname or ""
    try:
        port = parts.port or _PORTS[parts.scheme]
    except ValueError:
        raise ConfigError(f"{place}: the host or the port of the address cannot be.", "Write HOST:PORT.") from None
    tls = _trust(authority, folder, place) if parts.scheme == "https" else None
    proxy = _proxy(parts.scheme, f"{host}:{port}", environ, place)
    named = f"[{host}]" if ":" in host else host
    named = named if port == _PORTS[parts.scheme] else f"{named}:{port}"
    target = (parts.path or "/") + (f"?{parts.query}" if parts.query else "")
    peer = Peer(host, port, tls, proxy)
    if proxy is not None and tls is None:  # plain requests are handed to the proxy whole, and so is the address
        peer, target = Peer(proxy.host, proxy.port), f"http://{named}{target}"
    authorization = _basic(parts)
    secrets = tuple(filter(None, (authorization and authorization[6:], unquote(parts.password or ""), parts.password)))
    return Address(peer, named, target, authorization, secrets)


def _parts_of(written: str, place: object) -> SplitResult:
    try:
        parts = urlsplit(written)
    except ValueError:
        parts = urlsplit("")
    plain = written.isascii() and written.isprintable() and not set(written) & set(' "<>\\^`{|}')
    if not plain or parts.scheme not in _PORTS or not parts.hostname or parts.fragment:
        raise ConfigError(
            f"{place}: with its variables put in, this is no address that requests can be sent to.",
            "Write https://HOST/PATH, without a #, and with what is not ASCII percent-encoded.",
        )
    return parts


def _basic(parts: SplitResult) -> str | None:
    if parts.username is None and parts.password is None:
        return None
    pair = f"{unquote(parts.username or '')}:{unquote(parts.password or '')}"
    return f"Basic {b64encode(pair.encode()).decode('ascii')}"


def _trust(authority: str | None, folder: str | None, place: object) -> ssl.SSLContext:
    path = None if authority is None else os.path.join(folder or os.getcwd(), authority)
    try:
        return trusting(path)
    except (OSError, ssl.SSLError) as error:
        why = "it holds no certificate" if isinstance(error, ssl.SSLError) else error.strerror
        raise ConfigError(
            f"{place}.ca: {shown_path(str(path))} cannot be used: {why}.", "Name a file of PEM certificates."
        ) from None


def _proxy(scheme: str, host: str, environ: Mapping[str, str], place: object) -> Proxy | None:
    """Return the proxy that the environment has for an address, as the usual variables say: HTTPS_PROXY and NO_PROXY,
    or in small letters; for plain http:// only http_proxy, since HTTP_PROXY is a header where a web server starts us.
    """
    named = [f"{scheme}_proxy", *(["HTTPS_PROXY"] if scheme == "https" else []), "all_proxy", "ALL_PROXY"]
    written = next((environ[name] for name in named if environ.get(name)), None)
    if written is None:
        return None
    from urllib.request import proxy_bypass_environment  # type: ignore[attr-defined]

    if proxy_bypass_environment(host, {"no": environ.get("no_proxy") or environ.get("NO_PROXY") or ""}):
        return None
    parts = urlsplit(written if "://" in written else f"http://{written}")
    try:
        port = parts.port or 80
    except ValueError:
        port = 0
    if parts.scheme != "http" or not parts.hostname or not port:
        raise ConfigError(
            f"{place}: the environment names a proxy that is not http://HOST:PORT.",
            "Set HTTPS_PROXY so, or name this destination's host in NO_PROXY.",
        )
    return Proxy(parts.hostname, port, _basic(parts))


def _without_variables(written: str) -> str:
    return _VARIABLE.sub("", written)


def _literal(what: str) -> UsageError:
    return UsageError(
        f"{what}, in the file.",
        "Credentials come from the environment only: write ${NAME} in its place and set that variable.",
    )
