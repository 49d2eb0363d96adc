"""`@job`: each way out of a function has its verdict, and every call a receipt."""

from __future__ import annotations

import inspect
import pickle
import time
from datetime import datetime, timedelta
from email.utils import formatdate
from pathlib import Path

import pytest

from ranonce import ConfigError, Ledger, Receipt, Run, Stop, UsageError, job
from tests.conftest import TODAY, wait_until
from tests.python.conftest import NOON


def nothing(run: Run) -> None:
    """Do nothing."""


def daily(function, name="job", **settings):
    return job(name, **{"every": "day", **settings})(function)


def raising(error):
    def function(run):
        raise error

    return function


class Sullen(Exception):
    """Raises whatever it is asked."""

    def __getattribute__(self, name):
        raise RuntimeError(f"no {name}")

    def __str__(self):
        raise RuntimeError("no text")

    def __eq__(self, other):
        raise RuntimeError("no equal")

    __hash__ = None


class Annotated(Exception):
    """Its text can be told, its traceback cannot."""

    @property
    def __traceback__(self):
        raise RuntimeError("no traceback")


def test_a_window_is_worked_on_once(here):
    seen = []
    work = daily(seen.append)
    receipt = work(now=NOON)
    assert (receipt.event, receipt.window, receipt.attempt, receipt.exit) == ("done", TODAY, 1, 0)
    again = work(now=NOON)
    assert (again.event, again.reason, again.exit) == ("skipped", "done", 0)
    assert [run.window for run in seen] == [TODAY]
    assert here.events() == [("start", "start", 1), ("done", None, 1), ("skipped", "done", 1)]


def test_a_run_says_what_it_is(here):
    seen = []
    daily(seen.append, tz="Europe/Berlin", version="abc")(now=NOON, trigger="manual")
    (run,) = seen
    assert (run.job, run.window, run.attempt, run.generation, run.trigger) == ("job", TODAY, 1, 1, "manual")
    assert run.version == "abc"
    assert run.window_start == datetime.fromisoformat("2026-11-08T23:00Z")
    assert run.window_end == datetime.fromisoformat("2026-11-09T23:00Z")
    assert len(run.owner) == 32


def test_an_exception_is_recorded_and_raised_again(here):
    with pytest.raises(ValueError, match="bad row 7"):
        daily(raising(ValueError("bad row 7")))(now=NOON)
    assert here.state() == ("failed", 1)
    ((reason, output),) = here.sql("SELECT reason, output FROM events WHERE event = 'failed'")
    assert reason == "ValueError: bad row 7"
    assert output.startswith(b"Traceback (most recent call last):\n")
    assert b"raise error" in output
    assert b"ranonce/python" not in output


def test_a_huge_exception_with_a_torn_text_is_recorded_in_bounds(here):
    with pytest.raises(ValueError, match="xxx"):
        daily(raising(ValueError("x" * 10_000_000 + "\udcff")))(now=NOON)
    ((reason, output),) = here.sql("SELECT reason, output FROM events WHERE event = 'failed'")
    assert len(reason) == 1000
    assert len(output) < 66_000


def test_no_traceback_is_kept_where_no_output_is_wanted(here):
    with pytest.raises(ValueError, match="secret"):
        daily(raising(ValueError("secret")), keep_output=False)(now=NOON)
    assert here.sql("SELECT output FROM events WHERE event = 'failed'") == [(None,)]


def test_failures_are_tried_again_until_the_limit(here):
    work = daily(raising(ValueError("no")), max_attempts=2)
    for _ in range(2):
        with pytest.raises(ValueError, match="no"):
            work(now=NOON)
    receipt = work(now=NOON)
    assert (receipt.event, receipt.reason, receipt.exit) == ("skipped", "exhausted", 80)


def test_stop_closes_a_gate_costs_nothing_and_is_a_receipt(here):
    receipt = daily(raising(Stop("429", retry_after=timedelta(hours=1), gate="model-api")))(now=NOON)
    assert (receipt.event, receipt.reason, receipt.exit) == ("stopped", "429", 79)
    assert receipt.until is not None
    refused = daily(nothing, "other", uses="model-api")(now=NOON)
    assert (refused.reason, refused.holder, refused.exit) == ("gate", "job", 75)
    assert here.sql("SELECT failures FROM runs WHERE job = 'job'") == [(0,)]


def test_a_stopped_window_comes_first_at_the_next_call(here):
    seen = []

    def work(run):
        seen.append((run.window, run.attempt, run.trigger))
        if len(seen) == 1:
            raise Stop("not yet")

    nightly = daily(work)
    nightly(now=NOON)
    receipt = nightly(now=NOON + timedelta(days=1))
    assert receipt.window == "2026-11-10"
    assert seen == [(TODAY, 1, "api"), (TODAY, 2, "catch-up"), ("2026-11-10", 1, "api")]


