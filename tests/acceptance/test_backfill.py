"""Many windows at once: oldest first, resumable, named where they fail, ended by what all of them would meet."""

from __future__ import annotations

import json
import signal
import time

import pytest

from tests.conftest import EFFECT, TODAY, wait_until

NOON_12 = "2026-11-12T12:00:00Z"
DAYS = [f"2026-11-{day:02}" for day in range(1, 13)]
#: Fails in one window.
FAILS_ON_3 = f'{EFFECT}; test "$RANONCE_WINDOW" != 2026-11-03'


def backfill(world, *options, since="2026-11-01", every="day", now=NOON_12, sh=EFFECT, job="job", **how):
    words = ("--since", since, "--now", now, *(("--every", every) if every else ()), *options)
    return world.ranonce("backfill", job, *words, "--", "/bin/sh", "-c", sh, "{window}", **how)


def summary(ran):
    """The JSON summary, the last line of standard output."""
    return json.loads(ran.out.splitlines()[-1])


def windows(world):
    return [line.split()[1] for line in world.effects()]


@pytest.mark.every_store
def test_windows_are_worked_on_oldest_first_with_their_place_in_the_whole(world):
    ran = backfill(world)
    assert ran.exit == 0
    assert windows(world) == DAYS
    assert [receipt["window"] for receipt in ran.receipts] == DAYS
    assert ran.receipts[2]["progress"] == "3/12"
    assert {receipt["trigger"] for receipt in ran.receipts} == {"backfill"}
    assert {receipt["chosen_by"] for receipt in ran.receipts} == {"backfill"}
    assert ran.err.splitlines()[-1] == "ranonce: backfill of job: 12 windows: 12 done now."


@pytest.mark.every_store
def test_windows_that_are_done_are_passed_over_without_a_record(world):
    world.run("--window", "2026-11-03", now=NOON_12)
    before = world.count_of_events()
    ran = backfill(world, "--until", "2026-11-06", "--json")
    assert windows(world) == ["2026-11-03", "2026-11-01", "2026-11-02", "2026-11-04", "2026-11-05"]
    assert summary(ran)["done_before"] == 1
    again = backfill(world, "--until", "2026-11-06", "--json")
    assert (again.exit, again.receipts) == (0, [])
    assert (summary(again)["done"], summary(again)["done_before"]) == (0, 5)
    assert world.count_of_events() == before + 8


def test_a_window_that_fails_is_named_and_the_next_one_follows(world):
    ran = backfill(world, "--until", "2026-11-06", "--json", sh=FAILS_ON_3)
    assert ran.exit == 1
    assert windows(world) == DAYS[:5]
    told = summary(ran)
    assert (told["done"], told["failed"], told["left"], told["exit"]) == (4, 1, 0, 1)
    assert told["problems"] == [{"window": "2026-11-03", "event": "failed", "reason": None, "exit": 1}]
    again = backfill(world, "--until", "2026-11-06", "--json")
    assert (again.exit, summary(again)["done_before"]) == (0, 4)
    assert windows(world)[5:] == ["2026-11-03"]


def test_a_job_that_stops_itself_ends_the_backfill_there(world):
    sh = f"{EFFECT}; test $RANONCE_WINDOW != 2026-11-03 || $RANONCE stop --reason 429 --retry-after 34h"
    ran = backfill(world, "--json", sh=sh)
    assert ran.exit == 79
    told = summary(ran)
    assert (told["ended_at"], told["ended_by"], told["left"]) == ("2026-11-03", "429", 9)
    # Too early: the limit that the job met is met by every window.
    again = backfill(world, "--json")
    assert (again.exit, summary(again)["ended_at"]) == (75, "2026-11-03")
    assert windows(world) == DAYS[:3]


def test_a_window_that_waits_for_its_retry_lets_the_others_go_on(world):
    delay = ("--retry-delay", "99d", "--until", "2026-11-06")
    backfill(world, *delay, sh=FAILS_ON_3)
    world.sql("UPDATE runs SET status = 'failed' WHERE \"window\" = '2026-11-01'")
    ran = backfill(world, *delay, "--json", since="2026-10-30")
    told = summary(ran)
    assert ran.exit == 75
    assert (told["done"], told["refused"], told["left"]) == (2, 2, 0)
    assert "ended_by" not in told


@pytest.mark.parametrize(
    ("sh", "policy"), [("exit 1", ("--max-attempts", "1")), ("kill -9 $PPID", ("--on-crash", "hold"))]
)
def test_what_waits_for_a_person_is_named_and_passed(world, sh, policy):
    world.run("--window", "2026-11-02", *policy, sh=sh, now=NOON_12)
    if policy[0] == "--on-crash":
        world.run("--window", "2026-11-02", *policy, now=NOON_12)
    ran = backfill(world, *policy, "--until", "2026-11-05", "--json")
    told = summary(ran)
    assert ran.exit == 80
    assert (told["done"], told["refused"], told["problems"][0]["window"]) == (3, 1, "2026-11-02")
    assert told["problems"][0]["reason"] in ("exhausted", "held")


