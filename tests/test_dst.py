"""What happens to schedules when the local clock changes: real schedulers, listed row by row, and a reference."""

from __future__ import annotations

import csv
import os
import subprocess
import sys
from datetime import datetime
from pathlib import Path
from zoneinfo import ZoneInfo

import pytest

from ranonce.timefmt import DAY, format_instant, parse_instant
from ranonce.windows import Schedule, choose
from tests.cron_reference import LocalMinutes

DIALECTS = {
    "debian cron 3.0pl1-162": "debian",
    "systemd 252": "systemd",
    "robfig/cron 3.0.1 (go1.19)": "kubernetes",
}
with (Path(__file__).parent / "data" / "dst_expected.csv").open(newline="") as rows:
    ROWS = [row for row in csv.DictReader(rows) if row["implementation"] in DIALECTS]


def texts(instants):
    return [format_instant(t, precision="min") for t in instants]


def at(text):
    return int(parse_instant(text))


def local(zone, text):
    return int(datetime.fromisoformat(text).replace(tzinfo=ZoneInfo(zone)).timestamp())


def recorded_span(row):
    """The rows list what fired from 01:00 to 05:00 of the local clock."""
    return local(row["zone"], f"{row['local_date']}T01:00"), local(row["zone"], f"{row['local_date']}T05:00")


def test_the_list_has_54_rows_of_each_scheduler():
    assert len(ROWS) == 3 * 54


@pytest.mark.parametrize(
    "row", ROWS, ids=lambda row: f"{row['zone']} {row['local_date']} {row['cron']} {DIALECTS[row['implementation']]}"
)
def test_each_scheduler_fires_as_it_was_recorded(row):
    schedule = Schedule(row["cron"], row["zone"], DIALECTS[row["implementation"]])
    fires = schedule.fires(*recorded_span(row))
    assert texts(fires) == row["utc_instants"].split()
    assert len(fires) == int(row["count"])


@pytest.mark.parametrize("row", ROWS, ids=lambda row: f"{row['zone']} {row['local_date']} {row['cron']}")
def test_ticks_are_debians_whatever_the_dialect(row):
    span = recorded_span(row)
    ticks = Schedule(row["cron"], row["zone"]).starts(*span)
    schedule = Schedule(row["cron"], row["zone"], DIALECTS[row["implementation"]])
    assert schedule.starts(*span) == ticks
    assert set(schedule.expected(*span)) <= set(ticks)
    for fire in schedule.fires(*span):
        assert schedule.window_at(fire).start in schedule.expected(fire - 7 * DAY, fire + 1)


CHANGES = [
    ("Europe/Berlin", "2026-03-29"),
    ("Europe/Berlin", "2026-10-25"),
    ("Europe/London", "2026-03-29"),
    ("America/New_York", "2026-03-08"),
    ("America/New_York", "2026-11-01"),
    ("Australia/Lord_Howe", "2026-04-05"),
    ("Australia/Lord_Howe", "2026-10-04"),
    ("Antarctica/Troll", "2026-03-29"),  # two hours
    ("Antarctica/Troll", "2026-10-25"),
    ("Africa/Cairo", "2026-04-24"),  # no midnight
    ("Africa/Cairo", "2026-10-30"),  # midnight comes back to 23:00
    ("Asia/Beirut", "2026-03-29"),
    ("Asia/Beirut", "2026-10-25"),
    ("America/Havana", "2026-03-08"),
    ("America/Havana", "2026-11-01"),  # midnight twice
    ("America/Santiago", "2026-04-05"),
    ("America/Santiago", "2026-09-06"),
    ("Pacific/Chatham", "2026-09-27"),
    ("Pacific/Apia", "2011-12-30"),  # a date that was skipped
    ("Antarctica/Casey", "2020-10-04"),  # three hours forward: a jump
    ("Antarctica/Casey", "2021-03-14"),  # three hours back: not yet one
    ("Pacific/Kwajalein", "1969-09-30"),  # 23 hours back: a jump
]
RULES = ["0 0 * * *", "30 0 * * *", "0,20,40 0-3 * * *", "59 23 * * *", "30 1 * * *", "0 2 * * *", "15 1-23/2 * * *"]
RULES += ["0 * * * *", "*/20 2 * * *", "30 */2 * * *", "0 1 * * 0", "1 0 30 * *"]


@pytest.mark.parametrize(("zone", "day"), CHANGES)
def test_ticks_equal_a_minute_by_minute_run_of_debians_two_clocks(zone, day):
    middle = at(f"{day}T12:00Z")
    minutes = LocalMinutes(zone, middle - 2 * DAY, middle + 2 * DAY)
    for rule in RULES:
        ticks = [t for t in minutes.debian_ticks(rule) if t >= middle - DAY]
        assert list(Schedule(rule, zone).starts(middle - DAY, middle + 2 * DAY)) == ticks, rule


