"""Killed at every named place of a run: no double run on this host, no verdict lost, no window stuck for ever."""

from __future__ import annotations

import re
import signal
from collections import Counter
from pathlib import Path

import pytest

import ranonce
from tests.acceptance.test_delivery_crashes import STEPS as OF_A_DELIVERY
from tests.conftest import EFFECT, TODAY, wait_until

#: The places a run passes, in order. The first commit of a run is its claim, the second its verdict.
BEFORE_THE_CLAIM = [
    "schedule:before-commit",
    "schedule:after-commit",
    "run:lock-taken",
    "commit:before-writes",
    "commit:after-run",
    "commit:after-lease",
    "commit:after-events",
    "commit:before-commit",
]
CLAIMED = ["commit:after-commit", "journal:written", "run:claimed", "run:before-child", "run:child-started"]
WORK_ENDED = ["run:child-ended", "run:verdict-known"]
OUTCOME_KEPT = [
    "finish:outcome-kept",
    "commit:before-writes:2",
    "commit:after-run:2",
    "commit:after-drop",
    "commit:after-events:2",
    "commit:before-commit:2",
]
VERDICT_COMMITTED = ["commit:after-commit:2", "journal:written:2", "finish:committed", "finish:file-removed"]
SETTLING = ["unrecorded:committed"]
#: The places of what an owner does now and then; they are killed at in test_prune, test_journal_upkeep, test_backup.
OF_UPKEEP = [
    "prune:after-runs",
    "prune:before-commit",
    "prune:after-commit",
    "journal:before-replaced",
    "journal:replaced",
    "backup:copied",
]
#: The places of an import (test_moving) and of an accepted loss (test_accept_loss).
OF_A_MOVE = [
    "import:after-runs",
    "import:before-commit",
    "import:after-commit",
    "loss:built",
    "loss:moved-aside",
    "loss:in-place",
]
#: The places of a step and its messages (test_step, test_items, test_sqlite).
OF_A_PIECE = [
    "commit:after-steps",
    "commit:after-messages",
    "commit:after-moves",
    "mark:committed",
    "step:command-ended",
    "step:marked",
]
#: Those that every store passes, around what it writes.
ON_EVERY_STORE = [
    "commit:before-writes",
    "commit:after-commit",
    "run:child-started",
    "run:child-ended",
    "finish:outcome-kept",
    "commit:after-commit:2",
]
OF_A_RUN = [*BEFORE_THE_CLAIM, *CLAIMED, *WORK_ENDED, *OUTCOME_KEPT, *VERDICT_COMMITTED]


def killed_at(world, point, *options, **how):
    ran = world.run(*options, env={"RANONCE_FAILPOINT": point}, **how)
    assert ran.exit == -signal.SIGKILL, f"{point} was never passed"
    assert ran.receipts == []
    wait_until(world.no_process_is_left)


def attempts_that_started(world):
    return [attempt for event, _, attempt in world.events() if event == "start"]


def test_every_failpoint_is_killed_at():
    source = Path(ranonce.__file__).parent
    named = {name for file in source.rglob("*.py") for name in re.findall(r'failpoint\("([^"]+)"\)', file.read_text())}
    killed_at = (*OF_A_RUN, *SETTLING, *OF_UPKEEP, *OF_A_MOVE, *OF_A_PIECE, *OF_A_DELIVERY)
    assert named == {re.sub(r":[0-9]+$", "", point) for point in killed_at}