def test_a_command_that_cannot_be_started_ends_the_backfill(world):
    ran = world.ranonce("backfill", "job", "--every", "day", "--since", "2026-11-01", "--now", NOON_12, "--", "no such")
    assert ran.exit == 127
    assert len(ran.receipts) == 1
    assert "11 not reached" in ran.err


def test_a_closed_gate_ends_the_backfill(world):
    stop = "$RANONCE stop --reason 429 --retry-after 9h --gate api"
    world.run("--uses", "api", sh=stop, job="other")
    ran = backfill(world, "--uses", "api", "--json")
    assert (ran.exit, summary(ran)["left"]) == (75, 11)
    assert world.effects() == []


def test_another_window_at_work_ends_the_backfill(world):
    invocation, _ = world.hold()
    ran = backfill(world, "--json")
    assert (ran.exit, ran.receipt["reason"], summary(ran)["left"]) == (75, "overlap", 11)
    assert summary(backfill(world, "--json", "--busy-exit", "0"))["refused"] == 1
    world.let_go()
    invocation.ends()


def test_told_to_end_it_stops_the_window_at_work_and_says_how_to_go_on(world):
    (world.pids / "hold").touch()
    child = world.pids / "child"
    sh = f'{EFFECT}; echo $$ > "$PIDS/child"; while test -e "$PIDS/hold"; do sleep 0.02; done'
    words = ("backfill", "job", "--every", "day", "--since", "2026-11-01", "--now", NOON_12, "--", "sh", "-c", sh)
    invocation = world.start(*words)
    wait_until(lambda: child.exists() and child.read_text().strip())
    invocation.signal(signal.SIGINT)
    ran = invocation.ends()
    world.let_go()
    assert ran.exit == -signal.SIGINT
    assert ran.receipt["reason"] == "signal"
    assert ran.err.splitlines()[-1].endswith("It ended at 2026-11-01: signal. The same command goes on from there.")
    assert backfill(world).exit == 0
    assert windows(world) == [DAYS[0], *DAYS]


@pytest.mark.every_store
def test_killed_it_goes_on_where_it_was(world):
    (world.pids / "hold").touch()
    sh = f'{EFFECT}; test $RANONCE_WINDOW != 2026-11-04 || while test -e "$PIDS/hold"; do sleep 0.02; done'
    words = ("backfill", "job", "--every", "day", "--since", "2026-11-01", "--now", NOON_12, "--", "sh", "-c", sh)
    invocation = world.start(*words)
    wait_until(lambda: len(world.effects()) == 4)
    invocation.signal(signal.SIGKILL)
    invocation.ends()
    world.let_go()
    wait_until(world.no_process_is_left)
    assert backfill(world).exit == 0
    assert windows(world) == [*DAYS[:4], *DAYS[3:]]


def test_times_may_be_dates_keys_instants_or_a_time_back(world):
    assert summary(backfill(world, "--json", since="2d"))["windows"] == 2
    told = summary(backfill(world, "--json", "--until", "2026-11-03T00:00:00Z", since="2026-11-01T00:00:00Z"))
    assert (told["windows"], told["done"]) == (2, 2)
    assert backfill(world, since="2026-11-01T00:00:00").exit == 64
    assert backfill(world, "--until", "2026-10-01").exit == 64
    ran = world.ranonce("backfill", "job", "--", "true")
    assert ran.exit == 64
    assert "--since" in ran.sentence


def test_windows_yet_to_come_are_left_to_their_triggers(world):
    told = summary(backfill(world, "--json", "--until", "2026-12-24", since="2026-11-10"))
    assert (told["windows"], told["done"]) == (3, 3)


def test_a_job_that_serves_yesterday_is_not_given_today(world):
    told = summary(backfill(world, "--json", "--offset", "-1", since="2026-11-10"))
    assert (told["windows"], windows(world)) == (2, ["2026-11-10", "2026-11-11"])


def test_each_window_belongs_to_the_version_that_was_in_force(world):
    clock = ("--now", "2026-11-10T00:00:00Z")
    world.ranonce("add", "job", "--every", "day", *clock, "--", "/bin/sh", "-c", EFFECT, "{window}")
    world.ranonce("run", "job", *clock)
    world.config.write_text(world.config.read_text().replace('every = "day"', 'every = "0 */12 * * *"'))
    world.ranonce("run", "job", "--now", "2026-11-11T12:30:00Z")
    ran = world.ranonce("backfill", "job", "--since", "2026-11-09", "--now", NOON_12)
    assert ran.exit == 0
    assert [receipt["window"] for receipt in ran.receipts] == [
        "2026-11-09",
        "2026-11-11T00:00Z",
        "2026-11-12T00:00Z",
    ]  # the window of 12:00 begins now, and its own trigger comes


