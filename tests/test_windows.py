"""Schedules, windows and keys: how they tile the time line, what is refused, and which window a trigger is for."""

from __future__ import annotations

import random
import subprocess
import sys
from bisect import bisect_right

import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from ranonce.errors import ConfigError, UsageError
from ranonce.timefmt import DAY, FIRST_INSTANT, INSTANTS_END, format_instant, parse_instant
from ranonce.windows import Schedule, Window, choose, due
from tests.cron_reference import utc_ticks

HOUR = 3600
ZONES = [
    "UTC",
    "Europe/Berlin",
    "America/New_York",
    "America/Havana",
    "America/St_Johns",
    "America/Santiago",
    "Asia/Beirut",
    "Asia/Kathmandu",
    "Africa/Casablanca",
    "Africa/Monrovia",  # an offset with seconds until 1972
    "Australia/Lord_Howe",
    "Pacific/Chatham",
    "Pacific/Apia",
    "Pacific/Kwajalein",
    "Antarctica/Troll",
    "Antarctica/Casey",
]


def at(text):
    return int(parse_instant(text))


def texts(instants):
    return [format_instant(t, precision="min") for t in instants]


def fields(low, high):
    number = st.integers(low, high)
    spans = st.tuples(number, number).map(lambda pair: f"{min(pair)}-{max(pair)}")
    steps = st.integers(1, high - low + 1)
    part = st.one_of(number.map(str), spans, st.tuples(spans, steps).map(lambda pair: f"{pair[0]}/{pair[1]}"))
    starred = st.one_of(st.just("*"), st.just("*"), steps.map(lambda step: f"*/{step}"))
    return st.one_of(starred, st.lists(part, min_size=1, max_size=3).map(",".join))


# Day 1 to 28 only, so that no rule is refused because it never matches.
CRON = st.tuples(fields(0, 59), fields(0, 23), fields(1, 28), fields(1, 12), fields(0, 7)).map(" ".join)
EVERY = st.one_of(st.sampled_from(["hour", "day", "week", "month", "30 2 * * *", "0 * * * *", "*/15 * * * *"]), CRON)
SCHEDULES = st.builds(Schedule, EVERY, st.sampled_from(ZONES), st.sampled_from(["debian", "systemd", "kubernetes"]))
INSTANTS = st.one_of(
    st.integers(at("2000-01-01T00:00Z"), at("2040-01-01T00:00Z")),
    st.integers(at("0100-01-01T00:00Z"), at("9900-01-01T00:00Z")),
    st.floats(0, 4e9),
)


# windows tile the time line


@given(SCHEDULES, INSTANTS)
@settings(deadline=None)
def test_windows_tile_the_time_line_and_keys_lead_back_to_them(schedule, t):
    window = schedule.window_at(t)
    following = schedule.after(window)
    assert window.start <= t < window.end == following.start < following.end
    assert schedule.before(following) == window
    assert schedule.key(window.start) == window.key != following.key
    assert schedule.window(window.key) == window
    assert schedule.window_at(window.start) == schedule.window_at(window.end - 1) == window
    assert list(schedule.starts(window.start, following.end)) == [window.start, following.start]


@given(SCHEDULES, INSTANTS, st.integers(0, 4 * DAY))
@settings(deadline=None)
def test_the_starts_of_a_span_are_those_of_its_windows(schedule, since, length):
    until = since + length
    starts = list(schedule.starts(since, until))
    assert starts == sorted(set(starts))
    walked = [schedule.window_at(since)] if not starts or starts[0] != since else []
    while len(walked) < 50 and (not walked or walked[-1].end < until):
        walked.append(schedule.after(walked[-1]) if walked else schedule.window_at(since))
    begun = [window.start for window in walked if since <= window.start < until]
    assert starts[: len(begun)] == begun
    assert len(begun) == len(starts) or len(walked) == 50
    windows = schedule.windows(since, until)
    assert [window.start for window in windows] == starts
    assert len({window.key for window in windows}) == len(starts)


