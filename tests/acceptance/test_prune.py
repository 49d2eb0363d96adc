"""What was over long ago is forgotten, never done again, and nobody waits for it."""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import signal
import sqlite3
import time

import pytest
from benchmarks.claims import LEDGER_ID
from benchmarks.planted import job_name, plant

from ranonce.journal import Journal, encode
from ranonce.ledger import OpenLedger
from ranonce.lifecycle import Claim
from ranonce.liveness import this_host
from ranonce.stores.sqlite.line import WaitingLine
from ranonce.stores.sqlite.store import SqliteStore
from ranonce.timefmt import format_instant
from tests.acceptance.test_stores import fill, small  # noqa: F401 - small is a fixture
from tests.conftest import EFFECT, NOON, wait_until
from tests.contract.acting import ask, ledger_over, verdict
from tests.ledgers import AFTER, BEFORE
from tests.planted import Planted

DAY = 86400
OLD = [f"2026-07-{day:02}" for day in range(1, 11)]
#: Inside them --older-than is 90 days; the newest event is of this day.
NEWEST = "2026-11-08"


def plant_days(world, *, every="day", days=(*OLD, NEWEST), **job):
    planted = Planted(every, store=world.kept_open(), **job)
    for day in days:
        planted.run(day)
    return planted


@pytest.fixture
def old(world):
    """A world in which a daily job was done for ten days in July and lately."""
    plant_days(world, declared_at="2026-07-01T00:00:00Z")
    return world


def pruned(world, *options, **how):
    """Prune, and return what it says as JSON."""
    ran = world.ranonce("prune", "--json", *options, **how)
    assert ran.exit == 0, ran.err
    return json.loads(ran.out)


def windows(world, job="j"):
    return [window for window, _ in world.states(job)]


def buried(world, job="j"):
    """Return how many runs lie under tombstones."""
    return sum(stone.runs for stone in world.tombstones(job))


# --- pruned is done -------------------------------------------------------------------------------------------------


@pytest.mark.every_store
def test_what_was_over_long_ago_goes_and_says_so(old):
    ran = old.ranonce("prune")
    assert ran.exit == 0
    said = ran.out.decode().splitlines()
    assert said[0].startswith(
        "Pruned 10 runs and 20 events: what was over before 2026-08-10T00:01:05Z (failed: before "
    )
    if old.url.startswith("sqlite"):
        assert said[-1] == "The ledger's file does not shrink; its space is used again."
    assert windows(old) == [NEWEST]
    assert old.count_of_events() == 2


@pytest.mark.every_store
def test_a_pruned_window_is_never_run_again(old):
    pruned(old)
    for window in (OLD[0], OLD[9]):
        assert old.run("--window", window, job="j").said() == (0, "skipped", "pruned")
    assert old.run("--window", "2026-07-11", job="j").said() == (0, "done", None)
    assert old.effects() == ["j 2026-07-11 1"]


def test_a_monthly_window_stays_done_however_short_the_retention(world):
    plant_days(world, every="month", days=("2026-08", "2026-09", "2026-10"))
    assert pruned(world, "--older-than", "7d")["runs"] == 1
    assert world.run("--window", "2026-08", job="j", every="month").said() == (0, "skipped", "pruned")
    assert world.run("--window", "2026-10", job="j", every="month").said() == (0, "skipped", "done")
    assert world.effects() == []


@pytest.mark.every_store
def test_a_pruned_window_is_neither_missing_nor_unknown(old):
    pruned(old)
    probe = old.ranonce("probe", "j", "--since", "2026-07-01T00:00:00Z", "--until", "2026-07-11T00:00:00Z")
    assert (probe.exit, probe.out.decode().split()[0]) == (0, "missing=0")
    show = old.ranonce("show", "j", OLD[3])
    assert show.exit == 0
    assert show.out.decode().startswith(f"j {OLD[3]}: it ran (pruned).")
    span = ("--since", "2026-07-09T00:00:00Z", "--until", "2026-07-12T00:00:00Z")
    status = json.loads(old.ranonce("status", "j", *span, "--json").out)
    assert [window["state"] for window in status["windows"]] == ["pruned", "pruned", "missing"]


