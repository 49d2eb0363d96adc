"""What a role of PostgreSQL is set to, and what others make in the database, changes nothing of a ledger."""

from __future__ import annotations

import os
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from ranonce.ledger import OpenLedger
from ranonce.lifecycle import Retention
from ranonce.messages import Closing
from ranonce.stores import site_of
from ranonce.stores.base import Intake, Scope, Wanted
from ranonce.stores.postgres import site
from ranonce.stores.postgres.store import PostgresStore
from ranonce.storeurl import server_of
from tests.contract.acting import ask, claim, ledger_over, verdict
from tests.contract.emitting import mark, message, settle, take
from tests.contract.stores import LEDGER
from tests.ledgers import AFTER, BEFORE
from tests.servers import PostgresServer
from tests.test_postgres import admin, with_setting

STORES = Path(site.__file__).parent
#: What may be set for anybody, and would change what is read, or how it is compared.
SETTINGS = {
    "extra_float_digits": ("-15", "0"),
    "DateStyle": ("German", "SQL, DMY"),
    "IntervalStyle": ("sql_standard",),
    "TimeZone": ("Asia/Kathmandu",),
    "bytea_output": ("escape",),
    "standard_conforming_strings": ("off",),
    "transform_null_equals": ("on",),
    "array_nulls": ("off",),
    "quote_all_identifiers": ("on",),
    "search_path": ("nowhere",),
    "lock_timeout": ("1",),
}


@pytest.fixture
def url(postgres: PostgresServer) -> str:
    address = postgres.url(f"t{os.urandom(6).hex()}")
    site_of(address, wait_seconds=20).create(LEDGER)
    return address


def with_messages(ledger: OpenLedger, day: int) -> None:
    """Run a day's window with an item and messages, one of which is being sent."""
    held = claim(ledger, day)
    mark(ledger, held, "item", message(ledger, held, "a"), result=b"\x00\xff")
    assert len(take(ledger.store)) == 1
    ledger.finish(held, verdict(messages=(message(ledger, held, "b", body=b"\x00\\"),)))


def told(store: PostgresStore) -> list[object]:
    """Return all that a store tells."""
    read = store.read(ask(2).key, ask(2).window.start).replace(now=0.0, wall=0.0)
    upkeep = store.upkeep()
    scope = Scope(BEFORE, AFTER, AFTER, 3, 0.0)
    outbox, (day, generation) = store.outbox(), (ask(1).window.start, 1)
    [first, *_] = outbox.messages(Wanted())
    return [
        outbox.queue("web", 9).replace(now=0.0, wall=0.0),
        outbox.messages(Wanted(job="job", window_start=day, destination="web", states=frozenset({"pending"}))),
        outbox.message(first.seq),
        outbox.known([first.key]),
        outbox.destinations(),
        outbox.tally("web", AFTER),
        outbox.waiting("job", BEFORE, AFTER),
        store.steps(ask(1).key, day, generation),
        store.step(ask(1).key, day, generation, "item"),
        list(upkeep.all_messages()),
        list(upkeep.all_steps()),
        read,
        store.leases("job"),
        store.jobs(),
        store.job("job"),
        store.identity(),
        store.gates(),
        store.outline("job", BEFORE, AFTER),
        store.glance("job", scope),
        store.schedules("job"),
        store.tombstones("job", BEFORE, AFTER),
        list(upkeep.all_runs()),
        list(upkeep.all_events()),
        upkeep.epochs(),
        upkeep.problems(deep=True),
    ]


