"""What every store promises of messages, one fact each: they come with their work or not at all, and go out once."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
import time
from collections import Counter

import pytest

from ranonce import lifecycle
from ranonce import messages as rules
from ranonce.lifecycle import Retention, RunKey
from ranonce.messages import (
    DEAD,
    DROPPED,
    JOB,
    LEDGER,
    NOT_RECEIVED,
    PENDING,
    REFUSED,
    SENDING,
    SENT,
    UNKNOWN,
    UNSURE,
    Answer,
    Closing,
    Move,
    Route,
    Take,
    Tally,
    Waiting,
)
from ranonce.stores.base import Intake, Wanted
from tests.contract.acting import START, ask, claim, ledger_over, refused, verdict
from tests.contract.emitting import (
    DEDUPING,
    ROUTE,
    emit,
    mark,
    message,
    settle,
    settled,
    states,
    take,
)

DAY = 86400
EVERYTHING = Retention(4e9, 4e9)
INSTANTS = ("created_at", "due_at", "taken_at", "doubt_since", "settled_at", "lease_until")


@pytest.fixture
def ledger(kind):
    return ledger_over(kind.open())


@pytest.fixture
def store(ledger):
    return ledger.store


@pytest.fixture
def outbox(store):
    return store.outbox()


def assert_same(found, expected):
    """A store keeps instants to the millisecond at least, and everything else as it is."""
    for name in INSTANTS:
        assert getattr(found, name) == pytest.approx(getattr(expected, name), abs=0.002), name
    same = {name: getattr(expected, name) for name in INSTANTS}
    assert found.replace(**same) == expected


def keys(found):
    return [known.key.rpartition("/")[2] for known in found]


def of(window="2025-11-10"):
    return RunKey("job", window)


# --- with their work, or not at all ---------------------------------------------------------------------------------


def test_a_message_of_a_verdict_is_read_back_whole(ledger, outbox):
    held = claim(ledger)
    told = message(ledger, held, "invoice-7", body=b"\x00\xff{}", content_type="application/json")
    ledger.finish(held, verdict(messages=(told,)))
    found = outbox.message("job:2025-11-10/web/invoice-7")
    assert found.seq is not None
    assert_same(found, told.replace(seq=found.seq))


def test_a_failed_attempts_messages_never_stand_in_the_outbox(ledger, outbox):
    emit(ledger, 0, "a", "b", outcome="failed")
    assert outbox.messages(Wanted()) == []
    assert ledger.store.newest_events(1)[0].data["not_sent"] == 2


def test_an_event_says_how_many_messages_came_with_it(ledger):
    emit(ledger, 0, "a", "b")
    assert ledger.store.newest_events(1)[0].data["messages"] == 2


def test_a_message_of_an_item_can_be_delivered_while_the_run_goes_on(ledger, store):
    held = claim(ledger)
    assert mark(ledger, held, "item-1", message(ledger, held, "item-1", item="item-1")) is None
    (taken,) = take(store)
    assert (taken.item, taken.body, settle(store, taken)) == ("item-1", b"payload", SENT)
    assert store.read(held.key, held.window.start).run.status == "running"


def test_messages_get_rising_numbers_in_the_order_in_which_they_were_emitted(ledger, outbox):
    emit(ledger, 0, "c", "a", "b")
    emit(ledger, 1, "d")
    found = outbox.messages(Wanted())
    assert keys(found) == ["c", "a", "b", "d"]
    assert [known.seq for known in found] == sorted({known.seq for known in found})


def decided(ledger, held, *told, **more):
    """Return a verdict's decision, by somebody who does not know what stands in the outbox, and after which version."""
    snap = ledger.store.read(held.key, held.window.start)
    return lifecycle.finish(snap, held, verdict(messages=told)).replace(**more), snap.version


def written(ledger, held):
    """Return all that a commit about a run could have changed."""
    store = ledger.store
    snap = store.read(held.key, held.window.start)
    steps = store.steps(held.key, held.window.start, held.generation)
    return snap.version, snap.run, snap.lease, steps, store.outbox().messages(Wanted()), store.newest_events(100)


def test_a_commit_with_a_message_that_is_there_already_writes_nothing(ledger):
    held = claim(ledger)
    mark(ledger, held, "one", message(ledger, held, "a"))
    before = written(ledger, held)
    decision, version = decided(ledger, held, message(ledger, held, "new"), message(ledger, held, "a"))
    assert ledger.store.commit(decision, held.key, version) is None
    assert written(ledger, held) == before


