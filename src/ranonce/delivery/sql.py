"""Destinations of type sql: a row in an inbox table for each message, inserted once.

The key is the table's primary key, so the receiver has each message once, for ever, as long as it keeps the rows: it
marks what it has done, and does not delete. The table is the receiver's. Delivery never makes it, and inserts into the
columns key, content_type, body, job, "window", emitted_at and received_at; others may stand beside them.

    inserted and committed                            delivered
    there already, with the same body                 delivered
    there already, with another body                  refused
    a row that the table's constraints forbid         refused, and no other message with it
    no table, no file, no server, locked              not received
    no answer to the commit                           unknown: the next try finds out
"""

from __future__ import annotations

import re

from ranonce.delivery.batches import Batches
from ranonce.delivery.spec import DELIVERER, FOREVER
from ranonce.errors import ConfigError, UsageError
from ranonce.messages import DELIVERED, NOT_RECEIVED, REFUSED, Answer
from ranonce.settings import text
from ranonce.storeurl import SERVERS, StoreText, masked, server_of, sqlite_path, store_url
from ranonce.timefmt import shown

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Mapping

    from ranonce.delivery.base import Spec

TABLE = "ranonce_inbox"
COLUMNS = 'key, content_type, body, job, "window", emitted_at, received_at'
#: In which databases an inbox can lie.
SCHEMES = ("sqlite", "postgresql")
WRITE = "Write sqlite:////PATH or postgresql://USER@HOST/DATABASE."
_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]{0,62}(?:\.[A-Za-z_][A-Za-z0-9_]{0,62})?")

INSERTED = Answer(DELIVERED, "inserted", answered=True)
THERE = Answer(DELIVERED, "already there", answered=True)
OTHER_BODY = Answer(REFUSED, "its key is there already, with another body", answered=True)


def database(value: object) -> str:
    """Return the address of a database; a password in it stands as ${NAME}."""
    from ranonce.serverurl import literal_secret

    written = text(value)
    if not written.startswith("sqlite:") and literal_secret(written):
        raise UsageError(
            "the address holds a password.",
            "Credentials come from the environment only: write ${NAME} in its place and set that variable.",
        )
    scheme, colon, _ = written.partition(":")
    if "${" not in scheme and (not colon or SERVERS.get(scheme.lower(), scheme.lower()) not in SCHEMES):
        raise UsageError(f"{shown(masked(written))}: an inbox table lies in SQLite or PostgreSQL.", WRITE)
    return written


def table_name(value: object) -> str:
    """Return the name of a table, with its schema or without."""
    written = text(value)
    if not _NAME.fullmatch(written):
        raise UsageError(
            f"{shown(written)} is no name of a table.",
            "Write letters, digits and _, with a schema in front if need be: inbox or app.inbox.",
        )
    return written


KEYS = {"url": database, "table": table_name}
REQUIRED = ("url",)


def dedupes(settings: Mapping[str, object]) -> float:
    """Return for how long an inbox table knows a key: for ever."""
    return FOREVER


def open_sender(spec: Spec, environ: Mapping[str, str]) -> Batches:
    """Return what inserts into an inbox table. Raises ConfigError."""
    place = f"{spec.place}.url"
    url = store_url(
        StoreText(str(spec.settings["url"]), spec.name, place, base=spec.folder or "/", needed=DELIVERER), environ
    )
    table = quoted(str(spec.settings.get("table", TABLE)))
    path = sqlite_path(url)
    if path is not None:
        from ranonce.delivery.sqlfile import FileInbox

        return Batches(lambda: FileInbox(spec, path, table))
    server = server_of(url)
    if server is None or server.scheme != "postgresql":
        raise ConfigError(
            f"{place}: an inbox table lies in SQLite or PostgreSQL.",
            WRITE,
        )
    if server.address != url:
        raise ConfigError(f"{place}: the schema of an inbox stands with its table.", "Write table = SCHEMA.TABLE.")
    try:
        import psycopg  # noqa: F401 - whether it is there
    except ImportError as error:
        raise ConfigError(
            f"{spec.place}: an inbox in PostgreSQL needs the driver psycopg 3, which cannot be loaded here: {error}.",
            "Install it: pip install 'ranonce[postgres]'",
        ) from error
    from ranonce.delivery.sqlserver import ServerInbox

    return Batches(lambda: ServerInbox(spec, url, table))


def quoted(name: str) -> str:
    """Return a table's name as it stands in a statement."""
    return ".".join(f'"{part}"' for part in name.split("."))


def not_received(words: str) -> Answer:
    """Return the answer for what the database did not take."""
    return Answer(NOT_RECEIVED, words, answered=True)


def without_table(table: str, words: str, *, body: str, instant: str) -> Answer:
    """Return the answer where there is no table like an inbox, with the statement that makes one; `body` and `instant`
    are the database's types for them."""
    columns = (
        f'key text PRIMARY KEY, content_type text NOT NULL, body {body} NOT NULL, job text NOT NULL, "window" text NOT'
        f" NULL, emitted_at {instant} NOT NULL, received_at {instant} NOT NULL"
    )
    return not_received(f"{words}. Make the table: CREATE TABLE {table} ({columns})")