def test_pruned_windows_are_not_caught_up(old):
    pruned(old)
    said = old.run("--catch-up", "all", "--catch-up-limit", "1", job="j", sh="echo {window} >> $EFFECTS")
    assert [receipt["window"] for receipt in said.receipts] == ["2026-07-11", "2026-11-09"]


def test_a_backfill_passes_over_pruned_windows(old):
    pruned(old)
    span = ("--since", "2026-07-08T00:00:00Z", "--until", "2026-07-12T00:00:00Z")
    ran = old.ranonce("backfill", "j", "--every", "day", *span, "--", "/bin/sh", "-c", f"{EFFECT}; : {{window}}")
    assert ran.exit == 0, ran.err
    assert old.effects() == ["j 2026-07-11 1"]
    assert [receipt["window"] for receipt in ran.receipts] == ["2026-07-11"]
    assert "4 windows: 1 done now, 3 done before" in ran.err
    again = old.ranonce("backfill", "j", "--every", "day", *span, "--dry-run", "--", "true")
    assert again.out == b"4 windows: 4 done before, 0 would start, 0 would be refused.\n"


@pytest.mark.parametrize(
    "words",
    [
        ("rerun", "j", OLD[2], "--reason", "again", "--", "true"),
        ("release", "j", OLD[2], "--as", "done", "--reason", "it was"),
    ],
)
def test_a_person_who_asks_for_a_pruned_window_is_told(old, words):
    pruned(old)
    ran = old.ranonce(*words)
    assert ran.exit == 64
    assert "pruned" in ran.err + ran.out.decode()
    assert "Traceback" not in ran.err
    assert windows(old) == [NEWEST]


def test_the_last_done_window_is_still_known(old):
    pruned(old, "--older-than", "0s")
    board = json.loads(old.ranonce("status", "--json", "--now", NOON).out)["jobs"][0]
    assert (board["window"], board["done_window"]) == (NEWEST, NEWEST)


# --- what stays -----------------------------------------------------------------------------------------------------


def test_what_waits_for_somebody_stays_and_is_told(world):
    planted = plant_days(world)
    for day, status in (("11", "held"), ("12", "stopped"), ("13", "failed"), ("14", "running")):
        planted.run(f"2026-07-{day}", status, lease=1e9 if status == "running" else None)
    planted.run("2025-07-01", "failed")
    planted.run("2026-11-09")
    would = pruned(world, "--dry-run")
    told = pruned(world)
    assert told["runs"] == 11
    assert told["jobs"][0]["kept"] == {"held": 1, "stopped": 1, "failed": 1, "running": 1}
    assert (would["runs"], would["jobs"][0]["kept"]) == (11, told["jobs"][0]["kept"])
    assert windows(world) == [*(f"2026-07-{day}" for day in (11, 12, 13, 14)), NEWEST, "2026-11-09"]


def test_the_newest_run_and_the_newest_done_one_stay_and_are_told(world):
    planted = plant_days(world, days=OLD)
    planted.run("2026-07-11", "failed")
    told = pruned(world, "--older-than", "0s", "--failed-older-than", "0s", "--now", "2026-11-09T00:00:00Z")
    assert (told["runs"], told["jobs"][0]["kept"]) == (9, {"newest": 1})
    assert windows(world) == ["2026-07-10", "2026-07-11"]


def test_failures_are_never_kept_shorter_than_what_is_done(old):
    ran = old.ranonce("prune", "--older-than", "30d", "--failed-older-than", "29d")
    assert ran.exit == 64
    assert "failures would be kept for 29d, and what is done for 30d" in ran.sentence
    assert pruned(old, "--older-than", "400d")["failed_before"] == "2025-10-04T00:01:05.000Z"


def test_a_dry_run_changes_nothing(old):
    before = old.facts("j"), old.all_runs(), old.journal.exists()
    ran = old.ranonce("prune", "--dry-run")
    assert ran.out.decode().startswith("Would prune 10 runs: ")
    assert (old.facts("j"), old.all_runs(), old.journal.exists()) == before
    assert buried(old) == 0


