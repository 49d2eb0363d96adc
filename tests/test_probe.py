"""What a probe says of planted ledgers: each fact in its own bucket, findings apart from notes."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ranonce.expectation import Expectation
from ranonce.findings import Finding, in_ranges
from ranonce.jobspec import JobSpec
from ranonce.lifecycle import Lease, ScheduleVersion, Sighting
from ranonce.liveness import AttemptFile, this_host
from ranonce.probe import judge
from ranonce.standing import holder
from ranonce.stores.base import Clock
from ranonce.survey import NAMED_BACKLOG, Span, unrecorded_job
from tests.planted import BOOT, DOMAIN, NOW, Planted, at, counted, only, said


@pytest.fixture
def hourly() -> Planted:
    """An hourly job that is done for the two windows of the span that are due, and for one more."""
    return Planted("hour")


def clean(planted: Planted) -> None:
    planted.hours("2026-11-09T09:00:00Z", "2026-11-09T12:00:00Z")


# --- missing --------------------------------------------------------------------------------------------------------


def test_a_ledger_in_which_everything_ran_has_nothing_to_say(hourly):
    clean(hourly)
    assert hourly.probe() == []


def test_a_due_window_without_a_run_is_missing(hourly):
    hourly.run("2026-11-09T11")
    finding = only(hourly.probe())
    assert (finding.bucket, finding.window, finding.note) == ("missing", "2026-11-09T10", False)
    assert finding.text == "missing since 2026-11-09T12:00:00Z, and no trigger arrived"


def test_a_window_is_not_missing_before_it_is_due(hourly):
    hourly.run("2026-11-09T10")
    assert hourly.probe(now="2026-11-09T12:59:59Z") == []
    assert said(hourly.probe(now="2026-11-09T13:00:00Z")) == [("missing", "2026-11-09T11")]


def test_late_after_is_the_jobs_own():
    planted = Planted("hour", late_after=0.0)
    planted.run("2026-11-09T10")
    assert said(planted.probe()) == [("missing", "2026-11-09T11")]


def test_a_cron_window_is_due_at_its_tick():
    planted = Planted("0 2 * * *")
    planted.run("2026-11-08T02:00Z")
    found = [planted.probe("2026-11-08T00:00:00Z", now=now) for now in ("2026-11-09T02:59:59Z", "2026-11-09T03:00:00Z")]
    assert [said(each) for each in found] == [[], [("missing", "2026-11-09T02:00Z")]]


def test_with_an_offset_the_window_is_due_when_it_is_served():
    planted = Planted()
    planted.declare("day", offset=-1, valid_from="2026-11-05T00:00:00Z")
    # The window of the 8th is worked on during the 9th, so it is not missing before the 10th.
    found = planted.probe("2026-11-07T00:00:00Z", now="2026-11-09T12:30:00Z")
    assert said(found) == [("missing", "2026-11-07")]


def test_windows_outside_the_span_are_not_judged(hourly):
    assert said(hourly.probe("2026-11-09T08:00:00Z", "2026-11-09T10:00:00Z")) == [
        ("missing", "2026-11-09T08"),
        ("missing", "2026-11-09T09"),
    ]


def test_three_missing_in_a_row_are_three_lines_and_four_are_a_range(hourly):
    hourly.hours(
        "2026-11-09T00:00:00Z", "2026-11-09T08:00:00Z", but=("2026-11-09T01", "2026-11-09T02", "2026-11-09T03")
    )
    found = hourly.probe("2026-11-09T00:00:00Z", "2026-11-09T12:00:00Z", now="2026-11-09T13:30:00Z")
    assert said(found) == [
        ("missing", "2026-11-09T01"),
        ("missing", "2026-11-09T02"),
        ("missing", "2026-11-09T03"),
        ("missing", "2026-11-09T08 … 2026-11-09T11 (4 windows)"),
    ]
    assert counted(found) == {"missing": 7}


@given(
    st.lists(st.tuples(st.integers(0, 60), st.integers(1, 9)), max_size=6),
    st.lists(st.tuples(st.integers(-5, 65), st.integers(1, 9)), max_size=6),
)
def test_gaps_without_spans_are_the_windows_in_the_one_and_not_in_the_other(gaps, spans):
    hours = Expectation((ScheduleVersion(1, "hour", "UTC", "debian", 0, None, 0.0),), 0, 70 * 3600)
    absent: set[int] = {number for first, count in gaps for number in range(first, min(first + count, 70))}
    gone = {number for first, count in spans for number in range(first, first + count)}
    ranges = [range(number, number + 1) for number in sorted(absent)]
    cut = sorted((first * 3600, (first + count) * 3600) for first, count in spans)
    left = hours.without(ranges, cut)
    assert [number for part in left for number in part] == sorted(absent - gone)
    whole = hours.without([range(70)], cut)
    assert [number for part in whole for number in part] == sorted(set(range(70)) - gone)


def test_ten_thousand_missing_minutes_are_one_line():
    planted = Planted("* * * * *")
    found = planted.probe("2026-11-02T00:00:00Z", "2026-11-09T00:00:00Z")
    assert said(found) == [("missing", "2026-11-02T00:00Z … 2026-11-08T23:59Z (10080 windows)")]


def test_a_span_of_a_thousand_years_costs_nothing(hourly):
    finding = hourly.probe("1026-01-01T00:00:00Z", "9026-01-01T00:00:00Z")[0]
    assert finding.windows > 7_000_000


def test_a_missing_window_whose_triggers_were_refused_says_why(hourly):
    hourly.run("2026-11-09T11")
    for _ in range(3):
        hourly.skip("2026-11-09T10", "gate")
    finding = only(hourly.probe())
    assert finding.bucket == "missing"
    assert (
        finding.text
        == "missing since 2026-11-09T12:00:00Z, and 3 triggers were refused: gate (a gate it uses was closed)"
    )
    assert finding.facts["refused"] == {"gate": 3}


def test_a_refused_window_stands_apart_from_the_range_around_it(hourly):
    hourly.skip("2026-11-09T05", "overlap")
    found = hourly.probe("2026-11-09T00:00:00Z", "2026-11-09T10:00:00Z")
    assert said(found) == [
        ("missing", "2026-11-09T00 … 2026-11-09T04 (5 windows)"),
        ("missing", "2026-11-09T05"),
        ("missing", "2026-11-09T06 … 2026-11-09T09 (4 windows)"),
    ]


def test_a_pruned_window_is_not_missing_and_those_between_still_are(hourly):
    hourly.hours("2026-11-08T00:00:00Z", "2026-11-09T12:00:00Z", but=("2026-11-08T05", "2026-11-09T10"))
    hourly.prune("2026-11-09T00:00:00Z")
    told = hourly.probe("2026-11-08T00:00:00Z")
    assert said(told) == [("missing", "2026-11-08T05"), ("missing", "2026-11-09T10")]


def test_a_trigger_for_a_pruned_window_is_nothing_to_say(hourly):
    clean(hourly)
    hourly.prune("2026-11-09T11:00:00Z")
    hourly.skip("2026-11-09T10", "pruned")
    assert hourly.probe() == []


def test_a_window_from_before_the_job_was_recorded_says_so():
    planted = Planted("hour")
    planted.store._jobs["j"] = planted.store.job("j").replace(declared_at=at("2026-11-09T10:30:00Z"))
    found = planted.probe("2026-11-09T09:00:00Z", now="2026-11-09T13:00:00Z")
    assert [each.window for each in found] == ["2026-11-09T09", "2026-11-09T10", "2026-11-09T11"]
    assert "first recorded at 2026-11-09T10:30:00Z" in found[0].text
    assert "first recorded at 2026-11-09T10:30:00Z" in found[1].text
    assert "first recorded" not in found[2].text


def test_nothing_is_missing_before_the_jobs_own_beginning(hourly):
    spec = JobSpec("j", every="hour", since=at("2026-11-09T10:00:00Z"), declared=True)
    assert said(hourly.probe("2026-11-09T00:00:00Z", spec=spec)) == [("missing", "2026-11-09T10")]


def test_the_first_morning_is_quiet_and_a_named_time_is_taken_as_it_is():
    planted = Planted("hour", declared_at="2026-11-09T10:30:00Z")
    later = "2026-11-09T13:30:00Z"
    assert said(planted.probe("2026-11-09T08:00:00Z", later, now=later, usual=True)) == [("missing", "2026-11-09T11")]
    literal = planted.probe("2026-11-09T08:00:00Z", later, now=later)
    assert literal[0].window == "2026-11-09T08"
    assert "first recorded at 2026-11-09T10:30:00Z" in literal[0].text


def test_a_job_that_no_ledger_knows_is_missing_from_the_span_on():
    spec = JobSpec("j", every="day", declared=True)
    planted = Planted("day")
    job = unrecorded_job("new", spec, Span(at("2026-11-07T00:00:00Z"), at(NOW)))
    found = judge(job, planted.survey().moment)
    assert [each.window for each in found] == ["2026-11-07", "2026-11-08"]
    assert all("the ledger has never heard of the job" in each.text for each in found)


@pytest.mark.parametrize(
    ("every", "window"), [("week", "2026-W45"), ("month", "2026-10"), ("0 3 1 * *", "2026-11-01T03:00Z")]
)
def test_the_newest_due_window_is_judged_where_it_began_before_the_span(every, window):
    planted = Planted(every)
    assert said(planted.probe("2026-11-07T12:30:00Z", usual=True)) == [("missing", window)]
    planted.run(window)
    assert planted.probe("2026-11-07T12:30:00Z", usual=True) == []


@given(
    every=st.sampled_from(["hour", "*/7 3,4 * * *", "30 2 * * *"]),
    tz=st.sampled_from(["UTC", "Europe/Berlin"]),
    absent=st.sets(st.integers(0, 60)),
    odd=st.lists(st.integers(0, 3 * 86400), max_size=4),
)
def test_gaps_are_what_set_arithmetic_says(every, tz, absent, odd):
    since, until = at("2026-10-24T00:00:00Z"), at("2026-10-27T00:00:00Z")
    wanted = Expectation([ScheduleVersion(1, every, tz, "debian", 0, None, 0)], since, until)
    starts = [wanted.start(number) for number in range(wanted.total)]
    recorded = sorted([start for n, start in enumerate(starts) if n not in absent] + [since + each for each in odd])
    gaps, strange = wanted.gaps(recorded)
    assert [wanted.start(number) for gap in gaps for number in gap] == sorted(set(starts) - set(recorded))
    assert set(strange) == set(recorded) - set(starts)


# --- zones and versions of the schedule -----------------------------------------------------------------------------


@pytest.mark.parametrize(("tz", "every"), [("Europe/London", "30 0 * * *"), ("Europe/Berlin", "30 2 * * *")])
@pytest.mark.parametrize(
    "days", [("2026-03-27T12:00:00Z", "2026-03-31T12:00:00Z"), ("2026-10-23T12:00:00Z", "2026-10-27T12:00:00Z")]
)
def test_one_run_a_local_day_is_clean_across_clock_changes(tz, every, days):
    planted = Planted(every, tz=tz)
    planted.hours(*days)
    assert len(planted.store.runs("j", 0, 1 << 60)) == 4
    assert planted.probe(*days) == []


def test_the_local_day_of_a_spring_gap_without_a_trigger_is_missing():
    planted = Planted("30 2 * * *", tz="Europe/Berlin")
    planted.hours("2026-03-27T12:00:00Z", "2026-03-31T12:00:00Z", but=("2026-03-29T01:00Z",))
    assert said(planted.probe("2026-03-27T12:00:00Z", "2026-03-31T12:00:00Z")) == [("missing", "2026-03-29T01:00Z")]


def test_a_finished_day_stays_finished_when_the_minute_changes():
    planted = Planted("15 1 * * *")
    planted.run("2026-11-07T01:15Z")
    planted.run("2026-11-08T01:15Z")
    planted.declare("15 2 * * *", valid_from="2026-11-09T01:15:00Z")
    planted.run("2026-11-09T02:15Z")
    assert planted.probe("2026-11-07T00:00:00Z") == []


def test_each_window_is_judged_by_the_version_in_force_when_it_began():
    planted = Planted("day")
    planted.run("2026-11-07")
    planted.declare("hour", valid_from="2026-11-09T09:00:00Z")
    planted.run("2026-11-09T10")
    found = planted.probe("2026-11-07T00:00:00Z", now="2026-11-09T12:00:00Z")
    assert said(found) == [("missing", "2026-11-08"), ("missing", "2026-11-09T09")]


def test_a_later_version_that_begins_earlier_leaves_nothing_to_the_one_before():
    versions = (
        ScheduleVersion(1, "day", "UTC", "debian", 0, None, 0),
        ScheduleVersion(2, "week", "UTC", "debian", 0, at("2026-11-09T00:00:00Z"), 0),
        ScheduleVersion(3, "hour", "UTC", "debian", 0, at("2026-11-08T22:00:00Z"), 0),
    )
    wanted = Expectation(versions, at("2026-11-07T00:00:00Z"), at("2026-11-09T01:00:00Z"))
    assert [wanted.key(n) for n in range(wanted.total)] == [
        "2026-11-07",
        "2026-11-08T22",
        "2026-11-08T23",
        "2026-11-09T00",
    ]


def test_what_the_scheduler_does_not_fire_is_not_missing():
    planted = Planted()
    planted.declare("30 2 * * *", tz="Europe/Berlin", dialect="kubernetes", valid_from="2026-01-01T00:00:00Z")
    schedule = planted.schedules[-1]
    span = at("2026-03-20T00:00:00Z"), at("2026-04-05T00:00:00Z")
    unfired = sorted(set(schedule.starts(*span)) - set(schedule.expected(*span)))
    planted.hours("2026-03-20T00:00:00Z", "2026-04-05T00:00:00Z", but=tuple(schedule.key(start) for start in unfired))
    assert unfired
    assert planted.probe("2026-03-20T00:00:00Z", "2026-04-05T00:00:00Z") == []
    planted.run(schedule.key(unfired[0]))  # fired by hand: not expected, but a window all the same
    assert planted.probe("2026-03-20T00:00:00Z", "2026-04-05T00:00:00Z") == []


def test_a_schedule_edited_since_the_last_run_is_a_note(hourly):
    clean(hourly)
    note = only(hourly.probe(spec=JobSpec("j", every="day", declared=True)))
    assert (note.bucket, note.note) == ("schedule", True)
    assert "the configuration says 'day' in UTC, the ledger still 'hour' in UTC" in note.text


# --- runs that are at work, or were ---------------------------------------------------------------------------------


def running(planted: Planted, *, lease: float | None, started: str = "2026-11-09T12:00:05Z", **more: object) -> None:
    planted.hours("2026-11-09T10:00:00Z", "2026-11-09T12:00:00Z")
    planted.run("2026-11-09T12", "running", started=started, lease=lease, **more)


def test_a_run_at_work_is_a_note(hourly):
    running(hourly, lease=200)
    note = only(hourly.probe())
    assert (note.bucket, note.window, note.note) == ("running", "2026-11-09T12", True)
    assert "its lease is good until 2026-11-09T12:33:20Z" in note.text


def test_a_run_whose_lease_is_over_is_a_zombie(hourly):
    running(hourly, lease=-60)
    finding = only(hourly.probe())
    assert (finding.bucket, finding.window, finding.note) == ("zombies", "2026-11-09T12", False)
    assert "has no verdict: its lease ended at 2026-11-09T12:29:00Z" in finding.text


def test_what_lives_on_of_an_attempt_whose_lease_is_over_is_an_orphan():
    over = Lease("o" * 32, 1, DOMAIN, BOOT - 60, 300.0)
    held = holder(over, Clock(DOMAIN, BOOT, 0.0), Sighting("alive", 4711, "sleep"))
    assert (held.alive, held.orphan) == (True, True)
    assert "kill 4711" in held.why
    good = over.replace(expires=BOOT + 60)
    assert not holder(good, Clock(DOMAIN, BOOT, 0.0), Sighting("alive", 4711, "sleep")).orphan


def test_what_lives_on_after_its_wrapper_is_an_orphan_at_once():
    good = Lease("o" * 32, 1, DOMAIN, BOOT + 60, 300.0)
    held = holder(good, Clock(DOMAIN, BOOT, 0.0), Sighting("alive", 4711, "sleep", orphan=True))
    assert (held.alive, held.orphan) == (True, True)
    assert "its ranonce is dead" in held.why


def test_a_running_run_without_a_lease_is_a_zombie(hourly):
    running(hourly, lease=None)
    assert "there is no lease for it" in only(hourly.probe()).text


def test_a_run_from_before_the_last_boot_is_a_zombie(hourly):
    running(hourly, lease=200, domain="boot-0/time-1")
    finding = only(hourly.probe())
    assert finding.bucket == "zombies"
    assert "the host was restarted since" in finding.text


def test_a_lease_of_another_time_namespace_of_this_boot_is_respected():
    lease = Lease("o", 1, "boot-1/time-2", 5.0, 300.0)
    assert holder(lease, Clock(DOMAIN, BOOT, 0.0)).alive
    seen = lease.replace(seen_domain=DOMAIN, seen_at=BOOT - 301)
    assert not holder(seen, Clock(DOMAIN, BOOT, 0.0)).alive


def test_a_proof_of_death_makes_a_zombie_at_once(hourly, tmp_path):
    running(hourly, lease=200)
    run = hourly.recorded("2026-11-09T12")
    (tmp_path / "attempts").mkdir(mode=0o700)
    file = AttemptFile.create(str(tmp_path), run.owner, this_host())
    assert only(hourly.probe(folder=str(tmp_path))).bucket == "running"
    file.release()
    finding = only(hourly.probe(folder=str(tmp_path)))
    assert finding.bucket == "zombies"
    assert "its process is dead" in finding.text


def test_an_owner_that_is_no_owner_id_is_no_file_name(hourly, tmp_path):
    running(hourly, lease=200, owner="../../etc/passwd")
    assert only(hourly.probe(folder=str(tmp_path))).bucket == "running"


def test_a_run_longer_than_two_of_its_windows_is_stuck_though_its_lease_is_kept(hourly):
    hourly.hours("2026-11-09T11:00:00Z", "2026-11-09T12:00:00Z")
    hourly.run("2026-11-09T10", "running", started="2026-11-09T10:30:00Z", lease=200)
    assert [each.bucket for each in hourly.probe()] == ["running", "overlapping"]
    found = hourly.probe(until="2026-11-09T12:30:00Z", now="2026-11-09T12:30:01Z")
    assert [each.bucket for each in found] == ["stuck", "overlapping"]
    assert not found[0].note
    assert "longer than 2 windows of its schedule" in found[0].text


def test_a_zombie_of_last_week_is_not_forgotten(hourly):
    clean(hourly)
    hourly.run("2026-11-01T03", "running", lease=-60)
    assert said(hourly.probe()) == [("zombies", "2026-11-01T03")]


# --- runs that ended without being done -----------------------------------------------------------------------------


def test_a_failure_with_attempts_left_is_failed(hourly):
    clean(hourly)
    hourly.run("2026-11-09T12", "failed", exit=3, reason="disk full")
    finding = only(hourly.probe())
    assert (finding.bucket, finding.note) == ("failed", False)
    assert finding.text == "attempt 1 failed (exit 3: disk full), 2 more attempts allowed"


def test_a_failure_without_attempts_left_is_exhausted(hourly):
    clean(hourly)
    hourly.run("2026-11-09T12", "failed", attempt=3, exit=3)
    for _ in range(2):
        hourly.skip("2026-11-09T12", "exhausted")
    finding = only(hourly.probe())
    assert finding.bucket == "exhausted"
    assert "2 triggers were refused since (exhausted)" in finding.text


def test_a_run_that_was_allowed_one_more_attempt_is_not_exhausted(hourly):
    clean(hourly)
    hourly.run("2026-11-09T12", "failed", exit=3, failures=3, granted=True)
    finding = only(hourly.probe())
    assert (finding.bucket, "1 more attempt allowed" in finding.text) == ("failed", True)


def test_a_held_run_waits_for_a_person(hourly):
    clean(hourly)
    hourly.run("2026-11-09T12", "held", reason="crashed")
    finding = only(hourly.probe())
    assert finding.bucket == "held"
    assert "a person must say" in finding.text


def test_a_stopped_run_is_a_note_until_its_time_to_resume(hourly):
    clean(hourly)
    hourly.run("2026-11-09T12", "stopped", reason="429", resume_at=at("2026-11-09T12:40:00Z"))
    before = only(hourly.probe())
    after = only(hourly.probe(now="2026-11-09T12:40:00Z"))
    assert (before.bucket, before.note, after.bucket, after.note) == ("stopped", True, "stopped", False)


def test_a_stopped_run_without_a_time_to_resume_is_a_finding(hourly):
    clean(hourly)
    hourly.run("2026-11-09T12", "stopped", reason="signal")
    assert not only(hourly.probe()).note


def test_a_verdict_after_the_lease_is_late(hourly):
    clean(hourly)
    hourly.run("2026-11-09T12", late=True)
    finding = only(hourly.probe())
    assert (finding.bucket, finding.note) == ("late", False)


def test_a_verdict_after_a_person_had_spoken_is_late(hourly):
    clean(hourly)
    key = hourly.run("2026-11-09T12", "failed", reason="released as not-done: no mail")
    hourly.event("lost", hourly.recorded(key), reason="done", at=at("2026-11-09T12:20:00Z"))
    assert [each.bucket for each in hourly.probe()] == ["failed", "late"]


def test_what_waits_from_before_the_span_is_named_while_it_is_little(hourly):
    clean(hourly)
    hourly.run("2026-10-01T03", "held", reason="crashed")
    hourly.run("2026-10-02T03", "failed", exit=1)
    assert said(hourly.probe()) == [("held", "2026-10-01T03"), ("failed", "2026-10-02T03")]


def test_what_waits_from_before_the_span_is_counted_where_it_is_much(hourly):
    clean(hourly)
    for day in range(1, NAMED_BACKLOG + 2):
        hourly.run(f"2026-10-{day:02}T03", "failed", exit=1)
    hourly.run("2026-10-30T03", "failed", attempt=3, exit=1)
    found = hourly.probe()
    assert said(found) == [
        ("failed", "2026-10-01T03 … 2026-10-21T03 (21 windows)"),
        ("exhausted", "2026-10-30T03"),
    ]
    assert counted(found) == {"failed": 21, "exhausted": 1}


# --- doubles --------------------------------------------------------------------------------------------------------


def second_attempt(planted: Planted, verdict: str) -> None:
    """A window whose first attempt ended after a second one had taken it over and was done."""
    clean(planted)
    key = planted.run("2026-11-09T12", attempt=2, started="2026-11-09T12:10:00Z")
    run = planted.recorded(key)
    planted.event("expired", run.replace(attempt=1), at=at("2026-11-09T12:10:00Z"), reason="its lease is over")
    planted.event("lost", run.replace(attempt=1), at=at("2026-11-09T12:20:00Z"), reason=verdict)


def test_two_attempts_that_both_completed_are_a_dupe(hourly):
    second_attempt(hourly, "done")
    finding = [each for each in hourly.probe() if not each.note]
    assert said(finding) == [("dupes", "2026-11-09T12")]
    assert "ran twice: attempt 1 completed at 2026-11-09T12:20:00Z" in finding[0].text


def test_two_attempts_of_which_one_completed_overlap(hourly):
    second_attempt(hourly, "failed")
    assert said([each for each in hourly.probe() if not each.note]) == [("overlapping", "2026-11-09T12")]


def test_two_completions_in_one_generation_are_a_dupe_however_they_came_about(hourly):
    clean(hourly)
    key = hourly.run("2026-11-09T12", attempt=2)
    hourly.event("done", hourly.recorded(key).replace(attempt=1), at=at("2026-11-09T12:02:00Z"))
    assert said(hourly.probe()) == [("dupes", "2026-11-09T12")]


def test_a_rerun_by_request_is_a_note_and_no_dupe(hourly):
    clean(hourly)
    key = hourly.run("2026-11-09T12", attempt=2, generation=2, failures=0)
    run = hourly.recorded(key)
    hourly.event("done", run.replace(attempt=1, generation=1), at=at("2026-11-09T12:02:00Z"))
    hourly.event("rerun", run, at=at("2026-11-09T12:03:00Z"), reason="wrong data")
    note = only(hourly.probe())
    assert (note.bucket, note.note) == ("rerun", True)
    assert note.text == "rerun by request: wrong data (generation 2, attempt 2)"


def test_a_failure_and_then_done_is_a_note(hourly):
    clean(hourly)
    key = hourly.run("2026-11-09T12", attempt=2)
    hourly.event("failed", hourly.recorded(key).replace(attempt=1), at=at("2026-11-09T12:01:00Z"), reason="exit 1")
    note = only(hourly.probe())
    assert (note.bucket, note.note) == ("retried", True)
    assert note.text == "done at attempt 2: attempt 1 failed (exit 1)"


def test_a_release_is_a_note(hourly):
    clean(hourly)
    key = hourly.run("2026-11-09T12", reason="released as done: seen in the bank")
    hourly.event("released", hourly.recorded(key), at=at(NOW), reason="seen in the bank", data={"as": "done"})
    note = only(hourly.probe())
    assert note.text == "released as done at 2026-11-09T12:30:00Z: seen in the bank"


def test_runs_that_worked_at_the_same_time_overlap(hourly):
    hourly.run("2026-11-09T10", started="2026-11-09T10:00:05Z", seconds=4000)
    hourly.run("2026-11-09T11", started="2026-11-09T11:00:05Z")
    finding = only(hourly.probe())
    assert (finding.bucket, finding.window) == ("overlapping", "2026-11-09T11")
    assert "while 2026-11-09T10 was at work (2026-11-09T10:00:05Z until 2026-11-09T11:06:45Z)" in finding.text


def test_runs_may_overlap_where_that_is_allowed(hourly):
    hourly.run("2026-11-09T10", started="2026-11-09T10:00:05Z", seconds=4000)
    hourly.run("2026-11-09T11", started="2026-11-09T11:00:05Z")
    assert hourly.probe(spec=JobSpec("j", every="hour", overlap="allow", declared=True)) == []


def test_an_older_window_done_later_overlaps_nothing(hourly):
    hourly.run("2026-11-09T10", started="2026-11-09T12:00:05Z")
    hourly.run("2026-11-09T11", started="2026-11-09T11:00:05Z")
    assert hourly.probe() == []


def test_a_trigger_that_came_again_is_a_note_that_counts_the_triggers(hourly):
    clean(hourly)
    hourly.run("2026-11-09T12")
    hourly.skip("2026-11-09T12", "done")
    hourly.skip("2026-11-09T12", "busy")
    note = only(hourly.probe())
    assert (note.bucket, note.note) == ("repeated", True)
    assert note.text == "1 run, 3 triggers (1 busy, 1 done)"


def test_a_trigger_with_another_version_is_named(hourly):
    clean(hourly)
    hourly.run("2026-11-09T12", version="A")
    hourly.skip("2026-11-09T12", "done", version="B")
    assert "a trigger had a different version: B, and the run has A" in only(hourly.probe()).text


def test_a_trigger_with_the_same_version_is_not(hourly):
    clean(hourly)
    hourly.run("2026-11-09T12", version="A")
    hourly.skip("2026-11-09T12", "done", version="A")
    assert "version" not in only(hourly.probe()).text


def test_a_double_trigger_every_hour_is_one_line(hourly):
    hourly.hours("2026-11-09T00:00:00Z", "2026-11-09T12:00:00Z")
    for hour in range(12):
        hourly.skip(f"2026-11-09T{hour:02}", "done")
    found = hourly.probe("2026-11-09T00:00:00Z")
    assert said(found) == [("repeated", "2026-11-09T00 … 2026-11-09T11 (12 windows)")]
    assert found[0].text == "1 run, 2 triggers (1 done)"


# --- what does not fit ----------------------------------------------------------------------------------------------


def test_a_window_that_no_schedule_has_is_unexpected(hourly):
    clean(hourly)
    hourly.misnamed("2026-11-09T10:17", "2026-11-09T10:17:00Z", "2026-11-09T11:17:00Z")
    assert said(hourly.probe()) == [("unexpected", "2026-11-09T10:17")]


def test_a_known_start_under_a_foreign_key_is_unexpected(hourly):
    clean(hourly)
    hourly.misnamed("2026-W46", "2026-11-09T11:00:00Z", "2026-11-16T00:00:00Z", status="failed")
    assert ("unexpected", "2026-W46") in said(hourly.probe())


def test_a_run_in_the_future_of_the_clock_is_unexpected(hourly):
    clean(hourly)
    hourly.run("2038-01-01T00")
    finding = only(hourly.probe())
    assert (finding.bucket, finding.window) == ("unexpected", "2038-01-01T00")
    assert "the clock reads 2026-11-09T12:30:00Z" in finding.text


def test_an_early_trigger_is_not_the_future(hourly):
    clean(hourly)
    hourly.clock = at("2026-11-09T11:59:58Z")
    hourly.run("2026-11-09T12")
    assert hourly.probe(until="2026-11-09T11:59:58Z", now="2026-11-09T11:59:58Z") == []


# --- all of it ------------------------------------------------------------------------------------------------------


def test_a_bad_week_has_each_thing_in_its_own_bucket():
    planted = Planted("hour")
    planted.run("2026-11-09T00")
    planted.run("2026-11-09T01", "failed", exit=1)
    key = planted.run("2026-11-09T02", attempt=2)
    planted.event("failed", planted.recorded(key).replace(attempt=1), at=at("2026-11-09T02:01:00Z"), reason="exit 1")
    planted.run("2026-11-09T03", "failed", attempt=3, exit=1)
    planted.run("2026-11-09T04", "held", reason="crashed")
    planted.run("2026-11-09T05", "stopped", reason="429", resume_at=at("2026-11-09T06:00:00Z"))
    planted.run("2026-11-09T06", late=True)
    key = planted.run("2026-11-09T07", attempt=2)
    planted.event("lost", planted.recorded(key).replace(attempt=1), at=at("2026-11-09T07:30:00Z"), reason="done")
    planted.run("2026-11-09T08", "running", lease=-60)
    planted.run("2026-11-09T09", seconds=5000)
    planted.run("2026-11-09T10", started="2026-11-09T10:00:05Z", seconds=10)
    planted.misnamed(
        "2026-11-09T10:17", "2026-11-09T10:17:00Z", "2026-11-09T11:17:00Z", started_at=at("2026-11-09T11:40:00Z")
    )
    planted.run("2026-11-09T12", "running", lease=200, started="2026-11-09T12:00:05Z")
    planted.skip("2026-11-09T12", "busy")
    found = planted.probe("2026-11-09T00:00:00Z", now="2026-11-09T13:30:00Z")
    assert counted(found) == {
        "missing": 1,
        "zombies": 1,
        "dupes": 1,
        "failed": 1,
        "exhausted": 1,
        "held": 1,
        "stopped": 1,
        "late": 1,
        "running": 1,
        "overlapping": 1,
        "unexpected": 1,
        "repeated": 1,
    }
    assert {each.bucket for each in found if each.note} == {"running", "repeated", "retried"}


def test_findings_without_a_gist_are_never_made_a_range():
    found = [Finding("held", "j", f"w{n}", n, "held") for n in range(10)]
    assert in_ranges(found, lambda start: start) == found


def test_reading_changes_nothing(hourly):
    second_attempt(hourly, "done")
    before = (
        dict(hourly.store._runs),
        dict(hourly.store._leases),
        list(hourly.store._events),
        dict(hourly.store._jobs),
    )
    hourly.probe()
    assert before == (hourly.store._runs, hourly.store._leases, hourly.store._events, hourly.store._jobs)


def test_a_window_cut_short_by_a_new_version_was_never_to_run():
    planted = Planted("day")
    planted.run("2026-11-07")
    planted.declare("hour", valid_from="2026-11-09T09:00:00Z")
    planted.hours("2026-11-09T09:00:00Z", "2026-11-12T00:00:00Z")
    assert said(planted.probe("2026-11-07T00:00:00Z", "2026-11-12T00:00:00Z", now="2026-11-12T00:00:00Z")) == [
        ("missing", "2026-11-08")
    ]