def test_a_commit_with_a_move_of_a_message_that_has_moved_on_writes_nothing(ledger, store, outbox):
    emit(ledger, 0, "a", "b")
    a, b = outbox.messages(Wanted())
    take(store, 1)
    held = claim(ledger, 1)
    before = written(ledger, held)
    moves = tuple(rules.resolve(known, "dropped", "not needed", store.clock().wall) for known in (b, a))
    decision, version = decided(ledger, held, message(ledger, held, "new"), moves=moves)
    assert store.commit(decision, held.key, version) is None
    assert written(ledger, held) == before
    assert states(store) == [SENDING, PENDING]


def test_the_moves_of_a_decision_are_written_with_it(ledger, store, outbox):
    emit(ledger, 0, "a", "b")
    held = claim(ledger, 1)
    moves = tuple(rules.resolve(known, "dropped", "ann: not needed", 5.0) for known in outbox.messages(Wanted()))
    decision, version = decided(ledger, held, moves=moves)
    assert store.commit(decision, held.key, version) is not None
    assert states(store) == [DROPPED, DROPPED]
    dropped = outbox.message(moves[0].was.key)
    assert (dropped.resolution, dropped.settled_at, dropped.body) == ("ann: not needed", 5.0, b"payload")


def test_a_key_that_stands_for_the_same_body_is_there_already(ledger, store, outbox):
    emit(ledger, 0, "a", scope=JOB)
    emit(ledger, 1, "a", "b", scope=JOB)
    assert keys(outbox.messages(Wanted())) == ["a", "b"]
    assert outbox.message("job/web/a").run == of("2025-11-10")
    assert store.newest_events(1)[0].data["messages"] == 1


def test_a_key_that_stands_for_another_body_is_noted_and_the_run_is_done_all_the_same(ledger, store, outbox):
    emit(ledger, 0, "a", scope=JOB, body=b"first")
    held = emit(ledger, 1, "a", scope=JOB, body=b"second")
    (known,) = outbox.messages(Wanted())
    assert outbox.message(known.seq).body == b"first"
    assert store.read(held.key, held.window.start).run.status == "done"
    done, noted = list(store.events("job", held.window.start, held.window.start + 1))[1:]
    assert (done.event, noted.event, noted.data["message"]) == ("done", "noted", "job/web/a")
    assert "another body" in noted.reason


def test_one_of_two_messages_with_one_key_in_one_verdict_is_kept(ledger, outbox):
    held = claim(ledger)
    twice = [message(ledger, held, body=body) for body in (b"first", b"first", b"second")]
    assert ledger.finish(held, verdict(messages=tuple(twice))) is None
    assert [outbox.message(known.seq).body for known in outbox.messages(Wanted())] == [b"first"]


def test_a_rerun_emits_nothing_twice_unless_it_is_to_send_again(ledger, outbox):
    emit(ledger)
    for resend in (False, True):
        held = ledger.claim(ask(0, rerun_reason="once more"))
        ledger.finish(held, verdict(messages=(message(ledger, held, resend=resend),)))
    assert keys(outbox.messages(Wanted())) == ["-", "-#3"]


def test_a_verdict_that_is_told_twice_emits_once(ledger, outbox):
    held = claim(ledger)
    told = verdict(messages=(message(ledger, held),))
    assert ledger.finish(held, told) is None
    assert ledger.finish(held, told) is None
    assert len(outbox.messages(Wanted())) == 1


def test_an_attempt_that_was_taken_over_emits_nothing(kind, ledger, outbox):
    held = claim(ledger)
    kind.pass_time(ledger.store, 301)
    claim(ledger)
    assert ledger.finish(held, verdict(messages=(message(ledger, held),))).reason == "lost"
    assert outbox.messages(Wanted()) == []


def test_a_thousand_messages_of_one_verdict_are_all_there(ledger, outbox):
    emit(ledger, 0, *map(str, range(1000)))
    assert keys(outbox.messages(Wanted(), limit=2000)) == [str(number) for number in range(1000)]


def test_runs_that_emit_the_same_keys_at_once_emit_each_once(shared):
    ledger = ledger_over(shared.open())
    start_at = str(time.monotonic() + 1.5)
    wanted = [f"k{number}" for number in range(10)]
    words = [sys.executable, "-m", "tests.programs.emitter", shared.url]
    programs = [
        subprocess.Popen([*words, str(day), JOB, "same", start_at, *wanted[:: 1 if day % 2 else -1]])
        for day in range(6)
    ]
    assert [program.wait(60) for program in programs] == [0] * 6
    outbox = ledger.store.outbox()
    assert sorted(keys(outbox.messages(Wanted()))) == sorted(wanted)
    ends = [event for event in ledger.store.events("job", 0, 1 << 60) if event.event == "done"]
    assert sum(event.data["messages"] for event in ends) == 10
    assert len(ends) == 6


