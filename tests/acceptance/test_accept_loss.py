"""A ledger that was lost: refused until the loss is accepted; then no window that this host remembers runs again."""

from __future__ import annotations

import contextlib
import io
import json
import os
import shutil
import signal
import time

import pytest

from ranonce import lifecycle
from ranonce.cli import accept_loss
from ranonce.cli.options import parse
from ranonce.errors import NotThisLedger
from ranonce.exchange import loss
from ranonce.ledger import OpenLedger
from ranonce.lifecycle import Claim, RunKey, Verdict
from ranonce.stores.base import Job
from ranonce.stores.sqlite import recovery
from ranonce.timefmt import parse_instant
from tests import losses
from tests.acceptance.test_stores import (
    deleted,
    half_gone,
    header_gone,
    not_a_database,
    store_files,
    truncated,
    without_its_wal,
    writable_by_others,
)
from tests.conftest import TODAY, wait_until
from tests.contract.acting import DAILY, ask
from tests.losses import (
    copied,
    created_anew,
    created_anew_under_the_same_id,
    emptied,
    gone,
    of_another_format,
    rolled_back,
    somebody_elses,
    without_a_table,
    without_identity,
    without_runs,
)

NIGHTS = ("2026-11-07T12:00:00Z", "2026-11-08T12:00:00Z", "2026-11-09T12:00:00Z")


def accept(world, *words, **how):
    return world.ranonce("accept-loss", "--reason", "the disk died", *words, **how)


def accepted(world):
    """Accept the loss without the start of a process; return what is said of it."""
    told = io.StringIO()
    with contextlib.redirect_stdout(told):
        words = ["--reason", "the disk died", "--json"]
        assert accept_loss.run(parse(accept_loss.COMMAND, words), world.env) == 0
    return json.loads(told.getvalue())


def night(world, instant):
    """Do a night's work, without the start of a process."""
    at = parse_instant(instant)
    ledger = OpenLedger.open(world.url, world.ledger, state_folder=str(world.folder.parent))
    ledger.declare(Job("job", 0, at, 3600.0, 3), DAILY, 0, now=at, change=False)
    window = DAILY.window_at(at)
    asking = ask(key=RunKey("job", window.key), window=window, now=at, served_from=window.start)
    held = ledger.claim(asking)
    assert isinstance(held, Claim)
    assert ledger.finish(held, Verdict("done", time.time())) is None
    ledger.close()


def three_nights(world):
    night(world, NIGHTS[0])
    night(world, NIGHTS[1])
    copied(world)
    night(world, NIGHTS[2])


DONE = [("2026-11-07", "done"), ("2026-11-08", "done"), ("2026-11-09", "done")]


def everything(world):
    """Return all that the ledger holds."""
    with world.opened() as store:
        upkeep = store.upkeep()
        return store.identity(), list(upkeep.all_runs()), list(upkeep.all_events()), store.jobs(), upkeep.epochs()


def a_flipped_bit(world):
    world.sql("PRAGMA wal_checkpoint(TRUNCATE)")
    whole = world.store.read_bytes()
    places = [at for at in range(len(whole)) if whole.startswith(b"2026-11-09", at)]
    at = places[-1]
    world.store.write_bytes(whole[: at + 9] + bytes([whole[at + 9] ^ 1]) + whole[at + 10 :])
    for file in store_files(world)[1:]:
        file.unlink()


def is_accepted(world, lost):
    """Lose three nights, and accept that."""
    three_nights(world)
    lost(world)
    refused = world.run()
    assert refused.exit == 78
    assert "ranonce accept-loss --reason TEXT" in refused.sentence
    told = accepted(world)
    assert (told["event"], told["epoch"]) == ("loss-accepted", 2)
    before = everything(world)
    assert accepted(world)["event"] == "nothing-wrong"
    assert everything(world) == before
    assert world.states() == DONE
    assert world.run().said() == (0, "skipped", "done")
    assert world.effects() == []
    (epoch,) = before[-1]
    assert (epoch.number, epoch.reason) == (2, "the disk died")
    assert "@" in epoch.by
    assert (before[0].ledger, before[0].epoch) == (world.ledger, 2)


