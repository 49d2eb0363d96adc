"""What every store promises of steps: marked once, with their messages, and only by the attempt that has the run."""

from __future__ import annotations

import threading

import pytest

from ranonce import lifecycle
from ranonce.lifecycle import Claim, Retention, RunKey
from ranonce.stores.base import Intake, Wanted
from tests.contract.acting import START, ask, claim, ledger_over, verdict
from tests.contract.emitting import mark, message, step, take

DAY = 86400


@pytest.fixture
def ledger(kind):
    return ledger_over(kind.open())


@pytest.fixture
def store(ledger):
    return ledger.store


def marked(store, held, generation=None):
    return store.steps(held.key, held.window.start, generation or held.generation)


def test_a_step_is_read_back_whole(ledger, store):
    held = claim(ledger)
    told = step(ledger, held, "item-1", b"\x00\xffresult")
    assert ledger.mark(held, told) is None
    found = store.step(held.key, held.window.start, 1, "item-1")
    assert found.at == pytest.approx(told.at, abs=1)
    assert found.replace(at=told.at) == told


@pytest.mark.parametrize("result", [None, b"", b"\xff" * 70_000])
def test_a_result_is_kept_as_it_is(ledger, store, result):
    held = claim(ledger)
    mark(ledger, held, "one", result=result)
    assert store.step(held.key, held.window.start, 1, "one").result == result


def test_what_was_never_marked_is_no_step(ledger, store):
    held = claim(ledger)
    mark(ledger, held, "one")
    assert marked(store, held) == ["one"]
    assert store.step(held.key, held.window.start, 1, "two") is None
    assert store.step(held.key, held.window.start, 2, "one") is None
    assert store.step(RunKey("job", held.key.window, "a" * 64), held.window.start, 1, "one") is None
    assert store.steps(held.key, held.window.start + DAY, 1) == []


def test_steps_are_told_by_name_whatever_their_names_are(ledger, store):
    held = claim(ledger)
    names = ["b", "a", "ключ/ü", "'; --", "a%2Fb", '{"a": [1]}', "10", "9", "*", ":", "x" * 200]
    for name in names:
        assert mark(ledger, held, name, result=name.encode()) is None
    assert marked(store, held) == sorted(names)
    assert [store.step(held.key, held.window.start, 1, name).result for name in names] == [
        name.encode() for name in names
    ]


def test_a_step_that_is_marked_again_stays_as_it_was_and_emits_nothing(ledger, store):
    held = claim(ledger)
    mark(ledger, held, "one", message(ledger, held, "a"), result=b"first")
    assert mark(ledger, held, "one", message(ledger, held, "b"), result=b"second") is None
    assert store.step(held.key, held.window.start, 1, "one").result == b"first"
    assert len(store.outbox().messages(Wanted())) == 1


def test_the_next_attempt_sees_what_the_last_one_has_marked(ledger, store):
    held = claim(ledger)
    mark(ledger, held, "one")
    ledger.finish(held, verdict("failed"))
    again = claim(ledger)
    assert (again.attempt, marked(store, again)) == (2, ["one"])
    mark(ledger, again, "two")
    assert [store.step(again.key, again.window.start, 1, name).attempt for name in ("one", "two")] == [1, 2]


def test_a_rerun_begins_without_steps(ledger, store):
    held = claim(ledger)
    mark(ledger, held, "one")
    ledger.finish(held, verdict())
    again = ledger.claim(ask(0, rerun_reason="once more"))
    assert isinstance(again, Claim)
    assert marked(store, again) == []
    assert mark(ledger, again, "one") is None
    assert (marked(store, again), marked(store, held)) == (["one"], ["one"])


def test_an_attempt_whose_lease_is_over_marks_as_long_as_nobody_has_taken_over(kind, ledger, store):
    held = claim(ledger)
    kind.pass_time(store, 301)
    assert mark(ledger, held, "one") is None


def test_an_attempt_that_was_taken_over_marks_nothing(kind, ledger, store):
    held = claim(ledger)
    kind.pass_time(store, 301)
    claim(ledger)
    assert mark(ledger, held, "one", message(ledger, held)).reason == "lost"
    assert marked(store, held) == []
    assert store.outbox().messages(Wanted()) == []


@pytest.mark.parametrize("outcome", ["done", "failed", "stopped"])
def test_an_attempt_that_has_its_verdict_marks_nothing_more(ledger, store, outcome):
    held = claim(ledger)
    ledger.finish(held, verdict(outcome))
    assert mark(ledger, held, "one", message(ledger, held)).reason == "lost"
    assert marked(store, held) == []
    assert store.outbox().messages(Wanted()) == []


def test_an_attempt_of_a_run_that_somebody_released_marks_nothing(kind, ledger, store):
    held = claim(ledger)
    kind.pass_time(store, 301)
    assert ledger.release(held.key, held.window.start, "not-done", "it is gone", by="ann") is None
    assert mark(ledger, held, "one").reason == "lost"


