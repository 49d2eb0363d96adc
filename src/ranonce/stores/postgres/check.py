"""What is wrong with the tables of a PostgreSQL ledger, as far as the server can tell."""

from __future__ import annotations

import re

from ranonce.errors import NotThisLedger
from ranonce.stores.postgres.connection import Connection
from ranonce.stores.postgres.site import FUNCTIONS, STANDING, TABLES, functions, text
from ranonce.stores.postgres.store import in_schema
from ranonce.stores.statements import load

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterator

    from ranonce.stores.postgres.connection import Row
    from ranonce.stores.postgres.store import PostgresStore

SQL = load("postgres/check.sql")
#: Sentences that a person is shown.
PROBLEMS_SHOWN = 20
#: To read all of a large table, and to compare it with its indexes, may take this long.
CHECK_SECONDS = 3600.0
INDEX = re.compile(r"^CREATE (?:UNIQUE )?INDEX (\w+)", re.MULTILINE)
TRIGGER = re.compile(r"^CREATE OR REPLACE TRIGGER (\w+)[^;]*?\sON \{schema\}\.(\w+)", re.MULTILINE)


def problems(store: PostgresStore, *, deep: bool) -> list[str]:
    """Return what is wrong, worst first: triggers and tables, then accounts that contradict each other.

    `deep` also reads all of it: by the server's own check (the extension amcheck) where this role may use it, which
    compares every index with its table; else every value of every row.
    """
    check = _Check(store)
    found: list[str] = []
    for part in (check.made_otherwise, check.contradictions, *((check.damage,) if deep else ())):
        try:
            found += part()
        except NotThisLedger as error:  # damage that keeps it from being asked any further
            found.append(error.sentence.rstrip("."))
    return found[:PROBLEMS_SHOWN]


class _Check:
    def __init__(self, store: PostgresStore) -> None:
        self._store = store
        self._connection = store.connection

    def _ask(self, name: str, *values: object, **names: str) -> list[Row]:
        statement = SQL[name].replace("{name}", self._store.schema)
        for each, value in names.items():
            statement = statement.replace(f"{{{each}}}", value)
        return self._connection.ask_apart(in_schema(statement, self._store.schema), *values)

    def made_otherwise(self) -> Iterator[str]:
        """Say what of the tables, triggers, indexes and functions is not as it was made."""
        indexes = ", ".join(f"('{name}')" for file in TABLES for name in INDEX.findall(text(file)))
        triggers = ", ".join(f"('{name}', '{table}')" for name, table in TRIGGER.findall(text(FUNCTIONS[-1])))
        for rows in (
            self._ask("triggers", triggers=triggers),
            self._ask("tables"),
            self._ask("indexes", indexes=indexes),
        ):
            yield from (str(row[0]) for row in rows)
        standing = set(self._connection.ask_apart(STANDING, self._store.schema))
        names = {function[0] for function in standing}
        for file in FUNCTIONS:
            for function in functions(file, self._store.schema):
                if function not in standing:
                    name = function[0]
                    yield f"the function {name} is {'not what it should be' if name in names else 'missing'}"

    def contradictions(self) -> Iterator[str]:
        """Say where the tables contradict each other."""
        yield from (str(row[0]) for row in self._ask("contradictions"))

    def damage(self) -> Iterator[str]:
        """Read all of it, patiently, on a connection of its own."""
        amcheck = self._ask("amcheck")
        tables, indexes = self._ask("all_tables"), self._ask("all_indexes")
        self._connection = Connection(self._store.url, CHECK_SECONDS)
        try:
            for oid, table in tables:
                yield from self._table(str(oid), str(table), str(amcheck[0][0]) if amcheck else None)
            for oid, index in indexes if amcheck else ():
                yield from self._index(str(oid), str(index), str(amcheck[0][0]))
            yield from (str(row[0]) for row in self._ask("bodies"))
        finally:
            self._connection.close()
            self._connection = self._store.connection

    def _table(self, oid: str, table: str, amcheck: str | None) -> Iterator[str]:
        names = {"table": f'"{table}"'}
        try:
            if amcheck is not None:
                found = self._ask("check_table", oid, table=table, amcheck=f'"{amcheck}"')
                yield from (str(row[0]) for row in found)
            self._ask("read_all", **names)
        except NotThisLedger as error:
            yield f"the table {table} cannot be read: {error.sentence.rstrip('.')}"

    def _index(self, oid: str, index: str, amcheck: str) -> Iterator[str]:
        try:
            self._ask("check_index", oid, amcheck=f'"{amcheck}"')
        except NotThisLedger as error:
            yield f"the index {index} is damaged: {error.sentence.rstrip('.')}"