LOST = [
    gone,
    emptied,
    rolled_back,
    created_anew_under_the_same_id,
    without_identity,
    without_runs,
    without_a_table,
]


@pytest.mark.every_store
@pytest.mark.parametrize("lost", LOST, ids=lambda lost: lost.__name__)
def test_after_a_loss_is_accepted_no_window_runs_again_that_this_host_remembers(world, lost):
    is_accepted(world, lost)


@pytest.mark.parametrize(
    "lost", [deleted, truncated, half_gone, header_gone, not_a_database], ids=lambda lost: lost.__name__
)
def test_nor_does_one_after_the_loss_of_a_file(world, lost):
    is_accepted(world, lost)


@pytest.mark.every_store
@pytest.mark.parametrize("lost", [without_identity, without_runs], ids=lambda lost: lost.__name__)
def test_what_other_hosts_did_is_put_back_as_far_as_it_can_be_read(world, lost):
    three_nights(world)
    shutil.rmtree(world.folder)  # this host remembers nothing
    lost(world)
    told = accepted(world)
    assert told["salvaged"] == 3
    assert world.states() == DONE
    assert world.run().said() == (0, "skipped", "done")


@pytest.mark.every_store
def test_a_decision_on_the_lost_ledger_is_not_committed_to_the_new_one(world):
    three_nights(world)
    tomorrow = DAILY.window_at(parse_instant("2026-11-10T12:00:00Z"))
    key = RunKey("job", tomorrow.key)
    with world.opened() as store:
        snap = store.read(key, tomorrow.start)
        decision = lifecycle.claim(snap, ask(key=key, window=tomorrow, now=tomorrow.start), {})
        without_identity(world)
        accepted(world)
        with contextlib.suppress(NotThisLedger):  # where the old store can be told from the new one
            assert store.commit(decision, key, snap.version) is None
    assert world.states() == DONE
    if world.url.startswith("sqlite"):
        return
    with world.opened() as store:
        assert store.read(key, tomorrow.start).version > snap.version + 1_000_000


@pytest.mark.every_store
def test_what_stood_there_is_moved_aside_and_never_deleted(world):
    three_nights(world)
    without_runs(world)
    before = world.facts()
    aside = accepted(world)["aside"]
    assert losses.facts_of(world, aside) == before
    assert losses.beside(world) == [aside]


def test_a_file_without_its_log_is_a_loss_like_any_other(world):
    world.run(now=NIGHTS[0])
    world.run(now=NIGHTS[1])
    without_its_wal(world)
    assert world.run(now=NIGHTS[1]).exit == 78
    accepted(world)
    for now in NIGHTS[:2]:
        assert world.run(now=now).said() == (0, "skipped", "done")
    assert len(world.effects()) == 2


def test_a_flipped_bit_in_an_index_is_mended_from_what_can_be_read(world):
    three_nights(world)
    a_flipped_bit(world)
    told = accepted(world)
    assert (told["kind"], told["salvaged"]) == ("damaged", 2)
    assert world.states() == DONE
    assert [event for event, _, _ in world.events()] == ["start", "done"]
    assert world.sql("PRAGMA integrity_check") == [("ok",)]
    assert world.ranonce("doctor", "--deep").exit == 0


@pytest.mark.every_store
def test_where_nothing_is_wrong_nothing_is_changed(world):
    three_nights(world)
    ran = accept(world)
    assert (ran.exit, b"Nothing is wrong" in ran.out) == (0, True)
    with world.opened() as store:
        assert store.identity().epoch == 1


