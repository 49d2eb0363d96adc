"""A Python job inside `ranonce run`, `rerun` or `backfill` of its own name: it works under the claim around it."""

from __future__ import annotations

import os
import signal
import sys
import textwrap

import pytest

from tests.conftest import NOON, TODAY, wait_until
from tests.outboxes import bodies, messages
from tests.python.conftest import HEAD

NOW = ("--now", NOON)


@pytest.fixture
def wrapped(programs, world):
    """Return a function that runs `ranonce` around a program that is the job."""

    def start(body, *words, decorated='@job("job", every="day")', kind="def", call="work.main()", after=(), **how):
        lines = textwrap.indent(textwrap.dedent(body), "    ")
        path = world.root / "work" / "pyjob.py"
        path.write_text(f"{HEAD}\n{decorated}\n{kind} work(run):\n{lines}\n\n{call}\n")
        words = words or ("run", "job", "--every", "day", *NOW)
        return world.start(*words, "--", sys.executable, str(path), *after, **how)

    def run(*body, **how):
        return start(*body, **how).ends()

    run.start = start
    return run


RERUN = ("rerun", "job", TODAY, "--reason", "bad input", *NOW)


def test_a_window_that_is_done_is_done_again_by_rerun(wrapped, world):
    assert wrapped("effect(run)").said() == (0, "done", None)
    again = wrapped("effect(run)", *RERUN)
    assert again.said() == (0, "done", None)
    assert (again.receipt["generation"], again.receipt["trigger"]) == (2, "rerun")
    assert world.effects() == [f"job {TODAY} 1", f"job {TODAY} 2"]


@pytest.mark.every_store
def test_a_run_says_what_the_claim_around_it_is(wrapped, world):
    ran = wrapped("print(run.window, run.attempt, run.generation, run.trigger, run.owner, run.window_start)")
    owner = world.facts()[0].owner
    assert ran.out.decode() == f"{TODAY} 1 1 schedule {owner} 2026-11-09 00:00:00+00:00\n"


def test_a_backfill_works_on_each_window(wrapped, world):
    ran = wrapped("effect(run)", "backfill", "job", "--every", "day", "--since", "2026-11-06", *NOW)
    assert ran.exit == 0
    assert world.effects() == [f"job 2026-11-0{day} 1" for day in (6, 7, 8, 9)]


@pytest.mark.parametrize("kind", ["def", "async def"])
def test_an_async_job_and_a_plain_one_work_alike(wrapped, world, kind):
    assert wrapped("effect(run)", kind=kind).said() == (0, "done", None)
    assert world.effects() == [f"job {TODAY} 1"]


def test_a_function_that_is_called_works_under_the_claim_too(wrapped, world):
    ran = wrapped("effect(run)", call="print(work().event, work(window=os.environ['RANONCE_WINDOW']).reason)")
    assert (ran.exit, ran.receipt["event"]) == (0, "done")
    assert ran.out == b"done busy\n"
    assert world.effects() == [f"job {TODAY} 1"]


def test_an_exception_fails_the_run_and_is_kept(wrapped, world):
    ran = wrapped('raise ValueError("bad row")')
    assert (ran.exit, ran.receipt["event"]) == (1, "failed")
    assert "ValueError: bad row\n" in ran.err
    assert world.ranonce("show", "job", TODAY, "--output", *NOW).out.count(b"ValueError: bad row") == 1


@pytest.mark.parametrize(
    ("body", "said"),
    [
        ("sys.exit(3)", (3, "failed", None)),
        ("sys.exit()", (0, "done", None)),
        ('run.finish("failed")', (1, "failed", None)),
        ('run.finish()\nraise ValueError("late")', (0, "done", None)),
        ('run.finish("stopped", "429")', (79, "stopped", "429")),
        ("run.emit('slack', None)", (1, "failed", None)),
    ],
)
def test_each_way_out_is_recorded_by_the_command_around(wrapped, body, said):
    assert wrapped(body).said() == said


def test_a_stop_is_a_stop_with_its_time_and_gates(wrapped, world):
    ran = wrapped('raise Stop("429", retry_after=3600, gate="api")')
    assert ran.said() == (79, "stopped", "429")
    assert b"gate api is closed" in world.ranonce("status").out
    assert ran.receipt["until"]


@pytest.mark.every_store
def test_what_it_emits_goes_out_with_the_outcome(wrapped, world):
    ran = wrapped('run.emit("slack", "hello", key="a")')
    assert ran.receipt["messages"] == 1
    assert list(bodies(world).values()) == [b"hello"]


def test_what_a_failed_run_emitted_is_not_sent_and_counted(wrapped, world):
    ran = wrapped('run.emit("slack", "hello")\nraise ValueError("no")')
    assert (ran.receipt["not_sent"], messages(world)) == (1, [])


ITEMS = """
run.step("list", lambda: effect(run))
for item in run.items([1, 2]):
    run.emit("slack", f"item {item}")
    if item == 2 and run.attempt == 1:
        raise ValueError("away")
"""


