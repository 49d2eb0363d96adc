"""`run.items` and `run.step`: what is done, what is not, and to which of them a message belongs."""

from __future__ import annotations

import asyncio
import threading
import time

import pytest

from ranonce import Ledger, Stop, UsageError, job
from tests.conftest import TODAY
from tests.outboxes import bodies, declare, messages
from tests.python.conftest import NOON


@pytest.fixture
def ledger(here):
    with Ledger.open() as opened:
        yield opened


def claim(ledger, **how):
    return ledger.claim("job", **{"every": "day", "now": NOON, "max_attempts": 20, **how})


def again(ledger):
    """Claim the window once more, after an attempt that failed."""
    return claim(ledger)


def failed(ledger, work):
    """Let an attempt do some work and fail; return its run."""
    with pytest.raises(InterruptedError), claim(ledger) as run:
        work(run)
        raise InterruptedError
    return run


def items_of(world):
    return [message.item for message in messages(world)]


def test_an_item_is_done_when_the_next_one_begins(ledger, here):
    with claim(ledger) as run:
        for item in run.items(["a", "b"]):
            assert items_of(here) == ["a"][: item == "b"]
            run.emit("slack", f"about {item}")
        assert items_of(here) == ["a", "b"]
    assert bodies(here) == {f"job:{TODAY}/slack/a": b"about a", f"job:{TODAY}/slack/b": b"about b"}


def test_what_is_done_is_passed_over_by_the_next_attempt(ledger, here):
    failed(ledger, lambda run: [run.emit("slack", item) for item in run.items(["a", "b"])])
    with again(ledger) as run:
        assert list(run.items(["a", "b", "c"])) == ["c"]
    assert items_of(here) == ["a", "b"]


@pytest.mark.parametrize("error", [InterruptedError, Stop("429"), KeyboardInterrupt])
def test_an_item_that_an_exception_leaves_is_not_done(ledger, here, error):
    with pytest.raises(BaseException), claim(ledger) as run:  # noqa: B017
        for item in run.items(["a", "b"]):
            run.emit("slack", item)
            if item == "b":
                raise error
    assert items_of(here) == ["a"]
    assert run.receipt.warnings == ("'b' was left before its end: messages not sent: 1",)
    with again(ledger) as later:
        assert list(later.items(["a", "b"])) == ["b"]


def test_an_item_that_is_left_by_break_is_not_done_and_the_receipt_says_so(ledger, here):
    with claim(ledger) as run:
        for item in run.items(["a", "b", "c"]):
            run.emit("slack", item)
            if item == "b":
                break
        run.emit("slack", "after the loop")
    assert bodies(here) == {f"job:{TODAY}/slack/a": b"a", f"job:{TODAY}/slack/-": b"after the loop"}
    assert run.receipt.warnings == ("'b' was left before its end: messages not sent: 1",)


def test_an_item_in_which_the_run_is_finished_is_not_done_and_the_receipt_says_so(ledger, here):
    with claim(ledger) as run:
        loop = iter(run.items(["a"]))
        next(loop)
        run.emit("slack", "a")
        run.finish()
    assert messages(here) == []
    assert run.receipt.warnings == ("'a' was left before its end: messages not sent: 1",)


def test_a_key_that_was_met_before_is_passed_over(ledger, here):
    with claim(ledger) as run:
        assert list(run.items([1, 2, 1, "2", 3])) == [1, 2, 3]


@pytest.mark.parametrize("key", ["", None, 1.5, True, " a", "a\nb", "x" * 201, "\ud800"])
def test_a_key_that_is_none_is_refused(ledger, here, key):
    with pytest.raises(UsageError, match="item"), claim(ledger) as run:
        for _ in run.items([object()], key=lambda _: key):
            raise AssertionError
    assert here.state() == ("failed", 1)


def test_items_are_not_nested(ledger, here):
    with claim(ledger) as run:
        for _ in run.items(["a"]):
            with pytest.raises(UsageError, match="inside 'a'"):
                list(run.items(["b"]))


def test_an_item_has_messages_of_several_keys(ledger, here):
    with claim(ledger) as run:
        for item in run.items(["a", "b"]):
            run.emit("slack", "1", key=f"{item}-1")
            run.emit("slack", "2", key=f"{item}-2")
            run.emit("mail", "1")
    assert len(messages(here)) == 6


