"""`init` on a server: every refusal is one sentence, nothing is made twice, and no password is written or shown."""

from __future__ import annotations

import json
import shutil

import pytest

from ranonce.storeurl import server_of
from tests.behind import postgres_behind
from tests.conftest import TODAY, World
from tests.losses import created_anew, gone, redis_behind, without_identity
from tests.roles import as_role, role
from tests.servers import PostgresServer, ValkeyServer, free_port, private_folder

on_servers = pytest.mark.parametrize("store_kind", ["postgres", "redis"], indirect=True)
on_postgres = pytest.mark.parametrize("store_kind", ["postgres"], indirect=True)


def init(world, *words, **how):
    return world.ranonce("init", "--store", world.url, *words, **how)


@on_servers
def test_it_says_what_it_made_and_what_to_set_elsewhere(bare):
    ran = init(bare)
    assert ran.exit == 0, ran.err
    bare.ledger = bare.config.read_text().split('"')[3]
    lines = ran.out.decode().splitlines()
    assert lines[0] == f"Created the ledger {bare.ledger} at {bare.url}."
    assert lines[2:4] == [f"RANONCE_STORE={bare.url}", f"RANONCE_LEDGER={bare.ledger}"]
    assert bare.config.read_text() == f'[ledger]\nstore = "{bare.url}"\nid = "{bare.ledger}"\n'
    assert bare.run().said() == (0, "done", None)


@on_postgres
def test_what_is_to_be_set_elsewhere_may_be_pasted_into_a_shell(bare):
    bare.url = bare.url.replace("?", "?application_name=nightly&")
    assert f"\nRANONCE_STORE='{bare.url}'\n" in init(bare).out.decode()


@on_servers
def test_said_again_it_changes_nothing(world):
    world.run()
    config = world.config.read_bytes()
    again = init(world)
    assert again.exit == 0
    assert again.out.decode().startswith(f"Found the ledger {world.ledger} at ")
    assert world.config.read_bytes() == config
    assert world.run().said() == (0, "skipped", "done")


@on_servers
def test_of_many_at_once_one_makes_it_and_all_succeed_with_its_id(bare):
    told = [json.loads(ran.out) for ran in bare.at_once(4, "init", "--store", bare.url, "--json")]
    assert len({each["ledger"] for each in told}) == 1
    assert sorted(each["created"] for each in told) == [False, False, False, True]


@on_postgres
def test_of_many_at_once_in_an_empty_schema_too(bare):
    with postgres_behind(bare) as db:
        db.execute(f'CREATE SCHEMA "{server_of(bare.url).namespace}"')
    told = [json.loads(ran.out) for ran in bare.at_once(4, "init", "--store", bare.url, "--json")]
    assert sorted(each["created"] for each in told) == [False, False, False, True]


@on_servers
def test_no_second_ledger_is_made_where_one_is_known_to_have_been(world):
    world.run()
    gone(world)
    refused = init(world)
    assert refused.exit == 78
    assert world.ledger in refused.sentence
    assert "ranonce accept-loss" in refused.sentence
    with pytest.raises(Exception, match=r"no (whole )?ledger"), world.opened():
        pass


@on_servers
@pytest.mark.parametrize("lost", [created_anew, without_identity], ids=lambda lost: lost.__name__)
def test_a_ledger_that_was_replaced_is_not_found(world, lost):
    world.run()
    lost(world)
    refused = init(world)
    assert refused.exit == 78
    assert refused.sentence
    assert world.run().exit == 78


@on_servers
def test_a_configuration_takes_no_second_ledger(world):
    other = world.url + "x"
    refused = world.ranonce("init", "--store", other)
    assert refused.exit == 78
    assert f"already names the ledger {world.ledger} at {world.url}" in refused.sentence


# --- what is in the way ---------------------------------------------------------------------------------------------


@on_postgres
def test_a_database_that_is_missing_is_named(bare):
    url = bare.url.replace("/postgres?", "/nowhere?")
    refused = bare.ranonce("init", "--store", url)
    assert refused.exit == 78
    assert 'database "nowhere" does not exist' in refused.sentence


@on_servers
def test_a_server_that_is_not_there_is_waited_for_and_named(bare):
    port = server_of(bare.url).address.rpartition(":")[2].partition("/")[0]
    url = bare.url.replace(port, str(free_port()))
    bare.config.parent.mkdir(mode=0o700)
    bare.config.write_text(f'[ledger]\nstore = "{url}"\nstore_wait = "1s"\n')
    bare.config.chmod(0o600)
    refused = bare.ranonce("init")
    assert refused.exit == 69
    assert "could not be reached in time" in refused.sentence