def test_only_the_named_jobs_are_pruned(old):
    old.run("--window", OLD[0], job="other")
    assert pruned(old, "other")["runs"] == 0
    assert len(windows(old)) == 11
    assert [job["job"] for job in pruned(old, "j", "j")["jobs"]] == ["j"]
    assert len(windows(old)) == 1


def test_an_unknown_job_is_a_sentence(old):
    ran = old.ranonce("prune", "k")
    assert ran.exit == 64
    assert "'k'" in ran.sentence


def test_a_ledger_without_a_past_has_nothing_to_prune(world):
    assert pruned(world)["runs"] == 0


# --- clocks ---------------------------------------------------------------------------------------------------------


def test_a_clock_ahead_prunes_no_more_than_recorded_events_allow(old):
    told = pruned(old, "--now", "2030-01-01T00:00:00Z")
    assert (told["as_of"], told["runs"]) == ("2026-11-08T00:01:05.000Z", 10)
    assert windows(old) == [NEWEST]


def test_a_supposed_time_in_the_past_prunes_less(old):
    assert pruned(old, "--now", "2026-10-04T00:00:00Z")["runs"] == 5
    assert windows(old) == [*OLD[5:], NEWEST]


def test_nothing_is_pruned_while_the_last_event_lies_ahead_of_the_clock(world):
    planted = plant_days(world)
    planted.run("2038-01-01")
    ran = world.ranonce("prune")
    assert ran.exit == 78
    assert "ahead of this host's clock" in ran.err.splitlines()[-1]
    assert len(windows(world)) == 12
    planted.run("2026-11-09")
    assert pruned(world)["runs"] == 10


def test_nothing_is_pruned_while_the_clock_is_known_to_have_jumped(old):
    with old.opened() as store:
        (event,) = store.newest_events(1)
    journal = Journal(str(old.folder))
    journal.append([event.replace(at=time.time())])
    fact = journal.tail()[-1]
    old.journal.write_bytes(encode({**fact, "boot": fact["boot"] + 7230}))
    ran = old.ranonce("prune")
    assert ran.exit == 78
    assert "this host's clock has gone forward by 2h" in ran.err.splitlines()[-1]
    assert len(windows(old)) == 11


# --- the journal and the store --------------------------------------------------------------------------------------


@pytest.mark.every_store
def test_a_host_whose_last_event_was_pruned_by_another_runs_on(old):
    first = old.facts("j")[0]
    Journal(str(old.folder)).append([first])
    assert pruned(old, env=old.another_host())["runs"] == 10
    assert first.seq not in [fact.seq for fact in old.facts("j")]
    assert old.run(job="j").said() == (0, "done", None)


def test_a_store_that_was_pruned_and_then_went_back_is_refused(old):
    pruned(old)
    shutil.copy(old.store, old.root / "copy")
    with sqlite3.connect(old.store) as db:
        db.execute("PRAGMA wal_checkpoint(TRUNCATE)")
    shutil.copy(old.store, old.root / "copy")
    assert old.run(job="j").said() == (0, "done", None)
    for name in ("-wal", "-shm"):
        (old.store.parent / f"ledger.db{name}").unlink(missing_ok=True)
    shutil.copy(old.root / "copy", old.store)
    ran = old.run(job="j")
    assert ran.exit == 78
    assert "gone back in time" in ran.err
    assert len(old.effects()) == 1


# --- what else grows on a host --------------------------------------------------------------------------------------


def attempt_file(world, owner, *, age=2 * DAY, outcome=None):
    from ranonce.liveness import AttemptFile

    attempt = AttemptFile.create(str(world.folder), owner, this_host().replace(boot_id="of an earlier boot"))
    if outcome is not None:
        attempt.write_outcome(outcome, sync=False)
    attempt.release()
    os.utime(attempt.path, (time.time() - age,) * 2)


