"""Cron lines for a clock that is not the job's: they leave no window without a trigger."""

from __future__ import annotations

from bisect import bisect_left

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ranonce.cron import parse_cron
from ranonce.schedulers.cronlines import field_text, lines, shifts
from ranonce.timefmt import DAY, parse_instant
from ranonce.windows import Schedule
from ranonce.zones import load_zone

HOUR = 3600
NOW = parse_instant("2026-03-01T12:00:00Z")
STEADY = ("UTC", "Asia/Kolkata", "Asia/Kathmandu")
ZONES = (
    *STEADY,
    "Europe/Berlin",
    "America/New_York",
    "Australia/Lord_Howe",
    "Pacific/Chatham",
    "Pacific/Kiritimati",
    "Pacific/Pago_Pago",
    "Africa/Casablanca",
    "Antarctica/Troll",
)


def zone(name):
    return None if name == "UTC" else load_zone(name)


def lines_for(every, tz, host="UTC"):
    return lines(parse_cron(every), shifts(zone(tz), zone(host), NOW))


@st.composite
def rules(draw, starred=True):
    """Rules as people write them: lists, ranges, steps, both day fields."""

    def field(low, high, may_be_starred=True):
        values = st.integers(low, high)
        forms = [
            values.map(str),
            st.lists(values, min_size=2, max_size=3, unique=True).map(lambda found: ",".join(map(str, sorted(found)))),
            st.tuples(values, values).map(lambda pair: f"{min(pair)}-{max(pair)}"),
        ]
        if may_be_starred:
            forms += [st.just("*"), st.integers(2, 15).map(lambda step: f"*/{min(step, high - low + 1)}")]
        return draw(st.one_of(forms))

    minute, hour = field(0, 59, starred), field(0, 23, starred)
    day = draw(
        st.one_of(st.just("*"), st.integers(1, 28).map(str), st.sampled_from(("1", "31", "*/2", "1-7", "28,29")))
    )
    month = draw(st.sampled_from(("*", "*", "*", "1", "2,12", "3-10")))
    if day == "31":
        month = "*"
    elif day == "28,29":
        month = draw(st.sampled_from(("*", "2")))
    weekday = draw(st.sampled_from(("*", "*", "*", "1", "mon-fri", "6,7", "0", "fri", "*/2")))
    return f"{minute} {hour} {day} {month} {weekday}"


@pytest.mark.parametrize(
    ("every", "tz", "host", "expected"),
    [
        ("30 2 * * *", "Europe/Berlin", "UTC", ["30 0,1 * * *"]),
        ("30 2 * * *", "UTC", "Europe/Berlin", ["30 3,4 * * *"]),
        ("30 2 * * *", "America/New_York", "Europe/Berlin", ["30 7,8 * * *"]),
        ("30 2 * * 1-5", "Asia/Kolkata", "UTC", ["0 21 * * 0-4"]),
        ("0 0 * * mon", "Europe/Berlin", "UTC", ["0 22,23 * * 0"]),
        ("0 * * * *", "Europe/Berlin", "UTC", ["0 * * * *"]),
        ("*/15 * * * *", "Asia/Kathmandu", "UTC", ["*/15 * * * *"]),
        ("0 0 13 * fri", "UTC", "UTC", ["0 0 13 * *", "0 0 * * 5"]),
        (
            "0 0 1 * *",
            "Europe/Berlin",
            "UTC",
            ["0 22,23 28,29 2 *", "0 22,23 30 4,6,9,11 *", "0 22,23 31 1,3,5,7,8,10,12 *"],
        ),
        ("0 23 28 2 *", "America/New_York", "UTC", ["0 3,4 1 3 *", "0 3,4 29 2 *"]),
    ],
)
def test_lines_in_another_zone(every, tz, host, expected):
    assert sorted(lines_for(every, tz, host)) == sorted(expected)


@settings(max_examples=60, deadline=None)
@given(rules(), st.sampled_from(ZONES), st.sampled_from(STEADY), st.integers(0, 330))
def test_a_clock_that_does_not_change_has_a_trigger_at_every_tick(every, tz, host, days):
    for window, fires in triggers(every, tz, host, NOW + days * DAY):
        begins_at_a_change = tz != "UTC" and zone(tz).changes(window.start, window.start + 1)
        # What a change skips is due at the change, and is fired some time later.
        assert fires[:1] == [window.start] or (begins_at_a_change and (fires or length(window) < 3 * HOUR)), window


@settings(max_examples=40, deadline=None)
@given(rules(starred=False), st.sampled_from(ZONES), st.sampled_from(ZONES), st.integers(0, 330))
def test_whatever_both_clocks_do_no_window_of_three_hours_is_without_a_trigger(every, tz, host, days):
    for window, fires in triggers(every, tz, host, NOW + days * DAY):
        assert fires or length(window) < 3 * HOUR, window


def length(window):
    return window.end - window.start


def triggers(every, tz, host, since):
    """Return the windows of some weeks, each with the fires in it of the lines for a host."""
    written = lines_for(every, tz, host)
    assert len(set(written)) == len(written)
    windows = Schedule(every, tz).windows(since, since + 45 * DAY)[:3000]
    if not windows:
        return
    first, end = windows[0].start, windows[-1].end
    fires = sorted({fire for line in written for fire in Schedule(line, host).fires(first, end)})
    for window in windows:
        yield window, fires[bisect_left(fires, window.start) : bisect_left(fires, window.end)]


@given(st.integers(0, 4).flatmap(lambda at: st.tuples(st.just(at), st.sets(st.integers(*RANGES[at]), min_size=1))))
def test_a_field_is_read_back_as_the_same_values(field):
    at, values = field
    for starred in (True, False):
        words = ["0", "0", "1", "1", "0"]
        words[at] = field_text(values, at, starred=starred)
        assert starred or not words[at].startswith("*")
        assert parse_cron(" ".join(words))._fields[at] == values


RANGES = ((0, 59), (0, 23), (1, 31), (1, 12), (0, 6))