def test_troll_skips_and_repeats_two_hours():
    night = Schedule("30 1,2 * * *", "Antarctica/Troll")
    assert texts(night.starts(at("2026-03-29T00:00Z"), at("2026-03-29T12:00Z"))) == ["2026-03-29T01:00Z"]
    assert texts(night.starts(at("2026-10-24T12:00Z"), at("2026-10-25T12:00Z"))) == [
        "2026-10-24T23:30Z",
        "2026-10-25T00:30Z",
    ]


def test_systemd_loses_the_hour_behind_a_change_of_two():
    timer = Schedule("12 2,3,4 * * *", "Antarctica/Troll", "systemd")
    assert texts(timer.fires(at("2026-03-29T00:00Z"), at("2026-03-29T12:00Z"))) == ["2026-03-29T02:12Z"]


def test_a_kubernetes_walk_may_leap_over_months_from_a_missing_midnight():
    """Found in robfig/cron 3.0.1: the first of October 2023 had no midnight in Asunción, and February is skipped."""
    job = Schedule("29,45 1,4 * 2,7,9 */2", "America/Asuncion", "kubernetes")
    since = at("2023-09-30T08:00Z")
    expected = ["2023-09-30T08:29Z", "2023-09-30T08:45Z", "2023-10-01T04:29Z", "2024-07-04T05:29Z"]
    assert texts(job.fires(since, at("2024-07-04T05:30Z"))) == expected
    assert texts(job.fires(at("2023-11-01T00:00Z"), at("2024-07-04T05:30Z"))) == expected[-1:]


def test_a_kubernetes_walk_that_would_never_end_goes_on():
    """robfig/cron 3.0.1 hangs here: clocks in St. John's went back at 00:01."""
    job = Schedule("50 0,3 * * *", "America/St_Johns", "kubernetes")
    assert texts(job.fires(at("2007-11-04T12:00Z"), at("2007-11-05T12:00Z"))) == [
        "2007-11-05T04:20Z",
        "2007-11-05T07:20Z",
    ]
    assert job.fires(at("2011-12-29T00:00Z"), at("2011-12-30T00:00Z"))
    skipped_date = Schedule("0 5 * * 1", "Pacific/Apia", "kubernetes")
    assert texts(skipped_date.fires(at("2011-12-27T00:00Z"), at("2012-01-03T00:00Z"))) == ["2012-01-01T15:00Z"]


def test_kubernetes_does_not_take_a_stepped_day_for_a_star():
    since, until = at("2026-11-01T00:00Z"), at("2026-11-08T00:00Z")
    either = Schedule("0 0 */2 * 1", dialect="kubernetes")
    assert texts(either.fires(since, until)) == [f"2026-11-0{day}T00:00Z" for day in (1, 2, 3, 5, 7)]
    assert texts(Schedule("0 0 */2 * 1").fires(since, until)) == []


@pytest.mark.parametrize(
    ("zone", "day", "start", "hours"),
    [
        ("Europe/Berlin", "2026-03-29", "2026-03-28T23:00Z", 23),
        ("Europe/Berlin", "2026-10-25", "2026-10-24T22:00Z", 25),
        ("Africa/Cairo", "2026-04-24", "2026-04-23T22:00Z", 23),  # starts at 01:00
        ("Africa/Cairo", "2026-10-29", "2026-10-28T21:00Z", 25),
        ("Asia/Beirut", "2026-03-29", "2026-03-28T22:00Z", 23),
        ("Asia/Beirut", "2026-10-24", "2026-10-23T21:00Z", 25),
        ("America/Havana", "2026-03-08", "2026-03-08T05:00Z", 23),
        ("America/Havana", "2026-11-01", "2026-11-01T04:00Z", 25),  # starts at the first of two midnights
        ("America/Santiago", "2026-09-06", "2026-09-06T04:00Z", 23),
        ("America/Santiago", "2026-04-04", "2026-04-04T03:00Z", 25),
        ("Australia/Lord_Howe", "2026-04-05", "2026-04-04T13:00Z", 24.5),
        ("Australia/Lord_Howe", "2026-10-04", "2026-10-03T13:30Z", 23.5),
        ("Antarctica/Troll", "2026-03-29", "2026-03-29T00:00Z", 22),
        ("Pacific/Apia", "2011-12-29", "2011-12-29T10:00Z", 24),
        ("Pacific/Apia", "2011-12-31", "2011-12-30T10:00Z", 24),
        ("Pacific/Kwajalein", "1969-09-30", "1969-09-29T13:00Z", 47),  # the date came twice
        ("Asia/Kathmandu", "2026-11-07", "2026-11-06T18:15Z", 24),
    ],
)
def test_a_local_day_starts_at_its_first_instant(zone, day, start, hours):
    window = Schedule("day", zone).window(day)
    assert (format_instant(window.start, precision="min"), (window.end - window.start) / 3600) == (start, hours)


