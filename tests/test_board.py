"""What `status` and `show` tell, as values: a job's line, its windows, and the story of one."""

from __future__ import annotations

import pytest

from ranonce import board, story
from ranonce.errors import UsageError
from ranonce.jobspec import JobSpec
from ranonce.probe import Claimed
from ranonce.standing import STATES
from ranonce.survey import Span
from ranonce.timefmt import format_instant
from tests.planted import NOW, Planted, at


@pytest.fixture
def hourly() -> Planted:
    return Planted("hour")


def line(planted: Planted, now: str = NOW) -> board.Line:
    survey = planted.survey(now)
    newest = survey.latest("j", 1)
    job = survey.job("j", Span(at(now) - 7 * 86400, at(now) + 1))
    return board.line(job, survey.moment, newest[0] if newest else None, survey.store.last_done("j", survey.future))


def windows(planted: Planted, since: str, until: str, now: str = NOW) -> dict[str, str]:
    survey = planted.survey(now)
    span = Span(at(since), at(until))
    job = survey.job("j", span)
    runs = survey.store.runs("j", span.since, span.until)
    claims = [survey.claimed(run) for run in runs if run.status == "running"]
    stones = survey.store.tombstones("j", span.since, span.until)
    listed = board.windows(job, survey.moment, runs, claims, span.since, span.until, stones)
    return {window.window: window.state for window in listed}


# --- the board ------------------------------------------------------------------------------------------------------


def test_the_line_of_a_healthy_job_names_its_last_and_its_next_window(hourly):
    hourly.hours("2026-11-02T13:00:00Z", "2026-11-09T12:30:00Z")
    told = line(hourly)
    assert (told.window, told.state, told.attempt) == ("2026-11-09T12", "done", 1)
    assert format_instant(told.since) == "2026-11-09T12:01:05Z"
    assert (told.done_window, told.next_window) == ("2026-11-09T12", "2026-11-09T13")
    assert format_instant(told.next_due) == "2026-11-09T15:00:00Z"
    assert told.counts == {"done": 168}


def test_a_job_that_never_ran_is_missing_and_has_a_next_window(hourly):
    told = line(hourly)
    assert (told.window, told.state, told.done_window) == ("2026-11-09T10", "missing", None)
    assert told.next_window == "2026-11-09T12"
    assert told.counts == {"done": 0, "missing": 166}


def test_a_window_missed_since_the_last_run_is_the_last_window(hourly):
    hourly.hours("2026-11-02T13:00:00Z", "2026-11-09T09:00:00Z")
    told = line(hourly)
    assert (told.window, told.state, told.done_window) == ("2026-11-09T10", "missing", "2026-11-09T08")
    assert format_instant(told.since) == "2026-11-09T12:00:00Z"
    assert told.counts == {"done": 164, "missing": 2}


def test_the_counts_are_by_state(hourly):
    hourly.hours("2026-11-02T13:00:00Z", "2026-11-09T09:00:00Z")
    hourly.run("2026-11-09T09", "failed", exit=1)
    hourly.run("2026-11-09T10", "held", reason="crashed")
    hourly.run("2026-11-09T11", "running", lease=-60)
    hourly.run("2026-11-09T12", "running", lease=60)
    told = line(hourly)
    assert told.counts == {"done": 164, "failed": 1, "held": 1, "running": 1, "zombies": 1}
    assert (told.window, told.state) == ("2026-11-09T12", "running")


def test_a_zombie_is_called_one(hourly):
    hourly.run("2026-11-09T12", "running", lease=-60)
    assert line(hourly).state == "zombie"


def test_a_record_of_a_future_clock_is_not_the_newest(hourly):
    hourly.hours("2026-11-02T13:00:00Z", "2026-11-09T12:30:00Z")
    hourly.run("2038-01-01T00")
    assert line(hourly).window == "2026-11-09T12"
    assert line(hourly).done_window == "2026-11-09T12"


def test_a_daily_job_is_missing_from_the_end_of_its_day_on():
    planted = Planted("day")
    planted.run("2026-11-08")
    told = line(planted)
    assert (told.next_window, format_instant(told.next_due)) == ("2026-11-09", "2026-11-10T01:00:00Z")


def test_pruned_windows_are_counted_apart(hourly):
    hourly.hours("2026-11-02T13:00:00Z", "2026-11-09T12:30:00Z", but=("2026-11-03T00",))
    hourly.prune("2026-11-04T13:00:00Z")
    assert line(hourly).counts == {"done": 120, "missing": 1, "pruned": 47}


# --- windows --------------------------------------------------------------------------------------------------------