def test_a_command_that_is_not_told_its_window_is_said(world):
    words = ("--every", "day", "--since", TODAY, "--now", "2026-11-09T12:00:00Z")
    ran = world.ranonce("backfill", "job", *words, "--", "true")
    assert "RANONCE_WINDOW" in ran.err
    assert "RANONCE_WINDOW" not in backfill(world).err


def test_a_rehearsal_says_what_would_be_done_and_changes_nothing(world):
    world.run("--window", "2026-11-02", now=NOON_12)
    world.run("--window", "2026-11-03", "--max-attempts", "1", sh="exit 1", now=NOON_12)
    before = world.facts(), world.jobs()
    ran = backfill(world, "--dry-run", "--until", "2026-11-05", "--max-attempts", "1")
    assert ran.exit == 0
    lines = ran.out.decode().splitlines()
    assert [line.split()[0] for line in lines] == ["2026-11-01", "2026-11-03", "2026-11-04", "4"]
    assert "never ran: a trigger for this window would start it" in lines[0]
    assert "failed: a trigger for this window would be refused (exhausted)" in lines[1]
    assert lines[-1] == "4 windows: 1 done before, 2 would start, 1 would be refused."
    assert (world.facts(), world.jobs()) == before
    told = backfill(world, "--dry-run", "--until", "2026-11-05", "--json", "--max-attempts", "1")
    assert summary(told) == {"job": "job", "windows": 4, "done_before": 1, "would_start": 2}


def test_other_input_for_a_done_window_is_named_as_a_conflict(world):
    for name in ("a", "b"):
        (world.root / "work" / name).write_text(name)
    backfill(world, "--input", "a", "--until", "2026-11-03")
    ran = backfill(world, "--input", "b", "--until", "2026-11-04", "--json")
    assert ran.exit == 80
    assert [each["reason"] for each in summary(ran)["problems"]] == ["conflict", "conflict"]
    assert windows(world) == DAYS[:3]


def test_a_store_that_goes_away_ends_the_backfill_with_a_sentence(world):
    sh = f"{EFFECT}; test $RANONCE_WINDOW != 2026-11-02 || mv {world.store} {world.store}.gone"
    ran = backfill(world, sh=sh, env={"RANONCE_STORE_WAIT": "1"})
    assert ran.exit in (74, 78)
    assert "Traceback" not in ran.err
    assert "not reached" in ran.err
    assert windows(world) == DAYS[:2]


def test_a_year_of_minutes_is_counted_and_passed_without_being_kept(world):
    minutes = ("--every", "* * * * *", "--now", "2026-11-12T00:00:30Z", "--until", "2026-11-12T00:00:00Z")
    began = time.monotonic()
    words = ("backfill", "job", "--since", "2025-11-12T00:00:00Z", *minutes, "--json", "--", "no such command")
    told = summary(world.ranonce(*words))
    assert (told["windows"], told["left"]) == (525_600, 525_599)
    assert time.monotonic() - began < 10


# --- several at once ---


def test_several_windows_at_once_are_for_jobs_that_allow_it(world):
    ran = backfill(world, "--parallel", "3")
    assert ran.exit == 64
    assert "--overlap allow" in ran.sentence
    assert world.effects() == []
    assert backfill(world, "--parallel", "0").exit == 64


@pytest.mark.every_store
def test_several_windows_are_worked_on_at_once(world):
    sh = f'{EFFECT}; touch "$PIDS/$RANONCE_WINDOW"; while test "$(ls "$PIDS" | wc -l)" -lt 3; do sleep 0.02; done'
    ran = backfill(world, "--parallel", "3", "--overlap", "allow", "--json", sh=sh)
    assert ran.exit == 0, ran.err
    assert sorted(windows(world)) == DAYS
    assert summary(ran)["done"] == 12
    assert len(ran.receipts) == 12
    assert [run.attempt for run in world.all_runs()] == [1] * 12
    assert world.ranonce("doctor", "--deep", "--quiet").out == b""


def test_several_at_once_end_together_at_what_all_would_meet(world):
    sh = f"{EFFECT}; test $RANONCE_WINDOW != 2026-11-02 || $RANONCE stop --reason 429 --retry-after 34h"
    ran = backfill(world, "--parallel", "2", "--overlap", "allow", "--json", sh=sh)
    told = summary(ran)
    assert (ran.exit, told["ended_at"]) == (79, "2026-11-02")
    assert told["left"] >= 1


