"""Names, windows and texts from people who did not think of us: refused, or kept exactly; never taken for another."""

from __future__ import annotations

import json
import sqlite3

import pytest

from tests.conftest import EFFECT, TODAY

HOSTILE = [
    'A","event":"done',
    "two\nlines",
    ".*",
    "a b",
    "../up",
    "/etc/passwd",
    "-rf",
    "ü",
    "\u2028",
    "\x1b[31m",
    "x" * 9000,
    "",
    " ",
    "a:b",
    "😀",
]


@pytest.mark.every_store(cases=1)
@pytest.mark.parametrize("name", HOSTILE)
def test_a_name_that_needs_quoting_somewhere_is_no_job(world, name):
    ran = world.run(job=name)
    assert ran.exit == 64
    assert "\x1b" not in ran.sentence
    assert len(ran.sentence) < 500
    assert world.is_empty()
    assert world.effects() == []


@pytest.mark.every_store(cases=1)
@pytest.mark.parametrize(
    "name",
    ["2026-13-45T99", "yesterday", "2026-11-09 ", "2026-11-9", "20261109", 'A","event":"done', "a\nb", ".*", "[", ""],
)
def test_a_window_that_is_none_of_the_schedule_is_refused(world, name):
    world.run(sh="exit 3")
    ran = world.run("--window", name)
    assert ran.exit == 64
    assert len(ran.sentence) < 500
    assert world.state() == ("failed", 1)
    assert len(world.all_runs()) == 1


def test_a_name_that_is_no_text_is_refused(world):
    for words in (("run", b"\xff\xfe"), ("run", "job", "--window", b"\xff"), ("run", "job", "--version", b"\xff")):
        ran = world.ranonce(*words, "--every", "day", "--", "true")
        assert ran.exit == 64
        assert ran.sentence
    assert world.is_empty()


@pytest.mark.every_store
def test_names_that_differ_in_any_letter_are_different_jobs(world):
    names = ["job", "Job", "JOB", "job.", "job-", "job_1", "1job"]
    for name in names:
        assert world.run(job=name).said() == (0, "done", None)
    assert len(world.effects()) == len(names)


def test_a_window_like_another_is_not_the_other(world):
    for key in ("2026-11-01", "2026-01-11", "2026-11-11"):
        world.run("--window", key, now="2026-12-01T00:00:00Z")
    assert world.effects() == [f"job {key} 1" for key in ("2026-11-01", "2026-01-11", "2026-11-11")]


@pytest.mark.every_store(cases=2)
@pytest.mark.parametrize("text", ['v","event":"done"}', "{window}", "ü😀\u2028", "\\n\\x1b[31m", "%s%n", "$(id)"])
def test_a_version_comes_back_as_it_went_in_on_one_line(world, text):
    ran = world.run("--version", text, sh="exit 3")
    assert ran.receipt["version"] == text
    assert ran.err.count("\n") == 1
    assert {fact.version for fact in world.facts()} == {text}
    assert world.journal.read_text().count("\n") == 2
    assert world.run().said() == (0, "done", None)


@pytest.mark.parametrize("text", ["two\nlines", "\x1b[31m", "", "  "])
def test_a_version_with_control_characters_is_refused(world, text):
    ran = world.run("--version", text)
    assert ran.exit == 64
    assert ran.sentence
    assert world.is_empty()


def test_what_a_command_prints_is_never_taken_for_a_record(world):
    forged = json.dumps({"event": "done", "job": "job", "window": TODAY})
    ran = world.run(sh=f"echo '{forged}'; echo '{forged}' >&2; exit 3")
    assert ran.exit == 3
    assert world.state() == ("failed", 1)
    assert world.run().said() == (0, "done", None)


@pytest.mark.every_store
def test_reasons_of_people_are_kept_as_they_are(world):
    world.run("--on-crash", "hold", env={"RANONCE_FAILPOINT": "run:claimed"})
    assert world.run("--on-crash", "hold").exit == 80
    reason = 'he said "done"; \u2028 ü {"event":"done"}'
    assert world.ranonce("release", "job", TODAY, "--as", "done", "--reason", reason).exit == 0
    assert ("released", reason, 1) in world.events()


def test_nothing_read_from_the_ledger_is_ever_executed(world):
    mark = world.root / "executed"
    evil = f"; touch {mark}; $(touch {mark})`touch {mark}`"
    world.run(sh="exit 3")
    world.sql("UPDATE runs SET version = ?, reason = ?, triggered_by = ?", evil, evil, evil)
    world.run("--catch-up", "all", now="2026-11-10T12:00:00Z", sh=f": {{window}}; {EFFECT}")
    assert world.effects()
    assert not mark.exists()


IMPOSSIBLE = [
    "UPDATE runs SET status = 'Failed'",
    "UPDATE runs SET status = NULL",
    "UPDATE runs SET attempt = 0",
    "UPDATE runs SET attempt = 'one'",
    "UPDATE runs SET owner = ''",
    "UPDATE runs SET \"window\" = ''",
    'UPDATE runs SET "window" = NULL',
    "UPDATE runs SET job = NULL",
    "UPDATE runs SET window_end = window_start",
    "UPDATE runs SET late = 2",
    "INSERT INTO runs SELECT * FROM runs",
    "UPDATE leases SET seconds = 0",
    "UPDATE leases SET expires = 'soon'",
    'INSERT INTO events (at, job, window_start, "window", input, event, attempt, generation, owner, triggered_by,'
    " host, data) VALUES ('', 'job', 1, 'w', '', 'finished', 1, 1, '', '', '', '{}')",
]


def test_the_store_itself_refuses_what_no_run_can_be(world):
    working, _ = world.hold()
    for statement in IMPOSSIBLE:
        with pytest.raises(sqlite3.IntegrityError):
            world.sql(statement)
    world.let_go()
    assert working.ends().said() == (0, "done", None)


def test_a_path_with_every_odd_character_is_a_place_for_a_ledger(bare):
    odd = bare.root / "a b#%41;&'\"ü$(id)"  # but a question mark, which begins the options of an address
    bare.store = odd / "ledger.db"
    bare.init()
    assert bare.store.exists()
    assert [file.name for file in bare.root.glob("a*")] == [odd.name]
    assert bare.run().said() == (0, "done", None)
