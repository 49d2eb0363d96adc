"""`Job.main()`: a Python program with the options, receipts, exit statuses and signals of `ranonce run`."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import sqlite3
import sys
import textwrap
from pathlib import Path

import pytest

from tests.conftest import NOON, TODAY, wait_until

NOW = ("--now", NOON)


def program(body, decorated='@job("job", every="day")', kind="def"):
    lines = "\n".join(f"            {line}" for line in body.splitlines())
    return f"""
        {decorated}
        {kind} work(run):
{lines}
        work.main()
    """


def test_a_window_is_worked_on_once(programs, world):
    code = program("effect(run)")
    first = programs.run(code, *NOW)
    assert first.said() == (0, "done", None)
    assert programs.run(code, *NOW).said() == (0, "skipped", "done")
    assert world.effects() == [f"job {TODAY} 1"]
    assert first.receipt["trigger"] == "schedule"


def test_the_options_are_those_of_run(programs, world):
    code = program("effect(run)")
    ran = programs.run(code, "--window", "2026-11-07", "--version", "v1", "--trigger", "backfill", "--receipt", "none")
    assert (ran.exit, ran.err) == (0, "")
    assert world.sql("SELECT version, triggered_by FROM runs") == [("v1", "backfill")]
    assert programs.run(code, "--scheduled-at", NOON).receipt["chosen_by"] == "scheduled-at"
    wrong = programs.run(code, "--windw", "2026-11-07")
    assert (wrong.exit, wrong.sentence) == (
        64,
        "ranonce: `program3.py` has no option '--windw'. Did you mean --window?",
    )
    help_ = programs.run(code, "--help")
    assert (help_.exit, help_.out.splitlines()[0]) == (0, b"usage: program4.py [options]")


def test_the_scheduler_may_say_which_window_it_meant(programs):
    ran = programs.run(program("pass"), *NOW, env={"CRONJOB_SCHEDULED_TIMESTAMP": "2026-11-08T02:00:00Z"})
    assert (ran.receipt["window"], ran.receipt["chosen_by"]) == ("2026-11-08", "kubernetes")


@pytest.mark.parametrize("kind", ["def", "async def"])
@pytest.mark.parametrize(
    ("body", "said"),
    [
        ("sys.exit(3)", (3, "failed", "exit 3")),
        ("sys.exit(75)", (1, "failed", "exit 75")),
        ("sys.exit()", (0, "done", None)),
        ('raise Stop("429", retry_after=60)', (79, "stopped", "429")),
    ],
)
def test_each_way_out_has_its_exit_status(programs, world, kind, body, said):
    assert programs.run(program(body, kind=kind), *NOW).said() == said


@pytest.mark.parametrize("kind", ["def", "async def"])
def test_an_exception_is_a_traceback_of_the_job_and_status_1(programs, world, kind):
    ran = programs.run(program('raise ValueError("bad row")', kind=kind), *NOW)
    assert (ran.exit, ran.receipt["event"], ran.receipt["reason"]) == (1, "failed", "ValueError: bad row")
    assert ran.err.count("Traceback") == 1
    assert "ranonce/python" not in ran.err
    assert "ValueError: bad row\n" in ran.err


def test_text_that_a_job_exits_with_is_printed(programs):
    ran = programs.run(program('sys.exit("no rows")'), *NOW)
    assert ran.exit == 1
    assert ran.err.splitlines()[0] == "no rows"


def test_an_exception_after_done_was_recorded_is_no_success(programs):
    ran = programs.run(program('run.finish()\nraise ValueError("late")'), *NOW)
    assert (ran.exit, ran.receipt["event"]) == (1, "done")


def test_output_that_cannot_be_written_changes_no_verdict_and_no_status(programs, world):
    with open("/dev/full", "wb") as full:
        ended = programs.run(program("print('rows')"), *NOW, env={"PYTHONUNBUFFERED": ""}, stdout=full)
    assert (ended.exit, world.state()) == (0, ("done", 1))
    assert "could not be written" in ended.err


def test_what_a_job_printed_before_a_signal_is_written_out(programs, world):
    working = programs.start(program("print('half')\nmark('working')\ntime.sleep(60)"), *NOW)
    wait_until(programs.marked("working"))
    working.process.send_signal(signal.SIGTERM)
    ended = working.ends()
    assert (ended.exit, ended.out) == (-signal.SIGTERM, b"half\n")


@pytest.mark.parametrize(("argv", "said"), [("'--window 2026-11-09'", "no option"), ("[5]", "is not a list of words")])
def test_arguments_that_are_no_words_are_refused(programs, argv, said):
    ended = programs.run(program("effect(run)").replace("work.main()", f"work.main({argv})"))
    assert ended.exit == 64
    assert said in ended.sentence


def test_a_program_without_a_name_has_a_command_line(programs, world):
    assert programs.run(program("effect(run)").replace("work.main()", "sys.argv = []\n        work.main()")).exit == 0


@pytest.mark.parametrize("kind", ["def", "async def"])
def test_a_time_limit_is_kept(programs, kind):
    body = "await asyncio.sleep(60)" if kind == "async def" else "time.sleep(60)"
    assert programs.run(program(body, kind=kind), *NOW, "--timeout", "100ms").said() == (124, "failed", "timeout")


WAIT = 'mark("working")\ntry:\n    time.sleep(60)\nexcept Exception:\n    effect(run)'
WAIT_ASYNC = 'mark("working")\nawait asyncio.sleep(60)'
OBSTINATE = 'mark("working")\ntry:\n    time.sleep(60)\nexcept BaseException:\n    pass'


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGQUIT])
@pytest.mark.parametrize(("kind", "body"), [("def", WAIT), ("async def", WAIT_ASYNC), ("def", OBSTINATE)])
def test_a_signal_stops_the_work_is_recorded_and_ends_the_program(programs, world, number, kind, body):
    started = programs.start(program(body, kind=kind), *NOW)
    wait_until(programs.marked("working"))
    started.signal(number)
    ran = started.ends()
    assert ran.said() == (-number, "stopped", "signal")
    assert world.state() == ("stopped", 1)
    assert world.effects() == []
    assert "Traceback" not in ran.err


def test_a_signal_that_was_ignored_stays_ignored(programs, world):
    ran = programs.run(
        """
        signal.signal(signal.SIGHUP, signal.SIG_IGN)
        @job("job", every="day")
        def work(run):
            os.kill(os.getpid(), signal.SIGHUP)
            effect(run)
        work.main()
        """,
        *NOW,
    )
    assert ran.said() == (0, "done", None)


def test_a_stop_says_more_than_the_signal_that_came_with_it(programs, world):
    body = 'try:\n    os.kill(os.getpid(), signal.SIGTERM)\nfinally:\n    raise Stop("shutting down", retry_after=60)'
    ran = programs.run(program(body), *NOW)
    assert (ran.receipt["event"], ran.receipt["reason"]) == ("stopped", "shutting down")
    assert ran.exit == -signal.SIGTERM


def test_no_store_is_a_sentence_and_a_receipt(programs, world):
    world.store.unlink()
    ran = programs.run(program("effect(run)"), *NOW)
    assert (ran.exit, ran.receipt["event"], ran.receipt["reason"]) == (78, "unavailable", "not-this-ledger")
    assert "no ledger" in ran.sentence
    assert world.effects() == []


def test_a_busy_window_is_refused_with_its_status(programs, world):
    held, _ = world.hold()
    ran = programs.run(program("effect(run)"), *NOW)
    assert (ran.exit, ran.receipt["reason"]) == (75, "busy")
    world.let_go()
    assert held.ends().exit == 0


def test_a_kill_in_the_body_is_taken_over_at_once(programs, world):
    started = programs.start(program(WAIT), *NOW)
    wait_until(programs.marked("working"))
    started.signal(signal.SIGKILL)
    started.ends()
    ran = programs.run(program("effect(run)"), *NOW)
    assert (ran.exit, ran.receipt["attempt"]) == (0, 2)


def test_a_lost_claim_has_its_status(programs, world):
    ran = programs.run(
        f"""
        @job("job", every="day")
        def work(run):
            db = sqlite3.connect({str(world.store)!r}, isolation_level=None)
            db.execute("UPDATE runs SET attempt = 2, owner = 'another'")
            run.check()
        work.main()
        """,
        *NOW,
    )
    assert (ran.exit, ran.receipt["event"]) == (76, "lost")


def test_several_windows_have_a_receipt_each(programs, world):
    code = program(f'if run.window == "{TODAY}" and run.attempt == 1:\n    raise Stop("not yet")')
    assert programs.run(code, *NOW).exit == 79
    ran = programs.run(code, "--now", "2026-11-10T12:00:00Z")
    assert [(each["window"], each["event"]) for each in ran.receipts] == [(TODAY, "done"), ("2026-11-10", "done")]


def test_a_program_may_be_run_in_another_thread(programs):
    ran = programs.run(
        """
        @job("job", every="day")
        def work(run):
            effect(run)
        def thread():
            try:
                work.main(["--now", "2026-11-09T12:00:00Z"])
            except SystemExit as left:
                print(left.code)
        threading.Thread(target=thread).start()
        """
    )
    assert ran.out == b"0\n"


@pytest.mark.parametrize("kind", ["def", "async def"])
def test_a_signal_before_the_claim_claims_nothing(programs, world, kind):
    with contextlib.closing(sqlite3.connect(world.store, isolation_level=None)) as db:
        db.execute("BEGIN IMMEDIATE")
        started = programs.start("mark('begun')\n" + textwrap.dedent(program("effect(run)", kind=kind)), *NOW)
        wait_until(programs.marked("begun"))
        wait_until(lambda: "ledger.db" in " ".join(open_files(started.pid)))
        started.signal(signal.SIGTERM)
        wait_until(lambda: not pending(started.pid, signal.SIGTERM))
        db.execute("ROLLBACK")
    ran = started.ends()
    assert (ran.exit, ran.receipts) == (-signal.SIGTERM, [])
    assert world.sql("SELECT * FROM runs") == []


def open_files(pid):
    return [os.readlink(each) for each in Path(f"/proc/{pid}/fd").iterdir() if os.path.lexists(each)]


def pending(pid, number):
    """Tell whether a signal has been sent and not yet taken."""
    status = Path(f"/proc/{pid}/status").read_text()
    masks = [int(line.split()[1], 16) for line in status.splitlines() if line.startswith(("SigPnd", "ShdPnd"))]
    return any(mask >> (number - 1) & 1 for mask in masks)


# --- how it is started again: whoever mends it is told ---------------------------------------------------------------


def test_its_story_says_which_program_it_is_and_probe_says_how_to_start_it_again(programs, world):
    code = program('raise ValueError("bad row")')
    programs.run(code, "--now", NOON, "--receipt", "none")
    command = f"{sys.executable} {world.root}/work/program1.py"
    assert world.facts()[0].data["program"] == command
    told = json.loads(world.ranonce("probe", "--now", NOON, "--json").out)
    assert told["findings"][0]["next_step"] == f"{command} --window {TODAY}"
    assert programs.run(code, *told["findings"][0]["next_step"].split()[2:]).receipt["attempt"] == 2


def test_a_function_that_is_called_is_named_by_its_module(programs, world):
    programs.run('@job("job", every="day")\ndef work(run):\n    raise ValueError()\nwork(now=NOON)')
    told = json.loads(world.ranonce("probe", "--now", NOON, "--json").out)
    again = f"call it from Python: program1.py.work(window='{TODAY}')"
    assert told["findings"][0]["next_step"] == again


@pytest.mark.parametrize(
    ("words", "written"),
    [
        (("rerun", "job", TODAY, "--reason", "x"), f"ranonce rerun job {TODAY} --reason TEXT"),
        (("backfill", "job", "--since", "2026-11-08"), "ranonce backfill job --since DATE"),
        (("run", "job"), "ranonce run job"),
    ],
)
def test_a_command_without_its_program_names_it(programs, world, words, written):
    programs.run(program("effect(run)"), *NOW)
    refused = world.ranonce(*words)
    assert refused.exit == 64
    assert f"{written} -- {sys.executable} {world.root}/work/program1.py" in refused.sentence
    again = world.ranonce(*words, "--now", NOON, "--", sys.executable, f"{world.root}/work/program1.py")
    assert again.exit == 0


def test_a_backfill_of_a_python_job_does_not_ask_for_a_placeholder(programs, world):
    programs.run(program("effect(run)"), *NOW)
    words = ("backfill", "job", "--since", "2026-11-08", "--now", NOON)
    assert "{window}" not in world.ranonce(*words, "--", sys.executable, f"{world.root}/work/program1.py").err


def test_a_command_that_a_program_started_is_no_python_job(world):
    world.run("--trigger", "api", sh="exit 1")
    told = json.loads(world.ranonce("probe", "--now", NOON, "--json").out)
    assert told["findings"][0]["next_step"] == f"ranonce run job --window {TODAY} -- COMMAND"


def test_a_doctor_knows_that_a_python_job_needs_no_declaration(programs, world):
    programs.run(program("effect(run)"), *NOW)
    told = [json.loads(line) for line in world.ranonce("doctor", "job", "--json").out.splitlines()]
    (seen,) = [each for each in told if each["check"] == "jobs"]
    assert (seen["level"], "declare" in str(seen)) == ("ok", False)
    assert f"started by {sys.executable} {world.root}/work/program1.py" in seen["seen"]


def test_windows_from_before_its_first_run_are_not_shown_as_expected(programs, world):
    programs.run(program("effect(run)"), *NOW)
    for words in (("show", "job"), ("status", "job")):
        told = world.ranonce(*words, "--now", NOON).out.decode()
        assert TODAY in told
        assert "2026-11-08" not in told


def test_who_meets_a_run_at_work_is_told_what_to_do(programs, world):
    code = program("mark('working')\nwait_for('end')")
    working = programs.start(code, *NOW)
    wait_until(programs.marked("working"))
    refused = programs.run(code, *NOW)
    assert refused.receipt["sentence"].endswith(f"process {working.pid} (python) still works: wait for it, or end it")
    programs.mark("end")
    assert working.ends().exit == 0


def test_a_window_is_done_again_for_a_reason(programs, world):
    code = program("effect(run)\nrun.emit('slack', 'hello')")
    assert programs.run(code, "--window", TODAY).exit == 0
    again = programs.run(code, "--window", TODAY, "--rerun", "bad input")
    assert again.said() == (0, "done", None)
    assert (again.receipt["generation"], again.receipt["trigger"], again.receipt["messages"]) == (2, "rerun", 0)
    assert programs.run(code, "--window", TODAY, "--rerun", "lost", "--resend").receipt["messages"] == 1
    asked = [fact for fact in world.facts() if fact.event == "rerun"]
    assert [(fact.reason, fact.data.get("resend")) for fact in asked] == [("bad input", None), ("lost", True)]


@pytest.mark.parametrize("words", [("--rerun", "x"), ("--rerun", " ", "--window", TODAY), ("--resend",)])
def test_a_rerun_without_its_window_or_its_reason_is_refused(programs, world, words):
    refused = programs.run(program("effect(run)"), *words)
    assert (refused.exit, world.effects()) == (64, [])
    assert "--rerun" in refused.sentence
