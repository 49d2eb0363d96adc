"""The address of a ledger on a server, taken apart: its one normal form, and what of it may be shown, kept, compared.

Every part is checked against one grammar (RFC 3986, with several hosts as libpq has them) before a driver sees it:
what a driver says of an address that it cannot read repeats a piece of it, which may be one of the password. Loaded
only where a ledger is on a server.
"""

from __future__ import annotations

import re

from ranonce.record import Record
from ranonce.timefmt import shown

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterator

    from ranonce.errors import RanonceError
    from ranonce.storeurl import StoreText

#: Where a ledger lies on a server if its address does not say: the schema, or the name space of its keys.
NAMESPACE = "ranonce"
#: PostgreSQL cuts longer names off, so that two could mean one.
LONGEST_NAMESPACE = 63
NAME_OPTIONS = {"postgresql": "schema", "redis": "namespace", "rediss": "namespace"}
REDIS_PORT = "6379"
#: Options that stand somewhere else in an address, where everybody looks for them.
ELSEWHERE = {"postgresql": "dbname", "redis": "db", "rediss": "db"}
MASK = "***"
ENCODE = "Write these characters percent-encoded in it: @ %40, : %3A, / %2F, ? %3F, # %23, % %25, a space %20."

_VARIABLE = r"\$\{\w+\}"
_WORD = rf"(?:{_VARIABLE}|%[0-9A-Fa-f]{{2}}|[^\s%@:/?#\[\]])"
_HOST = (
    rf"(?:\[[0-9A-Fa-f:.]+(?:%25\w+)?\]|(?:{_VARIABLE}|%[0-9A-Fa-f]{{2}}|[^\s%@:/?#\[\],])*)(?::(?:\d|{_VARIABLE})*)?"
)
_ADDRESS = re.compile(
    rf"(?P<scheme>[A-Za-z][\w+.-]*)://"
    rf"(?:(?P<user>{_WORD}*)(?P<colon>:(?P<password>(?:{_WORD}|:)*))?@)?"
    rf"(?P<hosts>{_HOST}(?:,{_HOST})*)"
    rf"(?P<slash>/(?P<database>{_WORD}*))?"
    rf"(?P<question>\?(?P<options>(?:{_VARIABLE}|%[0-9A-Fa-f]{{2}}|[^\s%@#])*))?"
)
_BAD_PORT = re.compile(r"[^:/?#\[\]]*:(?=[^/?#:,]*[^/?#:,\d])[^/?#:,]*(?:/|$)")
_SECRET_OPTION = re.compile(r"\w*(?:password|secret)", re.IGNORECASE)
_SECRET_IN_TEXT = re.compile(rf"({_SECRET_OPTION.pattern}=).*", re.IGNORECASE)
_ENCODED = re.compile(r"(?:%[0-9A-Fa-f]{2})+")


class Parts(Record):
    """An address, taken apart. `password` is None where there is none, and "" where an empty one is given."""

    scheme: str
    user: str | None
    password: str | None
    hosts: str
    database: str | None
    options: tuple[tuple[str, str], ...]

    def __str__(self) -> str:
        password = "" if self.password is None else f":{self.password}"
        before = "" if self.user is None else f"{self.user}{password}@"
        database = "" if self.database is None else f"/{self.database}"
        options = "&".join(f"{name}={value}" for name, value in self.options)
        return f"{self.scheme}://{before}{self.hosts}{database}{'?' if options else ''}{options}"

    @property
    def misplaced(self) -> bool:
        """A Redis user without a password is a password at the wrong place."""
        return bool(self.user) and self.password is None and self.scheme in ("redis", "rediss")

    def secrets(self) -> Iterator[str]:
        """Yield what nobody may see."""
        if self.misplaced:
            yield self.user or ""
        if self.password:
            yield self.password
        yield from (value for name, value in self.options if value and _SECRET_OPTION.fullmatch(name))

    def masked(self) -> Parts:
        """Return the address with each secret replaced by asterisks."""
        return self.replace(
            user=MASK if self.misplaced else self.user,
            password=MASK if self.password else self.password,
            options=tuple(
                (name, MASK if value and _SECRET_OPTION.fullmatch(name) else value) for name, value in self.options
            ),
        )

    def public(self) -> Parts:
        """Return the address without its secrets; a Redis user keeps the colon that tells him from a password."""
        user = None if self.misplaced else self.user or None
        return self.replace(
            user=user,
            password="" if user and self.scheme != "postgresql" else None,
            options=tuple(option for option in self.options if not _SECRET_OPTION.fullmatch(option[0])),
        )