@pytest.mark.parametrize(("name", "value"), [(name, value) for name, some in SETTINGS.items() for value in some])
def test_what_a_role_is_set_to_changes_nothing_that_is_read(url, name, value):
    plain = ledger_over(PostgresStore(url, wait_seconds=20))
    plain.finish(claim(plain, 0), verdict("failed"))
    with_messages(plain, 1)
    plain.store.upkeep().accept_loss("a test", "me")
    ledger = OpenLedger(PostgresStore(with_setting(url, name, value), wait_seconds=20), folder=None, wait_seconds=2)
    held = claim(ledger, 2)
    assert told(ledger.store) == told(PostgresStore(url, wait_seconds=20))
    assert abs(ledger.store.clock().wall - plain.store.clock().wall) < 20
    assert ledger.renew(held, "forbid") is None
    assert ledger.finish(held, verdict(messages=(message(ledger, held, "c"),))) is None
    assert [settle(ledger.store, one) for one in take(ledger.store)] == ["sent"] * 2
    assert ledger.store.outbox().exchange("web", closing=Closing(4e9, "closed")).taken is False
    assert ledger.store.upkeep().prune("job", Retention(AFTER, AFTER)).runs


# --- what others make there -----------------------------------------------------------------------------------------

#: Functions and operators that fit better than PostgreSQL's own, which take a value of any kind, or another one.
PLANTED = (
    *(
        f"FUNCTION {{evil}}.{name}({', '.join(kinds)}) RETURNS {{returns}}".replace("{returns}", returns)
        for name, kinds, returns in (
            ("json_build_array", ("text", "bigint", "numeric", "double precision", "integer"), "json"),
            ("json_build_array", ("text", "bigint", "double precision", "double precision", "integer"), "json"),
            ("json_build_array", ("text", "numeric", "text", "text", "numeric"), "json"),
            ("json_build_array", ("integer", "text", "text", "text", "integer", "bigint", "numeric"), "json"),
            ("json_build_array", ("integer", "numeric", "text", "text"), "json"),
            ("json_build_array", ("json", "bigint"), "json"),
            ("json_build_array", ("bigint", "bigint"), "json"),
            ("json_build_array", ("double precision", "json"), "json"),
            ("json_build_array", ("text", "bigint", "bigint", "bigint", "bigint", "numeric"), "json"),
            ("json_build_array", ("boolean", "bigint"), "json"),
            ("json_build_array", ("text", "boolean", "numeric", "numeric"), "json"),
            ("json_build_array", ("integer", "numeric"), "json"),
            ("json_build_array", (*["text"] * 3, "bigint", "text", "integer", "bigint", "text"), "json"),
            ("json_build_array", ("json", "boolean"), "json"),
            ("json_build_array", ("json", "bigint", "integer"), "json"),
            ("json_build_array", (*["text"] * 4, "bigint", *["text"] * 3, "bigint", "bigint", "text"), "json"),
            ("json_build_array", (*["text"] * 3, "boolean", "bigint", "numeric"), "json"),
            ("json_build_array", ("text", "bigint", "text", "bigint"), "json"),
            ("array_to_json", ("bigint[]",), "json"),
            ("array_to_json", ("text[]",), "json"),
            ("length", ("character varying",), "integer"),
            ("jsonb_array_length", ("json",), "integer"),
            ("unnest", ("text[]",), "SETOF text"),
            ("hashtextextended", ("text", "integer"), "bigint"),
            ("length", ("{schema}.events",), "integer"),
            ("pg_has_role", ("oid", "character varying"), "boolean"),
        )
    ),
)
OPERATORS = (
    ("||", "bigint[]", "bigint", "bigint[]"),
    ("||", "text", "regclass", "text"),
    ("||", "text", "name", "text"),
    ("||", "text", "bigint", "text"),
    ("||", "text", "integer", "text"),
    ("~", "name", "name", "boolean"),
    ("~", "name", "text", "boolean"),
    ("*", "numeric", "integer", "numeric"),
    ("=", "character varying", "text", "boolean"),
    ("<", "numeric", "double precision", "boolean"),
    (">", "numeric", "double precision", "boolean"),
)