def test_what_an_earlier_window_raises_does_not_keep_the_next_from_its_work(here):
    seen = []

    def work(run):
        seen.append(run.window)
        raise (Stop("not yet") if len(seen) == 1 else ValueError(run.window)) if run.window == TODAY else SystemExit

    nightly = daily(work)
    nightly(now=NOON)
    with pytest.raises(SystemExit):
        nightly(now=NOON + timedelta(days=1))
    assert seen == [TODAY, TODAY, "2026-11-10"]
    assert (here.state(), here.state(window="2026-11-10")) == (("failed", 2), ("done", 1))


@pytest.mark.parametrize(
    ("code", "state", "reason"),
    [
        (None, "done", None),
        (0, "done", None),
        (3, "failed", "exit 3"),
        (75, "stopped", "exit 75"),
        ("no rows", "failed", "no rows"),
        (False, "done", None),
        (0.0, "failed", "0.0"),  # to an interpreter that is text, and status 1
        (256, "failed", "exit 256"),  # to the system that is 0
        (2**70, "failed", f"exit {2**70}"),
    ],
)
def test_sys_exit_ends_a_job_as_it_ends_a_script(here, code, state, reason):
    with pytest.raises(SystemExit):
        daily(raising(SystemExit(code)), stop_exit_codes=[75])(now=NOON)
    assert here.sql("SELECT status, reason FROM runs") == [(state, reason)]


@pytest.mark.parametrize(
    ("error", "state", "reason"),
    [
        (KeyboardInterrupt, "stopped", "signal"),
        (GeneratorExit, "stopped", "cancelled"),
        (BaseException, "failed", "BaseException"),
    ],
)
def test_what_is_no_exception_has_its_verdict_too(here, error, state, reason):
    with pytest.raises(error):
        daily(raising(error()))(now=NOON)
    assert here.sql("SELECT status, reason FROM runs") == [(state, reason)]


@pytest.mark.parametrize(
    ("raised", "reason"),
    [
        (Sullen, "Sullen"),
        (lambda: Annotated("bad row 7"), "Annotated: bad row 7"),
        (lambda: SystemExit(Sullen()), "SystemExit"),
    ],
)
def test_an_exception_that_cannot_be_looked_at_is_a_failure_all_the_same(here, raised, reason):
    try:
        daily(raising(raised()))(now=NOON)
    except BaseException as error:  # noqa: BLE001 - whichever Python makes of it
        del error
    else:
        pytest.fail("nothing was raised")
    ((status, said),) = here.sql("SELECT status, reason FROM runs")
    assert status == "failed"
    assert reason in said


def test_a_return_value_that_cannot_be_looked_at_is_none_of_our_business(here):
    assert daily(lambda run: Sullen())(now=NOON).event == "done"


def test_a_look_after_a_crash_that_raises_something_unspeakable_holds_the_run(programs, here):
    programs.run(CRASH)
    assert daily(nothing, reconcile=raising(Sullen()))(now=NOON).event == "held"


def test_a_time_without_a_zone_is_refused(here):
    with pytest.raises(UsageError, match="naive"):
        daily(nothing)(now=datetime(2026, 11, 9))  # noqa: DTZ001 - the very mistake
    with pytest.raises(UsageError, match="naive"):
        Stop("429", retry_after=datetime(2026, 11, 9))  # noqa: DTZ001


@pytest.mark.parametrize("header", ["3600", "1h", "HTTP date"])
def test_a_stop_takes_what_a_retry_after_header_says(header):
    written = header.replace("HTTP date", formatdate(time.time() + 3600, usegmt=True))
    assert Stop("429", retry_after=written).when.counted(time.time()) == pytest.approx(time.time() + 3600, abs=60)


@pytest.mark.parametrize("header", ["soon", "Mon, 99 Foo 2026 00:00:00 GMT", "Fri, 01 Jan 2100 00:00:00 GMT", "-5"])
def test_a_stop_without_a_time_that_can_be_is_refused(header):
    with pytest.raises(UsageError, match="retry_after: "):
        Stop("429", retry_after=header)


@pytest.mark.parametrize(
    ("answer", "reason"),
    [("429\r\nToo Many Requests\n", "429\r\nToo Many Requests"), ("", "stopped"), ("\ud800\0", "\\ud800\0")],
)
def test_whatever_a_server_answers_a_stop_is_a_stop(here, answer, reason):
    assert daily(raising(Stop(answer, retry_after=60)))(now=NOON).event == "stopped"
    assert here.sql("SELECT status, reason FROM runs") == [("stopped", reason)]


