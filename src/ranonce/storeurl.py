"""The address of a store: how it may be written, and the one normal form the rest of the code sees.

`sqlite:////absolute/path` has four slashes; `sqlite:///relative/path` has three and is allowed in the configuration
file only, where it is relative to the file: the working directory must not decide which ledger is used. `memory:` is
for tests. `~` is the caller's home. Nothing in a path is percent-decoded, and a URL carries no options.
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
SCHEMES = ("sqlite", "memory")
STORE_WAIT = 30.0  # seconds a store may be away before a run is given up
LATER_SCHEMES = ("postgresql", "postgres", "redis", "rediss", "valkey")


class StoreText(Record):
    """The address of a store as somebody wrote it, and where.

    `source` is who said it, `place` what stands at the front of every error (made into text only then). `base` is the
    folder a relative path is relative to, or None where one is refused; it marks the file, where `${NAME}` is replaced.
    `literal_password` says whether a password may stand in the text itself.
    """

    text: str
    source: str
    place: object
    base: str | None = None
    literal_password: bool = False
    error: type[RanonceError] = ConfigError


def store_url(written: StoreText, environ: Mapping[str, str]) -> str:
    """Return the normal form: `memory:` or `sqlite:///` and an absolute path.

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
    if not colon or scheme.lower() not in (*SCHEMES, *LATER_SCHEMES):
        raise _unknown(written, text, environ)
    if scheme.lower() in LATER_SCHEMES:
        raise written.error(
            f"{written.place}: {shown(masked(text))}: this version of ranonce has no {scheme} store.",
            "It has sqlite:////PATH, and memory: for tests.",
        )
    if not text.startswith(SQLITE):
        raise written.error(
            f"{written.place}: {shown(text)} is not the address of a store.",
            "SQLite is written sqlite:// and the absolute path, so with four slashes: sqlite:////var/lib/ranonce/x.db.",
        )
    return SQLITE + _absolute(written, text[len(SQLITE) :], environ)


def sqlite_path(url: str) -> str | None:
    """Return the absolute path of a SQLite store in its normal form, or None for another store."""
    return url[len(SQLITE) :] if url.startswith(SQLITE) else None


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
                f"Set {name} where the scheduler starts the job.",
            )
        pieces += [before, environ[name]]
    return "".join([*pieces, rest])


def refuse_password(written: StoreText) -> None:
    """Refuse a password that stands literally in the text; `${NAME}` is the way to have one."""
    _, password = _credentials(written.text)
    if password and not (password.startswith("${") and password.endswith("}")):
        raise written.error(
            f"{written.place}: {shown(masked(written.text))} holds a password.",
            "Credentials come from the environment only: write ${STORE_PASSWORD} in its place and set that variable."
            if written.base is not None
            else "Arguments can be read by others on this host: put the whole address into RANONCE_STORE.",
        )


def masked(url: str) -> str:
    """Return the address with the password taken out, for messages."""
    before, password = _credentials(url)
    return f"{before}***{url[len(before) + len(password) :]}" if password else url


def _credentials(url: str) -> tuple[str, str]:
    """Return what stands before the password, and the password; it may hold a slash that should be encoded."""
    scheme, separator, rest = url.partition("://")
    if not separator or scheme.lower() in SCHEMES:
        return url, ""
    address, _, query = rest.partition("?")
    authority = address.partition("/")[0]
    userinfo = (authority if "@" in authority else address).rpartition("@")[0]
    user, colon, password = userinfo.partition(":")
    if colon and password:
        return f"{scheme}://{user}:", password
    before, found, rest = query.partition("password=")
    if found:
        return f"{scheme}://{address}?{before}password=", rest.partition("&")[0]
    return url, ""


def _unknown(written: StoreText, text: str, environ: Mapping[str, str]) -> RanonceError:
    if text == ":memory:":
        return written.error(
            f"{written.place}: ':memory:' would forget every run when the process ends.",
            "Name a file: sqlite:////var/lib/ranonce/ledger.db.",
        )
    if "://" not in text:
        path = os.path.normpath(os.path.join(written.base or os.getcwd(), expand_home(text, environ)))
        return written.error(f"{written.place}: {shown(text)} is a path, not an address.", f"Write sqlite:///{path}.")
    return written.error(
        f"{written.place}: {shown(masked(text))}: no store is called {shown(text.partition(':')[0])}.",
        "This version has sqlite:////PATH, and memory: for tests.",
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