def test_a_loss_is_not_accepted_without_a_reason(world):
    deleted(world)
    ran = world.ranonce("accept-loss")
    assert ran.exit == 64
    assert "--reason" in ran.sentence
    assert not world.store.exists()


@pytest.mark.every_store
@pytest.mark.parametrize("wrong", [created_anew, somebody_elses, of_another_format], ids=lambda wrong: wrong.__name__)
def test_what_is_no_loss_of_this_ledger_is_left_alone(world, wrong):
    if wrong is somebody_elses and world.url.startswith("redis"):
        pytest.skip("in Redis nothing is somebody else's where no key is ours")
    three_nights(world)
    wrong(world)
    before = losses.content(world)
    ran = accept(world)
    assert ran.exit == 78
    assert ran.sentence
    assert losses.content(world) == before


def test_a_file_that_others_may_write_is_left_alone(world):
    three_nights(world)
    writable_by_others(world)
    before = world.store.read_bytes()
    ran = accept(world)
    assert ran.exit == 78
    assert ran.sentence
    assert world.store.read_bytes() == before


@pytest.mark.parametrize("lost", [emptied, header_gone, not_a_database, without_runs], ids=lambda lost: lost.__name__)
def test_the_old_file_is_moved_aside_and_never_deleted(world, lost):
    three_nights(world)
    lost(world)
    before = world.store.read_bytes()
    aside = accepted(world)["aside"]
    with open(aside, "rb") as file:
        assert file.read() == before
    assert aside.startswith(f"{world.store}.lost-")
    assert oct(os.stat(world.store).st_mode & 0o777) == "0o600"
    assert sorted(file.name for file in world.store.parent.iterdir() if "recovered" in file.name) == []


@pytest.mark.parametrize(
    "damage",
    [
        "DELETE FROM events WHERE event = 'start'",
        "UPDATE events SET attempt = 7",
        "UPDATE events SET owner = 'x' WHERE event = 'done'",
        "UPDATE events SET generation = 3 WHERE event = 'start'",
    ],
)
def test_what_is_put_together_of_contradictions_is_whole(world, damage):
    three_nights(world)
    shutil.rmtree(world.folder)
    world.sql("DROP TRIGGER events_are_not_removed")
    world.sql("DROP TRIGGER events_are_not_changed")
    world.sql(damage)
    world.sql('UPDATE runs SET status = ? WHERE "window" = ?', "failed", TODAY)
    accepted(world)
    assert world.states() == DONE
    assert accepted(world)["event"] == "nothing-wrong"
    checked = world.ranonce("doctor", "--deep", "--json")
    assert (checked.exit, [line for line in checked.out.splitlines() if b'"problem"' in line]) == (0, [])


@pytest.mark.every_store
def test_attempts_and_failures_are_put_back_too(world):
    world.run(sh="exit 3")
    world.run(sh="exit 4")
    gone(world)
    accepted(world)
    assert world.state() == ("failed", 2)
    assert world.run("--max-attempts", "2").said() == (80, "skipped", "exhausted")
    assert world.run("--max-attempts", "3").said() == (0, "done", None)
    assert world.state() == ("done", 3)


@pytest.mark.every_store
def test_what_another_host_did_is_known_where_this_one_was_told_so(world):
    world.run(env=world.another_host())
    world.run()  # refused: it is done
    gone(world)
    accepted(world)
    assert world.run().said() == (0, "skipped", "done")
    assert len(world.effects()) == 1


@pytest.mark.every_store
def test_an_outcome_that_waits_on_this_host_is_put_back(world):
    world.run(env={"RANONCE_FAILPOINT": "finish:outcome-kept"})
    gone(world)
    accepted(world)
    assert world.state() == ("done", 1)
    again = world.run()
    assert again.said() == (0, "skipped", "done")
    assert world.attempt_files() == []
    assert len(world.effects()) == 1
    assert [event for event, _, _ in world.events()] == ["start", "done", "skipped"]