@given(SCHEDULES, st.integers(at("2005-01-01T00:00Z"), at("2035-01-01T00:00Z")))
@settings(deadline=None, max_examples=60)
def test_what_is_expected_are_windows_in_which_the_scheduler_fires(schedule, since):
    until = since + 3 * DAY
    expected = list(schedule.expected(since, until))
    starts = schedule.starts(since, until)
    assert set(expected) <= set(starts)
    if schedule.every in ("day", "week", "month"):
        assert expected == list(starts)
    elif starts:
        end = schedule.window_at(starts[-1]).end
        fires = schedule.fires(starts[0], end)
        assert fires == sorted(set(fires))
        assert expected == sorted({starts[bisect_right(starts, fire) - 1] for fire in fires})
        for fire in fires[:5]:
            assert schedule.window_at(fire).start in expected


@given(CRON, st.integers(at("2020-01-01T00:00Z"), at("2032-01-01T00:00Z")), st.integers(0, 3 * DAY))
@settings(deadline=None, max_examples=60)
def test_a_cron_rule_in_utc_names_the_minutes_that_match(rule, since, length):
    assert list(Schedule(rule).starts(since, since + length)) == utc_ticks(rule, since, since + length)
    assert list(Schedule(rule).fires(since, since + length)) == utc_ticks(rule, since, since + length)


