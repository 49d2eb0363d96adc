"""Taking in what another ledger tells: finished stays finished, told twice is told once, live work is left alone."""

from __future__ import annotations

import pytest

from ranonce.folding import disagreements
from ranonce.lifecycle import Event, Gate, Run, RunKey
from ranonce.merging import Told, folded
from ranonce.stores.base import Intake, Tombstone
from tests.contract.acting import START, ask, claim, ledger_over, refused, verdict

DAY = 86400


def nobody(run, lease):
    return False


def somebody(run, lease):
    return True


def told(*events, day=0, generation=1, owner="imported", **fields):
    """Return the story of a window of another ledger: pairs of event and attempt, a minute apart."""
    window = ask(day).window
    key = RunKey("job", window.key)
    story = tuple(
        Event(
            float(window.start + 60 * number),
            key,
            window.start,
            event,
            attempt,
            generation,
            owner=owner,
            trigger="import",
            data={"imported": "lines"},
        )
        for number, (event, attempt) in enumerate(events, 1)
    )
    state = folded(story)
    run = Run(
        key,
        window.start,
        window.end,
        state.status,
        state.generation,
        state.attempt,
        state.owner,
        state.failures,
        1,
        state.trigger,
        state.started_at,
        finished_at=state.finished_at,
    )
    return Told(run.replace(**fields), story)


DONE = (("start", 1), ("done", 1))
FAILED = (("start", 1), ("failed", 1))


@pytest.fixture
def ledger(kind):
    return ledger_over(kind.open())


def take(ledger, *stories, lives=nobody, **more):
    return ledger.store.upkeep().take_in(Intake(stories, **more), lives)


def states(ledger):
    return [(run.status, run.attempt) for run in ledger.store.runs("job", 0, 1 << 60)]


def story(ledger, day=0):
    start = ask(day).window.start
    return [(event.event, event.attempt) for event in ledger.store.events("job", start, start + 1)]


def whole(ledger):
    """The events lead to the rows."""
    upkeep = ledger.store.upkeep()
    events = list(upkeep.all_events())
    for run in upkeep.all_runs():
        assert list(disagreements(run, folded(each for each in events if each.key == run.key))) == []
    return True


def test_what_was_done_elsewhere_is_done_here(ledger):
    taken = take(ledger, told(*DONE), told(*DONE, day=1))
    assert (dict(taken.counts), taken.left, taken.events) == ({"added": 2}, (), 4)
    assert taken.last == ledger.store.newest_events(1)[0]
    assert refused(ledger).reason == "done"
    assert refused(ledger, 1).reason == "done"
    assert whole(ledger)


def test_what_is_told_twice_changes_nothing(ledger):
    take(ledger, told(*DONE), told(*FAILED, day=1))
    before = list(ledger.store.upkeep().all_events()), states(ledger), ledger.store.job("job").version
    taken = take(ledger, told(*DONE), told(*FAILED, day=1))
    assert (dict(taken.counts), taken.events, taken.last) == ({"same": 2}, 0, None)
    assert before == (list(ledger.store.upkeep().all_events()), states(ledger), ledger.store.job("job").version)


@pytest.mark.parametrize("other", [FAILED, (*FAILED, ("start", 2), ("failed", 2)), (("start", 1), ("held", 1))])
def test_what_is_done_here_stays_done(ledger, other):
    ledger.finish(claim(ledger), verdict())
    taken = take(ledger, told(*other))
    assert list(taken.counts) == ["kept"]
    assert states(ledger) == [("done", 1)]
    assert refused(ledger).reason == "done"


@pytest.mark.parametrize("outcome", ["failed", "stopped", "held"])
def test_what_is_not_done_here_is_done_when_another_ledger_has_it_done(ledger, outcome):
    ledger.finish(claim(ledger), verdict(outcome))
    taken = take(ledger, told(*DONE))
    assert dict(taken.counts) == {"advanced": 1}
    assert states(ledger) == [("done", 2)]
    assert story(ledger) == [("start", 1), (outcome, 1), ("start", 2), ("done", 2)]
    assert refused(ledger).reason == "done"
    assert take(ledger, told(*DONE)).events == 0
    assert whole(ledger)