def at_work(world, *options):
    """Start a backfill of two windows at once that work until they are stopped; return it once both do."""
    sh = f'{EFFECT}; touch "$PIDS/$RANONCE_WINDOW"; sleep 60'
    words = ("--since", "2026-11-01", "--every", "day", "--now", NOON_12, "--parallel", "2", "--overlap", "allow")
    invocation = world.start("backfill", "job", *words, *options, "--", "/bin/sh", "-c", sh, "{window}")
    wait_until(lambda: len(list(world.pids.iterdir())) == 2)
    return invocation


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_several_at_once_are_stopped_together(world, number):
    invocation = at_work(world)
    invocation.signal(number)
    ran = invocation.ends()
    assert ran.exit == -number
    assert sorted(receipt["window"] for receipt in ran.receipts) == DAYS[:2]
    assert {(run.status, run.reason) for run in world.all_runs()} == {("stopped", "signal")}
    assert "10 not reached" in ran.err


def test_several_at_once_do_not_outlive_the_one_that_leads_them(world):
    invocation = at_work(world)
    invocation.signal(signal.SIGKILL)
    invocation.process.wait(10)
    wait_until(world.no_process_is_left)
    assert {(run.status, run.reason) for run in world.all_runs()} == {("stopped", "signal")}


def test_several_at_once_are_told_of_in_the_order_of_their_windows(world):
    """Whichever ends first: the status is that of the first window that is not done."""
    sh = "test $RANONCE_WINDOW = 2026-11-01 && sleep 0.5 && exit 3; exit 4"
    ran = backfill(world, "--parallel", "2", "--overlap", "allow", "--until", "2026-11-03", "--json", sh=sh)
    told = summary(ran)
    assert (ran.exit, told["exit"]) == (3, 3)
    assert [(each["window"], each["exit"]) for each in told["problems"]] == [(DAYS[0], 3), (DAYS[1], 4)]
    sh = "test $RANONCE_WINDOW = 2026-11-03 && sleep 0.5; $RANONCE stop --reason 429 --retry-after 34h"
    ran = backfill(world, "--parallel", "2", "--overlap", "allow", "--json", since=DAYS[2], sh=sh)
    assert summary(ran)["ended_at"] == DAYS[2]


def test_a_worker_that_dies_ends_the_backfill_with_a_sentence(world):
    sh = "test $RANONCE_WINDOW != 2026-11-02 || kill -9 $PPID; exit 0"
    ran = backfill(world, "--parallel", "2", "--overlap", "allow", sh=sh)
    assert ran.exit == 1
    assert "the process that worked on job:2026-11-02 has died" in ran.err
    assert "Traceback" not in ran.err
    assert backfill(world, "--overlap", "allow").exit == 0


@pytest.mark.every_store
def test_long_windows_leave_no_open_files_behind(world):
    sh = 'sleep 0.8; ls /proc/$PPID/fd | wc -l >> "$EFFECTS"'  # long enough for a renewal through a store of its own
    backfill(world, "--lease", "3s", "--until", "2026-11-06", sh=sh)
    first, *others = map(int, world.effects())
    assert len(others) == 4
    assert max(others) <= first + 1


# --- and what triggers catch up ---

NAMED = f'{EFFECT}; : "{{window}}"'


def test_what_a_backfill_has_done_is_not_caught_up(world):
    world.run(now="2026-11-01T12:00:00Z")
    backfill(world, "--until", "2026-11-06", since="2026-11-02")
    ran = world.run("--catch-up", "all", sh=NAMED, now="2026-11-08T12:00:00Z")
    assert [receipt["window"] for receipt in ran.receipts] == ["2026-11-06", "2026-11-07", "2026-11-08"]


def test_what_a_backfill_was_stopped_in_is_resumed_once_its_time_has_come(world):
    stop = "$RANONCE stop --reason 429 --retry-after 1"
    assert backfill(world, "--until", "2026-11-06", since="2026-11-05", sh=stop).exit == 79
    ran = world.run(now="2030-01-01T12:00:00Z")
    assert next((receipt["window"], receipt["trigger"]) for receipt in ran.receipts) == ("2026-11-05", "catch-up")


def test_a_window_that_is_named_by_its_date_is_run(world):
    ran = world.run("--window", "2026-11-03", every="0 2 * * *")
    assert ran.receipt["window"] == "2026-11-03T02:00Z"
    ran = world.run("--window", TODAY, job="hourly", every="hour")
    assert (ran.exit, ran.receipts) == (64, [])
    assert "holds 24 windows" in ran.sentence