def test_a_skipped_date_is_no_window():
    days = Schedule("day", "Pacific/Apia")
    assert days.after(days.window("2011-12-29")).key == "2011-12-31"
    with pytest.raises(Exception, match="'2011-12-30' is not a window of 'day' in Pacific/Apia"):
        days.window("2011-12-30")


def test_a_repeated_hour_is_two_windows_and_a_skipped_one_none():
    hours = Schedule("hour", "Europe/Berlin")
    keys = [window.key for window in hours.windows(at("2026-10-24T23:00Z"), at("2026-10-25T03:00Z"))]
    assert keys == ["2026-10-25T01+02:00", "2026-10-25T02+02:00", "2026-10-25T02+01:00", "2026-10-25T03+01:00"]
    keys = [window.key for window in hours.windows(at("2026-03-29T00:00Z"), at("2026-03-29T02:00Z"))]
    assert keys == ["2026-03-29T01+01:00", "2026-03-29T03+02:00"]


def test_a_change_by_half_an_hour_makes_an_hour_of_ninety_minutes():
    hours = Schedule("hour", "Australia/Lord_Howe")
    for since, keys in [
        ("2026-04-04T14:00Z", ["2026-04-05T01+11:00", "2026-04-05T02+10:30"]),
        ("2026-10-03T14:30Z", ["2026-10-04T01+10:30", "2026-10-04T03+11:00"]),
    ]:
        windows = hours.windows(at(since), at(since) + 2 * 3600)
        assert [window.key for window in windows] == keys
        assert windows[0].end - windows[0].start == 90 * 60


def test_the_second_pass_falls_into_the_window_of_the_first():
    job = Schedule("30 2 * * *", "Europe/Berlin", "kubernetes")
    first, second = job.fires(at("2026-10-25T00:00Z"), at("2026-10-25T12:00Z"))
    assert job.window_at(second) == job.window_at(first) == job.window("2026-10-25T00:30Z")
    assert choose(job, now=second + 20, scheduled_at=second).window.start == first
    environ = {"CRONJOB_SCHEDULED_TIMESTAMP": "2026-10-25T02:30:00+01:00"}
    assert choose(job, now=second + 20, environ=environ).window.start == first


def test_a_night_without_a_fire_is_not_expected():
    night = (at("2026-03-29T00:00Z"), at("2026-03-29T12:00Z"))
    assert Schedule("30 2 * * *", "Europe/Berlin", "systemd").expected(*night) == []
    assert Schedule("30 2 * * *", "Europe/Berlin", "kubernetes").expected(*night) == []
    assert texts(Schedule("30 2 * * *", "Europe/Berlin").expected(*night)) == ["2026-03-29T01:00Z"]


def test_systemd_is_not_expected_in_the_second_pass_of_an_hour_but_on_every_day():
    hours = Schedule("hour", "Europe/Berlin", "systemd")
    expected = hours.expected(at("2026-10-25T00:00Z"), at("2026-10-25T03:00Z"))
    assert texts(expected) == ["2026-10-25T00:00Z", "2026-10-25T02:00Z"]
    days = Schedule("day", "Asia/Beirut", "systemd")
    span = (at("2026-03-28T00:00Z"), at("2026-03-31T00:00Z"))
    assert days.fires(*span) == [at("2026-03-29T21:00Z"), at("2026-03-30T21:00Z")]
    assert days.expected(*span) == days.starts(*span) and len(days.starts(*span)) == 3


@pytest.mark.parametrize(
    ("rule", "zone"), [("30 0 * * *", "Europe/London"), ("30 2 * * *", "Europe/Berlin"), ("day", "America/Havana")]
)
def test_a_nightly_job_has_one_window_for_each_local_day(rule, zone):
    schedule = Schedule(rule, zone)
    starts = schedule.starts(local(zone, "2026-01-01T00:00"), local(zone, "2027-01-01T00:00"))
    dates = [datetime.fromtimestamp(start, ZoneInfo(zone)).date() for start in starts]
    assert len(dates) == len(set(dates)) == 365


def test_the_zones_of_the_tzdata_package_give_the_same_windows():
    program = (
        "from ranonce.windows import Schedule\n"
        "for zone in ('Europe/Berlin', 'Australia/Lord_Howe', 'America/Havana', 'Pacific/Apia'):\n"
        "    for rule in ('hour', 'day', '30 2 * * *'):\n"
        "        print(list(Schedule(rule, zone).starts(1325000000, 1420000000)))\n"
    )
    runs = [
        subprocess.run([sys.executable, "-c", program], env=env, capture_output=True, text=True, check=True).stdout
        for env in (dict(os.environ), {**os.environ, "PYTHONTZPATH": ""})
    ]
    assert runs[0] == runs[1]
    assert len(runs[0]) > 1_000_000