@pytest.mark.every_store
def test_a_run_without_a_verdict_is_held_and_its_own_verdict_is_still_taken(world):
    working, _ = world.hold()
    gone(world)
    accepted(world)
    assert world.state() == ("held", 1)
    assert world.run().said() == (80, "skipped", "held")
    world.let_go()
    assert working.ends().exit in (74, 0)  # a file is another one; on a server it is the same place
    assert world.run().said() == (0, "skipped", "done")
    assert world.state() == ("done", 1)
    assert len(world.effects()) == 1


@pytest.mark.every_store(cases=1)
@pytest.mark.parametrize("as_", ["done", "not-done"])
def test_what_a_person_said_is_put_back(world, as_):
    world.run("--on-crash", "hold", env={"RANONCE_FAILPOINT": "run:child-ended"})
    world.run("--on-crash", "hold")
    world.ranonce("release", "job", TODAY, "--as", as_, "--reason", "I looked")
    gone(world)
    accepted(world)
    assert world.state() == ("done" if as_ == "done" else "failed", 1)
    assert world.run("--max-attempts", "1").said() == (
        0,
        "skipped" if as_ == "done" else "done",
        as_ if as_ == "done" else None,
    )


@pytest.mark.every_store
def test_a_job_of_no_configuration_in_a_zone_is_put_back(world):
    every = ("--tz", "Europe/Berlin")
    jobs = (("30 2 * * *", NIGHTS[1]), ("hour", NIGHTS[2]))
    for schedule, now in jobs:
        world.run(*every, job=schedule.replace(" ", "").replace("*", "x"), every=schedule, now=now)
    gone(world)
    accepted(world)
    for schedule, now in jobs:
        ran = world.run(*every, job=schedule.replace(" ", "").replace("*", "x"), every=schedule, now=now)
        assert ran.said() == (0, "skipped", "done")
    assert len(world.effects()) == 2


@pytest.mark.every_store
def test_a_torn_journal_gives_what_is_whole(world):
    three_nights(world)
    lines = world.journal.read_bytes().splitlines(keepends=True)
    world.journal.write_bytes(b"".join([*lines[:-1], lines[-1][:40], b"\0" * 30, b"\n"]))
    gone(world)
    told = accepted(world)
    assert told["bad"] == 1
    assert "line 6" in told["first_bad"][0]
    assert world.states() == [*DONE[:2], ("2026-11-09", "held")]
    assert world.run().said() == (80, "skipped", "held")  # it began, and nobody remembers how it ended


@pytest.mark.every_store
def test_a_second_loss_is_another_epoch(world):
    three_nights(world)
    gone(world)
    accepted(world)
    night(world, "2026-11-10T12:00:00Z")
    gone(world)
    assert accepted(world)["epoch"] == 3
    assert world.states() == [*DONE, ("2026-11-10", "done")]
    assert world.run().said() == (0, "skipped", "done")


@pytest.mark.every_store
def test_a_ledger_that_goes_back_after_an_accepted_loss_is_noticed(world):
    three_nights(world)
    gone(world)
    accepted(world)
    created_anew_under_the_same_id(world)
    assert world.run().exit == 78


@pytest.mark.every_store
def test_a_copy_from_before_an_accepted_loss_is_noticed_and_carried_on(world):
    three_nights(world)  # a copy of yesterday is kept
    gone(world)
    accepted(world)
    for day in range(10, 20):
        night(world, f"2026-11-{day}T12:00:00Z")
    rolled_back(world)
    refused = world.run(now="2026-11-19T12:00:00Z")
    assert refused.exit == 78
    assert "gone back in time" in refused.sentence
    told = accepted(world)
    assert (told["kind"], told["epoch"]) == ("behind", 3)
    assert accepted(world)["event"] == "nothing-wrong"
    assert world.states() == [*DONE, *((f"2026-11-{day}", "done") for day in range(10, 20))]
    assert world.run(now="2026-11-19T12:00:00Z").said() == (0, "skipped", "done")
    assert world.effects() == []


