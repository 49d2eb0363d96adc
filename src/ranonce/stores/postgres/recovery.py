"""Build a lost PostgreSQL ledger anew, in a schema beside the old one, and exchange their names in one transaction.

That transaction is begun first. It keeps others from mending the same ledger, makes everybody who wants to write wait,
and is over with the exchange: a server or a host that fails before leaves what was there as it was. Whoever waited then
meets the new tables. Roles keep the rights they had, and the schema its owner.
"""

from __future__ import annotations

import os
import time
from contextlib import suppress

from ranonce.errors import ConfigError, NotThisLedger, RanonceError, StoreUnavailable
from ranonce.stores.base import Identity
from ranonce.stores.postgres.connection import Connection
from ranonce.stores.postgres.site import FUNCTIONS, IDENTITY, PostgresSite, makes_no_schema
from ranonce.stores.postgres.store import FORMAT, PostgresStore, another_format, in_schema
from ranonce.stores.statements import load
from ranonce.storeurl import in_namespace
from ranonce.timefmt import format_instant

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Self

    from ranonce.stores.postgres.connection import Row, Transaction

SQL = load("postgres/recovery.sql")
#: The tables of a ledger, in the order in which a decision locks rows of them: so nobody waits for each other.
TABLES = (
    *("jobs", "leases", "runs", "events", "steps", "outbox", "bodies", "destinations", "gates", "ledger", "schedules"),
    *("epochs", "tombstones", "pruning"),
)
#: So much of the schema's name is in those of the schemas beside it, which may have 63 letters, too.
LONGEST_STEM = 40
GRANTEE = "CASE a.grantee WHEN 0 THEN 'PUBLIC' ELSE a.grantee::regrole::text END"