@on_postgres
def test_a_schema_that_holds_something_else_is_left_alone(bare):
    schema = server_of(bare.url).namespace
    with postgres_behind(bare) as db:
        db.execute(f'CREATE SCHEMA "{schema}"; CREATE TABLE "{schema}".accounts (balance integer)')
        refused = init(bare)
        assert refused.exit == 78
        assert "holds something else" in refused.sentence
        assert "?schema=NAME" in refused.sentence
        assert db.execute("SELECT tablename FROM pg_tables WHERE schemaname = %s", (schema,)).fetchall() == [
            ("accounts",)
        ]


@on_postgres
def test_a_role_that_may_make_no_schema_is_told_what_its_owner_says(bare):
    schema = server_of(bare.url).namespace
    with role(bare, "maker") as maker:
        env = {"RANONCE_STORE": as_role(bare, maker)["RANONCE_STORE"]}
        refused = bare.ranonce("init", env=env)
        assert refused.exit == 78
        statement = f'CREATE SCHEMA "{schema}" AUTHORIZATION "{maker}"'
        assert statement in refused.sentence
        with postgres_behind(bare) as db:
            db.execute(statement)
        made = bare.ranonce("init", env=env)
        assert made.exit == 0, made.err
        assert bare.run(env=env).said() == (0, "done", None)


@on_postgres
def test_a_role_that_may_make_no_table_in_the_schema_is_told_what_it_lacks(bare):
    schema = server_of(bare.url).namespace
    with role(bare, "maker") as maker:
        with postgres_behind(bare) as db:
            db.execute(f'CREATE SCHEMA "{schema}"')
        refused = bare.ranonce("init", "--store", bare.url.replace("postgres@", f"{maker}@"))
        assert refused.exit == 78
        assert f'GRANT USAGE, CREATE ON SCHEMA "{schema}" TO "{maker}"' in refused.sentence


# --- what may be lost -----------------------------------------------------------------------------------------------

RISKY = {
    "postgres": (lambda folder: PostgresServer(folder, options=("-c", "fsync=off")), "fsync = off"),
    "redis": (lambda folder: ValkeyServer(folder, options=("--appendfsync", "everysec")), "appendfsync everysec"),
}


@pytest.fixture(params=sorted(RISKY))
def risky(request, bare, tmp_path_factory):
    """A world on a server that may lose what it has answered, and what it is said to lack."""
    make, what = RISKY[request.param]
    server = make(private_folder(tmp_path_factory.mktemp("risky") / "server"))
    server.start()
    bare.url = server.url("t0")
    yield bare, what
    server.stop()


def test_a_server_that_may_lose_what_it_answered_is_refused_unless_that_is_accepted_and_recorded(risky):
    world, what = risky
    refused = init(world)
    assert refused.exit == 78
    assert what in refused.sentence
    assert "--accept-volatile" in refused.sentence
    assert not world.config.exists()
    assert init(world, "--accept-volatile").exit == 0
    with world.opened() as store:
        assert what in store.identity().volatile
    assert world.run().said() == (0, "done", None)
    assert init(world).exit == 0


# --- passwords ------------------------------------------------------------------------------------------------------

SECRET = "hunter2"


@pytest.fixture
def secret(bare):
    """A world without a ledger, whose store has a password in its address."""
    if bare.url.startswith("postgresql"):
        bare.url = bare.url.replace("postgres@", f"postgres:{SECRET}@")
        yield bare
        return
    with redis_behind(bare) as (db, _):
        db.execute_command("ACL", "SETUSER", "app", "on", f">{SECRET}", "~*", "&*", "+@all")
        bare.url = bare.url.replace("redis://", f"redis://app:{SECRET}@")
        yield bare
        db.execute_command("ACL", "DELUSER", "app")


def kept(world):
    """Return all that is on this host's disk of a world."""
    return b"".join(path.read_bytes() for path in world.root.rglob("*") if path.is_file())