def stands_in_line(pid):
    with open("/proc/locks") as locks:
        return any("-> FLOCK" in line and f" {pid} " in line for line in locks)


@pytest.mark.parametrize("point", ["loss:built", "loss:moved-aside", "loss:in-place"])
def test_nothing_begins_in_a_file_that_is_about_to_be_replaced(world, monkeypatch, point):
    three_nights(world)
    world.sql('DELETE FROM runs WHERE "window" = ?', "2026-11-07")  # damaged, and good enough for other windows
    started = []

    def meanwhile(name):
        if name == point:
            started.append(world.start(*world.words(now="2026-11-10T12:00:00Z")))
            wait_until(lambda: started[0].process.poll() is not None or stands_in_line(started[0].pid))

    for module in (loss, recovery):
        monkeypatch.setattr(module, "failpoint", meanwhile)
    accepted(world)
    started[0].ends()
    assert world.run(now="2026-11-10T12:00:00Z").exit == 0
    assert len(world.effects()) == 1
    assert world.states() == [*DONE, ("2026-11-10", "done")]


def test_what_a_host_notes_while_its_ledger_is_built_anew_is_put_back(world, monkeypatch):
    three_nights(world)
    world.store.write_bytes(b"")
    lines = world.journal.read_bytes().splitlines(keepends=True)
    world.journal.write_bytes(b"".join(lines[:-2]))
    noted = {"loss:built": b"".join(lines[-2:])}

    def meanwhile(name):
        with world.journal.open("ab") as journal:
            journal.write(noted.pop(name, b""))

    monkeypatch.setattr(loss, "failpoint", meanwhile)
    accepted(world)
    assert world.states() == DONE


#: Where accepting a loss is killed, by how the ledger was lost.
KILLED_AT = [
    (without_identity, "loss:built"),
    (rolled_back, "import:before-commit"),
    (without_identity, "loss:in-place"),
    (without_runs, "import:after-commit"),
    (rolled_back, "import:after-runs"),
    (rolled_back, "import:after-commit"),
]
OF_A_FILE = [(header_gone, "loss:built"), (header_gone, "loss:moved-aside"), (without_runs, "loss:moved-aside")]


def is_killed_and_accepted(world, lost, point):
    three_nights(world)
    lost(world)
    assert accept(world, env={"RANONCE_FAILPOINT": point}).exit == -signal.SIGKILL
    assert world.run().receipt["event"] in ("unavailable", "skipped")  # whatever it had come to
    accepted(world)
    assert world.states() == DONE
    assert world.run().said() == (0, "skipped", "done")
    assert world.effects() == []
    with world.opened() as store:
        assert len(store.upkeep().epochs()) == 1
    assert [name for name in losses.beside(world) if "recovered" in name] == []


def named(cases):
    return [f"{lost.__name__} {point}" for lost, point in cases]


@pytest.mark.every_store(cases=4)
@pytest.mark.parametrize(("lost", "point"), KILLED_AT, ids=named(KILLED_AT))
def test_killed_anywhere_it_is_accepted_by_the_next_try(world, lost, point):
    is_killed_and_accepted(world, lost, point)


@pytest.mark.parametrize(("lost", "point"), OF_A_FILE, ids=named(OF_A_FILE))
def test_killed_anywhere_in_a_file_it_is_accepted_by_the_next_try(world, lost, point):
    is_killed_and_accepted(world, lost, point)


@pytest.mark.every_store
def test_of_many_at_once_one_accepts_the_loss(world):
    three_nights(world)
    gone(world)
    ran = world.at_once(3, "accept-loss", "--reason", "gone", "--json")
    assert sorted(json.loads(one.out)["event"] for one in ran) == ["loss-accepted", "nothing-wrong", "nothing-wrong"]
    assert world.run().said() == (0, "skipped", "done")