class PostgresRecovery:
    """The building anew of the ledger in one schema."""

    def __init__(self, url: str, *, wait_seconds: float) -> None:
        self.url = url
        self.wait_seconds = wait_seconds
        self._connection = Connection(url, wait_seconds)
        self.schema = self._connection.server.namespace
        self._site = PostgresSite(url, wait_seconds=wait_seconds)
        self._transaction: Transaction = self._connection.begin()
        self._building: str | None = None
        self._stands = False
        self._owner: str | None = None  # if it is somebody else
        self._done = False

    def __enter__(self) -> Self:
        self._transaction.__enter__()
        try:
            self._execute("patience")
            self._site.alone(self._transaction)
            self._sweep()
        except BaseException:
            self._end()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        self._end()

    def _end(self) -> None:
        """Let everybody go on with what was there, unless the new one has its place; and leave nothing beside it."""
        try:
            if not self._done:
                self._transaction.abandon()
                self._transaction.__exit__(None, None, None)
            with suppress(StoreUnavailable):  # what is left then, the next one removes
                self._sweep()
        finally:
            self._connection.close()

    def _sweep(self) -> None:
        """Remove what somebody who was killed, or this one, has begun."""
        for (name,) in self._connection.ask(SQL["beside"], f"^{self._stem}_recovered_[0-9a-f]{{8}}$"):
            other = Connection(self.url, self.wait_seconds)
            try:
                other.tell(f'DROP SCHEMA "{name}" CASCADE')
            finally:
                other.close()

    @property
    def _stem(self) -> str:
        return self.schema[:LONGEST_STEM]

    def _execute(self, statement: str, *values: object, **names: str) -> list[Row]:
        text = SQL[statement].replace("{grantee}", GRANTEE)
        for name, value in names.items():
            text = text.replace(f"{{{name}}}", value)
        return self._transaction.execute(in_schema(text, self.schema), *values)

    # --- what is there ---

    def broken(self) -> str | None:
        tables = self._site.tables()
        if not tables & set(TABLES):
            raise NotThisLedger(
                f"the schema of {self._connection.shown} holds something else, and nothing of a ledger.",
                "Nothing was changed. Name the right schema with ?schema=NAME, or remove what is there yourself.",
            )
        rows = self._connection.ask(in_schema(IDENTITY, self.schema)) if "ledger" in tables else []
        if rows and rows[0][1] != str(FORMAT):
            raise another_format(self._connection.shown, int(rows[0][1] or 0))
        if missing := [name for name in TABLES if name not in tables]:
            return f"it has lost tables: {', '.join(missing)}."
        if rows and not self._site.functions_are_ours():
            raise NotThisLedger(
                f"functions or triggers of the ledger at {self._connection.shown} are not those of this version.",
                "Nothing was changed, and nothing need be lost: ranonce init mends that. Then say it again.",
            )
        return None

    def halt(self) -> None:
        found = self._execute("schema", self.schema)
        if found:
            owner, mine, user = map(str, found[0])
            self._owner = owner if owner != user else None
            self._stands = True
            if mine != "t":
                raise ConfigError(
                    f"the schema of {self._connection.shown} belongs to {owner}, and {user} may not replace it.",
                    f"Nothing was changed. Ask as the role that owns the ledger ({owner}).",
                )
        self._refuse_without_create()
        tables = self._site.tables()
        if standing := [f'{{schema}}."{name}"' for name in TABLES if name in tables]:
            self._execute("halt", tables=", ".join(standing))

    def _refuse_without_create(self) -> None:
        """Refuse a role that may make no schema: the new ledger is built in one of its own."""
        user, may_make, database = map(str, self._execute("may_make")[0])
        if may_make != "t":
            first = "" if self._stands else f"If it is {user} that owned the ledger (else ask as the role that did): "
            raise makes_no_schema(user, database, f"Nothing was changed. {first}")

    def remains(self, ledger: str) -> PostgresStore | None:
        aside = sorted(str(row[0]) for row in self._execute("beside", rf"^{self._stem}_lost_\d{{8}}t\d{{6}}z(_\d+)?$"))
        where = self.url if self._stands else in_namespace(self.url, aside[-1]) if aside else None
        if where is None:
            return None
        try:
            store = _Remains(where, ledger, wait_seconds=self.wait_seconds)
        except RanonceError:
            return None
        if store.identity().ledger != ledger:
            store.close()
            return None
        return store

    # --- what takes its place ---

    def begin(self, ledger: str, *, volatile: str | None, epoch: int) -> PostgresStore:
        self._building = f"{self._stem}_recovered_{os.urandom(4).hex()}"
        url = in_namespace(self.url, self._building)
        PostgresSite(url, wait_seconds=self.wait_seconds).create(ledger, volatile=volatile, epoch=epoch)
        return PostgresStore(url, wait_seconds=self.wait_seconds)

    def take_place(self) -> str | None:
        assert self._building is not None
        aside = None
        if self._stands:
            aside = self._name_aside()
            self._execute("move_aside", aside=f'"{aside}"')
        self._execute("take_place", building=f'"{self._building}"')
        for name in FUNCTIONS:  # they name the schema they work in
            self._transaction.execute(self._site.script(name))
        self._execute("decide_anew")
        self._hand_over(aside)
        self._transaction.__exit__(None, None, None)
        self._done = True
        return aside

    def _name_aside(self) -> str:
        stem = f"{self._stem}_lost_{format_instant(time.time()).lower().replace('-', '').replace(':', '')}"
        return next(
            name
            for name in (stem, *(f"{stem}_{number}" for number in range(2, 100)))
            if not self._execute("schema", name)
        )

    def _hand_over(self, aside: str | None) -> None:
        """Give the new schema to the owner of the old one, with the rights that others had."""
        if aside is None:
            return
        told = self._execute("rights", aside, self.schema)
        if self._owner is not None:
            told += self._execute("owners", self.schema, self._owner)
        for (statement,) in told:
            self._transaction.execute(str(statement))


class _Remains(PostgresStore):
    """What is left of a ledger; its identity may be lost."""

    def __init__(self, url: str, ledger: str, *, wait_seconds: float) -> None:
        self._ledger = ledger
        super().__init__(url, wait_seconds=wait_seconds)

    def _recognise(self) -> Identity:
        try:
            return super()._recognise()
        except NotThisLedger:
            with suppress(NotThisLedger):  # not even the table is there
                if self._connection.ask(in_schema("SELECT id FROM {schema}.ledger", self.schema)):
                    raise
            return Identity(self._ledger, 0.0)
