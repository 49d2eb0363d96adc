"""A loss that one host accepted: another one that remembers more is refused until that is brought in."""

from __future__ import annotations

import json
import shutil

import pytest

from tests.losses import copied, gone, rolled_back

MONDAY, TUESDAY, WEDNESDAY = ("2026-11-09T12:00:00Z", "2026-11-10T12:00:00Z", "2026-11-11T12:00:00Z")
ACCEPT = ("accept-loss", "--reason", "the disk died")


def journal_of(world, env):
    return f"{env['XDG_STATE_HOME']}/ranonce/{world.ledger}/journal.jsonl"


def lost_with_two_hosts(world):
    """Monday was done here, Tuesday there; the ledger is lost, and that is accepted here. Return the other host."""
    there = world.another_host()
    assert world.run(now=MONDAY).exit == 0
    assert world.run(now=TUESDAY, env=there).exit == 0
    gone(world)
    assert world.ranonce(*ACCEPT).exit == 0
    return there


def is_refused(world, there):
    ran = world.run(now=TUESDAY, env=there)
    assert ran.exit == 78
    assert "a loss was accepted on another host (epoch 2)" in ran.sentence
    assert "2026-11-10" in ran.sentence
    assert f"ranonce import '{journal_of(world, there)}'" in ran.sentence
    assert len(world.effects()) == 2


@pytest.mark.every_store
def test_a_host_that_remembers_more_than_the_accepted_ledger_is_refused_until_its_journal_is_imported(world):
    there = lost_with_two_hosts(world)
    is_refused(world, there)
    assert world.ranonce("import", journal_of(world, there), env=there).exit == 0
    assert world.run(now=TUESDAY, env=there).said() == (0, "skipped", "done")
    assert world.run(now=WEDNESDAY, env=there).said() == (0, "done", None)
    assert world.run(now=WEDNESDAY).said() == (0, "skipped", "done")
    assert len(world.effects()) == 3
    assert world.ranonce("doctor", "--deep", env=there).exit == 0


@pytest.mark.every_store
def test_its_journal_may_be_imported_from_any_host(world):
    there = lost_with_two_hosts(world)
    shutil.copy(journal_of(world, there), world.root / "theirs.jsonl")
    assert world.ranonce("import", str(world.root / "theirs.jsonl")).exit == 0
    assert world.run(now=TUESDAY, env=there).said() == (0, "skipped", "done")


@pytest.mark.every_store
def test_or_it_accepts_the_loss_too_and_puts_back_what_it_remembers(world):
    there = lost_with_two_hosts(world)
    told = json.loads(world.ranonce(*ACCEPT, "--json", env=there).out)
    assert (told["event"], told["kind"], told["epoch"]) == ("loss-accepted", "behind", 3)
    for env in (None, there):
        assert world.run(now=MONDAY, env=env).said() == (0, "skipped", "done")
        assert world.run(now=TUESDAY, env=env).said() == (0, "skipped", "done")
    assert len(world.effects()) == 2
    assert world.ranonce("doctor", "--deep").exit == 0


def test_importing_something_else_there_does_not_let_it_run(world):
    there = lost_with_two_hosts(world)
    other = world.root / "other.jsonl"
    other.write_text('{"event": "done", "window": "2026-11-01", "ts": "2026-11-02T00:00:00Z"}\n')
    ran = world.ranonce("import", str(other), "--job", "job", "--every", "day", env=there)
    assert "this host remembers what the ledger does not" in ran.err
    is_refused(world, there)


def test_reading_there_warns_and_the_doctor_calls_it_a_problem(world):
    there = lost_with_two_hosts(world)
    for words in (("probe",), ("show", "job"), ("status",), ("import", "--dry-run", str(world.journal))):
        ran = world.ranonce(*words, env=there)
        assert ran.exit in (0, 1, 2)
        assert "this host remembers what the ledger does not" in ran.err
    doctor = world.ranonce("doctor", env=there)
    assert doctor.exit == 1
    assert b"ranonce import" in doctor.out
    is_refused(world, there)


@pytest.mark.every_store
def test_a_host_whose_memory_is_all_known_is_welcome(world):
    there = world.another_host()
    assert world.run(now=MONDAY).exit == 0
    assert world.run(now=MONDAY, env=there).said() == (0, "skipped", "done")
    gone(world)
    assert world.ranonce(*ACCEPT).exit == 0
    assert world.run(now=MONDAY, env=there).said() == (0, "skipped", "done")
    assert world.run(now=TUESDAY, env=there).said() == (0, "done", None)


def test_who_accepts_a_loss_is_told_what_becomes_of_other_hosts(world):
    lost_with_two_hosts(world)
    gone(world)
    told = world.ranonce(*ACCEPT).out.decode()
    assert "refused until their journals are imported" in told


def test_work_whose_verdict_waits_there_is_known_after_the_import(world):
    there = world.another_host()
    assert world.run(now=MONDAY).exit == 0
    world.run(now=TUESDAY, env={**there, "RANONCE_FAILPOINT": "finish:outcome-kept"})
    gone(world)
    assert world.ranonce(*ACCEPT).exit == 0
    is_refused(world, there)
    world.ranonce("import", journal_of(world, there), env=there)
    assert world.run(now=TUESDAY, env=there).said() == (0, "skipped", "done")
    assert len(world.effects()) == 2


@pytest.mark.every_store
def test_two_losses_in_a_row_leave_a_ledger_that_is_whole(world):
    assert world.run(now=MONDAY).exit == 0
    copied(world)
    assert world.run(now=TUESDAY).exit == 0
    gone(world)
    assert world.ranonce(*ACCEPT).exit == 0
    rolled_back(world)
    assert world.ranonce(*ACCEPT).exit == 0
    assert [fact.event for fact in world.facts()] == ["start", "done", "start", "done"]
    assert world.ranonce("doctor", "--deep").exit == 0
    assert world.run(now=TUESDAY).said() == (0, "skipped", "done")


@pytest.mark.every_store
def test_a_window_that_was_done_here_and_there_is_told_as_done_twice_when_the_other_journal_comes_in(world):
    there = lost_with_two_hosts(world)
    assert world.run(now=TUESDAY).said() == (0, "done", None)  # nobody here knew
    for again in (False, True):
        told = json.loads(world.ranonce("import", "--json", journal_of(world, there)).out)
        assert told["runs"].get("advanced", 0) == (0 if again else 1)
        probe = world.ranonce("probe", "--since", MONDAY, "--until", WEDNESDAY, "--now", WEDNESDAY).out.decode()
        assert "dupes=1" in probe
        assert "completed 2 times" in probe
        assert world.ranonce("doctor", "--deep").exit == 0
    assert world.run(now=TUESDAY).said() == (0, "skipped", "done")
    assert world.run(now=TUESDAY, env=there).said() == (0, "skipped", "done")