def test_a_conflict_in_an_item_is_noted_and_warned_of(ledger, here):
    with claim(ledger) as run:
        for item in run.items(["a", "b"]):
            run.emit("slack", item, key="same", scope="job")
    assert bodies(here) == {"job/slack/same": b"a"}
    assert [event for event, *_ in here.events()] == ["start", "noted", "done"]
    assert "stands for another body" in run.receipt.warnings[0]


def test_another_thread_emits_for_the_outcome_and_not_for_the_item(ledger, here):
    with claim(ledger) as run:
        for _ in run.items(["a"]):
            thread = threading.Thread(target=run.emit, args=("slack", "from a thread"))
            thread.start()
            thread.join()
    assert bodies(here) == {f"job:{TODAY}/slack/-": b"from a thread"}


def test_two_runs_in_one_context_keep_their_messages_apart(ledger, here):
    with claim(ledger) as run, ledger.claim("other", every="day", now=NOON) as other:
        for _ in run.items(["a"]):
            other.emit("slack", "of the other")
    assert bodies(here) == {f"other:{TODAY}/slack/-": b"of the other"}


# --- steps ------------------------------------------------------------------------------------------------------------


def test_a_step_returns_what_json_keeps_of_it_at_once_and_later(ledger, here):
    called = []

    def work(run):
        called.append(run.step("prices", lambda: {"eur": (1, 2.5), "none": None}))

    failed(ledger, work)
    with again(ledger) as run:
        called.append(run.step("prices", lambda: pytest.fail("called again")))
    assert called == [{"eur": [1, 2.5], "none": None}] * 2


@pytest.mark.parametrize("result", [object(), float("inf"), {1: 2}, {"a"}, "\ud800", b"bytes"])
def test_a_result_that_json_cannot_hold_leaves_the_step_undone(ledger, here, result):
    with pytest.raises(UsageError, match="'prices'"), claim(ledger) as run:
        run.step("prices", lambda: result)
    with again(ledger) as later:
        assert later.step("prices", lambda: 3) == 3


def test_a_result_has_no_more_than_256_kib(ledger, here):
    with claim(ledger) as run:
        assert len(run.step("fits", lambda: "x" * (256 * 1024 - 2))) == 256 * 1024 - 2
        with pytest.raises(UsageError, match="262145 bytes of JSON"):
            run.step("longer", lambda: "x" * (256 * 1024 - 1))


def test_a_step_of_an_item_is_one_of_that_item(ledger, here):
    def work(run):
        for item in run.items(["a", "b"]):
            run.step("pay", lambda item=item: run.emit("slack", f"paid {item}"))
            if item == "b":
                raise InterruptedError

    failed(ledger, work)
    with again(ledger) as run:
        for item in run.items(["a", "b"]):
            run.step("pay", lambda: pytest.fail("paid again"))
            run.emit("slack", f"done {item}")
    assert bodies(here) == {
        f"job:{TODAY}/slack/a%09pay": b"paid a",
        f"job:{TODAY}/slack/b%09pay": b"paid b",
        f"job:{TODAY}/slack/b": b"done b",
    }


def test_a_step_has_no_steps(ledger, here):
    with claim(ledger) as run:
        with pytest.raises(UsageError, match="has no steps"):
            run.step("outer", lambda: run.step("inner", lambda: 1))
        assert run.step("inner", lambda: 2) == 2


def test_a_step_that_raises_sends_nothing(ledger, here):
    def pay(run):
        run.emit("slack", "paid")
        raise InterruptedError

    with pytest.raises(InterruptedError), claim(ledger) as run:
        run.step("pay", lambda: pay(run))
    assert messages(here) == []


def test_a_step_that_nobody_awaits_is_refused(ledger, here):
    def later():
        return asyncio.sleep(0)

    with claim(ledger) as run, pytest.raises(UsageError, match="async def"):
        run.step("later", later)


# --- async ------------------------------------------------------------------------------------------------------------


def daily(function):
    return job("job", every="day", max_attempts=20)(function)