def test_files_of_attempts_that_ended_without_a_verdict_go_after_a_day(old):
    for owner, age in (("a" * 32, 2 * DAY), ("b" * 32, 3600)):
        attempt_file(old, owner, age=age)
    assert pruned(old)["attempt_files"] == 1
    assert [path.name for path in old.attempt_files()] == ["b" * 32]


def test_the_file_of_an_attempt_that_a_lease_still_names_stays(world):
    planted = plant_days(world)
    planted.run("2026-11-09", "running", owner="c" * 32, lease=-60)
    attempt_file(world, "c" * 32)
    assert pruned(world)["attempt_files"] == 0
    assert len(world.attempt_files()) == 1


def test_the_file_of_an_attempt_that_still_works_stays(old):
    working, _ = old.hold(job="j")
    os.utime(old.attempt_files()[0], (time.time() - 2 * DAY,) * 2)
    assert pruned(old)["attempt_files"] == 0
    old.let_go()
    assert working.ends().said() == (0, "done", None)


def test_an_outcome_that_waits_on_this_host_is_recorded_first(old):
    assert old.run(job="j", env={"RANONCE_FAILPOINT": "finish:outcome-kept"}).exit == -signal.SIGKILL
    ran = old.ranonce("prune")
    assert "recorded first what an earlier run could not: j:2026-11-09 done" in ran.err
    assert old.state("j", "2026-11-09") == ("done", 1)
    assert old.attempt_files() == []


# --- broken off -----------------------------------------------------------------------------------------------------


@pytest.mark.every_store(cases=2)
@pytest.mark.parametrize("point", ["prune:before-commit", "prune:after-commit", "prune:after-runs"])
def test_a_kill_in_the_middle_leaves_each_window_with_its_run_or_its_tombstone(old, point):
    assert old.ranonce("prune", env={"RANONCE_FAILPOINT": point}).exit == -signal.SIGKILL
    assert len(windows(old)) + buried(old) == 11
    if old.url.startswith("sqlite"):
        assert old.sql("PRAGMA integrity_check") == [("ok",)]
        with pytest.raises(sqlite3.IntegrityError, match="append-only"):
            old.sql("DELETE FROM events")
    pruned(old)
    assert (windows(old), buried(old)) == ([NEWEST], 10)
    assert old.run("--window", OLD[0], job="j").said() == (0, "skipped", "pruned")


@pytest.fixture
def large(bare):
    """A world with 12,000 old runs of one job."""
    bare.store.parent.mkdir(mode=0o700)
    plant(str(bare.store), jobs=1, runs=12_000)
    bare.ledger = LEDGER_ID
    bare.env |= {"RANONCE_STORE": f"sqlite:///{bare.store}", "RANONCE_LEDGER": LEDGER_ID}
    return bare


#: What Python runs where this is on its path: between two batches there is time for somebody else, however busy we are.
UNHURRIED = """
import time
from ranonce.stores.sqlite.upkeep import SqliteUpkeep
prune = SqliteUpkeep.prune
SqliteUpkeep.prune = lambda *words, **named: [prune(*words, **named), time.sleep(0.1)][0]
"""


def begun(world):
    """Start a pruning and return it when the first runs are gone."""
    (world.root / "sitecustomize.py").write_text(UNHURRIED)
    pruning = world.start("prune", "--older-than", "1d", env={"PYTHONPATH": str(world.root)})
    with world.opened() as store:
        wait_until(lambda: store.tombstones(job_name(0), BEFORE, AFTER))
    return pruning


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_signal_ends_it_between_two_batches_and_the_same_command_goes_on(large, number):
    pruning = begun(large)
    pruning.signal(number)
    ran = pruning.ends()
    assert ran.exit == -number
    assert ran.err == ""
    assert ran.out.decode().splitlines()[-1] == "It was broken off; the same command goes on."
    left, gone = len(windows(large, job_name(0))), buried(large, job_name(0))
    assert left + gone == 11_999  # one window of it never ran
    assert f"Pruned {gone:,} runs" in ran.out.decode()
    assert pruned(large, "--older-than", "1d")["runs"] == left - len(windows(large, job_name(0)))


