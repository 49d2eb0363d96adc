"""The address of a store: how it may be written, and the one normal form the rest of the code sees.

`sqlite:////absolute/path` has four slashes; `sqlite:///relative/path` has three and is allowed in the configuration
file only, where it is relative to the file: the working directory must not decide which ledger is used. `~` is the
caller's home; nothing in a path is percent-decoded, and such an address carries no options.

`postgresql://USER@HOST/DATABASE?schema=NAME` names a ledger in a schema of its own (default: `ranonce`); every other
option is the driver's. `redis://HOST:PORT/NUMBER?namespace=NAME` (or `rediss://`, encrypted) names one whose keys all
begin with `{NAME}:`. These are taken apart in `serverurl`. `memory:` is for tests.
"""

from __future__ import annotations

import os

from ranonce.errors import ConfigError, RanonceError, UsageError
from ranonce.record import Record
from ranonce.timefmt import shown

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Mapping

MEMORY = "memory:"
SQLITE = "sqlite:///"
#: Other names of the schemes of stores that are servers.
SERVERS = {
    "postgresql": "postgresql",
    "postgres": "postgresql",
    "redis": "redis",
    "valkey": "redis",
    "rediss": "rediss",
    "valkeys": "rediss",
}
SCHEMES = ("sqlite", "memory")
STORE_WAIT = 30.0  # seconds a store may be away before a run is given up
KNOWN = "It is one of sqlite:////PATH, postgresql://USER@HOST/DATABASE and redis://HOST:PORT/NUMBER."


class StoreText(Record):
    """The address of a store as somebody wrote it, and where.

    `source` is who said it, `place` what stands at the front of every error (made into text only then). `base` is the
    folder a relative path is relative to, or None where one is refused; it marks the file, where `${NAME}` is replaced.
    `literal_password` says whether a password may stand in the text itself. `needed` is where variables must be set.
    """

    text: str
    source: str
    place: object
    base: str | None = None
    literal_password: bool = False
    error: type[RanonceError] = ConfigError
    needed: str = "where the scheduler starts the job"


def store_url(written: StoreText, environ: Mapping[str, str]) -> str:
    """Return the normal form: `memory:`, `sqlite:///` and an absolute path, or the address of a server.

    `${NAME}` is taken from the environment where the text stands in the file. Raises the error of `written`.
    """
    if not written.literal_password:
        refuse_password(written)
    text = expand(written, environ) if written.base is not None else written.text
    if not text.strip():
        raise written.error(
            f"{written.place} is empty.", "Name a store like sqlite:////var/lib/ranonce/ledger.db, or leave it away."
        )
    if not text.isprintable():
        raise written.error(f"{written.place}: {shown(masked(text))} holds control characters.", "Take them out.")
    if text == MEMORY:
        return MEMORY
    scheme, colon, _ = text.partition(":")
    if not colon or scheme.lower() not in (*SCHEMES, *SERVERS):
        raise _unknown(written, text, environ)
    if scheme.lower() in SERVERS:
        from ranonce.serverurl import normal

        return normal(written, text, SERVERS[scheme.lower()])
    if not text.startswith(SQLITE):
        raise written.error(
            f"{written.place}: {shown(text)} is not the address of a store.",
            "SQLite is written sqlite:// and the absolute path, so with four slashes: sqlite:////var/lib/ranonce/x.db.",
        )
    return SQLITE + _absolute(written, text[len(SQLITE) :], environ)


def sqlite_path(url: str) -> str | None:
    """Return the absolute path of a SQLite store in its normal form, or None for another store."""
    return url[len(SQLITE) :] if url.startswith(SQLITE) else None


class Server(Record):
    """The address of a ledger on a server: the scheme, where in the server it lies, and the address without that."""

    scheme: str
    namespace: str
    address: str


def server_of(url: str) -> Server | None:
    """Return what the normal form of a server's address says, or None for a store that is none."""
    scheme, separator, _ = url.partition("://")
    if not separator or scheme not in SERVERS.values():
        return None
    from ranonce.serverurl import NAME_OPTIONS, NAMESPACE

    last = url.partition("?")[2].rpartition("&")[2]  # of the options, as in every normal form
    option, _, namespace = last.partition("=")
    if option != NAME_OPTIONS[scheme]:
        return Server(scheme, NAMESPACE, url)
    return Server(scheme, namespace, url[: -len(last) - 1])


def in_namespace(url: str, namespace: str) -> str:
    """Return the address of another ledger on the same server."""
    from ranonce.serverurl import NAME_OPTIONS, NAMESPACE

    server = server_of(url)
    assert server is not None
    joint = "&" if "?" in server.address else "?"
    named = f"{joint}{NAME_OPTIONS[server.scheme]}={namespace}"
    return server.address + (named if namespace != NAMESPACE else "")


def masked(url: str) -> str:
    """Return the address with its passwords taken out, for messages."""
    if url.partition(":")[0].lower() in SCHEMES or url[:1] == "/":
        return url
    from ranonce.serverurl import masked as without_secrets

    return without_secrets(url)


