"""The questions a probe and a board ask: the same answers from every store."""

from __future__ import annotations

import pytest

from ranonce.lifecycle import Retention, RunKey
from ranonce.stores.base import Backlog, Scope, glanced
from tests.contract.acting import START, claim, ledger_over, verdict
from tests.planted import Planted

DAY = 86400


@pytest.fixture
def planted(kind):
    """A daily job in each kind of store. Its windows are named by their day in November 2025."""
    return Planted("day", store=kind.open())


def test_an_outline_of_nothing_is_empty(planted):
    outline = planted.store.outline("j", 0, START)
    assert (list(outline.starts), outline.notable, outline.in_turn, outline.latest) == ([], [], True, None)


def test_an_outline_lists_all_starts_and_those_that_are_notable(planted):
    planted.run("2025-11-10")
    planted.run("2025-11-11", attempt=2)
    planted.run("2025-11-12", late=True)
    planted.run("2025-11-13", "failed")
    planted.run("2025-11-15")
    outline = planted.store.outline("j", START, START + 6 * DAY)
    assert list(outline.starts) == [START + n * DAY for n in (0, 1, 2, 3, 5)]
    assert outline.notable == [START + n * DAY for n in (1, 2, 3)]
    assert [run.window_start for run in planted.store.notable("j", START, START + 6 * DAY)] == outline.notable


def test_an_outline_is_of_one_job_and_one_span(planted):
    for day in (10, 11, 12):
        planted.run(f"2025-11-{day}")
    assert list(planted.store.outline("j", START + DAY, START + 2 * DAY).starts) == [START + DAY]
    assert list(planted.store.outline("i", START, START + 9 * DAY).starts) == []


def test_a_window_with_two_inputs_is_listed_twice(planted):
    key = planted.run("2025-11-10")
    run = planted.recorded(key)
    other = RunKey("j", key.window, "a" * 64)
    planted.commit(other, run=run.replace(key=other))
    assert list(planted.store.outline("j", START, START + DAY).starts) == [START, START]


def test_an_outline_says_whether_runs_worked_in_turn(planted):
    planted.run("2025-11-10", seconds=DAY - 5)
    planted.run("2025-11-11", "running", lease=60)
    outline = planted.store.outline("j", START, START + 9 * DAY)
    assert outline.in_turn
    assert outline.latest == START + DAY + 5
    planted.run("2025-11-12", started="2025-11-10T12:00:00Z")
    assert not planted.store.outline("j", START, START + 9 * DAY).in_turn


def test_runs_out_of_the_order_of_their_windows_need_a_closer_look(planted):
    planted.run("2025-11-10", started="2025-11-12T00:00:00Z")
    planted.run("2025-11-11")
    outline = planted.store.outline("j", START, START + 9 * DAY)
    assert not outline.in_turn
    assert outline.latest == START + 2 * DAY + 60


def test_the_backlog_counts_by_kind_what_waits_from_before(planted):
    planted.run("2025-11-10", "failed")
    planted.run("2025-11-11", "failed", attempt=3)
    planted.run("2025-11-12", "failed")
    planted.run("2025-11-13", "held")
    planted.run("2025-11-14", "stopped")
    planted.run("2025-11-15", "stopped", resume_at=START + 20 * DAY)
    planted.run("2025-11-16")
    planted.run("2025-11-17", "running", lease=60)
    planted.run("2025-11-18", "failed")
    store, before = planted.store, START + 8 * DAY
    assert sorted(store.backlog("j", before, 3, START + 9 * DAY), key=lambda kind: kind.first) == [
        Backlog("failed", False, False, 2, START, START + 2 * DAY),
        Backlog("failed", True, False, 1, START + DAY, START + DAY),
        Backlog("held", False, False, 1, START + 3 * DAY, START + 3 * DAY),
        Backlog("stopped", False, False, 1, START + 4 * DAY, START + 4 * DAY),
        Backlog("stopped", False, True, 1, START + 5 * DAY, START + 5 * DAY),
    ]
    assert [run.window_start for run in store.unfinished("j", before, 3)] == [START + n * DAY for n in (5, 4, 3)]


def test_the_newest_done_run_is_found_behind_others(planted):
    planted.run("2025-11-10")
    planted.run("2025-11-11", "failed")
    planted.run("2025-11-12")
    store = planted.store
    assert store.last_done("j", START + 9 * DAY).key.window == "2025-11-12"
    assert store.last_done("j", START + 2 * DAY).key.window == "2025-11-10"
    assert store.last_done("j", START) is None


def test_a_glance_says_what_the_questions_say_one_by_one(planted):
    planted.run("2025-11-08", "failed")
    planted.run("2025-11-09", "stopped")
    planted.run("2025-11-10")
    planted.run("2025-11-11", attempt=2)
    planted.run("2025-11-12", "running", lease=60)
    planted.run("2025-11-20")
    store = planted.store
    store.upkeep().prune("j", Retention(START + DAY, START), limit=100)
    for since, until in ((START, START + 5 * DAY), (START - 9 * DAY, START), (START + 3 * DAY, START + 4 * DAY)):
        scope = Scope(since, until, START + 9 * DAY, 1, float(START + 30 * DAY))
        seen, told = store.glance("j", scope), glanced(store, "j", scope)
        assert (list(seen.outline.starts), *list(seen.outline.as_dict().values())[1:]) == (
            list(told.outline.starts),
            *list(told.outline.as_dict().values())[1:],
        )
        assert seen.replace(outline=told.outline) == told
    assert [run.window_start for run in seen.later] == [START + 10 * DAY]


def test_runs_are_found_by_a_key_that_no_schedule_has(planted):
    key = planted.misnamed("odd", "2025-11-10T00:17:00Z", "2025-11-10T01:17:00Z")
    assert [run.key for run in planted.store.runs_named("j", "odd")] == [key]
    assert planted.store.runs_named("j", "2025-11-10") == []


def test_a_run_through_the_ledger_is_plain(kind):
    ledger = ledger_over(kind.open())
    ledger.finish(claim(ledger), verdict())
    outline = kind.open().outline("job", START, START + DAY)
    assert (list(outline.starts), outline.notable) == ([START], [])


def test_an_outline_of_years_is_one_outline(planted):
    planted.run("2024-02-28")
    planted.run("2024-02-29", attempt=2)
    for day in (10, 11, 12):
        planted.run(f"2025-11-{day}")
    planted.run("2025-11-14")
    outline = planted.store.outline("j", 0, START + 900 * DAY)
    assert list(outline.starts) == [run.window_start for run in planted.store.runs("j", 0, START + 900 * DAY)]
    assert (len(outline.notable), outline.in_turn) == (1, True)
    assert outline.latest == START + 4 * DAY + 65
    planted.run("2024-02-27", started="2025-11-13T00:00:00Z")
    outline = planted.store.outline("j", 0, START + 900 * DAY)
    assert not outline.in_turn
    assert outline.latest == START + 4 * DAY + 65
    assert outline.earliest == planted.store.runs("j", 0, START)[1].started_at