def test_a_fence_holds_for_the_owner_of_the_attempt_alone(ledger, store):
    held = claim(ledger)
    for wrong in (held.replace(owner="f" * 32), held.replace(attempt=2)):
        decision = lifecycle.mark(wrong, step(ledger, held, "one"), (), {})
        assert store.commit(decision, held.key, -1) is None
    assert marked(store, held) == []


def test_a_mark_with_a_message_that_is_there_already_writes_nothing_by_itself(ledger, store):
    held = claim(ledger)
    mark(ledger, held, "one", message(ledger, held, "a"))
    decision = lifecycle.mark(held, step(ledger, held, "two"), (message(ledger, held, "a"),), {})
    assert store.commit(decision, held.key, -1) is None
    assert marked(store, held) == ["one"]
    assert mark(ledger, held, "two", message(ledger, held, "a")) is None
    assert marked(store, held) == ["one", "two"]


def test_a_conflict_in_an_item_is_noted_and_the_item_is_done(ledger, store):
    held = claim(ledger)
    mark(ledger, held, "one", message(ledger, held, "a", body=b"first"))
    assert mark(ledger, held, "two", message(ledger, held, "a", body=b"second")) is None
    noted = store.newest_events(1)[0]
    assert (noted.event, noted.data["message"]) == ("noted", "job:2025-11-10/web/a")
    assert marked(store, held) == ["one", "two"]
    assert len(take(store)) == 1


def test_marks_do_not_keep_the_job_from_deciding(ledger, store):
    held = claim(ledger)
    before = store.job("job").version
    mark(ledger, held, "one", message(ledger, held))
    assert store.job("job").version == before


def test_nothing_is_marked_by_an_attempt_once_another_has_taken_over(kind, ledger, store):
    held, refusals, first = claim(ledger), [], threading.Event()

    def work() -> None:
        own = ledger_over(store.reopen(20))
        for number in range(100_000):
            refusal = mark(own, held, str(number), message(own, held, str(number)))
            if refusal is not None:
                refusals.append(refusal.reason)
                break
            first.set()
        own.store.close()

    worker = threading.Thread(target=work)
    worker.start()
    assert first.wait(20)
    kind.pass_time(store, 301)
    taker = claim(ledger)
    at_the_take_over = marked(store, taker)
    worker.join(60)
    assert refusals == ["lost"]
    assert marked(store, taker) == at_the_take_over
    assert len(store.outbox().messages(Wanted(), limit=100_000)) == len(at_the_take_over) > 0


def test_two_threads_of_one_attempt_mark_an_item_once(kind, ledger, store):
    held = claim(ledger)
    together = threading.Barrier(2)

    def work(mine: str) -> None:
        own = ledger_over(store.reopen(20))
        together.wait(20)
        for number in range(20):
            told = message(own, held, str(number), body=mine.encode())
            assert mark(own, held, str(number), told, result=mine.encode()) is None
        own.store.close()

    threads = [threading.Thread(target=work, args=(mine,)) for mine in ("one", "two")]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    outbox = store.outbox()
    bodies = [outbox.message(known.seq).body for known in outbox.messages(Wanted())]
    results = [store.step(held.key, held.window.start, 1, str(number)).result for number in range(20)]
    assert sorted(bodies) == sorted(results)
    assert len(results) == 20


# --- upkeep ---------------------------------------------------------------------------------------------------------


def test_the_steps_of_a_pruned_run_go_with_it(ledger, store):
    for day in range(4):
        held = claim(ledger, day)
        mark(ledger, held, f"item-{day}", result=b"r")
        ledger.finish(held, verdict())
    assert store.upkeep().prune("job", Retention(START + 2 * DAY + 1, 0)).runs == 0
    assert store.upkeep().prune("job", Retention(4e9, 4e9)).runs == 3
    assert [told.name for told in store.upkeep().all_steps()] == ["item-3"]
    assert store.steps(ask(0).key, START, 1) == []


def test_all_steps_are_gone_through_with_their_results_run_after_run(ledger, store):
    for day in (1, 0):
        held = claim(ledger, day)
        for name in ("b", "a"):
            mark(ledger, held, name, result=f"{day}{name}".encode())
        ledger.finish(held, verdict())
    found = list(store.upkeep().all_steps())
    assert [told.result for told in found] == [b"0a", b"0b", b"1a", b"1b"]


def test_steps_of_another_ledger_are_taken_in_where_there_is_none_of_their_name(ledger, store):
    held = claim(ledger)
    mark(ledger, held, "one", result=b"here")
    there = [step(ledger, held, name, b"there").replace(at=START + 1.5, attempt=7) for name in ("one", "two")]
    for _ in range(2):
        store.upkeep().take_in(Intake(steps=there), lambda run, lease: False)
    assert store.step(held.key, held.window.start, 1, "one").result == b"here"
    assert store.step(held.key, held.window.start, 1, "two") == there[1]