def test_of_runs_that_emit_different_bodies_under_one_key_at_once_the_first_wins_and_the_others_are_noted(shared):
    ledger = ledger_over(shared.open())
    start_at = str(time.monotonic() + 1.5)
    words = [sys.executable, "-m", "tests.programs.emitter", shared.url]
    programs = [subprocess.Popen([*words, str(day), LEDGER, f"body {day}", start_at, "one"]) for day in range(4)]
    assert [program.wait(60) for program in programs] == [0] * 4
    (known,) = ledger.store.outbox().messages(Wanted())
    story = Counter(event.event for event in ledger.store.events("job", 0, 1 << 60))
    assert story == {"start": 4, "done": 4, "noted": 3}
    assert ledger.store.outbox().message(known.seq).body == f"body {(known.window_start - START) // DAY}".encode()


# --- the queue ------------------------------------------------------------------------------------------------------


def test_a_destination_that_nobody_wrote_to_has_an_empty_queue(store, outbox):
    queue = outbox.queue("nowhere", 10)
    assert (queue.due, queue.sending, queue.next_due, queue.closed_until) == ((), (), None, None)
    assert take(store, route=Route("nowhere")) == []


def test_what_is_due_comes_with_its_body_and_the_longest_due_first(ledger, store, outbox):
    emit(ledger, 0, "a", "b", "c", "d")
    emit(ledger, 1, "e", destination="mail")
    a, _, c, *_ = outbox.messages(Wanted())
    now = store.clock().wall
    later = [Move(a, a.replace(due_at=now + 500)), Move(c, c.replace(due_at=now - 100))]
    outbox.exchange("web", later)
    queue = outbox.queue("web", 10)
    assert keys(queue.due) == ["c", "b", "d"]
    assert {known.body for known in queue.due} == {b"payload"}
    assert queue.next_due == pytest.approx(now + 500, abs=0.002)
    assert keys(outbox.queue("web", 2).due) == ["c", "b"]
    assert outbox.queue("web", 0).due == ()


def test_what_is_being_sent_is_told_with_its_lease_and_without_its_body(ledger, store, outbox):
    emit(ledger, 0, "a", "b")
    (taken,) = take(store, 1, sender="host-1")
    queue = outbox.queue("web", 10)
    assert keys(queue.due) == ["b"]
    (sending,) = queue.sending
    assert (sending.key, sending.sender, sending.tries, sending.body) == (taken.key, "host-1", 1, None)
    assert sending.lease_domain == queue.domain == store.clock().domain
    assert sending.lease_until == pytest.approx(taken.lease_until, abs=0.002)
    assert (sending.lease_seconds, sending.lease_until) > (0, queue.now)


def test_a_queue_tells_the_time_by_the_clocks_of_the_store(store, outbox):
    before, queue, after = store.clock(), outbox.queue("web", 1), store.clock()
    assert before.now <= queue.now <= after.now
    assert before.wall <= queue.wall <= after.wall


# --- taking ---------------------------------------------------------------------------------------------------------


def test_of_two_that_read_the_same_queue_one_takes(ledger, outbox):
    emit(ledger, 0, "a", "b")
    queue = outbox.queue("web", 10)
    first, second = (rules.take(queue, ROUTE, sender, 10) for sender in ("one", "two"))
    assert outbox.exchange("web", take=first).taken
    assert not outbox.exchange("web", take=second).taken
    assert {known.sender for known in outbox.queue("web", 10).sending} == {"one"}


def test_a_look_that_does_not_want_those_being_sent_sees_the_others_as_they_are(ledger, outbox):
    emit(ledger, 0, "a", "b", "c")
    assert outbox.exchange("web", take=rules.take(outbox.queue("web", 10), ROUTE, "one", 2)).taken
    whole, brief = outbox.queue("web", 10), outbox.queue("web", 10, sending=False)
    assert (len(whole.sending), brief.sending) == (2, ())
    assert (brief.due, brief.version, brief.next_due) == (whole.due, whole.version, whole.next_due)


