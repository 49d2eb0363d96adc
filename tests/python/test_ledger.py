"""`Ledger` and `Run`: claims are values, whatever thread or process asks."""

from __future__ import annotations

import copy
import fcntl
import gc
import json
import os
import pickle
import signal
import sqlite3
import threading
import time
from datetime import timedelta

import pytest

from ranonce import (
    ClaimLost,
    Ledger,
    NotThisLedger,
    OutcomeNotRecorded,
    Refusal,
    Run,
    Stop,
    StoreUnavailable,
    UsageError,
)
from ranonce.python import connections
from tests.conftest import TODAY, wait_until
from tests.python.conftest import NOON

# Heartbeats are threads, and a fork of a process with threads is what these tests are about.
pytestmark = pytest.mark.filterwarnings("ignore:.*fork.*:DeprecationWarning")


@pytest.fixture
def ledger(here):
    with Ledger.open() as opened:
        yield opened


def claim(ledger, job="job", **how):
    return ledger.claim(job, **{"every": "day", "now": NOON, **how})


def test_a_claim_is_a_run_or_a_refusal_that_is_false(ledger, here):
    run = claim(ledger)
    assert isinstance(run, Run)
    assert run
    refusal = claim(ledger)
    assert isinstance(refusal, Refusal)
    assert not refusal
    assert (refusal.reason, refusal.holder, refusal.pid) == ("busy", run.owner, os.getpid())
    assert refusal.until.utcoffset() == timedelta(0)
    run.finish()
    assert claim(ledger).reason == "done"
    assert ledger.id == here.ledger


def test_leaving_a_run_records_its_outcome(ledger, here):
    with claim(ledger) as run:
        assert run.receipt is None
    assert (run.receipt.event, here.state()) == ("done", ("done", 1))
    run = claim(ledger, window="2026-11-08")
    with pytest.raises(ValueError, match="no"), run:
        raise ValueError("no")
    assert here.state(window="2026-11-08") == ("failed", 1)
    with pytest.raises(Stop), claim(ledger, window="2026-11-07"):
        raise Stop("429", retry_after=60)
    assert claim(ledger, window="2026-11-07").reason == "waiting"


def test_a_generator_that_is_closed_stops_its_run(ledger, here):
    def work():
        with claim(ledger):
            yield

    generator = work()
    next(generator)
    generator.close()
    assert here.sql("SELECT status, reason FROM runs") == [("stopped", "cancelled")]


@pytest.mark.parametrize(("outcome", "state"), [("done", "done"), ("failed", "failed"), ("stopped", "stopped")])
def test_a_run_can_be_finished_by_hand(ledger, here, outcome, state):
    with claim(ledger) as run:
        run.finish(outcome, "as I say")
        for speak in (run.check, run.finish, lambda: run.note("late")):
            with pytest.raises(UsageError, match="has ended"):
                speak()
    assert here.sql("SELECT status, reason FROM runs") == [(state, "as I say")]
    assert run.receipt.event == state


def test_an_outcome_that_does_not_exist_is_refused(ledger):
    with claim(ledger) as run, pytest.raises(UsageError, match="no outcome"):
        run.finish("perfect")


def test_a_note_is_told_with_the_run(ledger, here):
    with claim(ledger) as run:
        run.note("12 rows were empty" + "!" * 2000)
        with pytest.raises(UsageError):
            run.note("")
    ((reason,),) = here.sql("SELECT reason FROM events WHERE event = 'noted'")
    assert reason.startswith("12 rows were empty!")
    assert len(reason) == 1000


def test_a_refusal_need_not_be_recorded(ledger, here):
    claim(ledger).finish()
    assert claim(ledger, record_skip=False).reason == "done"
    assert here.events() == [("start", "start", 1), ("done", None, 1)]


def test_a_run_that_is_dropped_is_a_crash_and_taken_over_at_once(ledger, here):
    run = claim(ledger)
    del run
    gc.collect()
    again = claim(ledger)
    assert again.attempt == 2
    again.finish()


def test_a_run_that_is_dropped_keeps_no_other_process_from_its_window(ledger, programs, here):
    run = claim(ledger)
    del run
    gc.collect()
    taken = programs.run("""
        with Ledger.open().claim("job", now=NOON) as run:
            print(run.attempt)
    """)
    assert (taken.exit, taken.out) == (0, b"2\n"), taken.err
    assert here.state() == ("done", 2)


