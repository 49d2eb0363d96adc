"""`async def` jobs: the same decorator; the loop goes on while the ledger is asked."""

from __future__ import annotations

import asyncio
import threading
import time
from datetime import timedelta

import pytest

from ranonce import Ledger, Stop, StoreUnavailable, job
from ranonce.python import job as jobs
from tests.python.conftest import NOON


def daily(function, **settings):
    return job("job", **{"every": "day", **settings})(function)


def test_a_call_is_awaited_for_its_receipt(here):
    async def work(run):
        await asyncio.sleep(0)
        run.note("from the loop")

    receipt = asyncio.run(daily(work)(now=NOON))
    assert (receipt.event, receipt.attempt) == ("done", 1)
    assert asyncio.run(daily(work)(now=NOON)).reason == "done"


def test_the_job_runs_in_the_loop_and_the_ledgers_work_does_not(here, monkeypatch):
    threads = []
    opened = Ledger.open()
    lend = opened._connections.lend
    monkeypatch.setattr(opened._connections, "lend", lambda *a: threads.append(threading.current_thread()) or lend(*a))

    async def work(run):
        assert threading.current_thread() is threading.main_thread()

    with opened:
        asyncio.run(daily(work)(now=NOON, ledger=opened))
    assert threads
    assert threading.main_thread() not in threads


def test_an_exception_is_recorded_and_raised_again(here):
    async def work(run):
        await asyncio.sleep(0)
        raise ValueError("no")

    with pytest.raises(ValueError, match="no"):
        asyncio.run(daily(work)(now=NOON))
    assert here.state() == ("failed", 1)


def test_stop_is_a_receipt(here):
    async def work(run):
        raise Stop("429", retry_after=60)

    assert asyncio.run(daily(work)(now=NOON)).event == "stopped"


def test_a_cancelled_job_is_stopped(here):
    begun = asyncio.Event()

    async def work(run):
        begun.set()
        await asyncio.sleep(60)

    async def cancel():
        task = asyncio.create_task(daily(work)(now=NOON))
        await begun.wait()
        task.cancel()
        await task

    with pytest.raises(asyncio.CancelledError):
        asyncio.run(cancel())
    assert here.sql("SELECT status, reason, failures FROM runs") == [("stopped", "cancelled", 0)]
    assert here.attempt_files() == []


def test_a_job_that_is_cancelled_while_the_ledger_is_asked_leaves_no_claim_behind(here):
    async def work(run):
        await asyncio.sleep(60)

    async def cancel(day, after):
        task = asyncio.create_task(daily(work)(now=NOON + timedelta(days=day)))
        for _ in range(after):
            await asyncio.sleep(0.001)
        task.cancel()
        await task

    for day, after in enumerate(range(0, 20, 2)):
        with pytest.raises(asyncio.CancelledError):
            asyncio.run(cancel(day, after))
        assert here.sql("SELECT * FROM leases") == []
    assert here.attempt_files() == []
    assert set(here.sql("SELECT status, reason FROM runs")) <= {("stopped", "cancelled")}


def test_a_loop_that_ends_and_cancels_all_its_tasks_leaves_no_claim_behind(here, monkeypatch):
    begun, claim = threading.Event(), jobs.claim

    def slow(*asked):
        begun.set()
        time.sleep(0.05)
        return claim(*asked)

    async def work(run):
        await asyncio.sleep(60)

    async def end():
        task = asyncio.create_task(daily(work)(now=NOON))
        await asyncio.to_thread(begun.wait)
        assert not task.done()

    monkeypatch.setattr(jobs, "claim", slow)
    asyncio.run(end())
    assert here.sql("SELECT status, reason FROM runs") == [("stopped", "cancelled")]
    assert here.sql("SELECT * FROM leases") == []


def test_a_time_limit_is_kept(here):
    async def work(run):
        await asyncio.sleep(60)

    with pytest.raises(TimeoutError):
        asyncio.run(daily(work, timeout=0.05)(now=NOON))
    assert here.sql("SELECT status, reason FROM runs") == [("failed", "timeout")]


def test_a_timeout_of_the_jobs_own_is_an_exception_like_any_other(here):
    async def work(run):
        raise TimeoutError("the API is slow")

    with pytest.raises(TimeoutError, match="slow"):
        asyncio.run(daily(work, timeout=60)(now=NOON))
    assert here.sql("SELECT reason FROM runs") == [("TimeoutError: the API is slow",)]


def test_jobs_of_one_loop_work_at_the_same_time(here):
    both = asyncio.Barrier(2)

    async def work(run):
        async with asyncio.timeout(20):
            await both.wait()

    async def at_once():
        jobs = [job(name, every="day")(work)(now=NOON) for name in ("one", "two")]
        return [receipt.event for receipt in await asyncio.gather(*jobs)]

    assert asyncio.run(at_once()) == ["done", "done"]


def test_a_store_that_does_not_answer_is_raised(here, monkeypatch):
    def away(*_):
        raise StoreUnavailable("the store is away.")

    monkeypatch.setattr("ranonce.python.job.claim", away)

    async def work(run):
        raise AssertionError("nothing is run")

    with pytest.raises(StoreUnavailable):
        asyncio.run(daily(work)(now=NOON))


def test_a_crash_can_be_looked_into(programs, here):
    programs.run(
        """
        @job("job", every="day")
        async def work(run):
            os.kill(os.getpid(), 9)
        asyncio.run(work(now=NOON))
        """
    )

    async def look(run):
        await asyncio.sleep(0)
        return True

    async def work(run):
        raise AssertionError("it was done")

    assert asyncio.run(daily(work, reconcile=look)(now=NOON)).reason == "reconciled"