@given(fields(1, 31), fields(1, 12), fields(0, 7), st.integers(at("2020-01-01T00:00Z"), at("2032-01-01T00:00Z")))
@settings(deadline=None, max_examples=40)
def test_the_day_fields_match_as_in_debians_cron(days, months, weekdays, since):
    rule = f"0 0 {days} {months} {weekdays}"
    try:
        schedule = Schedule(rule)
    except ConfigError:
        assume(False)
    midnights = range(-(-since // DAY) * DAY, since + 500 * DAY, DAY)
    assert list(schedule.starts(since, since + 500 * DAY)) == [t for t in midnights if utc_ticks(rule, t, t + 1)]


# keys


@pytest.mark.parametrize(
    ("every", "tz", "key", "start", "end"),
    [
        ("hour", "UTC", "2026-11-07T02", "2026-11-07T02:00Z", "2026-11-07T03:00Z"),
        ("day", "UTC", "2026-11-07", "2026-11-07T00:00Z", "2026-11-08T00:00Z"),
        ("week", "UTC", "2026-W45", "2026-11-02T00:00Z", "2026-11-09T00:00Z"),
        ("week", "UTC", "2026-W53", "2026-12-28T00:00Z", "2027-01-04T00:00Z"),
        ("month", "UTC", "2026-11", "2026-11-01T00:00Z", "2026-12-01T00:00Z"),
        ("30 2 * * *", "UTC", "2026-11-07T02:30Z", "2026-11-07T02:30Z", "2026-11-08T02:30Z"),
        ("hour", "Europe/Berlin", "2026-11-07T02+01:00", "2026-11-07T01:00Z", "2026-11-07T02:00Z"),
        ("day", "Asia/Tokyo", "2026-11-07", "2026-11-06T15:00Z", "2026-11-07T15:00Z"),
        ("week", "America/New_York", "2026-W44", "2026-10-26T04:00Z", "2026-11-02T05:00Z"),
        ("month", "Europe/Berlin", "2026-10", "2026-09-30T22:00Z", "2026-10-31T23:00Z"),
        ("30 2 * * *", "Europe/Berlin", "2026-11-07T01:30Z", "2026-11-07T01:30Z", "2026-11-08T01:30Z"),
    ],
)
def test_each_grain_has_its_form_of_key(every, tz, key, start, end):
    schedule = Schedule(every, tz)
    assert schedule.window(key) == Window(key, at(start), at(end)) == schedule.window_at(at(start))


BAD_KEYS = ["", " ", "yesterday", "2026-13-45T99", ".*", "2026-11-07T.2", "[", '"', "2026-11-07T02:31Z", "1794018600"]
BAD_KEYS += [
    'A","event":"done',
    "2026-11-07 ",
    " 2026-11-07",
    "2026-11-07\n",
    "2026-11-07T02\n",
    "2026-11\x00",
    "x" * 9000,
]
BAD_KEYS += [
    "２０２６-11-07",
    "2026-11-0７T02",
    "٢٠٢٦-W45",
    "2026-W45-1",
    "2026-W54",
    "2025-W53",
    "2026-W00",
    "2026-w45",
]
BAD_KEYS += [
    "2026-02-30",
    "2026-00",
    "2026-13",
    "0000-11",
    "20261107",
    "2026-1",
    "+026-11",
    "2026-11-07T24",
    "2026-11-07t02",
]
BAD_KEYS += ["2026-11-07T02+00:00", "2026-11-07T2", "2026-11-07T02:30", "2026-11-07T02:30z", "2026-11-07T02:30:00Z"]
BAD_KEYS += ["2026-11-07T03:30+01:00", "2026-11-07T02:30:00.5Z", "9999-99", "99999-01", "\ud800", "2026-11-07T02\u2028"]


@pytest.mark.parametrize("every", ["hour", "day", "week", "month", "30 2 * * *"])
@pytest.mark.parametrize("tz", ["UTC", "Europe/Berlin"])
def test_what_is_no_key_of_a_schedule_is_refused(every, tz):
    schedule = Schedule(every, tz)
    for key in BAD_KEYS:
        with pytest.raises(UsageError) as refused:
            schedule.window(key)
        assert "is not a window of" in refused.value.sentence
        assert len(str(refused.value)) < 300 and "\n" not in str(refused.value)
        example = refused.value.next_step.removesuffix(".").rpartition(" ")[2]
        assert schedule.window(example).key == example


@pytest.mark.parametrize("key", [None, 5, b"2026-11-07"])
def test_a_key_that_is_no_text_is_refused(key):
    with pytest.raises(UsageError):
        Schedule("day").window(key)


def test_a_key_of_another_grain_is_refused():
    keys = {every: Schedule(every).window_at(at("2026-11-07T02:30Z")).key for every in ("hour", "day", "week", "month")}
    keys["30 2 * * *"] = "2026-11-07T02:30Z"
    for every in keys:
        for grain, key in keys.items():
            if grain != every:
                with pytest.raises(UsageError):
                    Schedule(every).window(key)


def test_the_example_for_a_time_between_two_ticks_is_the_window_that_holds_it():
    with pytest.raises(UsageError, match="for example 2026-11-07T02:30Z"):
        Schedule("30 2 * * *").window("2026-11-07T02:31Z")
    with pytest.raises(UsageError, match=r"for example 2026-10-25T02\+01:00"):
        Schedule("hour", "Europe/Berlin").window("2026-10-25T03+02:00")


# rules, zones and dialects


@pytest.mark.parametrize(
    ("alias", "rule"),
    [
        ("@hourly", "0 * * * *"),
        ("@daily", "0 0 * * *"),
        ("@midnight", "0 0 * * *"),
        ("@weekly", "0 0 * * 0"),
        ("@monthly", "0 0 1 * *"),
        ("@yearly", "0 0 1 1 *"),
        ("@annually", "0 0 1 1 *"),
        ("@Daily", "0 0 * * *"),
        ("30  2\t* * MON-Fri", "30 2 * * 1-5"),
        ("0 2 * * 7", "0 2 * * sun"),
        ("0 2 * * 5-7", "0 2 * * 0,5,6"),
        ("0 2 1 jan,dec *", "0 2 1 1,12 *"),
        ("0-59/30 2 * * *", "0,30 2 * * *"),
    ],
)
def test_spellings_of_one_rule_are_one_schedule(alias, rule):
    assert Schedule(alias) == Schedule(rule)
    assert hash(Schedule(alias)) == hash(Schedule(rule))
    assert Schedule(Schedule(alias).every) == Schedule(alias)


def test_schedules_that_differ_in_meaning_are_not_equal():
    schedules = {
        Schedule("day"),
        Schedule("0 0 * * *"),
        Schedule("day", "Europe/Berlin"),
        Schedule("day", dialect="systemd"),
        Schedule("* * * * *"),
        Schedule("0-59 * * * *"),  # the same as the one before: its hour starts with a star
        Schedule("0-59 0-23 * * *"),  # fixed to the local clock, not by elapsed time
    }
    assert len(schedules) == 6
    assert Schedule("day") != "day"
    assert Schedule("day", "Etc/UTC") == Schedule("day")
    assert repr(Schedule("@daily")) == "Schedule('0 0 * * *', tz='UTC', dialect='debian')"


@pytest.mark.parametrize(
    ("every", "says"),
    [
        ("", "is not a schedule"),
        ("daily", "is not a schedule"),
        ("hour ly", "has 2 fields"),
        ("5m", "is not a schedule"),
        ("@reboot", "names no time"),
        ("@every 5m", "not a rule known here"),
        ("@", "not a rule known here"),
        ("0 2 * *", "has 4 fields"),
        ("0 0 2 * * *", "has 6 fields.*Seconds and years"),
        ("0 0 2 * * * 2026", "has 7 fields.*Seconds and years"),
        ("60 2 * * *", "minute field '60'.*not one of 0-59"),
        ("0 24 * * *", "hour field"),
        ("0 2 0 * *", "day-of-month field"),
        ("0 2 32 * *", "day-of-month field"),
        ("0 2 * 13 *", "month field"),
        ("0 2 * foo *", "month field.*or a name"),
        ("0 2 * * 8", "day-of-week field"),
        ("jan 2 * * *", "minute field"),
        ("5-64/30 * * * *", "not one of 0-59"),
        ("5/10 * * * *", "step after a single value"),
        ("*/0 * * * *", "step that is not a number from 1 to 60"),
        ("*/90 * * * *", "step that is not a number from 1 to 60"),
        ("*/ * * * *", "step"),
        ("*/x * * * *", "step"),
        ("30-10 * * * *", "runs backwards"),
        ("0 2 * * fri-sun", "runs backwards; Sunday at the end is 7"),
        ("1,,2 * * * *", "minute field"),
        ("1, * * * *", "minute field"),
        ("- * * * *", "minute field"),
        ("-5 * * * *", "minute field"),
        ("? * * * *", "minute field"),
        ("0 2 L * *", "day-of-month field"),
        ("0 2 * * 1#2", "day-of-week field"),
        ("٣ 2 * * *", "characters that cron does not know"),
        ("0 2 * * *\n", "characters that cron does not know"),
        ("0\u00a02 * * *", "characters that cron does not know"),
        ("0 2 * * \x00", "characters that cron does not know"),
        ("9" * 9000 + " 2 * * *", "minute field"),
        ("0 0 31 2 *", "never matches"),
        ("0 0 30 feb *", "never matches"),
        ("0 0 31 4,6,9,11 *", "never matches"),
        ("*-*-* 02:00:00", "has 2 fields"),
    ],
)
def test_a_rule_that_cannot_be_used_is_refused_with_a_sentence(every, says):
    with pytest.raises(ConfigError, match=says) as refused:
        Schedule(every)
    assert refused.value.next_step
    assert len(str(refused.value)) < 400


@pytest.mark.parametrize("every", [None, 5, ["day"]])
def test_a_rule_that_is_no_text_is_refused(every):
    with pytest.raises(ConfigError, match="A schedule was expected"):
        Schedule(every)


def test_a_date_that_never_comes_is_no_fault_when_a_weekday_may_come_instead():
    assert texts(Schedule("0 0 31 2 1").starts(at("2026-02-01T00:00Z"), at("2026-02-12T00:00Z"))) == [
        "2026-02-02T00:00Z",
        "2026-02-09T00:00Z",
    ]


BAD_ZONES = [
    "",
    " ",
    "Mars/Olympus",
    "localtime",
    "posixrules",
    "Factory",
    "posix/Europe/Berlin",
    "right/Europe/Berlin",
]
BAD_ZONES += [
    "/etc/passwd",
    "/usr/share/zoneinfo/Europe/Berlin",
    "../Europe/Berlin",
    "Europe/../UTC",
    "Europe",
    "Europe/",
]
BAD_ZONES += [
    "Europe/Berlin\n",
    " Europe/Berlin",
    "Europe/Berlin\x00",
    "tzdata.zi",
    "leapseconds",
    "Z",
    "+01:00",
    "x" * 9000,
]
BAD_ZONES += ["Europe//Berlin", "Ｅurope/Berlin", "Europe/Bérlin", "CEST-2", "\ud800", None, 5, ["UTC"]]


@pytest.mark.parametrize("tz", BAD_ZONES, ids=lambda tz: repr(tz)[:30])
def test_what_is_no_zone_is_refused(tz):
    with pytest.raises(ConfigError, match=r"time zone") as refused:
        Schedule("day", tz)
    assert "Europe/Berlin" in refused.value.next_step
    assert len(str(refused.value)) < 300


@pytest.mark.parametrize("dialect", ["", "cron", "Debian", None, ["debian"]])
def test_what_is_no_dialect_is_refused(dialect):
    with pytest.raises(ConfigError, match="is not a dialect"):
        Schedule("day", dialect=dialect)


# the bounds


def test_a_leap_day_rule_is_found_across_a_century_without_one():
    leap = Schedule("0 0 29 2 *")
    assert leap.window_at(at("2100-06-01T00:00Z")) == Window(
        "2096-02-29T00:00Z", at("2096-02-29T00:00Z"), at("2104-02-29T00:00Z")
    )
    assert Schedule("0 0 29 2 *", "Europe/Berlin").window("2096-02-28T23:00Z").end == at("2104-02-28T23:00Z")


def test_a_leap_day_on_one_weekday_is_found_forty_years_on():
    window = Schedule("0 0 29 2 */7").window_at(at("2100-01-01T00:00Z"))
    assert (window.key, format_instant(window.end, precision="min")) == ("2088-02-29T00:00Z", "2128-02-29T00:00Z")


@pytest.mark.parametrize("tz", ["UTC", "Pacific/Apia", "America/New_York"])
@pytest.mark.parametrize("every", ["hour", "day", "week", "month", "30 2 * * *", "0 0 29 2 *"])
@pytest.mark.parametrize("dialect", ["debian", "systemd", "kubernetes"])
def test_the_ends_of_the_calendar_are_refused_without_a_traceback(every, tz, dialect):
    schedule = Schedule(every, tz, dialect)
    for t in (FIRST_INSTANT - 60, INSTANTS_END, 1e300, -1e300, float("nan"), float("inf")):
        for use in (schedule.window_at, lambda t: schedule.starts(0, t + 1), lambda t: choose(schedule, now=t)):
            with pytest.raises(UsageError):
                use(t)
    with pytest.raises(UsageError, match="after the year 9999"):
        schedule.window_at(INSTANTS_END - 1)
    assert schedule.starts(INSTANTS_END - 400 * DAY, INSTANTS_END) or every == "0 0 29 2 *"
    assert list(schedule.starts(FIRST_INSTANT, FIRST_INSTANT + 5 * 366 * DAY))
    schedule.fires(INSTANTS_END - 40 * DAY, INSTANTS_END)
    schedule.fires(FIRST_INSTANT, FIRST_INSTANT + 40 * DAY)
    schedule.expected(INSTANTS_END - 800 * DAY, INSTANTS_END - 400 * DAY)
    try:
        schedule.window_at(FIRST_INSTANT)
    except UsageError as refused:
        assert "No window of" in refused.sentence


def test_more_ticks_than_fit_into_memory_are_refused():
    for schedule in (Schedule("0,1 * * * *"), Schedule("hour", "Europe/Berlin")):
        with pytest.raises(UsageError, match="more than 5,000,000 windows"):
            schedule.starts(FIRST_INSTANT, INSTANTS_END)
    assert len(Schedule("* * 1 1 *").starts(0, at("2020-01-01T00:00Z"))) == 50 * 1440
    assert len(Schedule("* * * * *").starts(FIRST_INSTANT, INSTANTS_END)) == (INSTANTS_END - FIRST_INSTANT) // 60


def test_a_shift_is_bounded():
    days = Schedule("day")
    today = days.window("2026-11-07")
    assert days.shift(today, -7).key == "2026-10-31"
    assert days.shift(today, 0) == today
    assert days.shift(days.shift(today, 30), -30) == today
    with pytest.raises(UsageError, match="beyond 10,000 windows"):
        days.shift(today, -(10**9))


# arithmetic


@pytest.mark.parametrize(
    "every",
    ["hour", "day", "week", "7 * * * *", "30 2 * * *", "*/15 * * * *", "* * * * *", "0 */6 * * *", "0,30 * * * *"],
)
def test_an_even_schedule_in_utc_is_a_range(every):
    since = at("2026-11-07T02:30Z")
    assert isinstance(Schedule(every).starts(since, since + 30 * DAY), range)


def test_a_span_may_end_before_it_begins():
    for every in ("hour", "month", "0 2 * * 1"):
        assert list(Schedule(every).starts(100_000, 50_000)) == []
        assert Schedule(every).windows(50_000, 50_000) == []
        assert list(Schedule(every, "Europe/Berlin").fires(100_000, 50_000)) == []
        assert list(Schedule(every, "Europe/Berlin", "systemd").expected(100_000, 50_000)) == []


def test_a_fraction_of_a_second_belongs_to_the_next_tick():
    tick = at("2026-11-07T02:30Z")
    assert list(Schedule("30 2 * * *").starts(tick, tick + 0.5)) == [tick]
    assert list(Schedule("30 2 * * *").starts(tick + 0.5, tick + DAY)) == []
    assert Schedule("30 2 * * *").window_at(tick - 0.001).end == tick


def test_importing_windows_loads_neither_zoneinfo_nor_what_is_slow():
    program = "import sys, ranonce.windows; print(*sys.modules)"
    loaded = subprocess.run([sys.executable, "-S", "-c", f"import sys; sys.path[:0] = {sys.path!r}; {program}"],
                            capture_output=True, text=True, check=True).stdout.split()  # fmt: skip
    slow = {"zoneinfo", "typing", "dataclasses", "pathlib", "subprocess", "argparse", "logging", "bisect", "contextlib"}
    assert not slow & set(loaded)
    assert not {"ranonce.zones", "ranonce.dialects"} & set(loaded)


# which window a trigger is for

NIGHT = Schedule("30 2 * * *")


def chosen(schedule, now, **given):
    choice = choose(schedule, now=at(now), **given)
    return choice.window.key, choice.chosen_by


def test_a_timer_a_little_early_is_for_the_coming_window():
    assert chosen(Schedule("day"), "2026-11-06T23:59:58Z") == ("2026-11-07", "clock")
    assert chosen(Schedule("day"), "2026-11-06T23:59:54Z") == ("2026-11-06", "clock")
    assert chosen(Schedule("day"), "2026-11-06T23:59:58Z", early=0) == ("2026-11-06", "clock")
    assert chosen(NIGHT, "2026-11-07T02:29:58Z") == ("2026-11-07T02:30Z", "clock")
    assert chosen(NIGHT, "2026-11-07T04:00:00Z") == ("2026-11-07T02:30Z", "clock")


@pytest.mark.parametrize("every", ["day", "0 0 * * *"])
def test_thirty_days_of_jitter_round_the_boundary_are_thirty_windows(every):
    schedule = Schedule(every)
    jitter = random.Random(31)
    first = at("2026-11-01T00:00Z")
    nights = [choose(schedule, now=first + day * DAY + jitter.uniform(-2, 2)).window.key for day in range(30)]
    assert len(set(nights)) == 30


def test_a_given_key_wins_and_is_not_shifted():
    given = {"window_key": "2026-11-01", "scheduled_at": at("2026-11-03T00:00Z"), "offset": -1}
    assert chosen(Schedule("day"), "2026-11-07T00:00Z", **given) == ("2026-11-01", "window")


def test_the_instant_it_was_scheduled_at_comes_second():
    assert chosen(NIGHT, "2026-11-07T05:00Z", scheduled_at=at("2026-11-03T02:30Z")) == (
        "2026-11-03T02:30Z",
        "scheduled-at",
    )
    assert chosen(NIGHT, "2026-11-07T05:00Z", scheduled_at=at("2026-11-03T02:29:59Z")) == (
        "2026-11-02T02:30Z",
        "scheduled-at",
    )


def systemd(instant):
    return {"TRIGGER_TIMER_REALTIME_USEC": str(at(instant) * 1_000_000 + 123)}


def annotated(instant):
    return {"CRONJOB_SCHEDULED_TIMESTAMP": instant}


def pod(instant, name="nightly-report"):
    return {"KUBERNETES_SERVICE_HOST": "10.0.0.1", "HOSTNAME": f"{name}-{at(instant) // 60}-x7k2p"}


@pytest.mark.parametrize(
    ("environ", "says"),
    [
        (systemd("2026-11-06T02:30Z"), "systemd"),
        (annotated("2026-11-06T02:30:00Z"), "kubernetes"),
        (annotated("2026-11-06T03:30:00+01:00"), "kubernetes"),
        (pod("2026-11-06T02:30Z"), "kubernetes"),
        (pod("2026-11-06T02:30Z", name="a"), "kubernetes"),
        ({**annotated("{{not filled in}}"), **pod("2026-11-06T02:30Z")}, "kubernetes"),
        ({**systemd("2020-01-01T00:00Z"), **annotated("2026-11-06T02:30:00Z")}, "kubernetes"),
    ],
)
def test_what_the_scheduler_says_decides_for_the_present_window_and_the_one_before(environ, says):
    assert chosen(NIGHT, "2026-11-07T02:40Z", environ=environ) == ("2026-11-06T02:30Z", says)
    assert chosen(NIGHT, "2026-11-06T02:40Z", environ=environ) == ("2026-11-06T02:30Z", says)


@pytest.mark.parametrize(
    "environ",
    [
        {},
        systemd("2026-11-05T02:30Z"),  # exported once and forgotten
        systemd("2026-11-08T02:30Z"),
        systemd("1970-01-01T00:00Z"),
        annotated("2026-11-05T02:30:00Z"),
        annotated("2030-11-05T02:30:00Z"),
        annotated("2026-11-07T02:30:00"),
        annotated(""),
        pod("2026-11-05T02:30Z"),
        {"TRIGGER_TIMER_REALTIME_USEC": ""},
        {"TRIGGER_TIMER_REALTIME_USEC": "-5"},
        {"TRIGGER_TIMER_REALTIME_USEC": "٣"},
        {"TRIGGER_TIMER_REALTIME_USEC": "9" * 18},
        {"TRIGGER_TIMER_REALTIME_USEC": "9" * 9000},
        {"HOSTNAME": pod("2026-11-06T02:30Z")["HOSTNAME"]},  # not in Kubernetes
        {"KUBERNETES_SERVICE_HOST": "10.0.0.1"},
        {"KUBERNETES_SERVICE_HOST": "10.0.0.1", "HOSTNAME": "web-7d4b9c-x7k2p"},
        {"KUBERNETES_SERVICE_HOST": "10.0.0.1", "HOSTNAME": "29381190-x7k2p"},
        {"KUBERNETES_SERVICE_HOST": "10.0.0.1", "HOSTNAME": ""},
    ],
)
def test_a_hint_that_is_stale_or_cannot_be_read_leaves_it_to_the_clock(environ):
    assert chosen(NIGHT, "2026-11-07T02:40Z", environ=environ) == ("2026-11-07T02:30Z", "clock")


def test_a_job_that_processes_yesterday_serves_the_window_before():
    days = Schedule("day")
    assert chosen(days, "2026-11-07T00:30Z", offset=-1) == ("2026-11-06", "clock")
    assert chosen(days, "2026-11-06T23:59:58Z", offset=-1) == ("2026-11-06", "clock")
    assert chosen(days, "2026-11-09T00:30Z", offset=-1, scheduled_at=at("2026-11-07T00:30Z"))[0] == "2026-11-06"
    assert chosen(NIGHT, "2026-11-07T02:40Z", offset=-1, environ=systemd("2026-11-06T02:30Z")) == (
        "2026-11-05T02:30Z",
        "systemd",
    )


def test_tokyo_midnight_belongs_to_the_utc_day_before():
    assert chosen(Schedule("day"), "2026-11-09T00:30+09:00")[0] == "2026-11-08"
    assert chosen(Schedule("day"), "2026-11-09T10:00Z")[0] == "2026-11-09"
    assert chosen(Schedule("day", "Asia/Tokyo"), "2026-11-09T00:30+09:00")[0] == "2026-11-09"


@pytest.mark.parametrize(
    ("every", "key", "offset", "missing_from"),
    [
        ("30 2 * * *", "2026-11-07T02:30Z", 0, "2026-11-07T03:30Z"),
        ("30 2 * * *", "2026-11-07T02:30Z", -1, "2026-11-08T03:30Z"),
        ("30 2 * * *", "2026-11-07T02:30Z", 1, "2026-11-06T03:30Z"),
        ("day", "2026-11-07", 0, "2026-11-08T01:00Z"),
        ("day", "2026-11-07", -1, "2026-11-09T01:00Z"),
        ("day", "2026-11-07", 1, "2026-11-07T01:00Z"),
        ("hour", "2026-11-07T02", 0, "2026-11-07T04:00Z"),
        ("week", "2026-W45", 0, "2026-11-09T01:00Z"),
        ("month", "2026-11", 0, "2026-12-01T01:00Z"),
    ],
)
def test_a_window_is_missing_from_its_due_time_on(every, key, offset, missing_from):
    schedule = Schedule(every)
    assert due(schedule, schedule.window(key), offset, HOUR) == at(missing_from)
