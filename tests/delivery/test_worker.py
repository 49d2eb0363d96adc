"""One destination's worker, over a ledger in memory: what it takes, sends and settles, and when it does not."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Sequence

import pytest

from ranonce import messages as rules
from ranonce.delivery.orders import Orders
from ranonce.delivery.worker import Worker
from ranonce.errors import ConfigError, NotThisLedger, StoreUnavailable
from ranonce.messages import (
    DELIVERED,
    NOT_BEGUN,
    NOT_RECEIVED,
    REFUSED,
    THROTTLED,
    UNKNOWN,
    Answer,
    Message,
    Route,
)
from ranonce.stores.base import LostReply
from ranonce.stores.memory.store import MemoryStore
from tests.contract.emitting import take
from tests.delivery.outboxes import fill, messages, states

PLAIN = Route("web", concurrency=4, timeout=20.0)
KEYED = PLAIN.replace(dedupes=3600.0)
SENT = Answer(DELIVERED, "200")


class Time:
    """One clock for everything: it goes on when it is told to."""

    def __init__(self) -> None:
        self.now = 1_800_000_000.0

    def __call__(self) -> float:
        return self.now


class Sends:
    """A sender in one thread that answers as a function says, and does something before each."""

    def __init__(self, answers: Callable[[Message], Answer | None]) -> None:
        self.answers = answers
        self.came: list[str] = []
        self.batches: list[int] = []
        self.closed = 0

    def send(
        self, taken: Sequence[Message], may_begin: Callable[[Message], bool]
    ) -> Iterator[tuple[Message, Answer] | None]:
        self.batches.append(len(taken))
        for message in taken:
            if not may_begin(message):
                yield message, Answer(NOT_BEGUN)
                continue
            self.came.append(message.key.rpartition("/")[2])
            answer = self.answers(message)
            if answer is not None:
                yield message, answer
            for _ in range(1 if answer else 100):
                yield None

    def close(self) -> None:
        self.closed += 1


class Heard:
    """What a worker tells."""

    def __init__(self) -> None:
        self.told: list[tuple[str, str]] = []
        self.troubles: list[str] = []

    def settled(self, message: Message, answer: Answer | None) -> None:
        self.told.append((message.key.rpartition("/")[2], message.state))

    def trouble(self, destination: str, sentence: str, next_step: str) -> None:
        self.troubles.append(f"{destination}: {sentence} {next_step}")


class Bench:
    """A ledger in memory, its time, and a worker over it."""

    def __init__(self) -> None:
        self.time = Time()
        self.store = MemoryStore(now=self.time, wall=self.time)
        self.heard = Heard()

    def fill(self, *keys: str, day: int = 0) -> None:
        fill(self.store, keys, day=day)
        self.time.now += 1

    def worker(
        self,
        answers: Callable[[Message], Answer | None] | Answer = SENT,
        route: Route = PLAIN,
        *,
        store: object = None,
        orders: Orders | None = None,
    ) -> tuple[Worker, Sends]:
        sender = Sends(answers if callable(answers) else lambda _: answers)
        worker = Worker(
            route,
            store or self.store,  # type: ignore[arg-type]
            lambda: sender,
            orders or Orders(),
            self.heard,
            name="me",
            clock=self.time,
            chance=lambda: 0.0,
        )
        return worker, sender

    def deliver(self, *words: object, **named: object) -> Sends:
        worker, sender = self.worker(*words, **named)  # type: ignore[arg-type]
        worker.run()
        return sender

    def states(self) -> dict[str, str]:
        return {message.key.rpartition("/")[2]: message.state for message in messages(self.store)}

    def of(self, key: str) -> Message:
        (found,) = (message for message in messages(self.store) if message.key.endswith("/" + key))
        return found


@pytest.fixture
def bench() -> Bench:
    return Bench()


class Faulty:
    """A store whose outbox fails as it is told, before or after it has written."""

    def __init__(self, store: MemoryStore) -> None:
        self.store = store
        self.faults: list[str] = []  # of the exchanges to come
        self.looks: list[str] = []

    def clock(self) -> object:
        return self.store.clock()

    def outbox(self) -> Faulty:
        return self

    def queue(self, *words: object, **named: object) -> object:
        self._fail(self.looks)
        return self.store.outbox().queue(*words, **named)  # type: ignore[arg-type]

    def known(self, keys: Sequence[str]) -> object:
        return self.store.outbox().known(keys)

    def exchange(self, *words: object, **named: object) -> object:
        fault = self.faults.pop(0) if self.faults else ""
        if fault == "away":
            raise StoreUnavailable("the store is away.")
        if fault == "lost before":
            raise LostReply("no reply.")
        if fault == "foreign":
            raise NotThisLedger("it is another one.")
        answer = self.store.outbox().exchange(*words, **named)  # type: ignore[arg-type]
        if fault == "lost after":
            raise LostReply("no reply.")
        return answer

    def _fail(self, faults: list[str]) -> None:
        if faults and faults.pop(0):
            raise StoreUnavailable("the store is away.")


# --- a pass ---


def test_everything_that_is_due_is_sent_once_and_told(bench):
    bench.fill("a", "b", "c")
    assert bench.deliver().came == ["a", "b", "c"]
    assert bench.states() == {"a": "sent", "b": "sent", "c": "sent"}
    assert bench.heard.told == [("a", "sent"), ("b", "sent"), ("c", "sent")]
    assert bench.of("a").receipt == "200"


def test_where_nothing_dedupes_no_more_are_taken_than_are_sent_at_once(bench):
    bench.fill(*(f"k{n}" for n in range(10)))
    assert bench.deliver().batches == [4, 4, 2]


def test_where_the_destination_dedupes_a_hundred_are_taken_in_one_write(bench):
    bench.fill(*(f"k{n:03}" for n in range(150)))
    assert bench.deliver(route=KEYED).batches == [100, 50]


def test_a_good_message_goes_out_in_the_first_pass_behind_a_hundred_poisoned_ones(bench):
    bench.fill(*(f"poison{n:03}" for n in range(100)))
    bench.fill("good", day=1)
    bench.deliver(lambda message: SENT if message.key.endswith("good") else Answer(NOT_RECEIVED, "500"))
    assert bench.of("good").state == "sent"
    assert states(bench.store) == {"pending": 100, "sent": 1}


def test_a_pass_tries_no_message_twice_however_long_it_takes(bench):
    bench.fill("a", "b")

    def slow(_: Message) -> Answer:
        bench.time.now += 15  # longer than the pause before the next try
        return Answer(NOT_RECEIVED, "refused")

    assert bench.deliver(slow, route=PLAIN.replace(concurrency=1)).came == ["a", "b"]


def test_poison_is_dead_after_its_attempts_and_no_longer_tried(bench):
    bench.fill("a")
    for _ in range(5):
        bench.deliver(Answer(NOT_RECEIVED, "500"), route=PLAIN.replace(max_attempts=3))
        bench.time.now += 10_000
    assert (bench.of("a").state, bench.of("a").tries) == ("dead", 3)


@pytest.mark.parametrize(("route", "state"), [(PLAIN, "unsure"), (KEYED, "pending")])
def test_what_may_have_been_received_is_sent_again_only_where_the_destination_dedupes(bench, route, state):
    bench.fill("a")
    bench.deliver(Answer(UNKNOWN, "timeout"), route=route)
    assert bench.of("a").state == state


def test_a_destination_that_wants_to_be_left_alone_is_not_asked_again_by_anybody(bench):
    bench.fill("a", "b", "c", "d", "e")
    throttled = Answer(THROTTLED, "429", retry_after=600.0, answered=True)
    assert bench.deliver(throttled, route=KEYED.replace(concurrency=1)).came == ["a"]
    bench.time.now += 590
    assert bench.deliver(route=KEYED).came == []
    bench.time.now += 20
    assert bench.deliver(route=KEYED).came == ["b", "c", "d", "e", "a"]  # b to e were given back, and are due since


def test_a_destination_that_a_person_opens_is_not_closed_again_by_what_was_said_before(bench):
    bench.fill("a", "b")
    orders = Orders(watch=True, poll=0.01)
    in_vain = threading.Timer(10, orders.stop)
    in_vain.start()

    def heard(message: Message, answer: Answer | None) -> None:
        if message.key.endswith("/a"):
            bench.store.outbox().exchange("web", closing=rules.Closing(None, "it is mended"))
        if message.state == "sent":
            orders.stop()

    bench.heard.settled = heard
    throttled = Answer(THROTTLED, "429", retry_after=600.0, answered=True)
    bench.deliver(lambda message: throttled if message.key.endswith("/a") else SENT, orders=orders)
    in_vain.cancel()
    assert bench.states() == {"a": "pending", "b": "sent"}
    assert bench.store.outbox().queue("web", 1).closed_until is None


def test_no_more_are_begun_than_the_limit(bench):
    bench.fill("a", "b", "c", "d", "e")
    assert bench.deliver(orders=Orders(limit=2)).came == ["a", "b"]
    assert states(bench.store) == {"pending": 3, "sent": 2}


def test_what_was_not_begun_does_not_count_against_the_limit(bench):
    bench.fill("a", "b")
    orders = Orders(limit=2)
    throttled = Answer(THROTTLED, "429", retry_after=60.0, answered=True)
    bench.deliver(throttled, orders=orders, route=KEYED)
    assert orders.reserve(10) == 1


def test_one_that_is_told_to_end_gives_back_what_it_has_not_begun(bench):
    bench.fill("a", "b", "c", "d")
    orders = Orders()

    def stop(_: Message) -> Answer:
        orders.stop()
        return SENT

    assert bench.deliver(stop, orders=orders).came == ["a"]
    assert bench.states() == {"a": "sent", "b": "pending", "c": "pending", "d": "pending"}


def test_the_rate_lets_one_go_after_the_other(bench):
    bench.fill("a", "b", "c")
    worker, sender = bench.worker(route=PLAIN.replace(rate=0.01))
    worker.run()
    assert sender.came == ["a"]  # the next is due in 100 seconds, too far for one that goes once
    bench.time.now += 100
    assert bench.deliver(route=PLAIN.replace(rate=0.01)).came == ["b"]


def test_a_sender_that_cannot_be_opened_leaves_everything_as_it_was(bench):
    bench.fill("a")

    def refuse() -> Sends:
        raise ConfigError("TOKEN is not set.")

    worker = Worker(PLAIN, bench.store, refuse, Orders(), bench.heard, clock=bench.time)
    with pytest.raises(ConfigError):
        worker.run()
    assert (bench.of("a").state, bench.of("a").tries) == ("pending", 0)


def test_a_sender_that_raises_leaves_what_it_had_begun_in_doubt_and_nothing_unsettled(bench):
    bench.fill("a", "b")

    def fail(_: Message) -> Answer:
        raise ZeroDivisionError("of all things")

    bench.deliver(fail)
    assert bench.states() == {"a": "unsure", "b": "pending"}
    assert "ZeroDivisionError: of all things" in (bench.of("a").error or "")


def test_a_sender_that_never_answers_is_given_up(bench):
    bench.fill("a")

    def hang(_: Message) -> None:
        bench.time.now += 100

    sender = bench.deliver(hang)
    assert (bench.of("a").state, bench.of("a").error) == ("unsure", "no answer came, long after its time was over")
    assert sender.closed


# --- leases ---


def test_what_a_dead_deliverer_had_lapses_with_its_lease(bench):
    bench.fill("a")
    take(bench.store, 1, route=PLAIN)
    assert bench.deliver().came == []
    assert bench.of("a").state == "sending"
    bench.time.now += PLAIN.lease_seconds
    assert bench.deliver().came == []
    assert bench.heard.told == [("a", "unsure")]


def test_one_that_was_paused_past_its_lease_begins_nothing_more(bench):
    bench.fill("a", "b", "c")

    def pause(_: Message) -> Answer:
        bench.time.now += PLAIN.lease_seconds
        assert bench.deliver_beside() == []
        return SENT

    def deliver_beside() -> list[str]:
        other = Worker(PLAIN, bench.store, lambda: Sends(lambda _: SENT), Orders(), Heard(), clock=bench.time)
        other.run()
        return []

    bench.deliver_beside = deliver_beside
    sender = bench.deliver(pause)
    assert sender.came == ["a"]
    # What it had begun came late, and counts; what it had not, nobody can tell from that.
    assert bench.states() == {"a": "sent", "b": "unsure", "c": "unsure"}


def test_leases_are_renewed_while_others_are_sent(bench):
    bench.fill("a", "b", "c")

    def slowly(_: Message) -> Answer:
        bench.time.now += PLAIN.timeout * 0.7
        assert not any(
            rules.lease_over(message, "memory", bench.time.now, bench.time.now)
            for message in messages(bench.store)
            if message.state == "sending"
        )
        return SENT

    assert bench.deliver(slowly).came == ["a", "b", "c"]


def test_a_message_that_somebody_else_has_meanwhile_is_not_begun(bench):
    bench.fill("a", "b")

    def lose_b(message: Message) -> Answer:
        if message.key.endswith("/a"):
            b = bench.of("b")
            lapse = rules.Move(b, b.replace(state="pending", sender=""))
            assert bench.store.outbox().exchange("web", [lapse]).moved
            take(bench.store, 1, route=PLAIN, sender="another")
            bench.time.now += PLAIN.timeout  # a renewal is due
        return SENT

    assert bench.deliver(lose_b).came == ["a"]
    assert bench.of("b").sender == "another"


# --- a store that is away, or whose reply is lost ---


@pytest.mark.parametrize("fault", ["away", "foreign", "lost before", "lost after"])
@pytest.mark.parametrize("route", [PLAIN, KEYED])
def test_an_answer_that_the_store_does_not_take_is_kept_and_the_message_not_sent_again(bench, fault, route):
    bench.fill("a", "b")
    store = Faulty(bench.store)
    store.faults = ["", fault, fault]
    assert bench.deliver(store=store, route=route).came == ["a", "b"]
    assert bench.states() == {"a": "sent", "b": "sent"}
    assert sorted(bench.heard.told) == [("a", "sent"), ("b", "sent")]


def test_an_answer_that_waits_longer_than_the_lease_is_still_what_counts(bench):
    bench.fill("a")
    store = Faulty(bench.store)
    store.faults = ["", "away"]

    def late(_: Message) -> Answer:
        bench.time.now += 10 * PLAIN.lease_seconds
        return SENT

    bench.deliver(late, store=store)
    assert bench.states() == {"a": "sent"}


def test_what_is_answered_and_not_written_is_not_sent_again_though_somebody_gave_it_up(bench):
    bench.fill("a")
    store = Faulty(bench.store)
    store.faults = ["", "away"]
    orders = Orders(watch=True, poll=0.01)

    def give_up(message: Message) -> Answer:
        given_up = rules.Move(message, message.replace(state="pending", sender=""))
        assert bench.store.outbox().exchange("web", [given_up]).moved
        return SENT

    bench.heard.settled = lambda message, answer: orders.stop()
    assert bench.deliver(give_up, store=store, orders=orders, route=KEYED).came == ["a"]
    assert bench.states() == {"a": "sent"}


@pytest.mark.parametrize("fault", ["lost before", "lost after"])
def test_a_take_whose_reply_was_lost_is_recognised_and_sent_once(bench, fault):
    bench.fill("a", "b")
    store = Faulty(bench.store)
    store.faults = [fault]
    assert bench.deliver(store=store).came == ["a", "b"]
    assert bench.states() == {"a": "sent", "b": "sent"}


def test_a_lost_reply_about_a_refusal_changes_nothing_the_second_time(bench):
    bench.fill("a")
    store = Faulty(bench.store)
    store.faults = ["", "lost after"]
    bench.deliver(Answer(REFUSED, "410"), store=store)
    assert (bench.of("a").state, bench.of("a").failures) == ("dead", 1)


def test_a_store_that_is_away_before_anything_was_taken_is_said_at_once(bench):
    bench.fill("a")
    store = Faulty(bench.store)
    store.looks = ["away"]
    worker, _ = bench.worker(store=store)
    with pytest.raises(StoreUnavailable):
        worker.run()


def test_what_could_not_be_written_in_the_end_is_said_with_its_key(bench):
    bench.fill("a")
    store = Faulty(bench.store)
    store.faults = ["", *["away"] * 1000]

    def answer(_: Message) -> Answer:
        return SENT

    worker, _ = bench.worker(answer, store=store, orders=Orders(outage=0.0))
    with pytest.raises(StoreUnavailable):
        worker.run()
    assert any("message 1 (job:2025-11-10/web/a) was answered as delivered" in each for each in bench.heard.troubles)


def test_another_ledger_in_its_place_ends_it_and_the_answers_are_said(bench):
    bench.fill("a")
    store = Faulty(bench.store)
    store.faults = ["", *["foreign"] * 100]
    worker, _ = bench.worker(store=store, orders=Orders(outage=0.0))
    with pytest.raises(NotThisLedger):
        worker.run()
    assert any("was answered as delivered" in each for each in bench.heard.troubles)


# --- clocks ---


@pytest.mark.parametrize("jump", [-86400.0, 86400.0])
def test_a_real_clock_that_jumps_while_a_message_is_sent_neither_loses_nor_doubles_it(bench, jump):
    wall = Time()
    bench.store.wall = wall
    bench.fill("a", "b", "c")
    wall.now += 10

    def leap(_: Message) -> Answer:
        wall.now += jump
        return SENT

    first = bench.deliver(leap).came
    wall.now += 2 * 86400
    assert sorted(first + bench.deliver(leap).came) == ["a", "b", "c"]
    assert states(bench.store) == {"sent": 3}


# --- one lot after the other ---


class Grows(Sends):
    """A sender that takes more while it sends."""

    def send(
        self, taken: Sequence[Message], may_begin: Callable[[Message], bool]
    ) -> Iterator[tuple[Message, Answer] | None]:
        self.left = list(taken)
        self.batches.append(len(taken))
        while self.left:
            message = self.left.pop(0)
            if not may_begin(message):
                yield message, Answer(NOT_BEGUN)
                continue
            self.came.append(message.key.rpartition("/")[2])
            answer = self.answers(message)
            yield (message, answer) if answer else None

    def add(self, messages: Sequence[Message]) -> None:
        self.batches.append(len(messages))
        self.left += messages


def grow(
    bench: Bench,
    answers: Callable[[Message], Answer | None] | Answer = SENT,
    route: Route = KEYED,
    *,
    store: object = None,
    orders: Orders | None = None,
) -> Grows:
    sender = Grows(answers if callable(answers) else lambda _: answers)
    Worker(
        route,
        store or bench.store,  # type: ignore[arg-type]
        lambda: sender,
        orders or Orders(),
        bench.heard,
        name="me",
        clock=bench.time,
        chance=lambda: 0.0,
    ).run()
    return sender


def numbers(count: int) -> list[str]:
    return [f"{number:03}" for number in range(count)]


def test_while_half_of_what_was_taken_is_being_sent_the_next_half_is_taken(bench):
    bench.fill(*numbers(250))
    held = []

    def count(_: Message) -> Answer:
        held.append(states(bench.store)["sending"])
        return SENT

    sender = grow(bench, count)
    assert sender.batches == [100, 50, 50, 50]
    assert (sender.came, states(bench.store)) == (numbers(250), {"sent": 250})
    assert max(held) == 100


def test_where_nothing_dedupes_nothing_is_taken_before_the_last_answer(bench):
    bench.fill(*numbers(10))
    assert grow(bench, route=PLAIN).batches == [4, 4, 2]


def test_no_more_are_taken_meanwhile_than_the_limit(bench):
    bench.fill(*numbers(250))
    orders = Orders(limit=120)
    assert grow(bench, orders=orders).batches == [100, 20]
    assert (states(bench.store), orders.spent) == ({"sent": 120, "pending": 130}, True)


def test_what_was_not_taken_meanwhile_does_not_count_against_the_limit(bench):
    bench.fill(*numbers(150))
    orders = Orders(limit=1000)
    grow(bench, orders=orders)
    assert orders.reserve(10_000) == 1000 - 150


def test_a_destination_that_wants_to_be_left_alone_gets_nothing_that_is_taken_meanwhile(bench):
    bench.fill(*numbers(250))
    throttled = Answer(THROTTLED, "429", retry_after=60.0, answered=True)
    sender = grow(bench, lambda message: throttled if message.key.endswith("/020") else SENT)
    assert (sender.batches, sender.came) == ([100], numbers(21))
    assert states(bench.store) == {"sent": 20, "pending": 230}


def test_a_message_that_fails_is_tried_once_in_a_pass_that_takes_one_lot_after_the_other(bench):
    bench.fill(*numbers(250))
    route = KEYED.replace(first_delay=0.0)
    sender = grow(bench, lambda message: Answer(NOT_RECEIVED) if message.key.endswith("0") else SENT, route)
    assert sender.came == numbers(250)
    assert states(bench.store) == {"sent": 225, "pending": 25}


def test_a_take_meanwhile_whose_reply_is_lost_is_sent_once(bench):
    bench.fill(*numbers(150))
    store = Faulty(bench.store)
    store.faults = ["", "lost after"]
    sender = grow(bench, store=store)
    assert (sorted(sender.came), states(bench.store)) == (numbers(150), {"sent": 150})


def test_a_store_that_is_away_meanwhile_takes_what_was_answered_once_it_is_back(bench):
    bench.fill(*numbers(150))
    store = Faulty(bench.store)
    store.looks = ["", "away"]
    sender = grow(bench, store=store)
    assert (sender.came, states(bench.store)) == (numbers(150), {"sent": 150})
    assert "the store is away" in bench.heard.troubles[0]


def test_what_is_being_sent_does_not_lapse_by_the_hand_of_its_own_deliverer(bench):
    bench.fill(*numbers(150))

    def pause(message: Message) -> Answer:
        bench.time.now += 2 * KEYED.lease_seconds if message.key.endswith("/049") else 0.0
        return SENT

    store = Faulty(bench.store)
    store.faults = ["", "away"]  # so that nothing is renewed before the look
    grow(bench, pause, store=store)
    assert states(bench.store) == {"sent": 150}
    assert {message.failures for message in messages(bench.store)} == {0}


def test_one_that_is_never_answered_is_given_up_however_many_others_are(bench):
    bench.fill(*numbers(250))
    silent: list[Message] = []

    def hang(message: Message) -> Answer | None:
        if not silent:
            silent.append(message)
            return None
        bench.time.now += 1
        return SENT

    sender = grow(bench, hang)
    assert bench.of("000").error == "it was not answered"
    assert sender.batches[:2] == [100, 100]  # in a new sending, after the one that had been given up
