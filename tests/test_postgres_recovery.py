"""A lost ledger in PostgreSQL is replaced whole: names, rights and owner stay, and whoever writes meanwhile waits."""

from __future__ import annotations

import pytest

from ranonce.exchange import loss
from ranonce.storeurl import server_of
from tests import losses
from tests.acceptance.test_accept_loss import DONE, NIGHTS, accept, accepted, three_nights
from tests.behind import postgres_behind
from tests.conftest import wait_until
from tests.losses import without_identity, without_runs
from tests.roles import as_role, role

pytestmark = pytest.mark.parametrize("store_kind", ["postgres"], indirect=True)


def schema_of(world):
    return server_of(world.url).namespace


def test_whoever_wants_to_write_waits_and_then_meets_the_new_tables(world, monkeypatch):
    three_nights(world)
    without_runs(world)
    started = []

    def meanwhile(name):
        if name == "loss:built":
            started.append(world.start(*world.words(now="2026-11-10T12:00:00Z")))
            wait_until(lambda: waiting(world) or started[0].process.poll() is not None)

    monkeypatch.setattr(loss, "failpoint", meanwhile)
    accepted(world)
    assert started[0].ends().said() == (0, "done", None)
    assert world.states() == [*DONE, ("2026-11-10", "done")]
    assert len(world.effects()) == 1


def waiting(world):
    """Say whether somebody waits for a lock on this ledger's tables."""
    with postgres_behind(world) as db:
        asked = """SELECT 1 FROM pg_locks JOIN pg_class AS c ON c.oid = relation
                   JOIN pg_namespace AS n ON n.oid = c.relnamespace WHERE NOT granted AND nspname = %s"""
        return db.execute(asked, (schema_of(world),)).fetchone()


def test_roles_keep_their_rights_and_the_schema_its_owner(world):
    schema = schema_of(world)
    three_nights(world)
    with role(world, "owner of all") as owner, role(world, "reader") as reader:
        with postgres_behind(world) as db:
            for table in losses.TABLES:
                db.execute(f'ALTER TABLE {table} OWNER TO "{owner}"')
            db.execute(f'ALTER SCHEMA "{schema}" OWNER TO "{owner}"')
            db.execute(f'GRANT USAGE ON SCHEMA "{schema}" TO "{reader}"')
            db.execute(f'GRANT SELECT ON runs, events TO "{reader}"')
            db.execute(f'GRANT INSERT ON events TO "{reader}"')
            db.execute(
                f'REVOKE EXECUTE ON FUNCTION seconds FROM PUBLIC; GRANT EXECUTE ON FUNCTION seconds TO "{reader}"'
            )
        rights = rights_of(world)
        without_identity(world)
        accepted(world)
        assert rights_of(world) == rights


def rights_of(world):
    """Return owners and rights of the schema and all in it, by name."""
    asked = """
    SELECT 'schema', nspowner::regrole, x.grantee::regrole, x.privilege_type
    FROM pg_namespace, aclexplode(nspacl) AS x WHERE nspname = %s
    UNION ALL SELECT relname, relowner::regrole, x.grantee::regrole, x.privilege_type
    FROM pg_class LEFT JOIN aclexplode(relacl) AS x ON true
    WHERE relnamespace = %s::regnamespace AND relkind = 'r'
    UNION ALL SELECT proname, NULL, x.grantee::regrole, x.privilege_type
    FROM pg_proc, aclexplode(proacl) AS x WHERE pronamespace = %s::regnamespace AND x.grantee <> proowner"""
    schema = schema_of(world)
    with postgres_behind(world) as db:
        return sorted(db.execute(asked, (schema, schema, schema)).fetchall(), key=str)


def test_who_does_not_own_the_schema_accepts_no_loss_in_it(world):
    three_nights(world)
    without_identity(world)
    with role(world, "stranger") as stranger:
        with postgres_behind(world) as db:
            schema = schema_of(world)
            db.execute(f'GRANT USAGE ON SCHEMA "{schema}" TO "{stranger}"')
            db.execute(f'GRANT SELECT, INSERT, UPDATE, DELETE ON ALL TABLES IN SCHEMA "{schema}" TO "{stranger}"')
        before = losses.content(world)
        ran = accept(world, env={"RANONCE_STORE": world.url.replace("postgres@", f"{stranger}@")})
        assert ran.exit == 78
        assert f"belongs to postgres, and {stranger} may not replace it" in ran.sentence
        assert "Ask as the role that owns the ledger (postgres)" in ran.sentence
        assert losses.content(world) == before
        assert losses.beside(world) == []