def test_an_interrupt_in_the_waiting_line_takes_no_turn(ledger, here):
    line = os.open(f"{here.store}-line", os.O_RDWR | os.O_CREAT, 0o600)
    try:
        fcntl.flock(line, fcntl.LOCK_EX)
        threading.Timer(0.3, os.kill, (os.getpid(), signal.SIGINT)).start()
        with pytest.raises(KeyboardInterrupt):
            claim(ledger)
        fcntl.flock(line, fcntl.LOCK_UN)

        def is_free():
            try:
                fcntl.flock(line, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                return False
            return True

        time.sleep(0.1)  # the thread that was left behind in the line comes to its turn
        assert wait_until(is_free)
    finally:
        os.close(line)


def test_what_is_this_processs_alone_is_not_copied(ledger):
    with claim(ledger) as run:
        for own in (run, ledger):
            for copied in (pickle.dumps, copy.copy, copy.deepcopy):
                with pytest.raises(TypeError, match="neither copied nor sent"):
                    copied(own)


def test_a_heartbeat_keeps_the_claim(ledger, here):
    with claim(ledger, lease=0.5) as run:
        (expires,) = here.sql("SELECT expires FROM leases")
        wait_until(lambda: here.sql("SELECT expires FROM leases") != [expires])
        run.check()


def test_a_closed_ledger_says_so(here):
    ledger = Ledger.open()
    ledger.close()
    with pytest.raises(UsageError, match="is closed"):
        claim(ledger)


def test_a_ledger_that_is_not_the_one_meant_is_not_opened(here):
    with pytest.raises(NotThisLedger):
        Ledger.open(ledger="f" * 32)
    with pytest.raises(NotThisLedger):
        Ledger.open(f"sqlite:///{here.root}/nothing.db")


def test_one_of_many_threads_has_the_window(ledger, here):
    bodies, refused, barrier = [], [], threading.Barrier(8)

    def work():
        barrier.wait()
        answer = claim(ledger, lease=5)
        if isinstance(answer, Refusal):
            refused.append(answer.reason)
            return
        with answer as run:
            bodies.append(run.attempt)

    threads = [threading.Thread(target=work) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(30)
    assert bodies == [1]
    assert len(refused) == 7
    assert set(refused) <= {"busy", "done"}


def test_one_of_many_forks_of_an_open_ledger_has_the_window(ledger, here):
    claim(ledger, "other").finish()
    children = []
    for _ in range(4):
        pid = os.fork()
        if pid == 0:
            status = 9
            try:
                if run := claim(ledger):
                    with run:
                        fd = os.open(here.effects_file, os.O_WRONLY | os.O_APPEND | os.O_CREAT)
                        os.write(fd, b"body\n")
                status = 0
            finally:
                os._exit(status)
        children.append(pid)
    assert [os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) for pid in children] == [0, 0, 0, 0]
    assert here.effects() == ["body"]
    assert here.sql("PRAGMA integrity_check") == [("ok",)]
    assert claim(ledger).reason == "done"


def test_a_fork_inside_a_run_does_not_end_it(ledger, here):
    run = claim(ledger)
    pid = os.fork()
    if pid == 0:
        status = 9
        try:
            try:
                run.finish()
            except UsageError:
                status = 0
            run.__exit__(None, None, None)
            del run
            gc.collect()
        finally:
            os._exit(status)
    assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 0
    assert claim(ledger).reason == "busy"
    run.check()
    run.finish()


def test_a_fork_waits_for_a_question_in_another_thread_and_no_connection_crosses_it(ledger):
    asked, go = threading.Event(), threading.Event()

    def ask():
        with ledger._connections.lend():
            asked.set()
            go.wait(10)

    thread = threading.Thread(target=ask)
    thread.start()
    asked.wait(10)
    threading.Timer(0.1, go.set).start()
    pid = os.fork()
    if pid == 0:
        crossed = ledger._connections._left_behind or any(ledger._connections._idle.values())
        os._exit(1 if crossed else 0)
    thread.join(10)
    assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 0
    claim(ledger).finish()


def test_threads_that_fork_at_the_same_time_do_not_wait_for_each_other_for_ever(programs, here):
    ended = programs.run("""
        ledger, over = Ledger.open(), []

        def ask():
            while not over:
                with ledger._connections.lend() as lent:
                    lent.store.jobs()

        def fork():
            for _ in range(20):
                pid = os.fork()
                if pid == 0:
                    os._exit(0)
                os.waitpid(pid, 0)

        asking = threading.Thread(target=ask, daemon=True)
        forking = [threading.Thread(target=fork, daemon=True) for _ in range(4)]
        for thread in (asking, *forking):
            thread.start()
        for thread in forking:
            thread.join(20)
        over.append(True)
        asking.join(5)
        os._exit(sum(thread.is_alive() for thread in (asking, *forking)))
    """)
    assert ended.exit == 0


def test_a_fork_does_not_wait_for_ever(ledger, monkeypatch):
    monkeypatch.setattr(connections, "FORK_WAIT_SECONDS", 0.05)
    lent, go = threading.Event(), threading.Event()

    def ask():
        with ledger._connections.lend():
            lent.set()
            go.wait(10)

    thread = threading.Thread(target=ask)
    thread.start()
    lent.wait(10)
    pid = os.fork()
    if pid == 0:
        status = 9
        try:
            claim(ledger).finish()
            status = 0
        finally:
            os._exit(status)
    go.set()
    thread.join(10)
    assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 0


LOSER = """
    ledger = Ledger.open()
    run = ledger.claim("job", every="day", now=NOON, lease=0.5, on_lost=sys.argv[1])
    effect(run)
    mark("working")
    wait_for("go")
    said = []
    for speak in (run.check, lambda: run.note("still here"), run.finish):
        try:
            speak()
        except ClaimLost as error:
            said.append(error.code)
    print(said)
    print(run.receipt.as_json())
"""


def taken_over(programs, world, on_lost):
    """Let a run be stopped past its lease, and its window be done from another host; return it, still stopped."""
    loser = programs.start(LOSER, on_lost)
    wait_until(programs.marked("working"))
    loser.signal(signal.SIGSTOP)
    second = wait_until(lambda: winner(world))
    assert second.receipt["attempt"] == 2
    programs.mark("go")
    loser.signal(signal.SIGCONT)
    return loser.ends()


def winner(world):
    """Return the first attempt of another host that is not refused: the lease has to end first."""
    ran = world.run(env={**world.another_host(), "RANONCE_LEDGER": world.ledger})
    return ran if ran.exit == 0 else None


def test_one_that_lost_its_claim_can_write_nothing_more(programs, world):
    ran = taken_over(programs, world, "raise")
    said = ran.out.decode().splitlines()
    assert said[0] == "['claim-lost', 'claim-lost', 'claim-lost']", ran.err
    receipt = json.loads(said[1])
    assert (receipt["event"], receipt["exit"]) == ("lost", 76)
    assert "attempt 2" in receipt["sentence"]
    assert world.state() == ("done", 2)
    assert world.events()[-1] == ("lost", "done", 1)


def test_one_that_lost_its_claim_ends_where_it_is_told_to(programs, world):
    ran = taken_over(programs, world, "exit")
    assert ran.exit == 76
    assert "attempt 2" in ran.sentence
    assert world.state() == ("done", 2)


def test_a_store_that_is_locked_for_a_while_takes_no_claim_away(ledger, here, monkeypatch):
    run = claim(ledger, lease=0.2)
    monkeypatch.setattr(ledger._connections._pattern, "wait_seconds", 0.05)
    monkeypatch.setattr("ranonce.python.holder.RENEW_WAIT_SECONDS", 0.05)
    other = sqlite3.connect(here.store, isolation_level=None)
    other.execute("BEGIN IMMEDIATE")
    wait_until(lambda: run._heartbeat.last_error is not None)
    assert isinstance(run._heartbeat.last_error, StoreUnavailable)
    run.check()
    other.execute("ROLLBACK")
    other.close()
    run.check()
    run.finish()
    assert here.state() == ("done", 1)


def test_an_outcome_that_cannot_be_recorded_waits_on_this_host(here, programs):
    with here.config.open("r+") as file:
        text = file.read().replace("[ledger]", '[ledger]\nstore_wait = "0.2s"')
        file.seek(0)
        file.write(text)
    with Ledger.open() as ledger:
        other = sqlite3.connect(here.store, isolation_level=None)
        with pytest.raises(OutcomeNotRecorded, match="waits on this host"), claim(ledger) as run:
            other.execute("BEGIN IMMEDIATE")
        assert run.receipt.exit == 74
        other.execute("ROLLBACK")
        other.close()
        assert claim(ledger).reason == "done"


def test_claim_lost_is_what_a_second_holder_of_the_same_run_hears(ledger, here):
    run = claim(ledger, lease=300)
    here.sql("UPDATE runs SET attempt = 2, owner = 'another'")
    with pytest.raises(ClaimLost, match="attempt 2"):
        run.check()
    with pytest.raises(ClaimLost):
        run.finish()
    assert here.sql('SELECT owner FROM runs WHERE "window" = ?', TODAY) == [("another",)]