def test_whoever_read_the_queue_before_another_took_takes_nothing_else_of_it_either(ledger, outbox):
    emit(ledger, 0, "a", "b")
    queue = outbox.queue("web", 10)
    first, second = (Take(queue.version, 0.0, rules.take(queue, ROUTE, "me", 2).moves[at : at + 1]) for at in (0, 1))
    assert outbox.exchange("web", take=first).taken
    assert not outbox.exchange("web", take=second).taken  # it knew nothing of what the rate has left
    assert keys(outbox.queue("web", 10).due) == ["b"]


def test_nothing_is_taken_where_one_of_the_messages_is_not_as_it_was(ledger, store, outbox):
    emit(ledger, 0, "a", "b", "c")
    queue = outbox.queue("web", 10)
    outbox.exchange("web", [rules.resolve(queue.due[1], "dropped", "no", store.clock().wall)])
    assert not outbox.exchange("web", take=rules.take(queue, ROUTE, "me", 10)).taken
    assert states(store) == [PENDING, DROPPED, PENDING]
    again = outbox.queue("web", 10)
    assert (again.version, keys(again.due)) == (queue.version, ["a", "c"])


def test_moves_are_written_even_where_the_take_beside_them_fails(ledger, store, outbox):
    emit(ledger, 0, "a", "b")
    queue = outbox.queue("web", 10)
    (taken,) = take(store, 1)
    exchanged = outbox.exchange("web", [settled(store, taken)], take=rules.take(queue, ROUTE, "me", 10))
    assert (exchanged.moved, exchanged.taken) == ({taken.key}, False)
    assert states(store) == [SENT, PENDING]


def test_a_move_of_a_message_that_has_moved_on_is_left_out_alone(ledger, store, outbox):
    emit(ledger, 0, "a", "b", "c")
    a, b, c = (settled(store, taken) for taken in take(store))
    outbox.exchange("web", [b])
    assert outbox.exchange("web", [a, b, c]).moved == {a.was.key, c.was.key}


def test_an_exchange_whose_answer_was_lost_may_be_repeated(ledger, store, outbox):
    emit(ledger, 0, "a", "b")
    (taken,) = take(store, 1)
    queue = outbox.queue("web", 10)
    told = ([settled(store, taken)], Closing(queue.wall + 60, "429"), rules.take(queue, ROUTE, "me", 10))
    first, again = (outbox.exchange("web", told[0], closing=told[1], take=told[2]) for _ in range(2))
    assert (first.moved, first.taken) == ({taken.key}, True)
    assert (again.moved, again.taken) == (frozenset(), False)
    assert [(known.state, known.tries) for known in outbox.messages(Wanted())] == [(SENT, 1), (SENDING, 1)]


def test_a_take_that_makes_a_message_unsure_instead_is_one_too(ledger, store, outbox):
    emit(ledger)
    (known,) = outbox.messages(Wanted())
    outbox.exchange("web", [Move(known, known.replace(doubt_since=known.created_at - 7200, failures=1))])
    assert take(store, route=DEDUPING) == []
    assert states(store) == [UNSURE]


def test_processes_that_take_at_once_never_take_the_same_message(shared):
    ledger = ledger_over(shared.open())
    emit(ledger, 0, *map(str, range(400)))
    start_at = str(time.monotonic() + 1.5)
    words = [sys.executable, "-m", "tests.programs.deliverer", shared.url, "web", start_at]
    programs = [subprocess.Popen([*words, str(7 + number)], stdout=subprocess.PIPE, text=True) for number in range(8)]
    told = [program.communicate(timeout=60)[0].split() for program in programs]
    assert [program.returncode for program in programs] == [0] * 8
    assert Counter(key for each in told for key in each) == Counter(
        f"job:2025-11-10/web/{number}" for number in range(400)
    )
    assert set(states(ledger.store)) == {SENT}