def test_jobs_go_on_meanwhile_and_the_journal_forgets(large):
    events = SqliteStore(str(large.store)).newest_events(24_000)[::-1]
    large.folder.mkdir(parents=True, mode=0o700)
    journal = Journal(str(large.folder))
    journal._clock = "of an earlier boot"
    journal.append(events[:600])
    ledger: OpenLedger = ledger_over(SqliteStore(str(large.store)))
    pruning = large.start("prune", "--older-than", "1d", "--json")
    waits = []
    while pruning.process.poll() is None:
        began = time.perf_counter()
        claim = ledger.claim(ask(len(waits)))
        assert isinstance(claim, Claim)
        ledger.finish(claim, verdict().replace(at=time.time()))
        waits.append(time.perf_counter() - began)
        time.sleep(0.05)
    told = json.loads(pruning.ends().out)
    assert told["runs"] > 11_000
    assert len(waits) > 5
    assert max(waits) < 1
    assert told["journal"]["facts"] < 10


def test_a_ledger_that_is_locked_too_long_is_pruned_no_further(large):
    large.env["RANONCE_CONFIG"] = str(large.config)
    large.config.parent.mkdir(exist_ok=True)
    large.config.write_text('[ledger]\nstore_wait = "0.3s"\n')
    large.config.chmod(0o600)
    pruning = begun(large)
    with sqlite3.connect(large.store, isolation_level=None, timeout=20) as db:
        with (
            contextlib.closing(WaitingLine(f"{large.store}-line", 20)) as line,
            line,
        ):  # else it may end before its turn
            db.execute("BEGIN IMMEDIATE")
        ran = pruning.ends()
    db.close()
    assert ran.exit == 69
    assert "locked" in ran.sentence
    assert "It was broken off; the same command goes on." in ran.out.decode()
    assert pruned(large, "--older-than", "1d")["runs"] > 0


def test_a_full_disk_loses_nothing(small):  # noqa: F811 - the fixture
    plant_days(small)
    filler = fill(small)
    ran = small.ranonce("prune")
    assert ran.exit in (0, 69, 78)
    assert "Traceback" not in ran.err
    assert len(windows(small)) + buried(small) == 11
    filler.unlink()
    pruned(small)
    assert (windows(small), buried(small)) == ([NEWEST], 10)


# --- messages and steps ---------------------------------------------------------------------------------------------


@pytest.mark.every_store
def test_steps_and_delivered_messages_go_along_and_what_waits_stays_and_is_said(world):
    planted = plant_days(world, declared_at="2026-07-01T00:00:00Z")
    sent = planted.message(OLD[0], "sent", state="sent")
    waits = planted.message(OLD[0], "waits", state="unsure")
    planted.step(OLD[0], "one")
    stays = "1 message of windows that old stays, not delivered yet: ranonce outbox list"
    dry = world.ranonce("prune", "--dry-run").out.decode().splitlines()
    assert "Their steps and delivered messages would go along." in dry
    assert stays in dry
    assert planted.store.outbox().message(sent.key) is not None
    ran = world.ranonce("prune")
    assert stays in ran.out.decode().splitlines()
    assert planted.store.outbox().message(sent.key) is None
    assert planted.store.outbox().message(waits.key) == waits
    assert list(planted.store.upkeep().all_steps()) == []
    assert pruned(world)["jobs"][0]["undelivered"] == 1


def test_messages_of_runs_that_are_not_old_yet_are_not_called_old(world):
    planted = Planted("day", store=world.kept_open())
    now = planted.store.clock().wall
    key = OLD[0]  # an old window, and a run of it that was over a minute ago: a backfill
    planted.run(key, started=format_instant(now - 120.0), seconds=60)
    planted.message(key, "waits", state="unsure")
    assert b"message" not in world.ranonce("prune", "--dry-run", "--older-than", "1h").out
    assert pruned(world, "--older-than", "1h")["jobs"][0]["undelivered"] == 0


def test_where_no_message_waits_none_is_mentioned(old):
    assert b"message" not in old.ranonce("prune", "--dry-run").out
    assert b"message" not in old.ranonce("prune").out
