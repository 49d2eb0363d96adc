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

from ranonce.cli import accept_loss
from ranonce.cli.options import parse
from ranonce.exchange import loss
from ranonce.ledger import OpenLedger
from ranonce.lifecycle import Claim, RunKey, Verdict
from ranonce.stores.base import Job
from ranonce.timefmt import parse_instant
from tests.acceptance.test_stores import (
    copied,
    created_anew,
    created_anew_under_the_same_id,
    deleted,
    emptied,
    half_gone,
    header_gone,
    not_a_database,
    of_another_format,
    rolled_back,
    somebody_elses_database,
    store_files,
    truncated,
    wiped,
    without_its_identity,
    without_its_wal,
    without_tables,
    writable_by_others,
)
from tests.conftest import TODAY, wait_until
from tests.contract.acting import DAILY, ask

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
    ledger = OpenLedger.open(f"sqlite:///{world.store}", world.ledger, state_folder=str(world.folder.parent))
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
    copied(world, "yesterday")
    night(world, NIGHTS[2])


def states(world):
    return world.sql('SELECT "window", status FROM runs ORDER BY 1')


DONE = [("2026-11-07", "done"), ("2026-11-08", "done"), ("2026-11-09", "done")]


def without_runs(world):
    world.sql("DELETE FROM runs")


def a_flipped_bit(world):
    world.sql("PRAGMA wal_checkpoint(TRUNCATE)")
    whole = world.store.read_bytes()
    places = [at for at in range(len(whole)) if whole.startswith(b"2026-11-09", at)]
    at = places[-1]
    world.store.write_bytes(whole[: at + 9] + bytes([whole[at + 9] ^ 1]) + whole[at + 10 :])
    for file in store_files(world)[1:]:
        file.unlink()


LOST = [
    wiped,
    deleted,
    emptied,
    truncated,
    rolled_back,
    created_anew_under_the_same_id,
    half_gone,
    header_gone,
    not_a_database,
    without_tables,
    without_its_identity,
    without_runs,
]


@pytest.mark.parametrize("lost", LOST, ids=lambda lost: lost.__name__)
def test_after_a_loss_is_accepted_no_window_runs_again_that_this_host_remembers(world, lost):
    three_nights(world)
    lost(world)
    refused = world.run()
    assert refused.exit == 78
    assert "ranonce accept-loss --reason TEXT" in refused.sentence
    told = accepted(world)
    assert (told["event"], told["epoch"]) == ("loss-accepted", 2)
    before = world.sql("SELECT * FROM events"), world.sql("SELECT * FROM runs"), world.sql("SELECT * FROM ledger")
    assert accepted(world)["event"] == "nothing-wrong"
    assert before == (*(world.sql(f"SELECT * FROM {table}") for table in ("events", "runs", "ledger")),)
    assert states(world) == DONE
    assert world.run().said() == (0, "skipped", "done")
    assert world.effects() == []
    ((epoch, reason, by),) = world.sql("SELECT epoch, reason, accepted_by FROM epochs")
    assert (epoch, reason) == (2, "the disk died")
    assert "@" in by
    assert world.sql("SELECT id, epoch FROM ledger") == [(world.ledger, 2)]


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
    assert states(world) == DONE
    assert [event for event, _, _ in world.events()] == ["start", "done"]
    assert world.sql("PRAGMA integrity_check") == [("ok",)]
    assert world.ranonce("doctor", "--deep").exit == 0


def test_where_nothing_is_wrong_nothing_is_changed(world):
    three_nights(world)
    ran = accept(world)
    assert (ran.exit, b"Nothing is wrong" in ran.out) == (0, True)
    assert world.sql("SELECT epoch FROM ledger") == [(1,)]


def test_a_loss_is_not_accepted_without_a_reason(world):
    deleted(world)
    ran = world.ranonce("accept-loss")
    assert ran.exit == 64
    assert "--reason" in ran.sentence
    assert not world.store.exists()


