"""The ledger that a script kept: its windows are done here, its doubles are seen, its crashes wait for a person."""

from __future__ import annotations

import json
import tracemalloc

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ranonce.errors import ConfigError, UsageError
from tests.exchange.acting import brought, empty, everything, rehearsed, said, states, story

HOURLY = {"job": "job", "every": "hour"}
A, B, C = "2026-11-07T02", "2026-11-07T03", "2026-11-07T04"


@pytest.fixture
def ledger():
    return empty()


@pytest.fixture
def file(tmp_path):
    """A way to write the ledger's lines."""
    path = tmp_path / "runs.jsonl"

    def write(*lines):
        path.write_bytes(b"".join((line if isinstance(line, bytes) else line.encode()) + b"\n" for line in lines))
        return path

    return write


def test_done_is_done_failed_is_failed_and_a_start_alone_is_held(ledger, file):
    path = file(said("start", A), said("done", A), said("start", B), said("fail", B), said("start", C))
    report = brought(ledger, path, **HOURLY)
    assert (report.format, report.runs, report.events, report.bad) == ("lines", {"added": 3}, 7, 0)
    assert states(ledger) == {A: ("done", 1), B: ("failed", 1), C: ("held", 1)}
    assert story(ledger, C) == [("start", 1), ("expired", 1), ("held", 1)]


def test_unfinished_ones_can_be_tried_again_where_that_is_wanted(ledger, file):
    brought(ledger, file(said("start", A)), unfinished="failed", **HOURLY)
    (run,) = ledger.store.upkeep().all_runs()
    assert (run.status, run.attempt, run.failures) == ("failed", 1, 1)


@pytest.mark.parametrize(
    ("lines", "state", "events"),
    [
        (["start", "start", "done"], ("done", 2), "start expired start done"),
        (["start", "fail", "start", "done"], ("done", 2), "start failed start done"),
        (["done"], ("done", 1), "start done"),
        (["start", "done", "done"], ("done", 2), "start done start done"),
        (["start", "done", "start", "done"], ("done", 2), "start done start done"),
        (["start", "start", "done", "done"], ("done", 3), "start expired start done start done"),
        (["done", "fail"], ("done", 2), "start done start failed released"),
        (["start", "done", "start"], ("done", 2), "start done start expired released"),
        (["fail", "fail"], ("failed", 2), "start failed start failed"),
    ],
)
def test_what_a_window_went_through_is_told_attempt_by_attempt(ledger, file, lines, state, events):
    brought(ledger, file(*(said(event, A) for event in lines)), **HOURLY)
    assert states(ledger) == {A: state}
    assert " ".join(event for event, _ in story(ledger, A)) == events


def test_two_completions_are_seen_by_a_probe(ledger, file):
    from ranonce.probe import judge
    from ranonce.survey import Span, Survey
    from tests.exchange.acting import NOW

    brought(ledger, file(said("start", A), said("done", A), said("start", A), said("done", A)), **HOURLY)
    survey = Survey(ledger.store, None, NOW)
    job = survey.job("job", Span(NOW - 4 * 86400, NOW, usual=False), spec=None)
    dupes = [finding for finding in judge(job, survey.moment) if finding.bucket == "dupes"]
    assert [(finding.window, finding.text) for finding in dupes] == [(A, "completed 2 times, by attempts 1, 2")]


def test_the_same_file_twice_changes_nothing(ledger, file):
    path = file(*(said(event, A) for event in ("start", "done", "done", "fail", "start")), said("start", B))
    brought(ledger, path, **HOURLY)
    before = everything(ledger)
    report = brought(ledger, path, **HOURLY)
    assert (report.runs, report.events) == ({"same": 2}, 0)
    assert everything(ledger) == before


def test_a_file_that_has_grown_is_carried_on(ledger, file):
    lines = [said("start", A), said("done", A), said("start", B)]
    brought(ledger, file(*lines), **HOURLY)
    report = brought(ledger, file(*lines, said("done", B), said("start", C), said("done", C)), **HOURLY)
    assert (report.runs, report.events) == ({"same": 1, "advanced": 1, "added": 1}, 3)
    assert states(ledger) == {A: ("done", 1), B: ("done", 1), C: ("done", 1)}


