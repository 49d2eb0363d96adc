"""Declared and undeclared jobs, and schedules that change."""

from __future__ import annotations

import shlex

import pytest

from tests.conftest import EFFECT, NOON, TODAY


def add(world, *options, job="job", every="day", sh=EFFECT, now="2026-11-09T00:00:00Z"):
    ran = world.ranonce("add", job, "--every", every, "--now", now, *options, "--", "/bin/sh", "-c", sh)
    assert ran.exit == 0, ran.err
    return ran


def edit(world, old, new):
    text = world.config.read_text()
    assert old in text
    world.config.write_text(text.replace(old, new))


def test_a_job_nobody_declared_is_never_given_a_guessed_day(world):
    ran = world.run(every=None)
    assert ran.exit == 64
    assert "--every" in ran.sentence
    assert world.effects() == []
    assert world.jobs() == []


def test_a_job_without_a_command_runs_nothing(world):
    ran = world.ranonce("run", "job", "--every", "day")
    assert ran.exit == 64
    assert "command" in ran.sentence


@pytest.mark.every_store
def test_a_declared_job_needs_no_more_than_its_name(world):
    ran = add(world)
    assert ran.out.decode().count("\n") == 1  # the line to paste, alone on standard output
    assert world.ranonce("run", "job", "--now", NOON).said() == (0, "done", None)
    assert world.ranonce("run", "job", "--now", NOON).said() == (0, "skipped", "done")


def test_the_line_that_add_prints_runs_the_job_in_the_little_that_cron_gives(world):
    line = add(world).out.decode().strip()
    *when, command = line.split(None, 5)
    assert when == ["0", "0", "*", "*", "*"]
    command = command.replace("\\%", "%")
    given = "HOME=$HOME PATH=/usr/bin:/bin SHELL=/bin/sh EFFECTS=$EFFECTS RANONCE_TEST_WORLD=$RANONCE_TEST_WORLD"
    ran = world.shell(f"cd /; exec env -i {given} /bin/sh -c {shlex.quote(command)}")
    assert (ran.exit, len(world.effects())) == (0, 1), (line, ran.err)


@pytest.mark.every_store
def test_a_schedule_said_once_on_the_command_line_is_remembered(world):
    world.run()
    assert world.run(every=None).said() == (0, "skipped", "done")
    assert world.run(every=None, now="2026-11-10T12:00:00Z").said() == (0, "done", None)


@pytest.mark.every_store(cases=1)
@pytest.mark.parametrize("change", [{"every": "hour"}, {"every": "0 2 * * *"}])
def test_a_command_line_that_contradicts_the_recorded_schedule_runs_nothing(world, change):
    world.run()
    ran = world.run(**change)
    assert ran.exit == 78
    assert "ranonce add" in ran.sentence
    assert len(world.effects()) == 1
    assert world.run().said() == (0, "skipped", "done")


@pytest.mark.parametrize("option", [("--tz", "Europe/Berlin"), ("--offset", "-1")])
def test_a_contradicting_zone_or_offset_runs_nothing(world, option):
    world.run()
    assert world.run(*option).exit == 78
    add(world, job="declared")
    contradiction = world.ranonce("run", "declared", "--now", NOON, *option)
    assert contradiction.exit == 78
    assert len(world.effects()) == 1


@pytest.mark.every_store
def test_a_done_day_stays_done_when_the_minute_changes(world):
    add(world, every="15 1 * * *")
    assert world.ranonce("run", "job", "--now", "2026-11-09T01:15:00Z").said() == (0, "done", None)
    edit(world, '"15 1 * * *"', '"15 2 * * *"')
    moved = world.ranonce("run", "job", "--now", "2026-11-09T02:15:00Z")
    # The new rule's slot lies inside the window that is done, so it is that day's work: not done again.
    assert moved.exit == 80
    assert moved.receipt["reason"] == "superseded"
    assert len(world.effects()) == 1
    assert world.ranonce("run", "job", "--now", "2026-11-10T02:15:00Z").said() == (0, "done", None)
    assert [(version.number, version.every) for version in world.schedules()] == [(1, "15 1 * * *"), (2, "15 2 * * *")]