def test_the_windows_of_a_span_are_listed_past_or_future_recorded_or_not(hourly):
    hourly.run("2026-11-09T09")
    hourly.run("2026-11-09T11", "failed", exit=1)
    hourly.run("2026-11-09T12", "running", lease=100)
    assert windows(hourly, "2026-11-09T09:00:00Z", "2026-11-09T15:00:00Z") == {
        "2026-11-09T09": "done",
        "2026-11-09T10": "missing",
        "2026-11-09T11": "failed",
        "2026-11-09T12": "running",
        "2026-11-09T13": "expected",
        "2026-11-09T14": "expected",
    }


@pytest.mark.parametrize("status", ["done", "failed", "stopped", "held"])
def test_a_window_has_the_state_of_its_run(hourly, status):
    hourly.run("2026-11-09T10", status)
    assert windows(hourly, "2026-11-09T10:00:00Z", "2026-11-09T11:00:00Z") == {"2026-11-09T10": status}
    assert status in STATES


def test_pruned_windows_are_called_so_and_those_that_never_ran_are_missing(hourly):
    for hour in ("05", "06", "08", "10"):
        hourly.run(f"2026-11-09T{hour}")
    hourly.prune("2026-11-09T09:00:00Z")
    assert windows(hourly, "2026-11-09T05:00:00Z", "2026-11-09T11:00:00Z") == {
        "2026-11-09T05": "pruned",
        "2026-11-09T06": "pruned",
        "2026-11-09T07": "missing",
        "2026-11-09T08": "pruned",
        "2026-11-09T09": "missing",
        "2026-11-09T10": "done",
    }


def test_what_was_not_pruned_among_pruned_ones_keeps_its_state(hourly):
    for hour in ("05", "07", "08"):
        hourly.run(f"2026-11-09T{hour}")
    hourly.run("2026-11-09T06", "held")
    hourly.prune("2026-11-09T08:00:00Z")
    hourly.store._tombstones["j"] = [hourly.store._tombstones["j"][0].replace(until=at("2026-11-09T08:00:00Z"))]
    assert windows(hourly, "2026-11-09T05:00:00Z", "2026-11-09T08:00:00Z") == {
        "2026-11-09T05": "pruned",
        "2026-11-09T06": "held",
        "2026-11-09T07": "pruned",
    }


def test_a_window_ends_where_the_next_one_begins():
    planted = Planted("30 2 * * *", tz="Europe/Berlin")
    survey = planted.survey()
    span = Span(at("2026-10-24T00:00:00Z"), at("2026-10-26T00:00:00Z"))
    told = board.windows(survey.job("j", span), survey.moment, [], [], span.since, span.until)
    bounds = [(format_instant(w.start), format_instant(w.end)) for w in told]
    assert bounds == [
        ("2026-10-24T00:30:00Z", "2026-10-25T00:30:00Z"),
        ("2026-10-25T00:30:00Z", "2026-10-26T01:30:00Z"),
    ]


def test_each_window_is_listed_by_the_version_in_force():
    planted = Planted("day")
    planted.declare("week", valid_from="2026-11-09T00:00:00Z")
    assert list(windows(planted, "2026-11-07T00:00:00Z", "2026-11-23T00:00:00Z")) == [
        "2026-11-07",
        "2026-11-08",
        "2026-W46",
        "2026-W47",
    ]


def test_a_recorded_window_that_nobody_expected_is_listed(hourly):
    hourly.misnamed("2026-11-09T10:17", "2026-11-09T10:17:00Z", "2026-11-09T11:17:00Z")
    assert windows(hourly, "2026-11-09T10:00:00Z", "2026-11-09T11:00:00Z")["2026-11-09T10:17"] == "done"


def test_a_window_of_several_inputs_is_done_when_all_of_them_are(hourly):
    key = hourly.run("2026-11-09T10")
    run = hourly.recorded(key)
    for digest, status in (("a" * 64, "failed"), ("b" * 64, "done")):
        other = key.replace(input=digest)
        hourly.commit(other, run=run.replace(key=other, status=status))
    assert windows(hourly, "2026-11-09T10:00:00Z", "2026-11-09T11:00:00Z") == {"2026-11-09T10": "failed"}


def test_a_list_without_end_is_refused(hourly):
    with pytest.raises(UsageError, match="70,126,536 windows"):
        windows(hourly, "2000-01-01T00:00:00Z", "9999-12-31T00:00:00Z")


# --- stories --------------------------------------------------------------------------------------------------------


def told(planted: Planted, key: str, now: str = NOW) -> story.Story:
    survey = planted.survey(now)
    run = planted.recorded(key)
    window = planted.schedules[-1].window(key)
    claimed: Claimed | None = survey.claimed(run) if run.status == "running" else None
    events = tuple(planted.store.events("j", window.start, window.start + 1))
    return story.of_run(run, window, events, claimed, survey.moment, 3)


def test_the_story_of_a_done_window_says_that_it_ran(hourly):
    hourly.run("2026-11-09T10")
    answer = told(hourly, "2026-11-09T10")
    assert (answer.answer, answer.why) == ("yes", "done at attempt 1, 2026-11-09T10:00:05Z for 1m")
    assert [event.event for event in answer.events] == ["start", "done"]


