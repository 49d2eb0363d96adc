"""What the end of a command means: exit statuses, attempts, checks, time limits, and stopping on purpose."""

from __future__ import annotations

import json
import signal

import pytest

from ranonce.errors import EXIT_STATUSES
from tests.conftest import EFFECT, NOON, TODAY, instant_in, lives, wait_until

LATER = "2026-11-09T13:00:00Z"
NEXT_DAY = "2026-11-10T12:00:00Z"


# --- exit statuses --------------------------------------------------------------------------------------------------


@pytest.mark.every_store(cases=1)
@pytest.mark.parametrize("code", [1, 2, 63, 66, 128])
def test_the_exit_status_of_a_failed_command_is_passed_on(world, code):
    ran = world.run(sh=f"exit {code}")
    assert ran.said() == (code, "failed", None)
    run = world.run_of()
    assert (run.status, run.exit, run.attempt) == ("failed", code, 1)


@pytest.mark.parametrize("code", [*sorted(set(EXIT_STATUSES) - {0}), 129, 255])
def test_a_command_cannot_speak_with_our_exit_statuses(world, code):
    ran = world.run(sh=f"exit {code}")
    assert ran.said() == (1, "failed", None)
    assert ran.receipt["child_exit"] == code
    assert world.run_of().exit == code


def test_the_raw_status_is_passed_on_where_that_is_asked_for(world):
    assert world.run("--raw-exit", sh="exit 75").said() == (75, "failed", None)


def test_a_failure_in_the_middle_of_a_script_is_a_failure(world):
    assert world.run(sh="set -e; false; exit 0").said() == (1, "failed", None)


@pytest.mark.parametrize(
    ("command", "exit"), [("/not/there", 127), ("not-in-path", 127), ("/etc/passwd", 126), ("/etc", 126)]
)
def test_a_command_that_cannot_be_started_is_recorded_as_failed(world, command, exit):
    ran = world.ranonce("run", "job", "--every", "day", "--now", NOON, "--", command)
    assert ran.exit == exit
    assert ran.receipt["event"] == "failed"
    assert command in ran.receipt["reason"]
    assert world.events() == [("start", "start", 1), ("failed", ran.receipt["reason"], 1)]
    assert world.run().said() == (0, "done", None)  # after it was put right


def test_a_time_limit_ends_the_command_and_is_its_verdict(world):
    ran = world.run("--timeout", "0.3s", "--grace-kill", "0.2s", sh="trap '' TERM; sleep 60 & sleep 60")
    assert ran.said() == (124, "failed", "timeout")
    assert world.no_process_is_left()
    assert world.run().said() == (0, "done", None)


# --- attempts -------------------------------------------------------------------------------------------------------


@pytest.mark.every_store
def test_a_failed_window_is_tried_again_until_its_attempts_are_used_up(world):
    for attempt in (1, 2):
        ran = world.run("--max-attempts", "2", sh="exit 3")
        assert ran.said() == (3, "failed", None)
        assert ran.receipt["attempt"] == attempt
    for _ in range(3):
        assert world.run("--max-attempts", "2").said() == (80, "skipped", "exhausted")
    assert world.effects() == []
    assert world.state() == ("failed", 2)
    assert world.ranonce("release", "job", TODAY, "--as", "not-done", "--reason", "fixed").exit == 0
    assert world.run("--max-attempts", "2").said() == (0, "done", None)


@pytest.mark.every_store
def test_a_failed_window_waits_for_its_retry_delay(world):
    options = ("--window", TODAY, "--retry-delay", "10m")
    world.run(*options, now=instant_in(0), sh="exit 3")
    waiting = world.run(*options, now=instant_in(540))
    assert waiting.said() == (75, "skipped", "waiting")
    assert waiting.receipt["until"] > instant_in(540)
    assert world.run(*options, now=instant_in(620)).said() == (0, "done", None)


def test_what_a_failed_command_printed_is_kept_with_its_verdict(world):
    world.run(sh="echo the reason why >&2; exit 3")
    assert world.outputs("failed") == [b"the reason why\n"]


def test_nothing_is_kept_of_the_output_where_that_is_not_wanted(world):
    world.run("--no-output", sh="echo secret; exit 3")
    assert world.outputs("failed") == [None]


# --- checks ---------------------------------------------------------------------------------------------------------