@pytest.mark.parametrize(
    "wrong",
    [created_anew, somebody_elses_database, writable_by_others, of_another_format],
    ids=lambda wrong: wrong.__name__,
)
def test_what_is_no_loss_of_this_ledger_is_left_alone(world, wrong):
    three_nights(world)
    wrong(world)
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


def test_what_can_still_be_read_of_a_damaged_file_is_kept(world):
    three_nights(world)
    shutil.rmtree(world.folder)  # this host remembers nothing
    without_runs(world)
    told = accepted(world)
    assert told["salvaged"] == 3
    assert states(world) == DONE


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
    assert states(world) == DONE
    assert accepted(world)["event"] == "nothing-wrong"
    checked = world.ranonce("doctor", "--deep", "--json")
    assert (checked.exit, [line for line in checked.out.splitlines() if b'"problem"' in line]) == (0, [])


def test_attempts_and_failures_are_put_back_too(world):
    world.run(sh="exit 3")
    world.run(sh="exit 4")
    wiped(world)
    accepted(world)
    assert world.state() == ("failed", 2)
    assert world.run("--max-attempts", "2").said() == (80, "skipped", "exhausted")
    assert world.run("--max-attempts", "3").said() == (0, "done", None)
    assert world.state() == ("done", 3)


def test_what_another_host_did_is_known_where_this_one_was_told_so(world):
    world.run(env=world.another_host())
    world.run()  # refused: it is done
    wiped(world)
    accepted(world)
    assert world.run().said() == (0, "skipped", "done")
    assert len(world.effects()) == 1


def test_an_outcome_that_waits_on_this_host_is_put_back(world):
    world.run(env={"RANONCE_FAILPOINT": "finish:outcome-kept"})
    wiped(world)
    accepted(world)
    assert world.state() == ("done", 1)
    again = world.run()
    assert again.said() == (0, "skipped", "done")
    assert world.attempt_files() == []
    assert len(world.effects()) == 1
    assert [event for event, _, _ in world.events()] == ["start", "done", "skipped"]


def test_a_run_without_a_verdict_is_held_and_its_own_verdict_is_still_taken(world):
    working, _ = world.hold()
    wiped(world)
    accepted(world)
    assert world.state() == ("held", 1)
    assert world.run().said() == (80, "skipped", "held")
    world.let_go()
    assert working.ends().exit == 74
    assert world.run().said() == (0, "skipped", "done")
    assert world.state() == ("done", 1)
    assert len(world.effects()) == 1


@pytest.mark.parametrize("as_", ["done", "not-done"])
def test_what_a_person_said_is_put_back(world, as_):
    world.run("--on-crash", "hold", env={"RANONCE_FAILPOINT": "run:child-ended"})
    world.run("--on-crash", "hold")
    world.ranonce("release", "job", TODAY, "--as", as_, "--reason", "I looked")
    wiped(world)
    accepted(world)
    assert world.state() == ("done" if as_ == "done" else "failed", 1)
    assert world.run("--max-attempts", "1").said() == (
        0,
        "skipped" if as_ == "done" else "done",
        as_ if as_ == "done" else None,
    )


def test_a_job_of_no_configuration_in_a_zone_is_put_back(world):
    every = ("--tz", "Europe/Berlin")
    jobs = (("30 2 * * *", NIGHTS[1]), ("hour", NIGHTS[2]))
    for schedule, now in jobs:
        world.run(*every, job=schedule.replace(" ", "").replace("*", "x"), every=schedule, now=now)
    wiped(world)
    accepted(world)
    for schedule, now in jobs:
        ran = world.run(*every, job=schedule.replace(" ", "").replace("*", "x"), every=schedule, now=now)
        assert ran.said() == (0, "skipped", "done")
    assert len(world.effects()) == 2