@pytest.mark.parametrize(
    ("line", "why"),
    [
        (said("done", "2026-11-07"), "is not a window of 'hour'"),
        (said("done", "2026-11-07T25"), "is not a window of 'hour'"),
        (said("done", "2026-11-10T02"), "has not begun"),
        (said("done", "yesterday"), "is not a window of 'hour'"),
        (said("done", A + " "), "is not a window of 'hour'"),
        (said("done", "x" * 9000), "no key of a window"),
        (said("done", ""), "no key of a window"),
        (said("done", A, "2026-11-07T05:00:00"), "names no offset"),
        (said("done", A, "2026-11-07T24:00:00Z"), "24:00"),
        (said("done", A, "2026-13-07T05:00:00Z"), "not a day"),
        (said("done", A, "2027-11-07T05:00:00Z"), "ahead of the clock"),
        (said("done", A, "soon"), "not an RFC 3339 instant"),
        ('{"event":"done","window":"2026-11-07T02"}', "no ts"),
        ('{"event":"done","ts":"2026-11-07T05:00:00Z"}', "names no window"),
        ('{"event":"done","window":7,"ts":"2026-11-07T05:00:00Z"}', "window is 7"),
        ('{"event":"finished","window":"2026-11-07T02","ts":"2026-11-07T05:00:00Z"}', "event is 'finished'"),
        ('{"event":["done"],"window":"2026-11-07T02","ts":"2026-11-07T05:00:00Z"}', "event is ['done']"),
        ('{"event":"fail","window":"2026-11-07T02","event":"done","ts":"2026-11-07T05:00:00Z"}', "stands twice"),
        ("null", "no object"),
        (b"\xff\xfe", "not UTF-8"),
    ],
)
@pytest.mark.parametrize("spaced", [False, True])
def test_a_line_that_cannot_be_is_located_and_the_rest_comes_in(ledger, file, line, why, spaced):
    first = said("start", B)
    if spaced:
        first = json.dumps(json.loads(first))
    path = file(first, line, said("done", B))
    report = brought(ledger, path, **HOURLY)
    assert states(ledger) == {B: ("done", 1)}
    assert (report.bad, report.first_bad[0].line, report.first_bad[0].offset) == (1, 2, len(first) + 1)
    assert why in report.first_bad[0].why
    assert rehearsed(ledger, path, **HOURLY).first_bad == report.first_bad


def test_torn_at_any_byte_half_a_line_finishes_nothing(file):
    whole = said("done", A).encode()
    for cut in range(1, len(whole)):
        ledger = empty()
        report = brought(ledger, file(said("start", A), whole[:cut]), **HOURLY)
        assert (states(ledger), report.bad) == ({A: ("held", 1)}, 1), cut


def test_a_forged_text_is_a_text(ledger, file):
    forged = json.dumps({"event": "fail", "window": A, "ts": "2026-11-07T05:00:00Z", "note": said("done", A)})
    nested = json.dumps({"event": "fail", "window": B, "ts": "2026-11-07T05:00:00Z", "x": json.loads(said("done", B))})
    brought(ledger, file(forged, nested), **HOURLY)
    assert states(ledger) == {A: ("failed", 1), B: ("failed", 1)}


def test_other_fields_are_kept_as_data_and_decide_nothing(ledger, file):
    brought(ledger, file(said("done", A, hash="a1b2c3", exit=7, late=True, **{"as": "not-done"})), **HOURLY)
    *_, done = ledger.store.upkeep().all_events()
    assert done.data["fields"] == {"hash": "a1b2c3", "exit": 7, "late": True, "as": "not-done"}
    (run,) = ledger.store.upkeep().all_runs()
    assert (run.status, run.exit, run.late) == ("done", None, False)


@pytest.mark.parametrize("more", [{"x": "y" * 10_000}, {"x": float("nan")}, {"\ud800": 1}])
def test_fields_that_cannot_be_kept_do_not_cost_the_record(ledger, file, more):
    line = json.dumps({"event": "done", "window": A, "ts": "2026-11-07T05:00:00Z", **more})
    assert brought(ledger, file(line), **HOURLY).bad == 0
    assert states(ledger) == {A: ("done", 1)}


def test_a_record_in_a_deep_nest_is_bad_or_kept_never_a_traceback(ledger, file):
    for depth in (500, 990, 5000):
        line = said("done", A)[:-1] + ',"x":' + "[" * depth + "]" * depth + "}"
        assert brought(ledger, file(line, said("start", B)), **HOURLY).bad in (0, 1)


def test_the_job_may_stand_in_each_line_or_before_the_window(ledger, file):
    lines = [said("done", A, job="one"), said("done", f"two:{A}", "2026-11-07T05:00:00Z"), said("done", A)]
    report = brought(ledger, file(*lines), every="hour")
    assert {run.key.job for run in ledger.store.upkeep().all_runs()} == {"one", "two"}
    assert "names no job (--job)" in report.first_bad[0].why
    named = empty()
    brought(named, file(*lines[1:]), job="three", every="hour")
    assert [(run.key.job, run.attempt) for run in named.store.upkeep().all_runs()] == [("three", 2)]