def parts_of(text: str) -> Parts | None:
    """Return the parts of an address, or None for what is none. An option without a value is none, either."""
    found = _ADDRESS.fullmatch(text)
    if found is None or not all(map(_is_text, _ENCODED.findall(text))):
        return None
    options = []
    for option in (found["options"] or "").split("&"):
        name, equals, value = option.partition("=")
        if option and (not equals or not name.isidentifier()):
            return None
        options += [(name, value)] if option else []
    return Parts(found["scheme"], found["user"], found["password"], found["hosts"], found["database"], tuple(options))


def _is_text(encoded: str) -> bool:
    try:
        return "\0" not in bytes.fromhex(encoded.replace("%", "")).decode()
    except UnicodeDecodeError:
        return False


# --- what may be shown, kept and compared ---------------------------------------------------------------------------


def masked(text: str) -> str:
    """Return an address with its secrets taken out, for messages; of what is none, all that might be one."""
    parts = parts_of(text)
    if parts is not None:
        return str(parts.masked()) if any(parts.secrets()) else text
    scheme, separator, rest = text.partition("://")
    if not separator:
        scheme, separator, rest = text.partition(":")
    begin = rest.find(":") + 1
    end = rest.rfind("@")
    if not begin and end < 0:
        return _SECRET_IN_TEXT.sub(rf"\1{MASK}", text)
    before, after = rest[:begin] if 0 < begin <= end or end < 0 else "", rest[end:] if end >= 0 else ""
    return _SECRET_IN_TEXT.sub(rf"\1{MASK}", f"{scheme}{separator}{before}{MASK}{after}")


def public(url: str) -> str:
    """Return an address as it may be kept on disk: without its secrets."""
    parts = parts_of(url)
    assert parts is not None, "not in its normal form"
    return str(parts.public())


def place(url: str) -> str:
    """Return which ledger an address means, whoever asks: without the user as well. What is none means itself."""
    parts = parts_of(url)
    if parts is None:
        return url
    open_to_all = parts.public()
    options = tuple(option for option in open_to_all.options if option[0] not in ("user", "username"))
    return str(open_to_all.replace(user=None, password=None, options=options))


def is_local(url: str) -> bool:
    """Say whether an address names a server of this host, by a socket or the loopback interface."""
    parts = parts_of(url)
    if parts is None:
        return False
    hosts = [host for host in parts.hosts.split(",") if host] or [
        value for name, value in parts.options if name in ("host", "hostaddr")
    ]
    names = [re.sub(r":\d*$", "", host).strip("[]").lower() for host in hosts]
    return all(name in ("localhost", "::1") or name.startswith(("127.", "/", "%2f")) for name in names)


def literal_secret(text: str) -> bool:
    """Say whether a secret stands in the text itself, more than `${NAME}`."""
    parts = parts_of(text)
    if parts is not None:
        return any(re.sub(_VARIABLE, "", secret) for secret in parts.secrets())
    rest = text.partition("://")[2]
    maybe = rest[rest.find(":") + 1 : rest.rfind("@")] if ":" in rest[: rest.rfind("@") + 1] else ""
    return bool(re.sub(_VARIABLE, "", maybe))


def names_only_a_user(text: str) -> bool:
    """Say whether the one secret in a text may be the name of a user, of whom a password would be kept."""
    parts = parts_of(text)
    return parts is not None and parts.misplaced and len(list(parts.secrets())) == 1