@pytest.mark.every_store(cases=len(ON_EVERY_STORE))
@pytest.mark.parametrize("point", sorted(OF_A_RUN, key=lambda point: point not in ON_EVERY_STORE))
def test_after_a_kill_the_next_triggers_do_what_is_still_to_be_done(world, point):
    killed_at(world, point)
    next_two = world.at_once(2, *world.words(sh=f"{EFFECT}; sleep 0.1"))
    said = Counter(ran.said() for ran in next_two)
    assert "Traceback" not in "".join(ran.err for ran in next_two)
    if point in BEFORE_THE_CLAIM:
        effects, attempt = [1], 1
    elif point in CLAIMED:
        effects, attempt = [2], 2
    elif point in WORK_ENDED:
        effects, attempt = [1, 2], 2  # nobody can know that it had ended: by policy it is tried again
    else:
        effects, attempt = [1], 1
    assert world.effects() == [f"job {TODAY} {number}" for number in effects]
    assert world.state() == ("done", attempt)
    assert said[0, "done", None] == (0 if point in OUTCOME_KEPT + VERDICT_COMMITTED else 1)
    assert set(said) <= {(0, "done", None), (0, "skipped", "done"), (75, "skipped", "busy")}
    assert attempts_that_started(world) == list(range(1, attempt + 1))
    assert [event for event, _, _ in world.events()].count("done") == 1
    assert world.run(now="2026-11-10T12:00:00Z").said() == (0, "done", None)


@pytest.mark.parametrize("point", ["commit:before-commit", *CLAIMED, *WORK_ENDED, *OUTCOME_KEPT[:1]])
def test_after_a_kill_nothing_runs_again_whose_effects_may_have_happened(world, point):
    killed_at(world, point, "--on-crash", "hold")
    before = world.effects()
    ran = world.run("--on-crash", "hold")
    if point in BEFORE_THE_CLAIM:
        assert ran.said() == (0, "done", None)
        assert before == []
    elif point in CLAIMED + WORK_ENDED:
        assert ran.said() == (80, "skipped", "held")
        assert world.effects() == before
        assert world.ranonce("release", "job", TODAY, "--as", "not-done", "--reason", "it was not").exit == 0
        assert world.run("--on-crash", "hold").said() == (0, "done", None)
    else:
        assert ran.said() == (0, "skipped", "done")
        assert world.effects() == before == [f"job {TODAY} 1"]
    assert world.state()[0] == "done"


@pytest.mark.parametrize("point", ["finish:outcome-kept", "commit:before-commit:2"])
def test_a_failure_that_was_known_is_recorded_after_a_kill(world, point):
    killed_at(world, point, sh="exit 9")
    again = world.run("--max-attempts", "1")
    assert again.said() == (80, "skipped", "exhausted")
    assert "recorded first" in again.receipt["warnings"][0]
    run = world.run_of()
    assert (run.status, run.exit, run.failures) == ("failed", 9, 1)


@pytest.mark.parametrize("point", ["commit:before-writes", "commit:before-commit", "commit:after-commit", *SETTLING])
def test_a_kill_while_an_earlier_outcome_is_recorded_loses_nothing(world, point):
    killed_at(world, "finish:outcome-kept")
    killed_at(world, point)
    assert world.run().said() == (0, "skipped", "done")
    assert world.effects() == [f"job {TODAY} 1"]
    assert world.events() == [("start", "start", 1), ("done", None, 1), ("skipped", "done", 1)]
    assert world.attempt_files() == []


@pytest.mark.parametrize("point", [*BEFORE_THE_CLAIM[2:], *CLAIMED, "run:child-ended", "finish:outcome-kept"])
def test_a_kill_during_a_take_over_is_a_crash_like_any_other(world, point):
    killed_at(world, "run:claimed")
    killed_at(world, point, "--max-attempts", "9")
    ran = world.run("--max-attempts", "9")
    assert ran.exit == 0
    assert world.state()[0] == "done"
    started = attempts_that_started(world)
    assert started == list(range(1, len(started) + 1))
    assert len(world.effects()) == (2 if point in WORK_ENDED else 1)


def test_a_kill_in_the_middle_of_a_renewal_is_a_crash_like_any_other(world):
    killed_at(world, "commit:before-commit:2", "--lease", "1s", sh="exec sleep 60")
    assert world.run("--lease", "1s").said() == (0, "done", None)
    assert world.state() == ("done", 2)