@pytest.mark.every_store(cases=1)
@pytest.mark.parametrize(
    ("check", "product"),
    [
        ("file=out", "true"),
        ("file=out", ": > out"),
        ("file=out,min_bytes=100", "echo short > out"),
        ("file=out,fresh", "touch -d '1 hour ago' out"),
        ("file=out,max_age=1h", "echo stale > out; touch -d '2 hours ago' out"),
        ("json=out", "echo '<html>503</html>' > out"),
        ("json=out,equals=/date={window}", 'echo \'{"date": "2026-11-08"}\' > out'),
        ("jsonl=out", "printf '{}\\n{\"torn' > out"),
        ("command=grep -q ok out", "echo error > out"),
        ("command=test $RANONCE_WINDOW = 1999-01-01", "true"),
    ],
)
def test_an_exit_status_0_without_the_product_is_not_done(world, check, product):
    ran = world.run("--check", check, sh=product)
    assert (ran.exit, ran.receipt["event"]) == (65, "failed")
    assert ran.receipt["reason"].startswith("check: ")
    assert len(ran.receipt["checks"]) == 1
    assert world.state() == ("failed", 1)


def test_a_product_that_passes_its_checks_is_done_and_verified(world):
    checks = ("--check", "json=out/{window}.json,fresh,equals=/date={window}", "--check", "command=test -d out")
    made = 'mkdir -p out; echo "{\\"date\\": \\"$RANONCE_WINDOW\\"}" > out/$RANONCE_WINDOW.json'
    assert world.run(*checks, sh=made).said() == (0, "done", None)
    assert world.facts()[-1].data["verified"] is True


def test_done_without_a_check_says_that_nothing_was_verified(world):
    world.run(sh="false | cat")
    assert world.facts()[-1].data["verified"] is False


def test_a_check_that_hangs_is_ended_by_the_time_limit(world):
    ran = world.run("--timeout", "0.5s", "--grace-kill", "0.2s", "--check", "command=sleep 60", sh=EFFECT)
    assert (ran.exit, ran.receipt["event"]) == (65, "failed")
    assert world.no_process_is_left()


def test_a_stop_signal_during_a_check_is_the_verdict(world):
    invocation = world.start(*world.words("--check", 'command=echo > "$PIDS/checking"; exec sleep 60', sh=EFFECT))
    wait_until((world.pids / "checking").exists)
    invocation.signal(15)
    assert invocation.ends().said() == (-15, "stopped", "signal")


# --- stopping on purpose --------------------------------------------------------------------------------------------


@pytest.mark.every_store
def test_a_declared_exit_code_stops_the_window_and_costs_no_attempt(world):
    options = ("--stop-exit-code", "42", "--max-attempts", "1")
    for _ in range(3):
        ran = world.run(*options, sh="exit 42")
        assert ran.said() == (79, "stopped", "exit 42")
    assert (world.run_of().status, world.run_of().failures) == ("stopped", 0)
    assert world.run(*options).said() == (0, "done", None)


def stop(retry_after, more=""):
    return f"$RANONCE stop --reason 429 --retry-after {retry_after} {more}"


def test_a_rate_limit_stops_the_window_until_its_time(world):
    until = instant_in(86400)
    ran = world.run(sh=f"{EFFECT}; {stop(until)}; exit 1")
    assert ran.said() == (79, "stopped", "429")
    assert ran.receipt["until"] == until.replace("Z", ".000Z")
    waiting = world.run("--window", TODAY, now=instant_in(86000))
    assert waiting.said() == (75, "skipped", "waiting")
    assert waiting.receipt["until"] == ran.receipt["until"]
    assert len(world.effects()) == 1
    assert (world.run_of().status, world.run_of().failures) == ("stopped", 0)


@pytest.mark.every_store
def test_a_stopped_window_is_resumed_first_by_the_next_trigger_after_its_time(world):
    until = instant_in(86400)
    world.run("--max-attempts", "1", now=instant_in(0), sh=f"{stop(until)}; exit 1")
    ((window, _),) = world.states()
    resumed = world.run("--max-attempts", "1", now=until)
    assert resumed.exit == 0
    told = [(r["event"], r["trigger"], r["chosen_by"]) for r in resumed.receipts]
    assert told == [("done", "catch-up", "catch-up"), ("done", "schedule", "clock")]
    assert resumed.receipts[0]["window"] == window < resumed.receipts[1]["window"]
    assert world.state(window=window) == ("done", 2)


def test_a_stop_does_not_hold_up_the_next_window(world):
    world.run(sh=f"{stop('300d')}; exit 1")
    assert world.run(now=NEXT_DAY).said() == (0, "done", None)
    assert world.state() == ("stopped", 1)


@pytest.mark.every_store
def test_a_closed_gate_holds_up_every_job_that_uses_it_and_nothing_else(world):
    closing = stop("34h", "--gate model-api")
    assert world.run("--uses", "model-api", job="one", sh=f"{closing}; exit 1").said() == (79, "stopped", "429")
    for now in (NOON, LATER):
        refused = world.run("--uses", "model-api", job="two", now=now)
        assert refused.said() == (75, "skipped", "gate")
        assert refused.receipt["holder"] == "one"
        assert "model-api is closed (429)" in refused.receipt["sentence"]
    assert world.run(job="three").said() == (0, "done", None)
    assert world.run("--uses", "another-api", job="four").said() == (0, "done", None)
    assert world.events("two") == [("skipped", "gate", 0)] * 2
    assert world.ranonce("gate", "model-api", "--open", "--reason", "the quota was raised").exit == 0
    assert world.run("--uses", "model-api", job="two").said() == (0, "done", None)