def public(url: str) -> str:
    """Return a normal form as it may be kept on disk: without its passwords."""
    if server_of(url) is None:
        return url
    from ranonce.serverurl import public as without_secrets

    return without_secrets(url)


def same_place(url: str, other: str) -> bool:
    """Say whether two normal forms mean the same ledger: on a server, whoever asks, and with which password."""
    if url == other or server_of(url) is None or server_of(other) is None:
        return url == other
    from ranonce.serverurl import place

    return place(url) == place(other)


def home_folder(environ: Mapping[str, str]) -> str | None:
    """Return `$HOME` where it is an absolute path, else None."""
    home = environ.get("HOME", "")
    return home if home.startswith("/") else None


def expand_home(path: str, environ: Mapping[str, str]) -> str:
    """Return the path with `~` or `~NAME` at its front replaced; unchanged where that home is not known."""
    if not path.startswith("~"):
        return path
    name, _, rest = path[1:].partition("/")
    home = home_folder(environ) if not name else os.path.expanduser("~" + name)
    if home is None or home.startswith("~"):
        return path
    return f"{home.rstrip('/')}/{rest}"


def expand(written: StoreText, environ: Mapping[str, str]) -> str:
    """Return the text with each `${NAME}` replaced from the environment, once.

    Raises the error of `written` for a variable that is not set; an empty one counts as set.
    """
    pieces, rest = [], written.text
    while "${" in rest:
        before, _, rest = rest.partition("${")
        name, brace, rest = rest.partition("}")
        if not brace or not name.isidentifier() or not name.isascii():
            raise written.error(
                f"{written.place}: {shown('${' + name + brace)} is not a variable.",
                "Write the name of an environment variable in braces, like ${STORE_URL}.",
            )
        if name not in environ:
            raise written.error(
                f"{written.place} uses ${{{name}}}, and that environment variable is not set.",
                f"Set {name} {written.needed}.",
            )
        pieces += [before, environ[name]]
    return "".join([*pieces, rest])


def refuse_password(written: StoreText) -> None:
    """Refuse a password that stands literally in the text; `${NAME}` is the way to have one."""
    if written.text.partition(":")[0].lower() in SCHEMES:
        return
    from ranonce.serverurl import literal_secret, names_only_a_user

    if literal_secret(written.text):
        user = names_only_a_user(written.text)
        raise written.error(
            f"{written.place}: {shown(masked(written.text))} holds a password{', or a user without one' * user}.",
            "Credentials come from the environment only: write ${STORE_PASSWORD} in its place and set that variable."
            if written.base is not None
            else "Arguments can be read by others on this host: put the whole address into RANONCE_STORE.",
        )


def _unknown(written: StoreText, text: str, environ: Mapping[str, str]) -> RanonceError:
    if text == ":memory:":
        return written.error(
            f"{written.place}: ':memory:' would forget every run when the process ends.",
            "Name a file: sqlite:////var/lib/ranonce/ledger.db.",
        )
    if "://" not in text and masked(text) == text:
        path = os.path.normpath(os.path.join(written.base or os.getcwd(), expand_home(text, environ)))
        return written.error(f"{written.place}: {shown(text)} is a path, not an address.", f"Write sqlite:///{path}.")
    return written.error(
        f"{written.place}: {shown(masked(text))}: no store is called {shown(text.partition(':')[0])}.", KNOWN
    )


def _absolute(written: StoreText, path: str, environ: Mapping[str, str]) -> str:
    if not path or path == ":memory:":
        raise written.error(
            f"{written.place}: {shown(written.text)} names no file.", "Write sqlite:////var/lib/ranonce/ledger.db."
        )
    if "?" in path:
        raise written.error(
            f"{written.place}: {shown(written.text)} has options after '?', and a store's address has none.",
            "Leave them away.",
        )
    if path.startswith("~"):
        expanded = expand_home(path, environ)
        if expanded == path:
            raise written.error(
                f"{written.place}: the home folder of {shown(path.partition('/')[0])} is not known.",
                "Set HOME, or write an absolute path.",
            )
        path = expanded
    if not path.startswith("/"):
        if written.base is None:
            raise written.error(
                f"{written.place}: {shown(written.text)} is relative, so the current folder would choose the ledger.",
                f"Write sqlite:///{os.path.normpath(os.path.join(os.getcwd(), path))}.",
            )
        path = os.path.join(written.base, path)
    if path.endswith("/") or path.rpartition("/")[2] in (".", ".."):
        raise written.error(
            f"{written.place}: {shown(written.text)} names a folder.", "Name a file in it, like ledger.db."
        )
    return "/" + os.path.normpath(path).lstrip("/")


def option_store(text: str) -> StoreText:
    """Return what stands after `--store`."""
    return StoreText(text, "--store", "--store", error=UsageError)


def environment_store(text: str) -> StoreText:
    """Return what stands in `$RANONCE_STORE`."""
    return StoreText(text, "$RANONCE_STORE", "$RANONCE_STORE", literal_password=True)
