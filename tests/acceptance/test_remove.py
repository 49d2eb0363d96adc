"""A job that is not to run any more."""

from __future__ import annotations

import contextlib
import sqlite3

import pytest

from ranonce.config import load
from ranonce.errors import UsageError
from ranonce.invocation import Asked, Invocation
from ranonce.ledger import OpenLedger
from ranonce.timefmt import parse_instant
from tests.conftest import NOON, TODAY

YESTERDAY = "2026-11-08"


@pytest.fixture
def removed(world):
    """A daily job that ran yesterday and was removed today."""
    world.ranonce("add", "job", "--every", "day", "--now", "2026-11-08T12:00:00Z", "--", "true")
    world.ranonce("run", "job", "--now", "2026-11-08T12:00:00Z")
    assert world.ranonce("remove", "job", "--now", NOON).exit == 0
    return world


def probe(world, since="2026-11-08T00:00:00Z"):
    now = "2026-11-15T12:00:00Z"
    return world.ranonce("probe", "--since", since, "--until", now, "--now", now)


def test_nothing_is_expected_of_it_any_more(removed):
    assert probe(removed).exit == 0
    assert "[jobs" not in removed.config.read_text()


def test_its_history_stays(removed):
    assert removed.ranonce("show", "job", YESTERDAY).exit == 0
    assert b"done" in removed.ranonce("status", "job").out


def test_a_trigger_that_still_comes_runs_nothing(removed):
    ran = removed.ranonce("run", "job", "--now", NOON)
    assert ran.exit == 64
    assert "was removed" in ran.err
    ran = removed.ranonce("run", "job", "--every", "day", "--now", NOON, "--", "sh", "-c", "echo x >> $EFFECTS")
    assert ran.exit == 78
    assert not removed.effects_file.exists()


def test_an_old_window_can_still_be_run_again(removed):
    ran = removed.ranonce("rerun", "job", YESTERDAY, "--reason", "wrong figures", "--", "true")
    assert ran.exit == 0


def test_removing_it_twice_changes_nothing(removed):
    again = removed.ranonce("remove", "job", "--json")
    assert again.exit == 0
    assert again.out == b'{"job": "job", "removed_from": "2026-11-09T00:00:00Z"}\n'


def test_it_can_be_declared_again(removed):
    removed.ranonce("add", "job", "--every", "day", "--now", "2026-11-12T12:00:00Z", "--", "true")
    removed.ranonce("run", "job", "--now", "2026-11-12T12:00:00Z")
    found = probe(removed)
    assert found.exit == 1
    assert b"missing job 2026-11-13" in found.out
    assert b"2026-11-10" not in found.out


def test_a_job_that_never_ran_can_be_removed(world):
    world.ranonce("add", "job", "--every", "day", "--now", NOON, "--", "true")
    assert world.ranonce("remove", "job", "--now", NOON).exit == 0
    assert probe(world, NOON).exit == 0


def test_a_job_that_stands_only_in_the_file_is_taken_out_of_it(world):
    world.config.write_text(world.config.read_text() + '\n[jobs.other]\nevery = "day"\ncommand = ["true"]\n')
    removed = world.ranonce("remove", "other")
    assert (removed.exit, removed.out.startswith(b"Removed other.")) == (0, True)
    assert "other" not in world.config.read_text()


def test_a_job_nobody_knows_is_not_removed(world):
    refused = world.ranonce("remove", "jub")
    assert refused.exit == 64
    assert "has a job 'jub'" in refused.sentence


def test_never_is_no_schedule_to_declare(world):
    refused = world.ranonce("add", "job", "--every", "never", "--", "true")
    assert refused.exit == 64
    assert "ranonce remove job" in refused.sentence


def test_the_rule_of_a_removed_job_has_no_windows():
    from ranonce.windows import Schedule

    never = Schedule("never", "Europe/Berlin")
    assert list(never.starts(0, 4_000_000_000)) == list(never.expected(0, 4_000_000_000)) == []
    assert never.fires(0, 4_000_000_000) == never.windows(0, 4_000_000_000) == []
    assert TODAY not in str(never)


def test_declared_again_as_if_long_ago_it_leaves_what_has_run_to_its_schedule(removed):
    """A supposed time in the past says which window is now; it does not say that what ran since never ran."""
    assert removed.ranonce("add", "job", "--every", "hour", "--now", "2026-11-05T00:30:00Z", "--", "true").exit == 0
    again = removed.run("--window", "2026-11-08T05", every=None)
    assert (again.exit, removed.effects_file.exists()) == (64, False), again.err
    found = removed.ranonce("probe", "job", "--since", YESTERDAY, "--until", TODAY)
    assert found.exit == 0, found.out


@pytest.mark.parametrize(
    ("words", "half"),
    [
        (("remove", "job"), "'job' stands in the configuration no more, but the ledger could not be told"),
        (
            ("add", "job", "--every", "hour", "--", "true"),
            "'job' stands in the configuration, but the ledger could not",
        ),
    ],
)
def test_what_is_half_done_is_said_and_can_be_said_once_more(world, words, half):
    world.ranonce("add", "job", "--every", "day", "--now", NOON, "--", "true")
    world.config.write_text(world.config.read_text().replace("[ledger]\n", '[ledger]\nstore_wait = "0.3s"\n'))
    with contextlib.closing(sqlite3.connect(world.store, isolation_level=None)) as db:
        db.execute("BEGIN IMMEDIATE")
        ran = world.ranonce(*words)
    assert ran.exit == 69
    assert half in ran.sentence
    assert "once more: ranonce" in ran.sentence
    assert world.ranonce(*words).exit == 0


def test_a_trigger_that_read_the_configuration_before_does_not_bring_the_job_back(world):
    world.ranonce("add", "job", "--every", "day", "--now", "2026-11-08T12:00:00Z", "--", "true")
    config = load(str(world.config), world.env)
    ledger = OpenLedger.open(config.ledger.store, world.ledger, state_folder=str(world.folder.parent))
    invocation = Invocation("job", Asked(parse_instant(NOON)), world.env, config, ledger)
    assert world.ranonce("remove", "job", "--now", NOON).exit == 0
    with pytest.raises(UsageError, match="'job' was removed"):
        invocation.declared()
    assert ledger.declared("job").version.every == "never"
    ledger.close()


def test_the_board_says_that_a_job_was_removed(removed):
    told = removed.ranonce("status", "--now", NOON).out.decode()
    assert "removed" in told
    assert "2026-11-10" not in told
    assert b"was removed already" in removed.ranonce("remove", "job").out