@pytest.mark.parametrize(
    "words",
    [
        "--retry-after 60",
        "--reason 429 --retry-after -5",
        "--reason 429 --retry-after=-5",
        "--reason 429 --retry-after soon",
        "--reason 429 --retry-after 3650d",
        "--reason 429 --retry-after 2026-11-10T00:00:00",
        "--reason 429 --retry-after 99999999999999999999",
        "--reason 429 --retry-after 9999-12-31T23:59:59Z",
        "--reason 429 --retry-after nan",
        "--reason 429 --gate api",
        "--reason 429 --gate 'a b' --retry-after 60",
        "--reason '' --retry-after 60",
    ],
)
def test_a_stop_that_makes_no_sense_is_refused_and_stops_nothing(world, words):
    ran = world.run(sh=f'$RANONCE stop {words} 2> "$PIDS/said"; echo $? > "$PIDS/exit"; exit 0')
    said = (world.pids / "said").read_text()
    assert (world.pids / "exit").read_text() == "64\n", said
    assert said.count("\n") == 1
    assert ran.said() == (0, "done", None)


def test_a_stop_outside_a_job_is_refused(world):
    refused = world.ranonce("stop", "--reason", "429")
    assert refused.exit == 64
    assert "not inside a job" in refused.sentence


def test_a_stop_is_taken_back_by_nothing_the_command_does_later(world):
    for code in (0, 7):
        ran = world.run(job=f"job-{code}", sh=f"{stop(60)}; exit {code}")
        assert ran.said() == (79, "stopped", "429")


def test_a_stop_of_an_earlier_attempt_does_not_stop_the_next(world):
    options = ("--window", TODAY)
    world.run(*options, now=instant_in(0), sh=f"{stop(0)}; exit 0")
    assert world.run(*options, now=instant_in(5)).said() == (0, "done", None)
    assert world.attempt_files() == []


# --- one invocation, one try ----------------------------------------------------------------------------------------


def test_within_one_invocation_nothing_is_tried_again(world):
    ran = world.run(sh=f"{EFFECT}; exit 3")
    assert len(ran.receipts) == len(world.effects()) == 1


def test_several_windows_in_one_invocation_have_one_receipt_each_and_the_current_ones_status(world):
    for day in ("07", "08"):
        world.run("--stop-exit-code", "42", now=f"2026-11-{day}T12:00:00Z", sh="exit 42")
    ran = world.run("--stop-exit-code", "42", sh=f'{EFFECT}; test "$RANONCE_WINDOW" != 2026-11-08 || exit 5')
    assert [(r["window"], r["event"], r["exit"]) for r in ran.receipts] == [
        ("2026-11-07", "done", 0),
        ("2026-11-08", "failed", 5),
        (TODAY, "done", 0),
    ]
    assert ran.exit == 5  # the current window's status is 0, so the first other one
    assert json.loads(world.journal.read_bytes().splitlines()[-1])["fact"]["window"] == TODAY


def test_a_signal_ends_the_whole_invocation_and_later_windows_wait(world):
    world.run("--stop-exit-code", "42", now="2026-11-08T12:00:00Z", sh="exit 42")
    invocation, child = world.hold()
    invocation.signal(15)
    ran = invocation.ends()
    assert ran.said() == (-15, "stopped", "signal")
    assert not lives(child)
    assert world.effects() == ["job 2026-11-08 2"]


@pytest.mark.every_store
def test_a_window_that_was_lost_does_not_take_the_next_one_with_it(world):
    world.run("--stop-exit-code", "42", now="2026-11-08T12:00:00Z", sh="exit 42")
    invocation, _ = world.hold("--lease", world.lease, "--grace-kill", "0.2s")
    assert world.effects() == ["job 2026-11-08 2"]
    invocation.signal(signal.SIGSTOP)
    take_over = ("--lease", world.lease, "--window", "2026-11-08")
    wait_until(lambda: world.run(*take_over, env=world.another_host()).exit == 0)
    invocation.signal(signal.SIGCONT)
    wait_until(lambda: len(world.effects()) == 3)
    world.let_go()
    ran = invocation.ends()
    assert [(r["window"], r["event"]) for r in ran.receipts] == [("2026-11-08", "lost"), (TODAY, "done")]
    assert ran.exit == 76
