"""Where a PostgreSQL ledger is, or may be made: a schema of its own in a database that exists.

The role that makes it owns it: it may prune, import and accept a loss. Jobs need less (see the documentation).
"""

from __future__ import annotations

import os

from ranonce.errors import NotThisLedger, UsageError
from ranonce.stores.base import Risk
from ranonce.stores.postgres import FORMAT, SQL, in_schema
from ranonce.stores.postgres_connection import Connection, Race, refuse_race
from ranonce.storeurl import in_namespace

#: What a scratch ledger's schema is called, before its own name.
SCRATCH = "ranonce_scratch_"
#: The files that make a ledger, in this order; all but the first may be run again.
TABLES = "postgres_schema.sql"
FUNCTIONS = ("postgres_functions.sql", "postgres_upkeep_functions.sql")
#: Settings without which a commit that was answered may be lost, and what happens then.
DURABLE = {
    "fsync": "a power cut or a crash of the machine may lose or damage everything",
    "full_page_writes": "a power cut may damage what was being written",
}


class PostgresSite:
    """The site of one ledger: a schema, named by the URL."""

    def __init__(self, url: str, *, wait_seconds: float) -> None:
        self.url = url
        self._connection = Connection(url, wait_seconds)
        self.schema = self._connection.server.namespace

    def stands(self) -> bool:
        found = self._connection.ask(
            "SELECT 1 FROM pg_catalog.pg_class AS c JOIN pg_catalog.pg_namespace AS n ON n.oid = c.relnamespace"
            " WHERE n.nspname = $1 LIMIT 1",
            self.schema,
        )
        return bool(found)

    def risk(self) -> Risk | None:
        for setting, why in DURABLE.items():
            if self._connection.ask("SELECT current_setting($1)", setting)[0][0] == "off":
                return Risk(f"a server with {setting} = off", why)
        return None

    def create(self, ledger: str, *, volatile: str | None = None, epoch: int = 1) -> None:
        if self.stands():
            raise NotThisLedger(
                f"the schema of {self._connection.shown} holds something already.",
                "Nothing was changed; name another with ?schema=NAME.",
            )
        try:
            with self._connection.begin() as transaction:
                transaction.execute(f'CREATE SCHEMA IF NOT EXISTS "{self.schema}"')
                for name in (TABLES, *FUNCTIONS):
                    transaction.execute(self._script(name))
                transaction.execute(
                    in_schema(
                        "INSERT INTO {schema}.ledger (one, id, format, created_at, epoch, volatile)"
                        " VALUES (1, $1, $2, {schema}.instant({schema}.seconds(clock_timestamp())), $3, $4)",
                        self.schema,
                    ),
                    ledger,
                    FORMAT,
                    epoch,
                    volatile,
                )
        except Race as error:
            refuse_race(error)

    def upgrade(self, ledger: str | None) -> bool:
        rows = self._connection.ask(in_schema(SQL["identity"], self.schema))
        if rows and ledger not in (None, rows[0][0]):
            raise NotThisLedger(
                f"the ledger at {self._connection.shown} is ledger {rows[0][0]}, and {ledger} is expected there.",
                "Nothing was changed. Restore the right ledger, or name another store.",
            )
        return False  # there has been one format so far

    def scratch(self, name: str) -> str:
        return in_namespace(self.url, SCRATCH + name)

    def destroy(self) -> None:
        if not self.schema.startswith(SCRATCH):
            raise UsageError(f"the schema {self.schema!r} holds no scratch ledger.", "Nothing was removed.")
        with self._connection.begin() as transaction:
            transaction.execute(f'DROP SCHEMA IF EXISTS "{self.schema}" CASCADE')
        self._connection.close()

    def _script(self, name: str) -> str:
        with open(os.path.join(os.path.dirname(__file__), name), encoding="utf-8") as file:
            return in_schema(file.read(), self.schema)