def test_a_text_of_several_lines_is_noted_and_finished_with(here):
    def work(run):
        run.note("two\nlines")
        run.finish("failed", "three\n\nlines \udcff")

    assert daily(work)(now=NOON).event == "failed"
    reasons = here.sql("SELECT reason FROM events WHERE event IN ('noted', 'failed') ORDER BY seq")
    assert reasons == [("two\nlines",), ("three\n\nlines \\udcff",)]


@pytest.mark.parametrize(
    "how",
    [
        {"store": Path("/x/ledger.db")},
        {"store": b"sqlite:////x"},
        {"config": 5},
        {"config": b"/x"},
        {"input": 5},
        {"input": "a\0b"},
        {"input": [1]},
    ],
)
def test_what_is_not_of_its_kind_is_refused_with_a_sentence(here, how):
    with pytest.raises(UsageError, match=next(iter(how))):
        daily(nothing)(now=NOON, **how)


def test_a_version_that_cannot_be_recorded_is_refused():
    with pytest.raises(UsageError, match="version"):
        daily(nothing, version="\udcff")


def test_a_stop_that_makes_no_sense_is_refused():
    with pytest.raises(UsageError, match="closed until a time"):
        Stop("429", gate="model-api")
    with pytest.raises(UsageError, match="more than a year"):
        Stop("429", retry_after="400d")


def test_other_input_for_a_window_that_is_done_is_a_conflict(here, tmp_path):
    rows = tmp_path / "rows"
    rows.write_bytes(b"one")
    work = daily(nothing)
    assert work(now=NOON, input=rows).event == "done"
    assert work(now=NOON, input=b"one").reason == "done"
    assert work(now=NOON, input=b"two").reason == "conflict"


def test_other_input_is_other_work_where_the_job_says_so(here):
    work = daily(nothing, input_mode="identity")
    assert work(now=NOON, input=b"one").event == "done"
    assert work(now=NOON, input=b"two").event == "done"


def test_a_schedule_that_contradicts_the_recorded_one_runs_nothing(here):
    daily(nothing)(now=NOON)
    with pytest.raises(ConfigError, match="job"):
        daily(nothing, every="hour")(now=NOON)


def test_the_configuration_of_a_job_holds_for_its_function(here):
    with here.config.open("a") as file:
        file.write('\n[jobs.job]\nevery = "day"\nmax_attempts = 1\nversion = "from the file"\n')
    work = job("job")(raising(ValueError("no")))
    with pytest.raises(ValueError, match="no"):
        work(now=NOON)
    assert work(now=NOON).reason == "exhausted"
    assert here.sql("SELECT version FROM runs") == [("from the file",)]
    with pytest.raises(ConfigError, match="contradicts"):
        daily(nothing, every="hour")(now=NOON)


def test_declared_checks_prove_the_product(here, tmp_path):
    checks = f"""
checks = [
  {{ file = "{tmp_path}/{{window}}.json", json = true }},
  {{ command = ["/bin/sh", "-c", 'test "$RANONCE_WINDOW" = 2026-11-09'] }},
]
"""
    with here.config.open("a") as file:
        file.write(f'\n[jobs.job]\nevery = "day"\n{checks}')
    receipt = job("job")(nothing)(now=NOON)
    assert (receipt.event, receipt.exit) == ("failed", 65)
    assert "is not there" in receipt.reason or "no such file" in receipt.reason
    assert job("job")(lambda run: run.finish())(now=NOON).event == "failed"
    assert job("job")(lambda run: (tmp_path / f"{TODAY}.json").write_text("[1]") and None)(now=NOON).event == "done"


def test_the_same_window_is_busy_and_another_overlaps_while_a_run_works(here):
    seen = []
    inner = daily(nothing)

    def work(run):
        seen.append(inner(now=NOON).reason)
        seen.append(inner(now=NOON + timedelta(days=1)).reason)
        seen.append(daily(nothing, "other")(now=NOON).event)

    assert daily(work)(now=NOON).event == "done"
    assert seen == ["busy", "overlap", "done"]


@pytest.mark.parametrize(
    ("settings", "sentence"),
    [
        ({"every": "fortnight"}, "every"),
        ({"tz": "Europe/Nowhere"}, "tz"),
        ({"max_attempts": 0}, "max_attempts"),
        ({"max_attempts": "3"}, "max_attempts"),
        ({"lease": "5 minutes"}, "lease"),
        ({"overlap": "maybe"}, "overlap"),
        ({"evry": "day"}, "Did you mean every"),
        ({"on_lost": "ignore"}, "on_lost"),
        ({"on_crash": "reconcile"}, "on_crash"),
    ],
)
def test_settings_that_cannot_be_used_are_refused_where_they_stand(settings, sentence):
    with pytest.raises(UsageError, match=sentence):
        daily(nothing, **settings)


