"""Where a PostgreSQL ledger is, or may be made: a schema of its own in a database that exists.

The role that makes it owns it: it may prune, import and accept a loss. Jobs need less (see the documentation).
"""

from __future__ import annotations

import os
import re

from ranonce.errors import ConfigError, NotThisLedger, UsageError
from ranonce.stores.base import Risk
from ranonce.stores.postgres.connection import Connection
from ranonce.stores.postgres.store import FORMAT, in_schema
from ranonce.storeurl import in_namespace

TYPE_CHECKING = False
if TYPE_CHECKING:
    from ranonce.stores.postgres.connection import Transaction
    from ranonce.stores.postgres.recovery import PostgresRecovery

#: What a scratch ledger's schema is called, before its own name.
SCRATCH = "ranonce_scratch_"
#: The files that make a ledger, in this order; those of functions may be run again.
TABLES = ("schema.sql", "outbox_schema.sql")
FUNCTIONS = ("functions.sql", "outbox_functions.sql", "upkeep_functions.sql", "triggers.sql")
#: Those that an older ledger lacks, by the format it has.
NEW_TABLES = {1: "outbox_schema.sql"}
#: A function in a file of ours: its name, whether it has a search_path of its own, and its body.
FUNCTION = re.compile(r"FUNCTION \{schema\}\.(\w+)\((?:(?!AS \$\$).)*?(SET search_path.*?)?AS \$\$(.*?)\$\$", re.DOTALL)
#: The same of one that stands on a server.
STANDING = """
SELECT p.proname, coalesce('search_path=pg_catalog, pg_temp' = ANY (p.proconfig), false), p.prosrc
FROM pg_catalog.pg_proc AS p JOIN pg_catalog.pg_namespace AS n ON n.oid = p.pronamespace WHERE n.nspname = $1"""
#: And the triggers there that are switched on.
TRIGGERS_ON = """
SELECT t.tgname FROM pg_catalog.pg_trigger AS t JOIN pg_catalog.pg_class AS c ON c.oid = t.tgrelid
JOIN pg_catalog.pg_namespace AS n ON n.oid = c.relnamespace
WHERE n.nspname = $1 AND t.tgenabled IN ('O', 'A')"""
TRIGGER = re.compile(r"^CREATE OR REPLACE TRIGGER (\w+)", re.MULTILINE)
#: The statements that remove functions which take more now than in an older format.
OUTGROWN = """
SELECT 'DROP FUNCTION ' || p.oid::regprocedure FROM pg_catalog.pg_proc AS p
JOIN pg_catalog.pg_namespace AS n ON n.oid = p.pronamespace WHERE n.nspname = $1 AND p.proname = 'commit_decision'"""
#: The statements that give roles on new tables what they have on the old: who reads runs, who writes events.
LIKE_BEFORE = """
SELECT format('GRANT %s ON %I.%I TO %s', new.privileges, n.nspname, new.name,
              CASE a.grantee WHEN 0 THEN 'PUBLIC' ELSE a.grantee::regrole::text END)
FROM pg_catalog.pg_class AS c JOIN pg_catalog.pg_namespace AS n ON n.oid = c.relnamespace, aclexplode(c.relacl) AS a,
     (VALUES ('runs', 'SELECT', 'outbox', 'SELECT'), ('runs', 'SELECT', 'bodies', 'SELECT'),
             ('runs', 'SELECT', 'destinations', 'SELECT'), ('runs', 'SELECT', 'steps', 'SELECT'),
             ('events', 'INSERT', 'outbox', 'INSERT, UPDATE'), ('events', 'INSERT', 'bodies', 'INSERT'),
             ('events', 'INSERT', 'destinations', 'INSERT, UPDATE'), ('events', 'INSERT', 'steps', 'INSERT'))
         AS new (old, held, name, privileges)
WHERE n.nspname = $1 AND c.relname = new.old AND a.privilege_type = new.held AND a.grantee <> c.relowner"""
#: Which ledger is it, asked without a function of its own.
IDENTITY = "SELECT id, format FROM {schema}.ledger WHERE one = 1"
#: Locks are taken in the order in which a pruning takes them: events, then the ledger's own row.
WRITERS_WAIT = "LOCK TABLE {schema}.events IN SHARE ROW EXCLUSIVE MODE"
#: The oldest server that can do what the functions ask for.
OLDEST = 140000
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
            if self._connection.ask("SELECT pg_catalog.current_setting($1)", setting)[0][0] == "off":
                return Risk(f"a server with {setting} = off", why)
        return None

    def create(self, ledger: str, *, volatile: str | None = None, epoch: int = 1) -> None:
        self.refuse_too_old()
        with self._connection.begin() as transaction:
            self.alone(transaction)
            if self.stands():
                raise NotThisLedger(
                    f"the schema of {self._connection.shown} holds something already.",
                    "Nothing was changed; name another with ?schema=NAME.",
                )
            self._make_schema(transaction)
            for name in (*TABLES, *FUNCTIONS):
                transaction.execute(self.script(name))
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

    def _make_schema(self, transaction: Transaction) -> None:
        """Make the schema; one that is there and empty was made by somebody for this."""
        rights = """
        SELECT current_user, has_database_privilege(current_database(), 'CREATE'),
               (SELECT has_schema_privilege(oid, 'USAGE, CREATE') FROM pg_catalog.pg_namespace WHERE nspname = $1),
               quote_ident(current_user), quote_ident(current_database())"""
        user, may_make, may_fill, role, database = transaction.execute(rights, self.schema)[0]
        if may_fill is None:
            if may_make != "t" and self.schema.startswith(SCRATCH):  # the next one has another name
                raise makes_no_schema(str(role), str(database), "Nothing was created. ")
            if may_make != "t":
                raise ConfigError(
                    f"{self._connection.shown} lets the role {user} make no schema.",
                    f'Nothing was created. Let the owner of the database say: CREATE SCHEMA "{self.schema}"'
                    f' AUTHORIZATION "{user}"; then say it again.',
                )
            transaction.execute(f'CREATE SCHEMA "{self.schema}"')
        elif may_fill != "t":
            raise ConfigError(
                f"{self._connection.shown} lets the role {user} make no table in that schema.",
                f'Nothing was created. Let its owner say: GRANT USAGE, CREATE ON SCHEMA "{self.schema}" TO "{user}"; '
                "or name another with ?schema=NAME.",
            )

    def alone(self, transaction: Transaction) -> None:
        """Wait until nobody else makes or replaces the ledger, and keep others from it until the end."""
        wait = max(1, int(self._connection.wait_seconds * 900))
        transaction.execute("SELECT set_config('lock_timeout', $1, true)", str(wait))
        transaction.execute("SELECT pg_advisory_xact_lock(hashtextextended($1, 0))", f"ranonce {self.schema}")

    def refuse_too_old(self) -> None:
        """Raise ConfigError for a server that is older than what this is written for."""
        version = int(self._connection.ask("SELECT pg_catalog.current_setting('server_version_num')")[0][0] or 0)
        if version < OLDEST:
            raise ConfigError(
                f"{self._connection.shown} is PostgreSQL {version // 10000}, and a ledger needs"
                f" {OLDEST // 10000} or newer.",
                "Name another server.",
            )

    def upgrade(self, ledger: str | None) -> bool:
        if "ledger" not in self.tables():
            raise NotThisLedger(
                f"the schema of {self._connection.shown} holds something else, and no whole ledger.",
                "Nothing was changed. If there never was one, name another schema with ?schema=NAME; if it is what is"
                " left of one, restore it from a backup, or go on without: ranonce accept-loss --reason TEXT",
            )
        rows = self._connection.ask(in_schema(IDENTITY, self.schema))
        if rows and ledger not in (None, rows[0][0]):
            raise NotThisLedger(
                f"the ledger at {self._connection.shown} is ledger {rows[0][0]}, and {ledger} is expected there.",
                "Nothing was changed. Restore the right ledger, or name another store.",
            )
        known = int(rows[0][1] or 0) if rows else 0
        if not 0 < known <= FORMAT or (known == FORMAT and self.functions_are_ours()):
            return False  # or there is nothing to bring up to date: whoever opens it says why
        with self._connection.begin() as transaction:
            self.alone(transaction)
            self._upgrade_tables(transaction)
            for name in FUNCTIONS:
                transaction.execute(self.script(name))
        return True

    def _upgrade_tables(self, transaction: Transaction) -> None:
        """Bring the tables to this version's format, whatever it is once nobody else does the same.

        Functions that take more than they did would stand beside the older ones, so those go. Who could read or write
        what there was may do the same with what is new.
        """
        transaction.execute(in_schema(WRITERS_WAIT, self.schema))
        rows = transaction.execute(in_schema(f"{IDENTITY} FOR UPDATE", self.schema))
        known = int(rows[0][1] or 0) if rows else FORMAT
        if known == FORMAT:
            return
        for number in range(known, FORMAT):
            transaction.execute(self.script(NEW_TABLES[number]))
        for (statement,) in transaction.execute(OUTGROWN, self.schema) + transaction.execute(LIKE_BEFORE, self.schema):
            transaction.execute(str(statement))
        transaction.execute(in_schema("UPDATE {schema}.ledger SET format = $1 WHERE one = 1", self.schema), FORMAT)

    def tables(self) -> set[str]:
        """Return the names of the tables that stand there."""
        found = self._connection.ask(
            "SELECT c.relname FROM pg_catalog.pg_class AS c JOIN pg_catalog.pg_namespace AS n"
            " ON n.oid = c.relnamespace WHERE n.nspname = $1 AND c.relkind IN ('r', 'p')",
            self.schema,
        )
        return {str(row[0]) for row in found}

    def functions_are_ours(self) -> bool:
        """Say whether functions and triggers are those of this version."""
        found = self._connection.ask(STANDING, self.schema) + self._connection.ask(TRIGGERS_ON, self.schema)
        wanted = {function for file in FUNCTIONS for function in functions(file, self.schema)}
        triggers = {(name,) for name in TRIGGER.findall(text(FUNCTIONS[-1]))}
        return wanted | triggers <= set(found)

    def recovery(self) -> PostgresRecovery:
        from ranonce.stores.postgres.recovery import PostgresRecovery

        return PostgresRecovery(self.url, wait_seconds=self._connection.wait_seconds)

    def scratch(self, name: str) -> str:
        return in_namespace(self.url, SCRATCH + name)

    def destroy(self) -> None:
        if not self.schema.startswith(SCRATCH):
            raise UsageError(f"the schema {self.schema!r} holds no scratch ledger.", "Nothing was removed.")
        with self._connection.begin() as transaction:
            transaction.execute(f'DROP SCHEMA IF EXISTS "{self.schema}" CASCADE')
        self._connection.close()

    def script(self, name: str) -> str:
        """Return one of the files that make a ledger, for this schema."""
        return in_schema(text(name), self.schema)


def makes_no_schema(user: str, database: str, before: str) -> ConfigError:
    """Return the refusal of a role that may make no schema, where its name is another one each time."""
    return ConfigError(
        f"the role {user} may make no schema in database {database}.",
        f"{before}Let the owner of the database say: GRANT CREATE ON DATABASE {database} TO {user};"
        " (REVOKE it afterwards), then say it again.",
    )


def functions(file: str, schema: str) -> list[tuple[str, str, str]]:
    """Return the functions in a file of ours as the server tells them by `STANDING`."""
    found = FUNCTION.findall(text(file))
    return [(name, "t" if path else "f", in_schema(body, schema)) for name, path, body in found]


def text(name: str) -> str:
    """Return a file of ours."""
    with open(os.path.join(os.path.dirname(__file__), name), encoding="utf-8") as file:
        return file.read()
