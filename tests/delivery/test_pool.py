"""A pool of carriers: several at a time, and every message answered."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator

import pytest

from ranonce.delivery.answers import MANY, Answers
from ranonce.delivery.base import IDLE_SECONDS
from ranonce.delivery.pool import Pool
from ranonce.lifecycle import RunKey
from ranonce.messages import DELIVERED, NOT_BEGUN, NOT_RECEIVED, REFUSED, UNKNOWN, Answer, Message

PATIENCE = 10.0


def messages(count: int) -> list[Message]:
    return [
        Message(
            key=f"job:w/dest/{number}",
            run=RunKey("job", "w"),
            window_start=0,
            destination="dest",
            content_type="text/plain",
            digest="",
            body=b"x",
            generation=1,
            attempt=1,
            item="",
            created_at=0.0,
            due_at=0.0,
        )
        for number in range(count)
    ]


class Carry:
    """A carrier that does what a function says."""

    def __init__(self, does: Callable[[Message], Answer]) -> None:
        self.does = does
        self.closed = threading.Event()

    def carry(self, message: Message) -> Answer:
        return self.does(message)

    def close(self) -> None:
        self.closed.set()


def always(_: Message) -> bool:
    return True


@pytest.fixture
def pools() -> Iterator[list[Pool]]:
    made: list[Pool] = []
    yield made
    for pool in made:
        pool.close()


def test_every_message_is_answered_once(pools: list[Pool]) -> None:
    pool = Pool(lambda: Carry(lambda message: Answer(DELIVERED, message.key)), 3)
    pools.append(pool)
    sent = messages(20)
    answered = [each for each in pool.send(sent, always) if each is not None]
    assert sorted(message.key for message, _ in answered) == sorted(message.key for message in sent)
    assert all(answer == Answer(DELIVERED, message.key) for message, answer in answered)


def test_as_many_as_it_may_are_sent_at_the_same_time(pools: list[Pool]) -> None:
    together = threading.Barrier(3)

    def wait(_: Message) -> Answer:
        together.wait(PATIENCE)  # raises, and is answered as unknown, unless three are there
        return Answer(DELIVERED)

    pool = Pool(lambda: Carry(wait), 3)
    pools.append(pool)
    assert [each[1].kind for each in pool.send(messages(3), always) if each] == [DELIVERED] * 3


def test_no_more_than_it_may_are_sent_at_the_same_time(pools: list[Pool]) -> None:
    begun, go = threading.Semaphore(0), threading.Event()

    def wait(_: Message) -> Answer:
        begun.release()
        return Answer(DELIVERED if go.wait(PATIENCE) else UNKNOWN)

    pool = Pool(lambda: Carry(wait), 2)
    pools.append(pool)
    sending = pool.send(messages(4), always)
    assert next(sending) is None  # they have had a while
    assert [begun.acquire(timeout=PATIENCE), begun.acquire(timeout=PATIENCE)] == [True, True]
    assert not begun.acquire(blocking=False)
    go.set()
    assert [each[1].kind for each in sending if each] == [DELIVERED] * 4


def test_a_connection_is_kept_from_one_sending_to_the_next(pools: list[Pool]) -> None:
    opened: list[Carry] = []

    def open_carrier() -> Carry:
        opened.append(Carry(lambda _: Answer(DELIVERED)))
        return opened[-1]

    pool = Pool(open_carrier, 1)
    pools.append(pool)
    for _ in range(3):
        assert len([each for each in pool.send(messages(2), always) if each]) == 2
    assert len(opened) == 1


def test_a_carrier_that_raises_answers_unknown_in_the_words_of_the_error_and_is_opened_anew(pools: list[Pool]) -> None:
    opened: list[Carry] = []

    def fail(_: Message) -> Answer:
        raise ZeroDivisionError("of all things")

    def open_carrier() -> Carry:
        opened.append(Carry(fail))
        return opened[-1]

    pool = Pool(open_carrier, 1)
    pools.append(pool)
    answers = [each[1] for each in pool.send(messages(2), always) if each]
    assert [answer.kind for answer in answers] == [UNKNOWN, UNKNOWN]
    assert "ZeroDivisionError: of all things" in answers[0].words
    assert len(opened) == 2
    assert all(carrier.closed.wait(PATIENCE) for carrier in opened)


def test_where_no_carrier_can_be_opened_nothing_was_received(pools: list[Pool]) -> None:
    def open_carrier() -> Carry:
        raise OSError("no room")

    pool = Pool(open_carrier, 1)
    pools.append(pool)
    ((_, answer),) = [each for each in pool.send(messages(1), always) if each]
    assert (answer.kind, "no room" in answer.words) == (NOT_RECEIVED, True)


def test_what_may_not_begin_is_answered_so_and_not_carried(pools: list[Pool]) -> None:
    carried: list[str] = []

    def carry(message: Message) -> Answer:
        carried.append(message.key)
        return Answer(DELIVERED)

    pool = Pool(lambda: Carry(carry), 2)
    pools.append(pool)
    sent = messages(4)
    answers = dict(each for each in pool.send(sent, lambda message: message is sent[1]) if each)
    assert carried == [sent[1].key]
    assert [answers[message].kind for message in sent] == [NOT_BEGUN, DELIVERED, NOT_BEGUN, NOT_BEGUN]


def test_it_says_that_nothing_has_come_yet(pools: list[Pool]) -> None:
    go = threading.Event()

    def wait(_: Message) -> Answer:
        return Answer(DELIVERED if go.wait(PATIENCE) else UNKNOWN)

    pool = Pool(lambda: Carry(wait), 1)
    pools.append(pool)
    sending = pool.send(messages(1), always)
    assert next(sending) is None
    go.set()
    assert [each[1].kind for each in sending if each] == [DELIVERED]


def test_once_nobody_listens_nothing_more_begins(pools: list[Pool]) -> None:
    begun: list[str] = []
    first, go = threading.Event(), threading.Event()

    def carry(message: Message) -> Answer:
        begun.append(message.key)
        first.set()
        go.wait(PATIENCE)
        return Answer(DELIVERED)

    pool = Pool(lambda: Carry(carry), 1)
    pools.append(pool)
    sent = messages(3)
    sending = pool.send(sent, always)
    assert next(sending) is None
    assert first.wait(PATIENCE)
    sending.close()  # type: ignore[attr-defined]
    go.set()
    assert len([each for each in pool.send(messages(1), always) if each]) == 1
    assert begun == [sent[0].key, sent[0].key]


def test_a_closed_pool_closes_its_carriers(pools: list[Pool]) -> None:
    opened: list[Carry] = []

    def open_carrier() -> Carry:
        opened.append(Carry(lambda _: Answer(DELIVERED)))
        return opened[-1]

    pool = Pool(open_carrier, 2)
    assert len([each for each in pool.send(messages(2), always) if each]) == 2
    pool.close()
    assert all(carrier.closed.wait(PATIENCE) for carrier in opened)


def test_what_is_added_meanwhile_is_sent_and_answered_with_the_others(pools: list[Pool]) -> None:
    pool = Pool(lambda: Carry(lambda message: Answer(DELIVERED, message.key)), 2)
    pools.append(pool)
    first, *others = messages(6)
    sending = pool.send([first], always)
    answered = []
    for each in sending:
        if each is not None:
            answered.append(each[0].key)
        if others:
            pool.add(others)
            others = []
    assert sorted(answered) == sorted(message.key for message in messages(6))


def test_a_fast_carrier_does_not_wake_whoever_waits_for_each_answer() -> None:
    answers = Answers()
    answers.open_ones = 100
    told = messages(100)
    for message in told[:MANY]:
        answers.put(message, Answer(DELIVERED))
    assert answers.wakes == 1


@pytest.mark.parametrize(("count", "kind"), [(1, REFUSED), (3, DELIVERED)])
def test_a_failure_and_the_last_answer_are_told_at_once(count: int, kind: str) -> None:
    answers = Answers()
    answers.open_ones = 3
    for message in messages(count):
        assert answers.wakes == 0
        answers.put(message, Answer(kind))
    assert answers.wakes == 1


def test_an_answer_among_others_that_are_awaited_is_told_within_a_moment() -> None:
    answers = Answers()
    answers.open_ones = 3
    awaited = answers.awaited()
    answers.put(messages(1)[0], Answer(DELIVERED))
    assert next(awaited) is not None
    assert next(awaited) is None  # it sleeps, and is woken by the next
    thread = threading.Timer(0.05, answers.put, (messages(2)[1], Answer(DELIVERED)))
    began = time.monotonic()
    thread.start()
    assert next(awaited) is not None
    assert time.monotonic() - began < IDLE_SECONDS  # more than that would be the end of its sleep
    thread.join()