@pytest.mark.parametrize("done_here", [True, False])
@pytest.mark.parametrize(
    "more",
    [
        {"later": ()},
        {"later": (("start", 4), ("failed", 4), ("start", 5), ("done", 5))},
        {"later": (("rerun", 4), ("start", 4), ("done", 4)), "generation": 2},
    ],
)
def test_another_story_of_a_done_window_is_evidence_once_however_often_it_is_told(ledger, more, done_here):
    ledger.finish(claim(ledger), verdict("done" if done_here else "failed"))
    first = (*FAILED, ("start", 2), ("failed", 2), ("start", 3), ("done", 3))
    other = told(*first)
    later = [told(*first, *more["later"]).events[len(first) + at] for at in range(len(more["later"]))]
    later = [event.replace(generation=more.get("generation", 1)) for event in later]
    state = folded((*other.events, *later))
    run = other.run.replace(attempt=state.attempt, generation=state.generation, failures=state.failures)
    other = Told(run.replace(finished_at=state.finished_at), (*other.events, *later))
    take(ledger, other)
    assert whole(ledger)
    before = story(ledger), states(ledger)
    for _ in range(3):
        assert take(ledger, other).events == 0
    assert (story(ledger), states(ledger)) == before


def test_what_a_person_called_done_elsewhere_is_done_here(ledger):
    ledger.finish(claim(ledger), verdict("failed"))
    other = told(("start", 1), ("held", 1), ("released", 1), ("noted", 1))
    events = tuple(each.replace(data={"as": "done"}) if each.event == "released" else each for each in other.events)
    other = Told(other.run.replace(status="done"), events)
    assert dict(take(ledger, other).counts) == {"advanced": 1}
    assert story(ledger) == [("start", 1), ("failed", 1), ("start", 2), ("done", 2)]
    assert refused(ledger).reason == "done"
    assert take(ledger, other).events == 1  # the note
    assert take(ledger, other).events == 0
    assert whole(ledger)


def test_a_story_is_carried_on_where_it_ended(ledger):
    take(ledger, told(*FAILED))
    taken = take(ledger, told(*FAILED, ("start", 2), ("done", 2)))
    assert dict(taken.counts) == {"advanced": 1}
    assert story(ledger) == [("start", 1), ("failed", 1), ("start", 2), ("done", 2)]
    assert whole(ledger)


def test_a_second_completion_is_kept_as_evidence(ledger):
    take(ledger, told(*DONE))
    take(ledger, told(*DONE, ("start", 2), ("done", 2)))
    assert story(ledger) == [("start", 1), ("done", 1), ("start", 2), ("done", 2)]
    assert states(ledger) == [("done", 2)]
    assert whole(ledger)


def test_a_rerun_that_failed_is_not_undone_by_telling_again_of_what_was_done_before(ledger):
    take(ledger, told(*DONE))
    again = claim(ledger, rerun_reason="wrong data")
    ledger.finish(again, verdict("failed"))
    assert dict(take(ledger, told(*DONE)).counts) == {"kept": 1}
    assert states(ledger) == [("failed", 2)]


def test_a_run_that_somebody_works_on_is_left_alone(ledger):
    held = claim(ledger)
    taken = take(ledger, told(*DONE), lives=somebody)
    assert (dict(taken.counts), taken.left) == ({"busy": 1}, ((held.key, "busy"),))
    assert ledger.finish(held, verdict()) is None


def test_the_verdict_on_the_very_attempt_is_taken(ledger):
    held = claim(ledger)
    start = next(iter(ledger.store.events("job", START, START + 1)))
    done = start.replace(event="done", reason=None, data={})
    run = ledger.store.runs("job", START, START + 1)[0].replace(status="done", finished_at=start.at)
    taken = take(ledger, Told(run, (start, done)), lives=somebody)
    assert dict(taken.counts) == {"advanced": 1}
    assert ledger.store.leases("job") == []
    assert ledger.finish(held, verdict()) is None
    assert story(ledger) == [("start", 1), ("done", 1)]


@pytest.mark.parametrize("unfinished", ["held", "failed"])
def test_a_crash_that_is_only_supposed_leaves_an_attempt_that_lives_alone(ledger, unfinished):
    held = claim(ledger)
    start = next(iter(ledger.store.events("job", START, START + 1)))
    crash = tuple(start.replace(event=event, reason="crashed", data={}) for event in ("expired", unfinished))
    run = ledger.store.runs("job", START, START + 1)[0]
    run = run.replace(status=unfinished, failures=1, finished_at=start.at, reason="crashed")
    taken = take(ledger, Told(run, (start, *crash)), lives=somebody)
    assert (dict(taken.counts), taken.left) == ({"busy": 1}, ((held.key, "busy"),))
    assert ledger.finish(held, verdict()) is None
    assert story(ledger) == [("start", 1), ("done", 1)]


