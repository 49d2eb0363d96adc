"""A window is run again on purpose: with a reason, under a new generation, and never as anything else."""

from __future__ import annotations

import json
import signal

import pytest

from tests.conftest import EFFECT, NOON, TODAY

TOMORROW_NOON = "2026-11-10T12:00:00Z"
#: An effect that says what the child was told of its generation.
TOLD = 'echo "$RANONCE_WINDOW $RANONCE_ATTEMPT $RANONCE_GENERATION ${RANONCE_RESEND:-no}" >> "$EFFECTS"'


def rerun(world, *options, window=TODAY, reason="bad input", sh=EFFECT, **how):
    why = ("--reason", reason) if reason is not None else ()
    return world.ranonce("rerun", "job", window, "--now", NOON, *why, *options, "--", "/bin/sh", "-c", sh, **how)


def probe(world, *options):
    ran = world.ranonce("probe", "job", "--now", TOMORROW_NOON, "--json", *options)
    return json.loads(ran.out)


@pytest.mark.every_store
def test_a_done_window_runs_again_at_once_as_its_next_generation(world):
    world.run()
    ran = rerun(world)
    assert ran.said() == (0, "done", None)
    assert [ran.receipt[name] for name in ("attempt", "generation", "trigger", "chosen_by")] == [
        2,
        2,
        "rerun",
        "window",
    ]
    assert world.effects() == ["job 2026-11-09 1", "job 2026-11-09 2"]
    assert world.events()[2:] == [("rerun", "bad input", 2), ("start", "regenerate", 2), ("done", None, 2)]
    (asked,) = [fact for fact in world.facts() if fact.event == "rerun"]
    assert "@" in asked.data["by"]
    assert world.run().said() == (0, "skipped", "done")


@pytest.mark.parametrize("reason", [None, "", "  "])
def test_without_a_reason_nothing_is_run_again(world, reason):
    world.run()
    ran = rerun(world, reason=reason)
    assert ran.exit == 64
    assert "reason" in ran.err or "empty value" in ran.err
    assert len(world.effects()) == 1


def test_a_window_that_never_ran_is_no_rerun(world):
    world.run()
    ran = rerun(world, window="2026-11-08")
    assert ran.said() == (64, "skipped", "unknown")
    assert "has never run" in ran.receipt["sentence"]
    assert ran.receipt["sentence"].endswith("ranonce run job --window 2026-11-08")
    assert len(world.effects()) == 1


def test_a_window_that_runs_is_not_run_again(world):
    invocation, _ = world.hold()
    ran = rerun(world)
    assert ran.said() == (75, "skipped", "busy")
    world.let_go()
    assert invocation.ends().exit == 0
    assert len(world.effects()) == 1


@pytest.mark.every_store
def test_a_probe_calls_it_a_rerun_by_request_and_no_duplicate(world):
    world.run()
    rerun(world, reason="the price list was wrong")
    found = probe(world)
    assert found["counts"]["dupes"] == 0
    assert [each["bucket"] for each in found["findings"] if each["window"] == TODAY] == []
    (note,) = [each for each in found["notes"] if each["bucket"] == "rerun"]
    assert "rerun by request: the price list was wrong (generation 2, attempt 2)" in note["explanation"]


def test_the_story_of_a_window_tells_who_ran_it_again_and_why(world):
    world.run()
    rerun(world, "--resend")
    told = world.ranonce("show", "job", TODAY, "--now", NOON).out.decode()
    assert "it ran (done)" in told
    assert "generation 2, run again by request" in told
    assert "bad input; by " in told
    assert "resend" in told


@pytest.mark.every_store(cases=1)
@pytest.mark.parametrize("sh", ["exit 1", "kill -9 $$", "$RANONCE stop --reason 429 --retry-after 34h; exit 1"])
def test_a_failed_or_stopped_window_may_be_run_again_with_all_its_attempts(world, sh):
    world.run("--max-attempts", "1", sh=sh)
    ran = rerun(world, "--max-attempts", "1")
    assert ran.said() == (0, "done", None)
    assert ran.receipt["generation"] == 2


def test_a_held_window_may_be_run_again(world):
    invocation, _ = world.hold("--on-crash", "hold")
    invocation.signal(signal.SIGKILL)
    invocation.ends()
    world.let_go()
    assert world.run("--on-crash", "hold").said() == (80, "skipped", "held")
    ran = rerun(world, "--on-crash", "hold")
    assert (ran.exit, ran.receipt["generation"]) == (0, 2)


def test_a_rerun_does_not_catch_up_and_has_no_max_late(world):
    world.run()
    world.run("--window", "2026-11-08", sh="$RANONCE stop --reason 429; exit 1")
    ran = world.ranonce(
        "rerun", "job", TODAY, "--reason", "x", "--now", "2026-11-20T12:00:00Z", "--max-late", "1h", "--", "true"
    )
    assert ran.said() == (0, "done", None)
    assert world.ranonce("rerun", "job", TODAY, "--reason", "x", "--catch-up", "all", "--", "true").exit == 64


def test_only_resend_tells_the_command_to_send_again(world):
    world.run(sh=TOLD)
    rerun(world, sh=TOLD)
    rerun(world, "--resend", sh=TOLD, env={"RANONCE_RESEND": ""})
    rerun(world, sh=TOLD, env={"RANONCE_RESEND": "1"})  # of a run around this one
    assert [line.split()[1:] for line in world.effects()] == [
        ["1", "1", "no"],
        ["2", "2", "no"],
        ["3", "3", "1"],
        ["4", "4", "no"],
    ]