def test_a_job_that_nobody_knows_needs_its_schedule(ledger, file):
    with pytest.raises(UsageError, match="does not know"):
        brought(ledger, file(said("done", A)), job="job")
    brought(ledger, file(said("done", A)), **HOURLY)
    brought(ledger, file(said("done", B)), job="job")
    assert list(states(ledger)) == [A, B]
    with pytest.raises(ConfigError, match="is recorded as"):
        brought(ledger, file(said("done", B)), job="job", every="day")


@pytest.mark.parametrize(
    ("every", "tz", "window", "key"),
    [
        ("day", "UTC", "2026-11-07", "2026-11-07"),
        ("day", "Europe/Berlin", "2026-11-07", "2026-11-07"),
        ("week", "UTC", "2026-W45", "2026-W45"),
        ("month", "UTC", "2026-10", "2026-10"),
        ("hour", "UTC", "2026-11-07T02:00:00Z", "2026-11-07T02"),
        ("hour", "Europe/Berlin", "2026-11-07T02+01:00", "2026-11-07T02+01:00"),
        ("30 2 * * *", "UTC", "2026-11-07T02:30Z", "2026-11-07T02:30Z"),
        ("30 2 * * *", "Europe/Berlin", "2026-11-07", "2026-11-07T01:30Z"),
        ("30 2 * * *", "UTC", "2026-11-07T03:30+01:00", "2026-11-07T02:30Z"),
    ],
)
def test_windows_are_those_of_the_schedule(ledger, file, every, tz, window, key):
    brought(ledger, file(said("done", window, "2026-11-08T00:00:00Z")), job="job", every=every, tz=tz)
    assert states(ledger) == {key: ("done", 1)}


@pytest.mark.parametrize(
    ("every", "window"),
    [
        ("day", A),
        ("day", "2026-11"),
        ("month", "2026-11-07"),
        ("week", "2026-11-07"),
        ("hour", "2026-11-07"),
        ("0 * * * *", "2026-11-07"),
        ("30 2 * * 1", "2026-11-07"),
        ("30 2 * * *", "2026-11-07T02:31Z"),
    ],
)
def test_windows_of_another_grain_are_bad_lines(ledger, file, every, window):
    report = brought(ledger, file(said("done", window, "2026-11-08T00:00:00Z")), job="job", every=every)
    assert (report.bad, states(ledger)) == (1, {})


def test_names_without_end_are_not_remembered(ledger, file):
    path = file(
        said("start", A), *(said("done", f"{number}{'k' * 500_000}", "2026-11-07T05:00:00Z") for number in range(40))
    )
    tracemalloc.start()
    try:
        assert brought(ledger, path, **HOURLY).bad == 40
        assert tracemalloc.get_traced_memory()[1] < 8 << 20
    finally:
        tracemalloc.stop()


def test_what_is_done_here_stays_done(ledger, file):
    brought(ledger, file(said("done", A)), **HOURLY)
    report = brought(ledger, file(said("start", A), said("fail", A)), **HOURLY)
    assert states(ledger) == {A: ("done", 1)}
    assert [(key.window, why) for key, why in report.left] == [(A, "kept")]


LINES = st.lists(
    st.tuples(st.sampled_from(["start", "done", "fail"]), st.sampled_from([A, B, C]), st.sampled_from(["", " ", "x"])),
    max_size=25,
)


@settings(max_examples=60, deadline=None)
@given(LINES, st.integers(1, 400))
def test_a_rehearsal_counts_what_an_import_brings(tmp_path_factory, told, block_bytes):
    from ranonce.exchange import importing, lines

    path = tmp_path_factory.mktemp("told") / "runs.jsonl"
    written = [said(event, window) for event, window, _ in told]
    written = [json.dumps(json.loads(line)) if how else line for line, (_, _, how) in zip(written, told, strict=True)]
    path.write_text("".join(f"{line}\n" for line in written))
    ledger = empty()
    before = lines.BLOCK_BYTES, importing.BATCH
    lines.BLOCK_BYTES, importing.BATCH = block_bytes, 2
    try:
        if told:
            counted = rehearsed(ledger, path, **HOURLY).windows
            brought(ledger, path, **HOURLY)
            again = brought(ledger, path, **HOURLY)
            assert again.events == 0
        else:
            counted = {"windows": 0, "done": 0, "failed": 0, "unfinished": 0, "dupes": 0}
    finally:
        lines.BLOCK_BYTES, importing.BATCH = before
    statuses = [run.status for run in ledger.store.upkeep().all_runs()]
    names = {"done": "done", "failed": "failed", "held": "unfinished"}
    assert counted["windows"] == len(statuses)
    for status, name in names.items():
        assert counted[name] == statuses.count(status), (told, statuses)
    dones = [(window, event) for event, window, _ in told if event == "done"]
    assert counted["dupes"] == sum(dones.count((window, "done")) > 1 for window in (A, B, C))