@on_servers
def test_a_password_is_shown_and_written_nowhere(secret):
    secret.env["RANONCE_STORE"] = secret.url
    wrong = secret.url.replace(SECRET, SECRET + "@")
    days = ("--since", "2026-11-08", "--until", "2026-11-10")
    said = [
        secret.ranonce("init", env={"RANONCE_STORE": wrong}),
        secret.ranonce("init", env={"RANONCE_STORE": secret.url.replace("127.0.0.1", "127.0.0.1:x")}),
        secret.ranonce("init"),
        secret.ranonce("init", "--json"),
        secret.ranonce("add", "job", "--every", "day", "--", "/bin/true"),
        secret.ranonce("add", "job", "--every", "day", "--for", "kubernetes", "--", "/bin/true"),
        secret.run(),
        secret.run("--now", TODAY, job="other"),
        *(secret.ranonce(*words) for words in (("status",), ("show", "job", TODAY), ("probe",), ("doctor", "--deep"))),
        *(secret.ranonce(*words, "--json") for words in (("status", "job", *days), ("probe", "job"), ("doctor",))),
        secret.ranonce("export", "--output", str(secret.root / "export.jsonl")),
        secret.ranonce("backup", str(secret.root / "copy")),
        secret.ranonce("accept-loss", "--reason", "none"),
        secret.ranonce("accept-loss", "--reason", "none", "--json"),
    ]
    secret.ledger = secret.config.read_text().split('"')[3]
    (secret.folder / "journal.jsonl").rename(secret.folder / "kept")
    gone(secret)
    said += [secret.run(), secret.ranonce("init"), secret.ranonce("accept-loss", "--reason", "gone")]
    assert [ran.exit for ran in said[:4]] == [78, 78, 0, 0]
    assert said[-1].exit == 0
    for ran in said:
        assert SECRET not in ran.err + ran.out.decode()
        assert "Traceback" not in ran.err
    assert SECRET.encode() not in kept(secret)
    assert (secret.root / "export.jsonl").exists()


@on_servers
def test_a_password_from_the_environment_serves_again_and_init_says_so(secret):
    ran = secret.ranonce("init", env={"RANONCE_STORE": secret.url})
    assert "here it came from $RANONCE_STORE, which jobs need, too" in ran.out.decode()
    assert secret.run(env={"RANONCE_STORE": secret.url}).said() == (0, "done", None)  # the file has the id
    told = json.loads(secret.ranonce("init", "--json", env={"RANONCE_STORE": secret.url}).out)
    assert (told["created"], told["named_by"]) == (False, "$RANONCE_STORE")


@on_servers
@pytest.mark.parametrize("written", ["${STORE_URL}", "password"])
def test_what_is_written_with_variables_stays_as_it_is_written(secret, written):
    if written == "password":
        written = secret.url.replace(SECRET, "${DB_PASSWORD}")
    env = {"STORE_URL": secret.url, "DB_PASSWORD": SECRET}
    secret.config.parent.mkdir(mode=0o700)
    secret.config.write_text(f'[ledger]\nstore = "{written}"\n')
    secret.config.chmod(0o600)
    ran = secret.ranonce("init", env=env)
    assert ran.exit == 0, ran.err
    assert secret.config.read_text().startswith(f'[ledger]\nstore = "{written}"\nid = "')
    assert f"the variables that {secret.config} names" in ran.out.decode()
    # what a command is given serves the commands in it
    noted = secret.run(sh="$RANONCE note 'seen from inside'; $RANONCE status >/dev/null", env=env)
    assert noted.said() == (0, "done", None), noted.err
    assert [event for event, _, _ in secret.events()] == ["start", "noted", "done"]


def test_the_schema_keeps_two_ledgers_of_one_database_apart(postgres, tmp_path):
    worlds = [World(path) for path in (tmp_path / "a", tmp_path / "b") if path.mkdir() is None]
    with postgres.place() as one, postgres.place() as other:
        for world, url in zip(worlds, (one, other), strict=True):
            world.url = url
            world.init()
            assert world.run().said() == (0, "done", None)
        assert worlds[0].ledger != worlds[1].ledger
        shutil.rmtree(worlds[1].folder)
        gone(worlds[1])
        assert worlds[0].run().said() == (0, "skipped", "done")
    for world in worlds:
        world.end()


@on_servers
def test_the_scheduler_is_said_to_have_to_hand_on_the_password(secret):
    env = {"RANONCE_STORE": secret.url}
    assert secret.ranonce("init", env=env).exit == 0
    added = secret.ranonce("add", "job", "--every", "day", "--", "/bin/true", env=env)
    assert "crontab must hand on RANONCE_STORE, from a line NAME=value above this one." in added.err
    for_github = secret.ranonce("add", "job", "--every", "day", "--for", "github", "--", "true", env=env)
    assert "must hand on" not in for_github.err
    assert "which is this host only" in for_github.err