def test_a_rerun_that_failed_is_tried_again_as_the_same_rerun(world):
    world.run(sh=TOLD)
    assert rerun(world, "--resend", sh=f"{TOLD}; exit 1").exit == 1
    # The next night's trigger catches it up: still generation 2, and still to be sent again.
    caught = world.run("--catch-up", "unfinished", now=TOMORROW_NOON, sh=f'{TOLD}; : "{{window}}"')
    assert [receipt["window"] for receipt in caught.receipts] == [TODAY, "2026-11-10"]
    assert [receipt["generation"] for receipt in caught.receipts] == [2, 1]
    assert world.effects()[2:] == ["2026-11-09 3 2 1", "2026-11-10 1 1 no"]


@pytest.mark.every_store
def test_a_rerun_that_crashed_is_taken_over_as_the_same_rerun(world):
    world.run()
    (world.pids / "hold").touch()
    child = world.pids / "child"
    held = f'{TOLD}; echo $$ > "$PIDS/child"; while test -e "$PIDS/hold"; do sleep 0.02; done'
    started = world.start("rerun", "job", TODAY, "--reason", "x", "--resend", "--now", NOON, "--", "sh", "-c", held)
    while not (child.exists() and child.read_text().strip()):
        assert started.process.poll() is None
    started.signal(signal.SIGKILL)
    started.ends()
    world.let_go()
    ran = world.run(sh=TOLD)
    assert (ran.exit, ran.receipt["generation"], ran.receipt["attempt"]) == (0, 2, 3)
    assert world.effects()[-1] == "2026-11-09 3 2 1"
    assert ("expired", "its process is dead", 2) in world.events()


def test_a_rerun_at_work_is_not_caught_up_beside_itself(world):
    world.run()
    invocation = rerun_that_holds(world)
    sh = f'{EFFECT}; : "{{window}}"'
    busy = world.run("--catch-up", "all", "--overlap", "allow", sh=sh)
    assert busy.said() == (75, "skipped", "busy")
    tomorrow = world.run("--catch-up", "all", "--overlap", "allow", sh=sh, now=TOMORROW_NOON)
    assert [receipt["window"] for receipt in tomorrow.receipts] == ["2026-11-10"]
    world.let_go()
    assert invocation.ends().exit == 0
    assert world.effects() == ["job 2026-11-09 1", "job 2026-11-09 2", "job 2026-11-10 1"]


def rerun_that_holds(world):
    (world.pids / "hold").touch()
    child = world.pids / "child"
    held = f'{EFFECT}; echo $$ > "$PIDS/child"; while test -e "$PIDS/hold"; do sleep 0.02; done'
    started = world.start("rerun", "job", TODAY, "--reason", "x", "--now", NOON, "--", "sh", "-c", held)
    while not (child.exists() and child.read_text().strip()):
        assert started.process.poll() is None
    return started


def test_a_date_names_the_window_that_begins_on_it(world):
    night = "0 2 * * *"
    world.run(every=night)
    ran = rerun(world)
    assert (ran.exit, ran.receipt["window"]) == (0, "2026-11-09T02:00Z")
    world.run(job="hourly", every="hour")
    hourly = world.ranonce("rerun", "hourly", TODAY, "--reason", "x", "--", "true")
    assert hourly.exit == 64
    assert "holds 24 windows: 2026-11-09T00, " in hourly.sentence


def test_other_work_for_other_input_needs_the_input_for_a_rerun(world):
    file = world.root / "work" / "input"
    file.write_text("a")
    world.run("--input-mode", "identity", "--input", "input")
    assert "--input" in rerun(world, "--input-mode", "identity").sentence
    ran = rerun(world, "--input-mode", "identity", "--input", "input")
    assert (ran.exit, ran.receipt["generation"]) == (0, 2)


def test_a_rerun_with_other_input_is_no_conflict_and_records_it(world):
    (world.root / "work" / "a").write_text("a")
    (world.root / "work" / "b").write_text("b")
    world.run("--input", "a")
    assert world.run("--input", "b").said() == (80, "skipped", "conflict")
    assert rerun(world, "--input", "b").said() == (0, "done", None)
    assert world.run("--input", "b").said() == (0, "skipped", "done")


def test_an_unknown_job_or_window_is_a_sentence(world):
    assert "declared" in world.ranonce("rerun", "nobody", TODAY, "--reason", "x", "--", "true").sentence
    world.run()
    assert "is not a window" in rerun(world, window="yesterday").sentence
    assert "no command" in world.ranonce("rerun", "job", TODAY, "--reason", "x").sentence


def test_a_pruned_window_cannot_be_run_again(world):
    world.run()
    world.sql("INSERT INTO tombstones VALUES ('job', 1783000000, 1783300000, 3, 0, '2026-10-01T00:00:00.000Z')")
    ran = rerun(world, "--quiet", "--receipt", "problems", window="2026-07-04")
    assert ran.said() == (64, "skipped", "pruned")
    assert "cannot be run again" in ran.receipt["sentence"]
    assert world.run("--window", "2026-07-04").said() == (0, "skipped", "pruned")