def test_an_edited_file_begins_a_new_version_and_says_so(world):
    add(world)
    world.ranonce("run", "job", "--now", NOON)
    edit(world, 'every = "day"', 'every = "hour"')
    first = world.ranonce("run", "job", "--now", "2026-11-10T05:30:00Z")
    assert first.said() == (0, "done", None)
    assert first.receipt["window"] == "2026-11-10T05"
    assert any("schedule has changed" in warning for warning in first.receipt["warnings"])
    second = world.ranonce("run", "job", "--now", "2026-11-10T06:30:00Z")
    assert second.said() == (0, "done", None)
    assert "warnings" not in second.receipt
    assert world.schedules()[1].valid_from == 1_794_268_800


def test_a_window_of_the_old_schedule_is_not_run_beside_the_new_ones(world):
    add(world)
    world.ranonce("run", "job", "--now", NOON)
    edit(world, 'every = "day"', 'every = "hour"')
    world.ranonce("run", "job", "--now", "2026-11-10T05:30:00Z")
    inside = world.ranonce("run", "job", "--window", "2026-11-09T13", "--now", "2026-11-10T06:00:00Z")
    assert inside.exit in (64, 80)
    assert len(world.effects()) == 2


def test_the_windows_of_an_older_version_can_still_be_named(world):
    add(world)
    world.ranonce("run", "job", "--now", NOON)
    edit(world, 'every = "day"', 'every = "hour"')
    world.ranonce("run", "job", "--now", "2026-11-10T05:30:00Z")
    assert world.ranonce("run", "job", "--window", TODAY).said() == (0, "skipped", "done")
    assert world.ranonce("run", "job", "--window", "2026-11-08").said() == (0, "done", None)
    assert world.effects()[-1] == "job 2026-11-08 1"


def test_adding_again_with_another_schedule_is_the_way_to_change_it(world):
    world.run(every="hour")
    add(world, every="day", now="2026-11-09T13:00:00Z")
    assert world.ranonce("run", "job", "--now", "2026-11-10T12:00:00Z").said() == (0, "done", None)
    assert len(world.schedules()) == 2


def test_a_record_of_a_far_future_window_does_not_move_the_new_version_there(world):
    add(world)
    world.ranonce("run", "job", "--now", "2036-01-01T00:00:00Z")
    edit(world, 'every = "day"', 'every = "hour"')
    assert world.ranonce("run", "job", "--now", NOON).said() == (0, "done", None)
    assert world.effects()[-1] == "job 2026-11-09T12 1"


@pytest.mark.every_store
def test_two_declarations_at_once_are_one_version(world):
    ran = world.at_once(4, *world.words())
    assert {one.exit for one in ran} <= {0, 75}
    assert len(world.schedules()) == 1


def test_a_command_after_the_dashes_replaces_the_declared_one_this_time(world):
    add(world, sh="exit 3")
    assert world.ranonce(*world.words(every=None)).said() == (0, "done", None)
    assert world.ranonce("run", "job", "--now", "2026-11-10T12:00:00Z").said() == (3, "failed", None)


def test_a_declared_command_runs_in_the_folder_of_its_file_wherever_one_stands(world):
    world.ranonce("add", "job", "--every", "day", "--", "/bin/pwd")
    for folder, now in (("/", NOON), (world.root, "2026-11-10T12:00:00Z")):
        assert world.ranonce("run", "job", "--now", now, cwd=folder).out == f"{world.config.parent}\n".encode()


@pytest.mark.parametrize("every", ["", "daily", "61 * * * *", "* * * *", "0 2 * * * *", "0 0 30 2 *", "@reboot"])
def test_a_rule_that_is_none_is_refused(world, every):
    ran = world.run("--every", every, every=None)
    assert ran.exit in (64, 78)
    assert ran.sentence
    assert world.effects() == []


def test_an_unknown_zone_is_refused(world):
    ran = world.run("--tz", "Europe/Berlln")
    assert ran.exit == 64
    assert "Europe/Berlln" in ran.sentence