# --- the normal form ------------------------------------------------------------------------------------------------


def normal(written: StoreText, text: str, scheme: str) -> str:
    """Return the normal form of an address of a scheme. Raises the error of `written`."""
    parts = parts_of(text)
    if parts is None:
        raise _no_address(written, text, scheme)
    parts = parts.replace(scheme=scheme)
    other = ELSEWHERE[scheme]
    if any(name == other for name, _ in parts.options):
        raise written.error(
            f"{written.place}: {shown(masked(text))} names its database as an option ({other}=).", _example(scheme)
        )
    parts = _postgresql(written, parts) if scheme == "postgresql" else _redis(written, parts)
    return str(_in_its_namespace(written, parts))


def _no_address(written: StoreText, text: str, scheme: str) -> RanonceError:
    put_in = _variables(written)
    if put_in:
        return written.error(
            f"{written.place}: with {', '.join(put_in)} put in, this is not the address of a store.", ENCODE
        )
    if "://" not in text:
        return written.error(f"{written.place}: {shown(masked(text))} is not the address of a store.", _example(scheme))
    if _BAD_PORT.match(text.rpartition("@")[2].rpartition("://")[2]):
        return written.error(
            f"{written.place}: {shown(masked(text))} is not the address of a store: its port is no number.",
            f"Write HOST:{'5432' if scheme == 'postgresql' else REDIS_PORT}, or the port's own number.",
        )
    if "@" not in text:
        return written.error(f"{written.place}: {shown(masked(text))} is not the address of a store.", _example(scheme))
    return written.error(f"{written.place}: {shown(masked(text))} cannot be read as an address.", ENCODE)


def _variables(written: StoreText) -> list[str]:
    return re.findall(r"\$\{(\w+)\}", written.text) if written.base is not None else []


def _example(scheme: str) -> str:
    if scheme == "postgresql":
        return "Write postgresql://USER@HOST/DATABASE: which ledger is meant must not hang on who asks."
    return f"Write {scheme}://HOST:PORT/NUMBER."


def _postgresql(written: StoreText, parts: Parts) -> Parts:
    if not parts.database:
        raise written.error(f"{written.place}: {shown(masked(str(parts)))} names no database.", _example(parts.scheme))
    return parts


def _redis(written: StoreText, parts: Parts) -> Parts:
    host, colon, port = parts.hosts.rpartition(":")
    if not colon or port.endswith("]"):
        host, port = parts.hosts, ""
    if not host or "," in parts.hosts:
        raise written.error(
            f"{written.place}: {shown(masked(str(parts)))} does not name one host.", _example(parts.scheme)
        )
    number = parts.database or "0"
    if not (number.isascii() and number.isdecimal()) or len(number) > 9:
        raise written.error(
            f"{written.place}: {shown(masked(str(parts)))}: a database of Redis has a number, not a name.",
            f"Write {parts.scheme}://HOST:PORT/0.",
        )
    return parts.replace(hosts=f"{host}:{port or REDIS_PORT}", database=str(int(number)))


def _in_its_namespace(written: StoreText, parts: Parts) -> Parts:
    """Return the parts with the ledger's name space last, and left away where it is the usual one."""
    option = NAME_OPTIONS[parts.scheme]
    said = [value for name, value in parts.options if name == option]
    for namespace in said:
        if len(said) > 1 or not _is_namespace(namespace):
            raise written.error(
                f"{written.place}: {option}={shown(namespace)} cannot be used.",
                f"One name of at most {LONGEST_NAMESPACE} lower-case letters, digits and _, that begins with a letter.",
            )
    rest = tuple(pair for pair in parts.options if pair[0] != option)
    named = tuple((option, namespace) for namespace in said if namespace != NAMESPACE)
    return parts.replace(options=rest + named)


def _is_namespace(text: str) -> bool:
    plain = text.isascii() and text[:1].isalpha() and text.replace("_", "a").isalnum() and text == text.lower()
    return plain and len(text) <= LONGEST_NAMESPACE and not text.startswith("pg_")