@pytest.mark.parametrize(
    ("status", "fields", "why"),
    [
        ("failed", {"exit": 3}, "attempt 1 failed (exit 3), 2026-11-09T10:00:05Z for 1m; 2 more allowed"),
        ("stopped", {"reason": "429"}, "attempt 1 was stopped (429)"),
        ("held", {"reason": "crashed"}, "its effects may have happened"),
        ("running", {"lease": -60}, "has no verdict: its lease ended at 2026-11-09T12:29:00Z"),
        ("running", {"lease": None}, "has no verdict: there is no lease for it"),
    ],
)
def test_the_story_of_an_unfinished_window_says_that_it_did_not_run_and_why(hourly, status, fields, why):
    hourly.run("2026-11-09T10", status, **fields)
    answer = told(hourly, "2026-11-09T10")
    assert answer.answer == "no"
    assert why in answer.why


def test_nobody_knows_yet_whether_a_running_window_ran(hourly):
    hourly.run("2026-11-09T12", "running", lease=60)
    assert told(hourly, "2026-11-09T12").answer == "unknown"


def of_window(planted: Planted, key: str, now: str = NOW, expected: bool = True) -> story.Story:
    window = planted.schedules[-1].window(key)
    events = tuple(planted.store.events("j", window.start, window.start + 1))
    moment = planted.survey(now).moment
    return story.of_window("j", window, events, window.end + 3600.0, moment, expected)


def test_a_window_without_a_run_did_not_run_once_it_is_due(hourly):
    assert of_window(hourly, "2026-11-09T10").answer == "no"
    assert of_window(hourly, "2026-11-09T12").answer == "unknown"
    assert of_window(hourly, "2026-11-09T10", expected=False).answer == "unknown"


def test_a_window_that_was_refused_says_so(hourly):
    hourly.skip("2026-11-09T10", "gate")
    assert (
        of_window(hourly, "2026-11-09T10").why == "missing since 2026-11-09T12:00:00Z, and 1 trigger was refused (gate)"
    )


# --- what a trigger would find --------------------------------------------------------------------------------------


def next_of(planted: Planted, key: str, now: str = NOW, **rules: object) -> str:
    survey = planted.survey(now)
    version = planted.store.schedules("j")[-1]
    window = planted.schedules[-1].window(key)
    decision = survey.would("j", window, "", version, JobSpec("j").replace(**rules))
    assert decision is not None
    return story.what_next(decision)


def test_a_window_that_never_ran_would_start(hourly):
    assert next_of(hourly, "2026-11-09T10") == "a trigger for this window would start it"


@pytest.mark.parametrize(
    ("status", "fields", "rules", "answer"),
    [
        ("done", {}, {}, "would be refused (done)"),
        ("failed", {}, {}, "would start another attempt"),
        ("failed", {"attempt": 3}, {}, "would be refused (exhausted)"),
        ("failed", {}, {"retry_delay": 86400.0}, "would be refused (waiting until 2026-11-10T10:01:05Z)"),
        ("stopped", {}, {}, "would resume it"),
        ("held", {"reason": "crashed"}, {}, "would be refused (held)"),
        ("running", {"lease": 60}, {}, "would be refused (busy"),
        ("running", {"lease": -60}, {}, "would take it over"),
        ("running", {"lease": -60}, {"on_crash": "hold"}, "would be refused (held)"),
    ],
)
def test_what_a_trigger_would_find_is_what_the_rules_say(hourly, status, fields, rules, answer):
    hourly.run("2026-11-09T10", status, **fields)
    assert answer in next_of(hourly, "2026-11-09T10", **rules)


def test_a_window_that_has_not_begun_would_be_refused(hourly):
    assert "would be refused (early until 2026-11-09T15:00:00Z)" in next_of(hourly, "2026-11-09T15")


def test_a_closed_gate_is_named(hourly):
    hourly.gate("model-api", "2026-11-09T12:30:30Z")
    assert "model-api is closed (429)" in next_of(hourly, "2026-11-09T10", uses=("model-api",))


def test_asking_what_a_trigger_would_find_writes_nothing(hourly):
    hourly.run("2026-11-09T10", "running", lease=-60)
    before = list(hourly.store._events), dict(hourly.store._runs)
    next_of(hourly, "2026-11-09T10")
    assert before == (hourly.store._events, hourly.store._runs)


def test_the_next_window_is_one_that_begins_after_the_job_was_declared():
    planted = Planted("day", declared_at="2026-11-09T10:00:00Z")
    survey = planted.survey()
    job = survey.job("j", Span(at("2026-11-02T12:30:00Z"), at(NOW)))
    line = board.line(job, survey.moment, None, None)
    assert line.next_window == "2026-11-10"