@pytest.mark.every_store
def test_items_and_steps_are_done_once_however_often_the_window_is_tried(wrapped, world):
    assert wrapped(ITEMS).exit == 1
    assert list(bodies(world).values()) == [b"item 1"]
    assert wrapped(ITEMS, "run", "job", "--every", "day", "--window", TODAY).exit == 0
    assert sorted(bodies(world).values()) == [b"item 1", b"item 2"]
    assert world.effects() == [f"job {TODAY} 1"]


def test_a_rerun_with_resend_sends_again(wrapped, world):
    emit = 'run.emit("slack", "hello", key="a")'
    wrapped(emit)
    assert wrapped(emit, *RERUN).exit == 0
    assert len(messages(world)) == 1
    assert wrapped(emit, *RERUN, "--resend").exit == 0
    assert len(messages(world)) == 2


def test_a_note_is_about_the_run(wrapped, world):
    wrapped('run.note("half of it")')
    assert ("noted", "half of it", 1) in world.events()


def test_a_signal_stops_it(wrapped, world):
    working = wrapped.start("effect(run)\nmark('working')\ntime.sleep(60)")
    wait_until((world.pids / "working").exists)
    working.signal(signal.SIGTERM)
    ended = working.ends()
    assert (ended.exit, ended.receipt["event"], ended.receipt["reason"]) == (-signal.SIGTERM, "stopped", "signal")


def test_a_time_limit_of_the_job_is_kept(wrapped):
    ran = wrapped("time.sleep(60)", decorated='@job("job", every="day", timeout=0.2)')
    assert (ran.exit, ran.receipt["event"]) == (1, "failed")
    assert "time limit" in ran.err


def test_an_effect_and_its_outcome_are_one_commit_here_too(wrapped, world):
    body = f"""
    db = sqlite3.connect({str(world.store)!r}, isolation_level=None)
    db.execute("CREATE TABLE totals (day TEXT)")
    db.execute("BEGIN IMMEDIATE")
    db.execute("INSERT INTO totals VALUES (?)", (run.window,))
    run.finish(connection=db)
    db.execute("COMMIT")
    time.sleep(2)  # longer than the lease: it is kept, and nobody takes the run for lost
    """
    ran = wrapped(body, "run", "job", "--every", "day", "--lease", "1s", *NOW)
    assert ran.said() == (0, "done", None)
    assert world.sql("SELECT * FROM totals") == [(TODAY,)]
    assert [event for event, _, _ in world.events()] == ["start", "done"]


def test_another_window_is_refused_and_nothing_is_done(wrapped, world):
    ran = wrapped("effect(run)", after=("--window", "2026-11-01"))
    assert (ran.exit, world.effects()) == (1, [])
    assert "Name the window there" in ran.err


def test_the_window_may_be_named_to_it_by_its_placeholder(wrapped, world):
    assert wrapped("effect(run)", after=("--window", "{window}")).said() == (0, "done", None)


def test_a_program_left_over_from_an_attempt_that_lost_does_nothing(programs, world):
    world.run()
    around = {
        "RANONCE_JOB": "job",
        "RANONCE_WINDOW": TODAY,
        "RANONCE_WINDOW_START": "2026-11-09T00:00:00Z",
        "RANONCE_ATTEMPT": "1",
        "RANONCE_OWNER": "f" * 32,
        "RANONCE_LEDGER": world.ledger,
    }
    late = programs.run('@job("job", every="day")\ndef work(run):\n    effect(run)\nwork.main()', env=around)
    assert late.exit == 76
    assert "no longer holds" in late.sentence
    assert len(world.effects()) == 1


def test_a_ledger_that_is_not_the_one_around_is_refused(wrapped, world):
    ran = wrapped("effect(run)", call='os.environ["RANONCE_LEDGER"] = "another"\nwork.main()')
    assert (ran.exit, world.effects()) == (1, [])
    assert "another" in ran.err


CRASH = "effect(run)\nos.kill(os.getppid(), signal.SIGKILL)\nos.kill(os.getpid(), signal.SIGKILL)"


@pytest.mark.parametrize(
    ("found", "exit_status", "effects"),
    [("True", 0, 1), ("False", 0, 2), ("None", 1, 1)],
)
def test_after_a_crash_the_job_looks_first(wrapped, world, found, exit_status, effects):
    wrapped(CRASH)
    body = f"return {found}"
    decorated = f"""
def look(run):
    {body}

@job("job", every="day", reconcile=look)"""
    ran = wrapped("effect(run)", decorated=decorated)
    assert (ran.exit, len(world.effects())) == (exit_status, effects)


def test_a_job_that_must_be_held_after_a_crash_is_not_done_again_until_a_person_says_so(wrapped, world):
    wrapped(CRASH)
    decorated = '@job("job", every="day", on_crash="hold")'
    refused = wrapped("effect(run)", decorated=decorated)
    assert (refused.exit, len(world.effects())) == (1, 1)
    assert "ranonce release job" in refused.err
    world.ranonce("release", "job", TODAY, "--as", "not-done", "--reason", "looked")
    assert wrapped("effect(run)", decorated=decorated).exit == 0
    assert len(world.effects()) == 2


def test_no_file_of_messages_is_left_behind(wrapped, world):
    wrapped('run.note("x")')
    assert not [name for name in os.listdir(world.folder) if name.endswith(".messages")]
