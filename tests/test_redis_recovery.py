"""A lost ledger in Redis is replaced whole: moved aside by one script, put back where that comes to nothing."""

from __future__ import annotations

import pytest

from ranonce.errors import NotThisLedger, StoreUnavailable
from ranonce.exchange import loss
from ranonce.storeurl import server_of
from tests import losses
from tests.acceptance.test_accept_loss import DONE, accept, accepted, three_nights
from tests.losses import created_anew_under_the_same_id, redis_behind, without_identity

pytestmark = pytest.mark.parametrize("store_kind", ["redis"], indirect=True)

#: What the documentation gives a user that runs jobs, and one that looks after the ledger besides.
JOBS = """resetchannels +@hash +@sortedset +@list +@connection +eval +evalsha +exists +type +time +info
+config|get""".split()  # noqa: SIM905
OWNER = ["+scan", "+keys", "+rename", "+unlink"]


@pytest.fixture
def user(world):
    """The environment of a user that runs jobs, and who may be given more."""
    namespace = server_of(world.url).namespace
    name = f"jobs_{namespace}"

    def allow(*rules):
        with redis_behind(world) as (db, _):
            db.execute_command("ACL", "SETUSER", name, *rules)

    allow("on", ">hunter2", f"~{{{namespace}}}:*", *JOBS)
    yield {"RANONCE_STORE": world.url.replace("redis://", f"redis://{name}:hunter2@")}, allow
    with redis_behind(world) as (db, _):
        db.execute_command("ACL", "DELUSER", name)


def test_a_user_that_runs_jobs_accepts_no_loss_and_one_that_may_rename_does(world, user):
    env, allow = user
    namespace = server_of(world.url).namespace
    three_nights(world)
    assert world.run(env=env).said() == (0, "skipped", "done")
    without_identity(world)
    before = losses.content(world)
    refused = accept(world, env=env)
    assert refused.exit == 78
    assert "ACL LIST" in refused.sentence
    allow(*OWNER)  # but not for the keys beside
    assert accept(world, env=env).exit == 78
    assert losses.content(world) == before
    allow(f"~{{{namespace}_lost_*}}:*", f"~{{{namespace}_recovered_*}}:*")
    ran = accept(world, env=env)
    assert ran.exit == 0, ran.err
    assert world.states() == DONE
    assert world.run(env=env).said() == (0, "skipped", "done")


def test_what_was_moved_aside_is_put_back_where_no_new_ledger_came_about(world, monkeypatch):
    three_nights(world)
    without_identity(world)
    before = set(losses.content(world))

    def failing(name):
        assert losses.content(world) == {}  # nobody writes into it meanwhile
        raise StoreUnavailable("the disk is full.", "Try again.")

    monkeypatch.setattr(loss, "failpoint", failing)
    with pytest.raises(StoreUnavailable, match="the disk is full"):
        accepted(world)
    assert set(losses.content(world)) == before
    assert losses.beside(world) == []
    monkeypatch.undo()
    accepted(world)
    assert world.states() == DONE


def test_a_ledger_that_somebody_put_there_meanwhile_is_not_replaced(world, monkeypatch):
    three_nights(world)
    without_identity(world)
    monkeypatch.setattr(loss, "failpoint", lambda name: created_anew_under_the_same_id(world))
    with pytest.raises(NotThisLedger, match="has put a ledger"):
        accepted(world)
    (aside,) = losses.beside(world)
    assert "_lost_" in aside
    monkeypatch.undo()
    accepted(world)  # it is behind what this host remembers
    assert world.states() == DONE
