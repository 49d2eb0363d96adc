"""What an owner does with a whole store: prune it, go through it, accept a loss. The same from every store."""

from __future__ import annotations

import pytest

from ranonce.lifecycle import Decision, Gate, Refusal, Retention, RunKey
from ranonce.stores.base import FIRST
from tests.contract.acting import START, ask, claim, ledger_over, verdict
from tests.planted import Planted

DAY = 86400
#: Lets go of everything that was done before 20 November, and of failures before the 15th.
KEEP = Retention(START + 10 * DAY, START + 5 * DAY)


@pytest.fixture
def planted(kind):
    """A daily job in each kind of store, with runs on the days from 10 November 2025 on."""
    planted = Planted("day", store=kind.open())
    for day in range(10, 16):
        planted.run(f"2025-11-{day}")
    planted.run("2025-12-24")
    return planted


def starts(planted):
    return [(run.window_start - START) // DAY for run in planted.store.runs("j", 0, 1 << 60)]


def stones(planted):
    found = planted.store.tombstones("j", 0, 1 << 60)
    return [((stone.since - START) // DAY, (stone.until - START) // DAY, stone.runs) for stone in found]


def test_old_done_runs_go_with_their_events_and_leave_one_tombstone(planted):
    pruned = planted.store.upkeep().prune("j", KEEP)
    assert (pruned.runs, pruned.events, pruned.upto) == (6, 12, None)
    assert starts(planted) == [44]
    assert list(planted.store.events("j", 0, START + 40 * DAY)) == []
    assert stones(planted) == [(0, 6, 6)]


def test_a_second_pruning_finds_nothing(planted):
    planted.store.upkeep().prune("j", KEEP)
    again = planted.store.upkeep().prune("j", KEEP)
    assert (again.runs, again.events) == (0, 0)
    assert stones(planted) == [(0, 6, 6)]


def test_what_waits_for_somebody_stays_however_old(planted):
    for day, status in ((16, "held"), (17, "stopped"), (18, "running"), (19, "failed")):
        planted.run(f"2025-11-{day}", status)
    planted.store.upkeep().prune("j", KEEP)
    assert starts(planted) == [6, 7, 8, 9, 44]


def test_failures_are_kept_longer(planted):
    planted.run("2025-11-08", "failed")
    planted.run("2025-11-16", "failed")
    planted.store.upkeep().prune("j", KEEP)
    assert starts(planted) == [6, 44]
    assert stones(planted) == [(-2, -1, 1), (0, 6, 6)]


def test_a_run_is_as_old_as_its_verdict(planted):
    planted.run("2025-11-16", started="2025-12-01T00:00:00Z")
    planted.store.upkeep().prune("j", KEEP)
    assert starts(planted) == [6, 44]


def test_the_newest_run_and_the_newest_done_run_stay(kind):
    planted = Planted("day", store=kind.open())
    planted.run("2025-11-10")
    planted.run("2025-11-11")
    planted.run("2025-11-12", "failed")
    planted.run("2025-11-13", "failed")
    planted.store.upkeep().prune("j", Retention(START + 90 * DAY, START + 90 * DAY))
    assert starts(planted) == [1, 3]


def test_the_newest_event_stays_since_its_number_must_not_be_used_again(planted):
    planted.event("skipped", planted.recorded("2025-11-12"), at=START + 60 * DAY, reason="done")
    newest = planted.store.newest_events(1)[0]
    planted.store.upkeep().prune("j", KEEP)
    assert starts(planted) == [2, 44]
    assert planted.store.newest_events(1)[0] == newest
    planted.skip("2025-11-18", "late")
    planted.store.upkeep().prune("j", KEEP)
    assert starts(planted) == [44]
    planted.skip("2025-11-19", "late", at=START + 60 * DAY)
    assert planted.store.newest_events(1)[0].seq == newest.seq + 2


def test_windows_that_never_ran_are_no_part_of_a_tombstone(planted):
    planted.run("2025-11-18")
    planted.run("2025-12-25")
    planted.store.upkeep().prune("j", KEEP)
    assert stones(planted) == [(0, 6, 6), (8, 9, 1)]
    assert not planted.store.read(RunKey("j", "2025-11-17"), START + 7 * DAY).pruned
    assert planted.store.read(RunKey("j", "2025-11-18"), START + 8 * DAY).pruned


def test_tombstones_grow_together(planted):
    upkeep = planted.store.upkeep()
    upkeep.prune("j", Retention(START + 2 * DAY, 0))
    upkeep.prune("j", Retention(START + 4 * DAY, 0))
    assert stones(planted) == [(0, 4, 4)]
    planted.run("2025-11-09")
    planted.run("2025-12-25")
    upkeep.prune("j", KEEP)
    assert stones(planted) == [(-1, 6, 7)]


def test_batches_go_on_where_the_last_one_ended(planted):
    upkeep, place, sizes = planted.store.upkeep(), FIRST, []
    while place is not None:
        pruned = upkeep.prune("j", KEEP, after=place, limit=2)
        sizes.append(pruned.runs)
        place = pruned.upto
    assert sizes == [2, 2, 2, 0]
    assert starts(planted) == [44]
    assert stones(planted) == [(0, 6, 6)]


def test_old_facts_about_windows_without_a_run_go_too(planted):
    planted.skip("2025-11-17", "late")
    planted.skip("2025-11-18", "late", at=START + 30 * DAY)
    planted.store.upkeep().prune("j", KEEP)
    assert [event.window_start for event in planted.store.events("j", 0, START + 40 * DAY)] == [START + 8 * DAY]
    assert stones(planted) == [(0, 6, 6)]


def test_another_job_is_left_alone(planted):
    ledger = ledger_over(planted.store)
    ledger.finish(claim(ledger), verdict())
    planted.store.upkeep().prune("j", KEEP)
    assert len(planted.store.runs("job", 0, 1 << 60)) == 1
    assert len(list(planted.store.events("job", 0, 1 << 60))) == 2


def test_the_store_says_how_far_it_has_pruned(planted):
    upkeep = planted.store.upkeep()
    assert upkeep.pruned_seq() == 0
    upkeep.prune("j", KEEP)
    assert upkeep.pruned_seq() == 12
    assert planted.store.event(12) is None
    assert planted.store.event(13) is not None
    planted.run("2025-12-25")
    assert planted.store.newest_events(1)[0].seq == 16


def test_a_pruned_window_is_never_claimable_again(kind):
    ledger = ledger_over(kind.open())
    for day in (0, 1, 2):
        ledger.finish(claim(ledger, day), verdict())
    ledger.store.upkeep().prune("job", Retention(START + 1000 * DAY, 0))
    ledger.store.upkeep().prune("job", Retention(4e9, 4e9))
    for again in (ask(0), ask(1), ask(0, rerun_reason="once more")):
        refusal = ledger.claim(again)
        assert isinstance(refusal, Refusal), again
    assert ledger.claim(ask(0)).reason == "pruned"
    assert claim(ledger, 5).attempt == 1


def test_a_rerun_decided_before_the_pruning_is_decided_anew(kind):
    ledger = ledger_over(kind.open())
    for day in (0, 1):
        ledger.finish(claim(ledger, day), verdict())
    snap = ledger.store.read(ask(0).key, ask(0).window.start)
    ledger.store.upkeep().prune("job", Retention(4e9, 0))
    from ranonce import lifecycle

    decision = lifecycle.claim(snap, ask(0, rerun_reason="once more"))
    assert decision.accepted
    assert ledger.store.commit(decision, ask(0).key, snap.version) is None


def test_everything_can_be_gone_through(planted):
    upkeep = planted.store.upkeep()
    ledger = ledger_over(planted.store)
    ledger.finish(claim(ledger), verdict(output=b"said"))
    assert [run.key.job for run in upkeep.all_runs()] == ["j"] * 7 + ["job"]
    events = list(upkeep.all_events())
    assert [event.seq for event in events] == list(range(1, 17))
    assert events[-1].output == b"said"
    by_window = list(upkeep.events_by_window())
    assert [event.seq for event in by_window] == list(range(1, 17))
    assert {event.output for event in by_window} == {None}


def test_a_sound_store_has_no_problems(planted):
    assert planted.store.upkeep().problems(deep=False) == []
    assert planted.store.upkeep().problems(deep=True) == []


def test_an_accepted_loss_opens_a_new_epoch_and_says_why(kind):
    store = kind.open()
    assert store.upkeep().epochs() == []
    epoch = store.upkeep().accept_loss("the disk is gone", "ann@host")
    assert (epoch.number, epoch.reason, epoch.by) == (2, "the disk is gone", "ann@host")
    assert kind.open().identity().epoch == 2
    assert kind.open().upkeep().epochs() == [epoch]


def test_a_gate_is_opened_before_its_time_only_by_a_person(kind):
    store = kind.open()
    closed = Gate("model-api", START + 5000.0, "429", "job", START + 10.0)
    opened = Gate("model-api", START + 20.0, "it works again", "ann@host", START + 20.0)
    for gate in (closed, opened):
        store.commit(Decision("stop", guarded=False, gates=(gate,)), RunKey("job", "w"), 0)
    assert store.gates() == (closed,)
    store.upkeep().set_gate(opened)
    assert kind.open().gates() == (opened,)


def test_a_tombstone_says_how_its_runs_ended(planted):
    planted.run("2025-11-08", "failed")
    planted.run("2025-11-09", "failed")
    planted.run("2025-12-25")
    planted.store.upkeep().prune("j", KEEP)
    found = planted.store.tombstones("j", 0, 1 << 60)
    assert [(stone.runs, stone.failed, stone.ended) for stone in found] == [(2, 2, "failed"), (6, 0, "done")]
    assert planted.store.read(RunKey("j", "2025-11-08"), START - 2 * DAY).pruned == "failed"
    assert planted.store.read(RunKey("j", "2025-11-10"), START).pruned == "done"
    assert planted.store.read(RunKey("j", "2025-11-07"), START - 3 * DAY).pruned is None


def test_where_the_inputs_of_a_window_ended_differently_it_was_over(planted):
    run = planted.recorded(planted.run("2025-11-08"))
    other = RunKey("j", run.key.window, "a" * 64)
    planted.commit(other, run=run.replace(key=other, status="failed"))
    planted.run("2025-12-25")
    planted.store.upkeep().prune("j", KEEP)
    (stone, _) = planted.store.tombstones("j", 0, 1 << 60)
    assert (stone.runs, stone.failed, stone.ended) == (2, 1, "over")
