"""The events of a run lead to its row, whatever happened to it; and what was changed in either is seen."""

from __future__ import annotations

import random

import pytest

from ranonce.folding import Story, disagreements
from ranonce.lifecycle import Claim, Event, Policy
from ranonce.stores.memory.store import MemoryStore
from tests.contract.acting import START, ask, claim, ledger_over, verdict


class Life:
    """One run in a store whose clock is ours, and those who hold or once held it."""

    def __init__(self, seed: int = 0, **policy: object) -> None:
        self.now = 0.0
        self.store = MemoryStore(now=lambda: self.now, wall=lambda: START + self.now, domain="here")
        self.ledger = ledger_over(self.store)
        self.random = random.Random(seed)
        self.policy = Policy(**{"max_attempts": 3, **policy})
        self.held: list[Claim] = []

    def pass_time(self, seconds: float) -> None:
        self.now += seconds

    def claim(self, **how: object) -> None:
        answer = self.ledger.claim(ask(policy=self.policy, now=START + self.now, **how))
        if isinstance(answer, Claim):
            self.held.append(answer)

    def settle(self, outcome: str, **how: object) -> None:
        if self.held:
            self.ledger.finish(self.random.choice(self.held), verdict(outcome, **how).replace(at=START + self.now))

    def anything(self) -> None:
        """Do one thing that can be done to a run."""
        what = self.random.randrange(9)
        if what < 3:
            self.claim()
        elif what == 3:
            self.claim(rerun_reason="again")
        elif what == 4:
            self.pass_time(self.random.choice((1.5, 200, 301, 1000)))
        elif what == 5 and self.held:
            self.ledger.renew(self.random.choice(self.held), "forbid")
        elif what == 6 and self.held:
            self.ledger.reconciled(self.random.choice(self.held), 3)
        elif what == 7:
            key = ask().key
            self.ledger.release(key, START, self.random.choice(("done", "not-done")), "looked", by="me")
        else:
            outcome = self.random.choice(("done", "failed", "failed", "stopped", "held"))
            resume = START + self.now + 60 if outcome == "stopped" and self.random.random() < 0.5 else None
            self.settle(outcome, exit=self.random.choice((None, 0, 3)), resume_at=resume)

    def told(self) -> list[str]:
        story = Story()
        for event in self.store.events("job", START, START + 1):
            story.take(event)
        runs = self.store.runs("job", START, START + 1)
        return list(disagreements(runs[0] if runs else None, story))


@pytest.mark.parametrize("on_crash", ["retry", "hold", "reconcile"])
@pytest.mark.parametrize("seed", range(40))
def test_whatever_happens_to_a_run_its_events_tell_of_the_row(seed, on_crash):
    life = Life(seed, on_crash=on_crash)
    for step in range(60):
        life.anything()
        assert life.told() == [], (step, list(life.store.events("job", START, START + 1)))


def test_a_window_that_was_only_asked_for_has_no_row_and_needs_none():
    life = Life()
    life.claim(rerun_reason="there is nothing to run again")
    assert life.told() == []


def story_of(life, without=(), changed=None):
    story = Story()
    for number, event in enumerate(life.store.events("job", START, START + 1)):
        if number not in without:
            story.take(changed(event) if changed else event)
    return story


@pytest.fixture
def retried():
    """A run that failed, was tried again, and is done: start failed start done."""
    life = Life()
    claimed = claim(life.ledger)
    life.ledger.finish(claimed, verdict("failed", exit=3))
    again = claim(life.ledger)
    life.ledger.finish(again, verdict(exit=0))
    return life


def row(life):
    return life.store.runs("job", START, START + 1)[0]


@pytest.mark.parametrize("gone", [0, 1, 2, 3])
def test_no_event_of_a_retried_run_can_go_unnoticed(retried, gone):
    assert list(disagreements(row(retried), story_of(retried, without=[gone])))


@pytest.mark.parametrize(
    "change",
    [
        {"status": "failed"},
        {"attempt": 3},
        {"generation": 2},
        {"owner": "0" * 32},
        {"failures": 0},
        {"trigger": "manual"},
        {"version": "other"},
        {"exit": 1},
        {"reason": "because"},
        {"late": True},
        {"granted": True},
        {"started_at": START + 9.0},
        {"finished_at": None},
        {"resume_at": 1.0},
    ],
    ids=lambda change: next(iter(change)),
)
def test_a_changed_row_is_seen_and_named(retried, change):
    (sentence,) = disagreements(row(retried).replace(**change), story_of(retried))
    assert next(iter(change)) in sentence


def test_a_row_without_events_and_events_without_a_row_are_seen(retried):
    (sentence,) = disagreements(row(retried), None)
    assert "no event tells of it" in sentence
    (sentence,) = disagreements(None, story_of(retried))
    assert "it has no row" in sentence


def test_a_story_that_cannot_be_is_named_with_its_event(retried):
    sentences = list(disagreements(row(retried), story_of(retried, without=[1])))
    assert "attempt 2 began before attempt 1 had ended (event 3)" in sentences[0]


def test_instants_may_differ_by_how_they_are_rounded(retried):
    moved = story_of(retried, changed=lambda event: event.replace(at=event.at + 0.001))
    assert list(disagreements(row(retried), moved)) == []


def test_what_was_put_back_from_a_hosts_journal_may_lack_the_attempts_of_others():
    claimed = claim(Life().ledger)
    started = Event(START, claimed.key, START, "start", 3, 2, data={"imported": "journal"}, seq=1)
    story = Story()
    story.take(started)
    assert (story.fault, story.attempt, story.generation) == (None, 3, 2)
    story.take(started.replace(event="expired"))
    story.take(started.replace(attempt=2, seq=3))
    assert story.fault == "attempt 2 follows attempt 3 (event 3)"


def test_what_was_put_back_and_had_been_released_is_held_first(retried):
    story = story_of(retried, without=[2, 3])
    freed = Event(START, ask().key, START, "held", 1, 1, owner=story.owner, data={"imported": "journal", "as": "done"})
    story.take(freed)
    story.take(freed.replace(event="released"))
    assert (story.fault, story.status) == (None, "done")