def test_a_torn_journal_gives_what_is_whole(world):
    three_nights(world)
    lines = world.journal.read_bytes().splitlines(keepends=True)
    world.journal.write_bytes(b"".join([*lines[:-1], lines[-1][:40], b"\0" * 30, b"\n"]))
    wiped(world)
    told = accepted(world)
    assert told["bad"] == 1
    assert "line 6" in told["first_bad"][0]
    assert states(world) == [*DONE[:2], ("2026-11-09", "held")]
    assert world.run().said() == (80, "skipped", "held")  # it began, and nobody remembers how it ended


def test_a_second_loss_is_another_epoch(world):
    three_nights(world)
    wiped(world)
    accepted(world)
    night(world, "2026-11-10T12:00:00Z")
    wiped(world)
    assert accepted(world)["epoch"] == 3
    assert states(world) == [*DONE, ("2026-11-10", "done")]
    assert world.run().said() == (0, "skipped", "done")


def test_a_ledger_that_goes_back_after_an_accepted_loss_is_noticed(world):
    three_nights(world)
    wiped(world)
    accepted(world)
    deleted(world)
    created_anew_under_the_same_id(world)
    assert world.run().exit == 78


def test_a_copy_from_before_an_accepted_loss_is_noticed_and_carried_on(world):
    three_nights(world)  # a copy of yesterday is kept
    wiped(world)
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
    assert states(world) == [*DONE, *((f"2026-11-{day}", "done") for day in range(10, 20))]
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

    monkeypatch.setattr(loss, "failpoint", meanwhile)
    accepted(world)
    started[0].ends()
    assert world.run(now="2026-11-10T12:00:00Z").exit == 0
    assert len(world.effects()) == 1
    assert states(world) == [*DONE, ("2026-11-10", "done")]


def test_what_a_host_notes_while_its_ledger_is_built_anew_is_put_back(world, monkeypatch):
    three_nights(world)
    world.store.write_bytes(b"")
    lines = world.journal.read_bytes().splitlines(keepends=True)
    world.journal.write_bytes(b"".join(lines[:-2]))
    noted = {"loss:moved-aside": b"".join(lines[-2:])}

    def meanwhile(name):
        with world.journal.open("ab") as journal:
            journal.write(noted.pop(name, b""))

    monkeypatch.setattr(loss, "failpoint", meanwhile)
    accepted(world)
    assert states(world) == DONE


#: Where accepting a loss is killed, by how the ledger was lost.
KILLED_AT = [
    (rolled_back, "import:after-runs"),
    (rolled_back, "import:before-commit"),
    (rolled_back, "import:after-commit"),
    (header_gone, "import:after-commit"),
    (header_gone, "loss:built"),
    (header_gone, "loss:moved-aside"),
    (header_gone, "loss:in-place"),
    (without_runs, "loss:moved-aside"),
]


@pytest.mark.parametrize(("lost", "point"), KILLED_AT, ids=[f"{lost.__name__} {point}" for lost, point in KILLED_AT])
def test_killed_anywhere_it_is_accepted_by_the_next_try(world, lost, point):
    three_nights(world)
    lost(world)
    assert accept(world, env={"RANONCE_FAILPOINT": point}).exit == -signal.SIGKILL
    assert world.run().receipt["event"] in ("unavailable", "skipped")  # whatever it had come to
    accepted(world)
    assert states(world) == DONE
    assert world.run().said() == (0, "skipped", "done")
    assert world.effects() == []
    assert world.sql("SELECT count(*) FROM epochs") == [(1,)]
    assert [file.name for file in world.store.parent.iterdir() if "recovered" in file.name] == []


def test_of_many_at_once_one_accepts_the_loss(world):
    three_nights(world)
    wiped(world)
    ran = world.at_once(3, "accept-loss", "--reason", "gone", "--json")
    assert sorted(json.loads(one.out)["event"] for one in ran) == ["loss-accepted", "nothing-wrong", "nothing-wrong"]
    assert world.run().said() == (0, "skipped", "done")