@pytest.fixture
def trapped(url: str) -> Iterator[str]:
    """The address of a ledger whose owner's search_path leads to what somebody else has planted."""
    schema, evil = server_of(url).namespace, f"evil{os.urandom(4).hex()}"
    body = "LANGUAGE plpgsql AS $$ BEGIN RAISE EXCEPTION 'this was planted'; END $$"
    with admin(url) as db:
        db.execute(f"CREATE SCHEMA {evil}")
        for planted in PLANTED:
            db.execute(f"CREATE {planted.replace('{evil}', evil).replace('{schema}', schema)} {body}")
        for number, (name, left, right, returns) in enumerate(OPERATORS):
            db.execute(f"CREATE FUNCTION {evil}.o{number}({left}, {right}) RETURNS {returns} {body}")
            operator = f"FUNCTION = {evil}.o{number}, LEFTARG = {left}, RIGHTARG = {right}"
            db.execute(f"CREATE OPERATOR {evil}.{name} ({operator})")
        yield with_setting(url, "search_path", f"{evil}")
        db.execute(f"DROP SCHEMA {evil} CASCADE")


def test_what_others_put_on_the_search_path_is_not_called(trapped):
    store = PostgresStore(trapped, wait_seconds=20)
    assert store.ask("SHOW search_path")[0][0].startswith("evil")
    ledger = ledger_over(store)
    ledger.finish(claim(ledger, 0), verdict("failed"))
    with_messages(ledger, 1)
    held = claim(ledger, 2)
    assert ledger.renew(held, "forbid") is None
    assert told(store)[-1] == []
    assert ledger.finish(held, verdict(messages=(message(ledger, held, "c"),))) is None
    assert [settle(store, one) for one in take(store)] == ["sent"] * 2
    assert store.upkeep().take_in(Intake(messages=tuple(store.upkeep().all_messages())), lambda *_: False).events == 0
    assert store.upkeep().prune("job", Retention(AFTER, AFTER)).runs
    store.upkeep().accept_loss("a test", "me")
    site = site_of(trapped, wait_seconds=20)
    assert (site.stands(), site.risk(), site.upgrade(LEDGER)) == (True, None, False)
    other = site_of(site.scratch("trapped"), wait_seconds=20)
    other.create("f" * 32)
    other.destroy()


#: What looks like a call and is grammar, or names a table's columns.
GRAMMAR = {
    *("all", "and", "any", "array", "as", "by", "check", "coalesce", "conflict", "exists", "extract", "filter", "from"),
    *("greatest", "in", "into", "key", "not", "or", "over", "row", "select", "set", "using", "values", "when", "where"),
}
CALL = re.compile(r"""(?<![\w."}$])([a-z_]\w*) ?\(""", re.IGNORECASE)
#: So small that they become part of the statement that calls them.
INLINED = {
    "seconds",
    "instant",
    "run_values",
    "schedule_values",
    "gate_values",
    "event_values",
    "claims_of",
    "step_values",
}


def calls(text: str) -> set[str]:
    """Return what is called in SQL without a schema."""
    return {name.lower() for name in CALL.findall(re.sub(r"--.*|'[^']*'", "", text))} - GRAMMAR


@pytest.mark.parametrize("name", ["store.sql", "outbox.sql", "promise.sql"])
def test_what_is_asked_by_itself_names_the_schema_of_each_function(name):
    assert calls((STORES / name).read_text()) == set()


def test_a_function_has_its_own_search_path_unless_only_such_call_it_or_it_names_every_schema():
    named = "".join((STORES / f"{each}.sql").read_text() for each in ("store", "outbox", "upkeep", "intake", "promise"))
    apart = {}
    for file in site.FUNCTIONS:
        for name, path, body in site.functions(file, "x"):
            if path == "f":
                apart[name] = body
    assert set(apart) >= INLINED
    for name, body in apart.items():
        assert name not in INLINED or calls(body) == set(), name
        assert name in INLINED or f"{{schema}}.{name}(" not in named, name


def test_a_function_that_has_lost_its_search_path_is_noticed_and_mended(url):
    store = PostgresStore(url, wait_seconds=20)
    with admin(url) as db:
        db.execute("ALTER FUNCTION drop_runs RESET ALL")
    assert store.upkeep().problems(deep=False) == ["the function drop_runs is not what it should be"]
    assert site_of(url, wait_seconds=20).upgrade(LEDGER)
    assert store.upkeep().problems(deep=False) == []