async def slowly(items):
    for item in items:
        await asyncio.sleep(0)
        yield item


@pytest.mark.parametrize("source", [slowly, list])
def test_an_async_loop_marks_its_items_outside_of_the_event_loop(here, source):
    async def work(run):
        async for item in run.items(source(["a", "b", "a"])):
            await asyncio.to_thread(run.emit, "slack", f"about {item}")
        run.emit("slack", "the rest")

    assert asyncio.run(daily(work)(now=NOON)).event == "done"
    assert bodies(here) == {
        f"job:{TODAY}/slack/a": b"about a",
        f"job:{TODAY}/slack/b": b"about b",
        f"job:{TODAY}/slack/-": b"the rest",
    }


def test_an_async_loop_that_is_left_by_break_keeps_nothing_of_its_item(here):
    async def work(run):
        async for item in run.items(slowly(["a", "b"])):
            run.emit("slack", item)
            break
        run.emit("slack", "after the loop")

    receipt = asyncio.run(daily(work)(now=NOON))
    assert receipt.warnings == ("'a' was left before its end: messages not sent: 1",)
    assert bodies(here) == {f"job:{TODAY}/slack/-": b"after the loop"}


def test_a_plain_loop_over_an_async_iterable_is_refused(ledger, here):
    with claim(ledger) as run, pytest.raises(UsageError, match="async for"):
        list(run.items(slowly(["a"])))


def test_a_task_that_outlives_its_item_cannot_emit_for_it(here):
    said = []

    async def work(run):
        async def late():
            await asyncio.sleep(0.05)
            try:
                run.emit("slack", "too late")
            except UsageError as error:
                said.append(str(error))

        async for item in run.items(["a", "b"]):
            if item == "a":
                task = asyncio.create_task(late())
        await task

    asyncio.run(daily(work)(now=NOON))
    assert said == ["'a' has ended. Wait for what works on it before you go on."]
    assert messages(here) == []


def test_an_async_step_is_awaited_and_kept(here):
    counted = []

    async def fetch():
        await asyncio.sleep(0)
        counted.append(1)
        return [1, 2]

    async def work(run):
        assert await run.step("fetch", fetch) == [1, 2]
        if run.attempt == 1:
            raise InterruptedError

    with pytest.raises(InterruptedError):
        asyncio.run(daily(work)(now=NOON))
    assert asyncio.run(daily(work)(now=NOON)).event == "done"
    assert counted == [1]


# --- how long it takes ------------------------------------------------------------------------------------------------


def test_the_last_of_2000_steps_costs_no_more_than_the_first(ledger, here):
    with claim(ledger) as run:
        took = []
        for number in range(2000):
            began = time.perf_counter()
            run.step(f"step-{number}", lambda: 1)
            took.append(time.perf_counter() - began)
    first, last = sorted(took[:200])[100], sorted(took[-200:])[100]
    assert last < 3 * first + 0.002, (first, last)


def test_mail_of_a_step_in_an_item_has_one_message_for_each_recipient(ledger, here):
    declare(here, '[destinations.mail]\ntype = "smtp"\nhost = "localhost"\nfrom = "a@example.org"')
    with claim(ledger) as run:
        for _ in run.items(["i"]):
            run.step("s", lambda: run.emit("mail", {"to": ["b@example.org"]}))
    assert list(bodies(here)) == [f"job:{TODAY}/mail/i%09s/b@example.org"]


@pytest.mark.parametrize("content_type", [5, b"text/plain"])
def test_a_content_type_is_text(ledger, here, content_type):
    with claim(ledger) as run, pytest.raises(UsageError, match="is no content type"):
        run.emit("slack", "hello", content_type=content_type)


def test_an_item_that_two_threads_did_at_once_is_done_by_one_and_the_receipt_says_what_is_not_sent(ledger, here):
    with claim(ledger) as run:
        both = threading.Barrier(2)

        def work(name):
            for _ in run.items(["shared"]):
                both.wait(20)
                run.emit("slack", name, key=name)

        threads = [threading.Thread(target=work, args=(name,)) for name in "ab"]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    assert len(messages(here)) == 1
    assert run.receipt.warnings == ("'shared' was done by somebody else meanwhile: messages not sent: 1",)