def test_a_crash_that_another_ledger_has_done_is_done(ledger):
    claim(ledger)
    take(ledger, told(*DONE))
    assert story(ledger) == [("start", 1), ("expired", 1), ("start", 2), ("done", 2)]
    assert states(ledger) == [("done", 2)]
    assert ledger.store.leases("job") == []
    assert whole(ledger)


def test_whoever_decided_before_decides_anew(ledger):
    from ranonce import lifecycle

    asking = ask()
    snap = ledger.store.read(asking.key, asking.window.start)
    decision = lifecycle.claim(snap, asking)
    take(ledger, told(*DONE))
    assert ledger.store.commit(decision, asking.key, snap.version) is None


def test_into_an_empty_ledger_events_keep_their_numbers(ledger):
    numbered = [told(*DONE, day=day) for day in (1, 0)]
    seqs = iter((4, 9, 2, 7))
    numbered = [Told(one.run, tuple(event.replace(seq=next(seqs)) for event in one.events)) for one in numbered]
    take(ledger, *numbered, keep_numbers=True)
    events = list(ledger.store.upkeep().all_events())
    assert [(event.seq, event.key.window[-2:]) for event in events] == [(2, "10"), (4, "11"), (7, "10"), (9, "11")]
    ledger.finish(claim(ledger, 2), verdict())
    assert ledger.store.newest_events(1)[0].seq == 11


def test_a_number_that_is_taken_is_given_to_nobody_else(ledger):
    ledger.finish(claim(ledger, 3), verdict())
    one = told(*DONE)
    take(ledger, Told(one.run, tuple(event.replace(seq=2) for event in one.events)), keep_numbers=True)
    assert [event.seq for event in ledger.store.upkeep().all_events()] == [1, 2, 3, 4]


@pytest.mark.parametrize("seqs", [(9, 3, 7, 8), (4, 5, 5, 6), (1, 20, 6, 7), (6, 7, None, 1)])
def test_numbers_that_contradict_the_order_of_a_story_are_not_kept(ledger, seqs):
    one, other = told(*FAILED, ("start", 2), ("done", 2)), told(*DONE, day=1)
    other = Told(other.run, tuple(event.replace(seq=seq) for event, seq in zip(other.events, (5, 20), strict=True)))
    numbered = tuple(event.replace(seq=seq) for event, seq in zip(one.events, seqs, strict=True))
    half = told(*FAILED).run
    take(ledger, other, Told(half, numbered[:2]), keep_numbers=True)
    take(ledger, Told(one.run, numbered), keep_numbers=True)
    assert story(ledger) == [("start", 1), ("failed", 1), ("start", 2), ("done", 2)]
    assert whole(ledger)


def test_facts_about_a_window_that_never_ran_are_kept_once(ledger):
    noted = told(*DONE).events[0].replace(event="noted", reason="the host was down", attempt=0)
    assert take(ledger, Told(None, (noted,))).events == 1
    assert take(ledger, Told(None, (noted,))).events == 0
    assert states(ledger) == []


def test_a_window_that_was_pruned_here_is_not_brought_back(ledger):
    stone = Tombstone("job", START, START + 2 * DAY, 2, 0, float(START + 9 * DAY))
    for _ in range(2):
        take(ledger, tombstones=[stone])
        assert ledger.store.tombstones("job", START, START + 1) == [stone]
    taken = take(ledger, told(*DONE), told(*DONE, day=2))
    assert dict(taken.counts) == {"pruned": 1, "added": 1}
    assert refused(ledger).reason == "pruned"


def test_gates_come_along(ledger):
    gate = Gate("api", float(START + 900), "429", "job", float(START))
    take(ledger, gates=[gate])
    assert ledger.store.gates() == (gate,)


def test_a_loss_is_accepted_in_the_same_breath(ledger):
    take(ledger, told(*DONE), loss=("the disk died", "anna@host"))
    (epoch,) = ledger.store.upkeep().epochs()
    assert (epoch.number, epoch.reason, epoch.by) == (2, "the disk died", "anna@host")


def test_a_view_is_of_one_state_with_the_output_kept(kind, ledger):
    ledger.finish(claim(ledger), verdict(output=b"\x00\xff"))
    upkeep = ledger.store.upkeep()
    with upkeep.view():
        assert [event.output for event in upkeep.events_by_window(output=True)] == [None, b"\x00\xff"]
        assert [event.output for event in upkeep.events_by_window()] == [None, None]
        assert len(list(upkeep.all_runs())) == 1