@pytest.mark.parametrize("lost", [losses.gone, without_identity])
def test_an_owner_that_may_make_no_schema_is_told_what_lets_it_and_then_it_goes_on(world, lost):
    three_nights(world)
    schema, database = schema_of(world), server_of(world.url).address.rpartition("/")[2]
    with role(world, "owner") as owner:
        with postgres_behind(world) as db:
            for table in losses.TABLES:
                db.execute(f'ALTER TABLE {table} OWNER TO "{owner}"')
            db.execute(f'ALTER SCHEMA "{schema}" OWNER TO "{owner}"')
        lost(world)
        env = as_role(world, owner)
        refused = accept(world, env=env)
        grant = f"GRANT CREATE ON DATABASE {database} TO {owner};"
        assert refused.exit == 78
        assert f"the role {owner} may make no schema in database {database}" in refused.sentence
        assert f"{grant} (REVOKE it afterwards), then say it again" in refused.sentence
        assert "ranonce_recovered" not in refused.err
        assert losses.beside(world) == []
        with postgres_behind(world) as db:
            db.execute(grant)
        assert accept(world, env=env).exit == 0
        with postgres_behind(world) as db:
            db.execute(f'REVOKE CREATE ON DATABASE {database} FROM "{owner}"')


def test_a_drill_of_a_role_that_may_make_no_schema_names_no_schema_of_its_own(world):
    with role(world, "driller") as driller:
        refused = world.ranonce("drill", env=as_role(world, driller))
        assert refused.exit == 78
        assert "may make no schema in database" in refused.sentence
        assert "AUTHORIZATION" not in refused.err


def test_functions_that_are_gone_are_mended_by_init_and_no_loss(world):
    three_nights(world)
    with postgres_behind(world) as db:
        db.execute("DROP FUNCTION run_values")
        db.execute("DROP TRIGGER events_are_not_changed ON events")
        db.execute("ALTER TABLE events DISABLE TRIGGER events_are_not_emptied")
    refused = accept(world)
    assert refused.exit == 78
    assert "ranonce init" in refused.sentence
    again = world.ranonce("init")
    assert again.exit == 0, again.err
    assert b"older version" in again.out
    assert b"Nothing is wrong" in accept(world).out
    assert world.run(now=NIGHTS[2]).said() == (0, "skipped", "done")
    assert b"older version" not in world.ranonce("init").out


def test_a_server_that_fails_before_the_exchange_leaves_all_as_it_was(world, monkeypatch):
    three_nights(world)
    without_identity(world)
    before = losses.content(world)

    def meanwhile(name):
        if name == "loss:built":
            with postgres_behind(world) as db:
                db.execute(
                    "SELECT pg_terminate_backend(pid) FROM pg_locks JOIN pg_class AS c ON c.oid = relation"
                    " WHERE mode = 'ExclusiveLock' AND c.relnamespace = %s::regnamespace",
                    (schema_of(world),),
                )

    monkeypatch.setattr(loss, "failpoint", meanwhile)
    with pytest.raises(Exception, match="could not be reached"):
        accepted(world)
    assert losses.content(world) == before
    assert losses.beside(world) == []
    monkeypatch.undo()
    accepted(world)
    assert world.states() == DONE


def test_long_names_are_cut_so_that_what_is_beside_has_a_name_too(bare):
    server = server_of(bare.url)
    bare.url = f"{server.address}?schema={server.namespace}{'x' * (63 - len(server.namespace))}"
    try:
        bare.init()
        three_nights(bare)
        without_identity(bare)
        aside = accepted(bare)["aside"]
        assert len(aside) <= 63
        assert bare.states() == DONE
        losses.forget(losses.url_of(bare, aside))
    finally:
        losses.forget(bare.url)