def test_a_job_nobody_declared_needs_a_schedule(here):
    with pytest.raises(UsageError, match="nobody has declared"):
        job("job")(nothing)()


def test_what_would_not_do_its_work_when_called_is_no_job(here):
    def generator(run):
        yield

    async def later(run):
        raise AssertionError("nobody waits for it")

    with pytest.raises(UsageError, match="not a function"):
        daily(generator)
    with pytest.raises(UsageError, match="not a function"):
        daily("work")
    with pytest.raises(TypeError, match="nobody has run"), pytest.warns(RuntimeWarning, match="never awaited"):
        daily(lambda run: [later(run)][0])(now=NOON)
    assert here.state() == ("failed", 1)


def test_a_job_looks_like_a_function_without_arguments_to_give():
    work = daily(nothing)
    assert (work.__name__, work.__doc__, work.__module__) == ("nothing", "Do nothing.", __name__)
    assert all(each.kind == each.KEYWORD_ONLY for each in inspect.signature(work).parameters.values())
    assert work.function is nothing


def test_no_store_is_no_run(here):
    here.store.unlink()
    with pytest.raises(Exception, match="no ledger") as raised:
        daily(nothing)(now=NOON)
    assert raised.value.code == "not-this-ledger"


def test_an_open_ledger_serves_many_calls(here):
    with Ledger.open() as ledger:
        assert daily(nothing)(now=NOON, ledger=ledger).event == "done"
        assert daily(nothing)(now=NOON, ledger=ledger).reason == "done"
        with pytest.raises(UsageError, match="all name the ledger"):
            daily(nothing)(ledger=ledger, store="sqlite:////x")


def test_the_store_can_be_named(here, monkeypatch):
    monkeypatch.setenv("XDG_CONFIG_HOME", str(here.root / "none"))
    receipt = daily(nothing)(now=NOON, store=f"sqlite:///{here.store}")
    assert isinstance(receipt, Receipt)
    assert receipt.ledger == here.ledger


def test_a_time_limit_that_cannot_be_kept_is_said(here):
    assert "time limit" in daily(nothing, timeout="1h")(now=NOON).warnings[0]


CRASH = """
    @job("job", every="day")
    def work(run):
        effect(run)
        os.kill(os.getpid(), 9)
    work(now=NOON)
"""


def test_the_next_call_takes_over_at_once_from_one_that_was_killed(programs, here):
    assert programs.run(CRASH).exit == -9
    assert here.state() == ("running", 1)
    receipt = daily(nothing)(now=NOON)
    assert (receipt.event, receipt.attempt) == ("done", 2)
    assert ("expired", "its process is dead", 1) in here.events()


@pytest.mark.parametrize(
    ("found", "event", "attempts"),
    [(True, "done", []), (False, "done", [2]), (None, "held", []), (ZeroDivisionError("x"), "held", [])],
)
def test_a_crash_can_be_looked_into_by_a_function(programs, here, found, event, attempts):
    programs.run(CRASH)
    seen = []

    def look(run):
        assert run.window == TODAY
        if isinstance(found, Exception):
            raise found
        return found

    receipt = daily(lambda run: seen.append(run.attempt), reconcile=look)(now=NOON)
    assert (receipt.event, seen) == (event, attempts)
    if found is None:
        assert receipt.reason == "reconcile: nobody knows"


def test_a_crash_can_be_looked_into_by_a_command(programs, here):
    programs.run(CRASH)
    with here.config.open("a") as file:
        file.write(
            '\n[jobs.job]\nevery = "day"\non_crash = "reconcile"\nreconcile = ["grep", "{window}", "../effects"]\n'
        )
        file.write(f'cwd = "{here.root}/work"\n')
    with Ledger.open() as ledger:
        refusal = ledger.claim("job", now=NOON)
    assert (bool(refusal), refusal.reason) == (False, "done")
    assert here.state() == ("done", 2)


def test_a_run_that_may_have_had_its_effects_is_held(programs, here):
    programs.run(CRASH)
    assert daily(nothing, on_crash="hold")(now=NOON).reason == "held"


def test_nothing_of_a_call_is_left_behind(here):
    daily(nothing)(now=NOON)
    assert here.attempt_files() == []
    assert wait_until(lambda: len(here.journal.read_text().splitlines()) == 2)


@job("named", every="day")
def named(run: Run) -> None:
    """Be found by its name."""


def test_a_job_is_pickled_by_its_name():
    assert pickle.loads(pickle.dumps(named)) is named
