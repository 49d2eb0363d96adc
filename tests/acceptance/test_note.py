"""Notes: what a person or a job writes into a window's story, changing nothing else."""

from __future__ import annotations

import json

import pytest

from tests.conftest import NOON, TODAY

AFTER = "2026-11-10T12:00:00Z"


def events_of(world, window=TODAY):
    told = world.ranonce("show", "job", window, "--now", AFTER, "--json")
    return json.loads(told.out)["events"]


def state(world):
    return world.all_runs(), world.leases()


@pytest.mark.every_store
def test_a_note_of_a_person_stands_in_the_story_with_their_name(world):
    world.run()
    before = state(world)
    assert world.ranonce("note", "job", TODAY, "checked the totals by hand").exit == 0
    assert state(world) == before
    noted = events_of(world)[-1]
    assert (noted["event"], noted["reason"], noted["attempt"]) == ("noted", "checked the totals by hand", 1)
    assert "@" in noted["data"]["by"]
    assert noted["host"]
    shown = world.ranonce("show", "job", TODAY, "--now", AFTER).out.decode()
    assert "checked the totals by hand; by " in shown
    assert "it ran (done)" in shown


def test_a_window_that_never_ran_can_be_noted_and_stays_missing(world):
    world.run()
    before = world.ranonce("probe", "job", "--now", "2026-11-12T12:00:00Z", "--json")
    assert world.ranonce("note", "job", "2026-11-10", "the host was down").exit == 0
    after = world.ranonce("probe", "job", "--now", "2026-11-12T12:00:00Z", "--json")
    assert json.loads(after.out) == json.loads(before.out)
    (noted,) = events_of(world, "2026-11-10")
    assert (noted["event"], noted["reason"], noted["attempt"]) == ("noted", "the host was down", 0)
    late = world.ranonce("run", "job", "--window", "2026-11-10", "--now", "2026-11-12T12:00:00Z", "--", "true")
    assert late.said() == (0, "done", None)


def test_a_note_is_no_finding(world):
    world.run()
    before = world.ranonce("probe", "job", "--since", "2026-11-09", "--until", "2026-11-10", "--now", AFTER)
    world.ranonce("note", "job", TODAY, "odd, but fine")
    world.ranonce("note", "job", TODAY, "odd, but fine")
    after = world.ranonce("probe", "job", "--since", "2026-11-09", "--until", "2026-11-10", "--now", AFTER)
    assert before.exit == after.exit == 0, after.out
    assert after.out == before.out


def test_inside_a_job_a_note_is_about_its_own_run(world):
    ran = world.run(sh='$RANONCE note "3 of 5 feeds were empty" && cd / && $RANONCE note second')
    assert ran.exit == 0, ran.err
    notes = [event for event in events_of(world) if event["event"] == "noted"]
    assert [note["reason"] for note in notes] == ["3 of 5 feeds were empty", "second"]
    assert notes[0]["owner"] == events_of(world)[0]["owner"]
    assert world.state() == ("done", 1)


def test_inside_a_job_with_an_input_of_its_own_the_note_finds_the_run(world):
    (world.root / "work" / "input").write_text("a")
    world.run("--input-mode", "identity", "--input", "input", sh="$RANONCE note 'about this input'")
    (noted,) = [fact for fact in world.facts() if fact.event == "noted"]
    assert noted.reason == "about this input"
    assert len(noted.key.input) == 64


@pytest.mark.every_store
def test_a_job_that_lost_its_claim_notes_nothing(world):
    world.run()
    lost = {
        "RANONCE_JOB": "job",
        "RANONCE_WINDOW": TODAY,
        "RANONCE_WINDOW_START": "2026-11-09T00:00:00Z",
        "RANONCE_OWNER": "0" * 32,
        "RANONCE_ATTEMPT": "1",
    }
    ran = world.ranonce("note", "late words", env=lost)
    assert ran.exit == 76
    assert "no longer holds" in ran.sentence
    assert [event["event"] for event in events_of(world)] == ["start", "done"]


def test_outside_a_job_a_note_must_say_what_it_is_about(world):
    assert "inside a job" in world.ranonce("note", "words").sentence
    assert "a job's window" in world.ranonce("note", "job", "words").sentence
    assert "does not know the job" in world.ranonce("note", "job", TODAY, "words").sentence
    world.run()
    assert world.ranonce("note", "job", "someday", "words").exit == 64
    assert world.ranonce("note", "job", TODAY, " ").exit == 64


def test_a_note_is_bounded_and_cannot_forge_a_line(world):
    world.run()
    ran = world.ranonce("note", "job", TODAY, "a\n2026-11-09T12:00:00Z forged\x1b[2J" + "b" * 2000, "--json")
    assert "is cut after 1000 characters" in ran.sentence
    assert json.loads(ran.out)["event"] == "noted"
    assert len(events_of(world)[-1]["reason"]) == 1000
    shown = world.ranonce("show", "job", TODAY, "--now", NOON).out
    assert b"\x1b" not in shown
    assert not any(line.startswith("2026-11-09T12:00:00Z forged") for line in shown.decode().splitlines())


def test_a_date_names_the_window_of_a_note_and_of_a_release(world):
    world.run("--max-attempts", "1", every="0 2 * * *", sh="exit 1")
    assert world.ranonce("note", "job", TODAY, "disk was full").exit == 0
    assert events_of(world)[-1]["event"] == "noted"
    ran = world.ranonce("release", "job", TODAY, "--as", "done", "--reason", "done by hand")
    assert ran.exit == 0, ran.err
    assert world.state(window="2026-11-09T02:00Z") == ("done", 1)