def test_threads_with_a_store_of_their_own_never_take_the_same_message(kind, ledger, store):
    emit(ledger, 0, *map(str, range(60)))
    taken: list[str] = []

    def deliver() -> None:
        own = store.reopen(20)
        while own.outbox().queue("web", 1).due:
            taken.extend(known.key for known in take(own, 4))
        own.close()

    threads = [threading.Thread(target=deliver) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    assert len(taken) == len(set(taken)) == 60


# --- the rate -------------------------------------------------------------------------------------------------------


def test_several_who_take_keep_to_one_rate_together(kind, ledger):
    emit(ledger, 0, *map(str, range(20)))
    slow = Route("web", rate=0.1)
    taken = [len(take(kind.open(), route=slow, sender=str(number))) for number in range(5)]
    assert taken == [1, 0, 0, 0, 0]


def test_when_the_rate_lets_the_next_one_go_is_kept_to_less_than_a_millisecond(ledger, outbox):
    emit(ledger, 0, "a", "b")
    queue = outbox.queue("web", 1)
    asked = Take(queue.version, queue.wall + 0.000_25, rules.take(queue, ROUTE, "me", 1).moves)
    assert outbox.exchange("web", take=asked).taken
    assert outbox.queue("web", 1).next_at == pytest.approx(asked.next_at, abs=0.000_01)


# --- closed destinations --------------------------------------------------------------------------------------------


def closed(outbox, destination="web"):
    queue = outbox.queue(destination, 1)
    return queue.closed_until, queue.closed_why


def test_a_closed_destination_gives_nothing_to_anybody_and_the_others_do(ledger, kind, outbox):
    emit(ledger, 0, "a")
    emit(ledger, 1, "b", destination="mail")
    until = float(int(ledger.store.clock().wall) + 600)
    outbox.exchange("web", closing=Closing(until, "429 too many"))
    assert closed(kind.open().outbox()) == (until, "429 too many")
    assert take(kind.open()) == []
    assert len(take(kind.open(), route=Route("mail"))) == 1


def test_the_later_closing_wins(outbox):
    for until, why in ((4e9, "first"), (4.1e9, "later"), (3.9e9, "earlier")):
        outbox.exchange("web", closing=Closing(until, why))
    assert closed(outbox) == (4.1e9, "later")


def test_a_person_opens_a_destination_that_is_closed(ledger, store, outbox):
    emit(ledger)
    outbox.exchange("web", closing=Closing(4e9, "429"))
    outbox.exchange("web", closing=Closing(None, "ann: it works again"))
    assert closed(outbox) == (None, "ann: it works again")
    assert len(take(store)) == 1
    outbox.exchange("web", closing=Closing(3e9, "429 again"))
    assert closed(outbox) == (3e9, "429 again")


def test_a_closing_does_not_stand_in_the_way_of_a_take_and_a_take_keeps_the_closing(ledger, store, outbox):
    emit(ledger)
    queue = outbox.queue("web", 1)
    outbox.exchange("web", closing=Closing(4e9, "429"))
    assert outbox.exchange("web", take=rules.take(queue, ROUTE, "me", 1)).taken
    assert closed(outbox) == (4e9, "429")


# --- deliverers that vanish, and answers that come late -------------------------------------------------------------


def lapse(store, route):
    """Say what becomes of messages whose lease is over, as any deliverer does."""
    queue = store.outbox().queue(route.destination, 1)
    over = [each for each in queue.sending if rules.lease_over(each, queue.domain, queue.now, queue.wall)]
    moves = [rules.lapsed(each, route, queue.wall, 0.5) for each in over]
    return len(store.outbox().exchange(route.destination, moves).moved)


@pytest.mark.parametrize(("route", "then"), [(ROUTE, UNSURE), (DEDUPING, PENDING)])
def test_what_a_dead_deliverer_had_is_anybodys_once_its_lease_is_over(kind, ledger, store, route, then):
    emit(ledger)
    (taken,) = take(store, route=route)
    assert lapse(store, route) == 0
    kind.pass_time(store, route.lease_seconds + 1)
    assert lapse(store, route) == 1
    known = store.outbox().message(taken.key)
    assert (known.state, known.sender, known.failures) == (then, "", 1)
    assert known.doubt_since == pytest.approx(taken.taken_at, abs=0.002)


@pytest.mark.parametrize("sender", ["me", "another"])
def test_what_was_decided_of_an_earlier_try_does_not_end_a_later_one(kind, ledger, store, sender):
    emit(ledger)
    (first,) = take(store, route=DEDUPING)
    late = settled(store, first, Answer(REFUSED), route=DEDUPING)
    kind.pass_time(store, DEDUPING.lease_seconds + 1)
    lapse(store, DEDUPING)
    (waiting,) = store.outbox().messages(Wanted())
    store.outbox().exchange("web", [Move(waiting, waiting.replace(due_at=waiting.created_at))])
    (second,) = take(store, route=DEDUPING, sender=sender)
    assert store.outbox().exchange("web", [late]).moved == frozenset()
    assert (states(store), second.tries) == ([SENDING], 2)


@pytest.mark.parametrize("wrong", [{"tries": 2}, {"sender": "another"}, {"state": PENDING}])
def test_a_move_is_written_only_if_state_tries_and_sender_are_as_they_were(ledger, store, outbox, wrong):
    emit(ledger)
    (taken,) = take(store)
    move = settled(store, taken)
    assert outbox.exchange("web", [Move(move.was.replace(**wrong), move.now)]).moved == frozenset()
    assert outbox.exchange("web", [move]).moved == {taken.key}


def test_a_deliverer_keeps_what_it_renews(kind, ledger, store, outbox):
    emit(ledger)
    (taken,) = take(store)
    kind.pass_time(store, ROUTE.lease_seconds - 1)
    clock = store.clock()
    assert outbox.exchange("web", [rules.renewed(taken, clock.domain, clock.now)]).moved == {taken.key}
    kind.pass_time(store, 2)
    assert lapse(store, ROUTE) == 0


def test_the_answer_of_a_deliverer_that_was_thought_dead_counts_if_it_is_proof(kind, ledger, store):
    emit(ledger)
    (taken,) = take(store)
    kind.pass_time(store, ROUTE.lease_seconds + 1)
    lapse(store, ROUTE)
    assert settled(store, taken, Answer(NOT_RECEIVED)) is None
    assert settle(store, taken) == SENT


@pytest.mark.parametrize(
    ("answer", "then"), [(Answer(UNKNOWN), UNSURE), (Answer(REFUSED, "422"), DEAD), (Answer(NOT_RECEIVED), PENDING)]
)
def test_proof_that_it_was_received_counts_whenever_it_comes(ledger, store, answer, then):
    emit(ledger)
    (taken,) = take(store)
    assert settle(store, taken, answer) == then
    assert settle(store, taken) == SENT
    assert store.outbox().message(taken.key).receipt == "200 thanks"


def test_all_that_a_move_can_change_is_read_back(ledger, outbox):
    emit(ledger)
    (was,) = outbox.messages(Wanted())
    now = was.replace(
        due_at=START + 1.5,
        state=DEAD,
        tries=3,
        failures=2,
        sender="host-9",
        lease_domain="boot",
        lease_until=17.25,
        taken_at=START + 2.5,
        lease_seconds=60.0,
        doubt_since=START + 3.5,
        settled_at=START + 4.5,
        receipt="r",
        error="é\u2028\\'\"",
        resolution="ann: because",
    )
    same = [name for name in now._fields if getattr(now, name) == getattr(was, name)]
    fixed = "key run window_start destination content_type digest body generation attempt item created_at seq"
    assert same == fixed.split(), "a new field: does a move change it?"
    assert outbox.exchange("web", [Move(was, now)]).moved == {was.key}
    assert outbox.message(was.key) == now.replace(body=b"payload")
    again = now.replace(taken_at=None, doubt_since=None, settled_at=None, receipt=None, error=None, resolution=None)
    assert outbox.exchange("web", [Move(now, again)]).moved == {was.key}
    assert outbox.message(was.key) == again.replace(body=b"payload")


# --- questions ------------------------------------------------------------------------------------------------------


@pytest.fixture
def mixed(ledger, store):
    """Messages in all states, of two days, to two destinations; their keys are what they are."""
    emit(ledger, 0, "sent", "dead", "unsure", "sending")
    for taken in take(store, 4):
        answers = {"sent": None, "dead": Answer(REFUSED), "unsure": Answer(UNKNOWN)}
        own = taken.key.rpartition("/")[2]
        if own in answers:
            assert settle(store, taken, *filter(None, [answers[own]])) == own
    emit(ledger, 1, "pending")
    emit(ledger, 2, "dropped", "pending2", destination="mail")
    dropped = store.outbox().message("job:2025-11-12/mail/dropped")
    store.outbox().exchange("mail", [rules.resolve(dropped, "dropped", "no", store.clock().wall)])
    return store.outbox()


def test_a_message_is_found_by_its_number_and_by_its_key(mixed):
    known = mixed.messages(Wanted())[1]
    assert known.body is None
    for name in (known.seq, known.key):
        assert mixed.message(name) == known.replace(body=b"payload")
    for name in (0, -1, 10**6, 10**30, "", "job:2025-11-10/web/other", str(known.seq)):
        assert mixed.message(name) is None


def test_known_tells_which_keys_there_are(mixed):
    there = mixed.messages(Wanted())
    assert mixed.known([]) == {}
    asked = [there[0].key, "job/web/none", there[3].key, there[0].key]
    assert mixed.known(asked) == {known.key: known for known in (there[0], there[3])}


@pytest.mark.parametrize(
    ("wanted", "found"),
    [
        (Wanted(), ["sent", "dead", "unsure", "sending", "pending", "dropped", "pending2"]),
        (Wanted(job="job", window_start=START), ["sent", "dead", "unsure", "sending"]),
        (Wanted(job="other"), []),
        (Wanted(window_start=START + 2 * DAY), ["dropped", "pending2"]),
        (Wanted(destination="mail"), ["dropped", "pending2"]),
        (Wanted(states=frozenset({PENDING})), ["pending", "pending2"]),
        (Wanted(states=frozenset({PENDING, SENT})), ["sent", "pending", "pending2"]),
        (Wanted(states=frozenset()), []),
        (Wanted(job="job", destination="mail", states=frozenset({DROPPED, DEAD})), ["dropped"]),
        (Wanted(job="job", window_start=START, states=frozenset({DEAD, UNSURE})), ["dead", "unsure"]),
    ],
)
def test_messages_are_listed_as_they_are_wanted(mixed, wanted, found):
    assert keys(mixed.messages(wanted)) == found


def test_messages_are_listed_in_pages(mixed):
    whole = mixed.messages(Wanted())
    page, told = mixed.messages(Wanted(), limit=3), []
    while page:
        told += page
        page = mixed.messages(Wanted(), after=page[-1].seq, limit=3)
    assert told == whole
    assert keys(mixed.messages(Wanted(states=frozenset({PENDING})), after=whole[4].seq)) == ["pending2"]


def test_destinations_are_those_of_what_is_not_delivered(ledger, store, mixed):
    assert mixed.destinations() == ["mail", "web"]
    settle(store, *take(store, route=Route("mail")), route=Route("mail"))
    assert mixed.destinations() == ["web"]


def test_a_tally_counts_what_is_not_delivered(mixed):
    created = [known.created_at for known in mixed.messages(Wanted(destination="web"))]
    first, last = min(created), max(created)
    found = mixed.tally("web", first - 1)
    assert [(one.job, one.destination, one.state, one.late, one.count) for one in found] == [
        ("job", "web", kind, False, 1) for kind in (DEAD, PENDING, SENDING, UNSURE)
    ]
    assert found[1].oldest == last
    late = {one.state: one.late for one in mixed.tally("web", last + 1)}
    assert late == {DEAD: False, PENDING: True, SENDING: True, UNSURE: False}
    assert mixed.tally("nowhere", last) == []


def test_a_tally_tells_how_long_the_oldest_waits(ledger, store, outbox):
    emit(ledger, 0, "a")
    first = outbox.messages(Wanted())[0].created_at
    emit(ledger, 1, "b", "c")
    assert outbox.tally("web", 0.0) == [Tally("job", "web", PENDING, False, 3, first)]


def test_waiting_counts_by_window(ledger, mixed):
    found = mixed.waiting("job", START, START + 3 * DAY)
    assert found == [
        *(Waiting("2025-11-10", START, kind, 1) for kind in (DEAD, SENDING, UNSURE)),
        Waiting("2025-11-11", START + DAY, PENDING, 1),
        Waiting("2025-11-12", START + 2 * DAY, PENDING, 1),
    ]
    assert mixed.waiting("job", START + 1, START + 2 * DAY) == found[3:4]
    assert mixed.waiting("other", START, START + 3 * DAY) == []


HOSTILE = ["x" * 200, "ключ/ü ß", "a%2Fb", "'; DROP TABLE outbox; --", '{"a": [1]}', "-", "*?[a]", "#2", ":::", "\\0"]


def test_hostile_keys_and_names_are_kept_apart_and_as_they_are(ledger, store, outbox):
    held = claim(ledger)
    told = [message(ledger, held, key, item=key, body=key.encode()) for key in HOSTILE]
    assert ledger.finish(held, verdict(messages=tuple(told))) is None
    found = outbox.messages(Wanted())
    assert [(known.key, known.item) for known in found] == [(each.key, each.item) for each in told]
    assert outbox.known([each.key for each in told]).keys() == {each.key for each in told}
    assert [outbox.message(each.key).body for each in told] == [each.body for each in told]
    taken = take(store)
    assert {settle(store, each) for each in taken} == {SENT}
    assert len(taken) == len(HOSTILE)


def test_any_bytes_of_any_length_are_a_body(ledger, store):
    held = claim(ledger)
    bodies = [b"\xff" * 1000, b"\x00", os.urandom(256 * 1024), "é".encode("latin-1"), b"\r\n$5\r\n"]
    told = [message(ledger, held, str(number), body=body) for number, body in enumerate(bodies)]
    assert ledger.finish(held, verdict(messages=tuple(told))) is None
    assert [known.body for known in store.upkeep().all_messages()] == bodies
    assert [known.body for known in take(store)] == bodies


# --- upkeep ---------------------------------------------------------------------------------------------------------


def test_all_messages_are_gone_through_in_the_order_of_their_numbers(mixed, store):
    with store.upkeep().view():
        found = list(store.upkeep().all_messages())
    assert [known.replace(body=None) for known in found] == mixed.messages(Wanted())
    assert {known.body for known in found} == {b"payload"}


def test_of_a_pruned_runs_messages_those_stay_for_which_somebody_waits(mixed, ledger, store):
    for day in (3, 4):
        emit(ledger, day, "newer")
    assert store.upkeep().prune("job", EVERYTHING).runs == 4
    left = mixed.messages(Wanted())
    assert keys(left) == ["dead", "unsure", "sending", "pending", "pending2", "newer", "newer"]
    assert {mixed.message(known.seq).body for known in left} == {b"payload"}


def test_of_a_pruned_runs_messages_the_keys_of_a_job_or_the_ledger_stay(ledger, store, outbox):
    held = claim(ledger)
    told = [message(ledger, held, "k", scope=scope) for scope in (JOB, LEDGER, rules.WINDOW)]
    ledger.finish(held, verdict(messages=tuple(told)))
    for taken in take(store):
        settle(store, taken)
    emit(ledger, 1)
    emit(ledger, 2)
    assert store.upkeep().prune("job", EVERYTHING).runs == 2
    assert [outbox.message(each.key) is not None for each in told] == [True, True, False]
    known = outbox.message("-/web/k")
    assert (known.state, known.body, known.digest) == (SENT, None, told[1].digest)
    assert ledger.finish(claim(ledger, 3), verdict(messages=tuple(told[:2]))) is None
    assert outbox.message("-/web/k") == known


def test_a_messages_number_is_not_given_twice(ledger, store, outbox):
    emit(ledger, 0, "a")
    settle(store, *take(store))
    last = outbox.messages(Wanted())[-1].seq
    ledger.finish(claim(ledger, 1), verdict())
    ledger.finish(claim(ledger, 2), verdict())
    store.upkeep().prune("job", EVERYTHING)
    assert outbox.messages(Wanted()) == []
    emit(ledger, 3, "b")
    assert outbox.messages(Wanted())[0].seq > last


def test_pruning_another_jobs_runs_leaves_messages_alone(mixed, store):
    ledger = ledger_over(store, "other")
    for day in range(4):
        ledger.finish(claim(ledger, day, job="other"), verdict())
    before = list(store.upkeep().all_messages())
    assert store.upkeep().prune("other", EVERYTHING).runs > 0
    assert list(store.upkeep().all_messages()) == before


def nobody(run, lease):
    return False


def test_messages_of_another_ledger_are_taken_in_as_they_are(ledger, store, outbox):
    emit(ledger, 0, "here", body=b"here")
    held = claim(ledger, 1)
    there = [
        message(ledger, held, "here", body=b"there").replace(key="job:2025-11-10/web/here", seq=1),
        message(ledger, held, "a").replace(state=SENT, tries=2, receipt="200", settled_at=START + 1.0, seq=77),
        message(ledger, held, "b").replace(state=UNSURE, failures=3, doubt_since=START + 2.0, error="no answer"),
        message(ledger, held, "c", scope=JOB).replace(state=SENT, body=None),
        message(ledger, held, "d").replace(state=SENDING, sender="x", lease_domain="gone", lease_until=5.0),
    ]
    for _ in range(2):
        store.upkeep().take_in(Intake(messages=there), nobody)
    found = list(store.upkeep().all_messages())
    assert [known.body for known in found[:1]] == [b"here"]
    assert keys(found) == ["here", "a", "b", "c", "d"]
    for known, told in zip(found[1:], there[1:], strict=True):
        assert_same(known, told.replace(seq=known.seq))
    assert len({known.seq for known in found}) == 5


def test_a_store_with_messages_has_no_problems(mixed, store):
    assert store.upkeep().problems(deep=False) == []
    assert store.upkeep().problems(deep=True) == []


def test_a_trigger_that_is_refused_writes_no_message(ledger, outbox):
    emit(ledger)
    assert refused(ledger).reason == "done"
    assert len(outbox.messages(Wanted())) == 1
