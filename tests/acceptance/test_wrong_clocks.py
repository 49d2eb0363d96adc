"""Hosts whose clock is wrong, on a store that is a server's: its clock counts, in all that is chosen and recorded."""

from __future__ import annotations

import pytest

from tests.behind import born_long_ago
from tests.clocks import at_another_time, clock_warnings
from tests.conftest import EFFECT, SERVERS, TODAY, wait_until

pytestmark = pytest.mark.parametrize("store_kind", SERVERS, indirect=True)

HOUR = 3600.0
AHEAD, BEHIND = 3 * HOUR, -3 * HOUR
DAYS = 3 * 86400.0


@pytest.fixture
def old(world):
    """A world whose ledger was not made a moment ago: a clock before its birth would be refused for that."""
    born_long_ago(world)
    return world


def present(world):
    with world.opened() as store:
        return store.clock().wall


@pytest.mark.parametrize("offset", [DAYS, 4 * 365 * 86400.0], ids=["days", "years"])
def test_the_window_is_chosen_by_the_servers_clock_and_the_receipt_says_so(world, offset):
    wrong = at_another_time(world, offset, *world.words(now=None))
    assert wrong.said() == (0, "done", None)
    assert any("ahead of the store's, which counts" in warning for warning in clock_warnings(wrong))
    right = world.run(now=None)
    assert right.said() == (0, "skipped", "done")
    assert right.receipt["window"] == wrong.receipt["window"]
    assert clock_warnings(right) == []


def test_a_host_that_is_behind_works_on_the_window_that_is_now(old):
    wrong = at_another_time(old, -DAYS, *old.words(now=None))
    assert wrong.said() == (0, "done", None)
    assert any("behind the store's, which counts" in warning for warning in clock_warnings(wrong))
    assert old.run(now=None).said() == (0, "skipped", "done")


def test_an_instant_that_was_named_chooses_whatever_any_clock_says(world):
    wrong = at_another_time(world, AHEAD, *world.words())
    assert (wrong.exit, wrong.receipt["window"]) == (0, TODAY)


def test_a_verdict_is_dated_after_its_start_and_not_in_the_future(world):
    ran = at_another_time(world, AHEAD, *world.words(sh=f"{EFFECT}; sleep 0.3"))
    run = world.run_of()
    assert run.started_at + 0.2 < run.finished_at <= present(world)
    start, done = world.facts()
    assert start.at < done.at <= present(world)
    assert 0.2 < done.data["seconds"] < 30
    assert ran.receipt["seconds"] == pytest.approx(done.data["seconds"], abs=0.2)


def test_a_verdict_of_a_host_that_is_behind_is_not_dated_before_its_start(old):
    at_another_time(old, BEHIND, *old.words(sh=f"{EFFECT}; sleep 0.3"))
    run = old.run_of()
    assert run.started_at + 0.2 < run.finished_at <= present(old)


@pytest.mark.parametrize("when", ["1h", "3600"])
def test_a_stop_and_its_gate_last_as_long_as_was_said(world, when):
    stops = f"$RANONCE stop --reason 429 --retry-after {when} --gate api"
    stopped = at_another_time(world, AHEAD, *world.words(sh=stops))
    assert stopped.said() == (79, "stopped", "429")
    for until in (world.run_of().resume_at, world.gates()[0].until):
        assert until == pytest.approx(present(world) + HOUR, abs=60)
    assert world.gates()[0].closed_at <= present(world)
    assert world.run(now=None, every="hour", job="other").exit == 0
    assert world.run("--uses", "api", now=None, every="hour", job="third").said() == (75, "skipped", "gate")


def test_a_stop_until_an_instant_lasts_until_that_instant(world):
    from ranonce.timefmt import format_instant

    instant = int(present(world) + 4 * HOUR)
    stops = f"$RANONCE stop --reason 429 --retry-after {format_instant(instant)}"
    assert at_another_time(world, AHEAD, *world.words(sh=stops)).exit == 79
    assert world.run_of().resume_at == instant


def test_a_gate_that_a_person_closes_lasts_as_long_as_was_said(world):
    closing = ("gate", "api", "--close-for", "1h", "--reason", "quota")
    assert at_another_time(world, AHEAD, *closing).exit == 0
    assert world.gates()[0].until == pytest.approx(present(world) + HOUR, abs=60)
    assert world.gates()[0].closed_at <= present(world)


def test_a_schedule_that_a_host_with_a_clock_ahead_has_changed_counts_at_once_for_all(world):
    world.ranonce("add", "job", "--every", "day", "--", "true")
    assert at_another_time(world, AHEAD, "add", "job", "--every", "hour", "--", "true").exit == 0
    assert [version.every for version in world.schedules()] == ["day", "hour"]
    assert world.schedules()[-1].recorded_at <= present(world)
    ran = world.ranonce("run", "job")
    assert ran.exit == 0
    assert "T" in ran.receipt["window"]  # an hour's


def test_a_clock_that_is_ahead_makes_nobody_wait_longer_than_the_lease(world):
    working, _ = world.hold("--lease", world.lease)
    working.signal(9)
    working.ends()
    world.let_go()
    words = world.words("--lease", world.lease)
    elsewhere = world.another_host()
    refused = at_another_time(world, AHEAD, *words, env=elsewhere)
    if refused.exit != 0:
        assert refused.said() == (75, "skipped", "busy")
        wait_until(lambda: at_another_time(world, AHEAD, *words, env=elsewhere).exit == 0, 10)
    assert world.state() == ("done", 2)


def test_a_doctor_says_by_how_much_the_clock_is_wrong(world):
    told = at_another_time(world, AHEAD, "doctor")
    assert told.exit == 1
    assert b"ahead of the store's, which counts" in told.out
