"""Instants and durations as text: what is read, what is refused, and that printing and reading agree."""

from __future__ import annotations

import contextlib
from datetime import UTC, date, datetime, timedelta, timezone

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ranonce.errors import UsageError
from ranonce.timefmt import (
    FIRST_INSTANT,
    INSTANTS_END,
    format_duration,
    format_instant,
    from_datetime,
    parse_duration,
    parse_instant,
    shown,
    to_datetime,
)

T = 1_794_182_700  # 2026-11-09T00:05:00Z


@pytest.mark.parametrize(
    "text",
    [
        "2026-11-09T00:05:00Z",
        "2026-11-09T00:05Z",
        "2026-11-09t00:05z",
        "2026-11-09 00:05:00z",
        "2026-11-09T00:05:00.000000000000Z",
        "2026-11-09T00:05:00+00:00",
        "2026-11-09T00:05:00-00:00",
        "2026-11-09T05:35:00+05:30",
        "2026-11-09T09:05+0900",
        "2026-11-09T09:05:00+09:00",
        "2026-11-08T19:05:00-05:00",
        "2026-11-10T00:04:00+23:59",
    ],
)
def test_the_same_instant_is_read_from_every_spelling(text):
    assert parse_instant(text) == T
    assert type(parse_instant(text)) is int


def test_a_fraction_of_any_length_is_cut_to_microseconds():
    assert parse_instant("2026-11-09T00:05:00.5Z") == T + 0.5
    assert parse_instant("2026-11-09T00:05:00.1234569999Z") == T + 0.123456
    assert parse_instant("1970-01-01T00:00:00." + "9" * 500 + "Z") == 0.999999
    assert parse_instant("1969-12-31T23:59:59.25Z") == -0.75


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("", "is empty"),
        ("   ", "is empty"),
        ("now", "not an RFC 3339 instant"),
        ("tomorrow", "not an RFC 3339 instant"),
        ("T+1", "not an RFC 3339 instant"),
        ("1794182700", "not an RFC 3339 instant"),
        (" 2026-11-09T00:05Z", "not an RFC 3339 instant"),
        ("2026-11-09T00:05Z ", "not an RFC 3339 instant"),
        ("2026-11-09T00:05Z\n", "not an RFC 3339 instant"),
        ("2026-11-09  00:05Z", "not an RFC 3339 instant"),
        ("20261109T000500Z", "not an RFC 3339 instant"),
        ("2026-W45-1T00:05Z", "not an RFC 3339 instant"),
        ("2026-11-09T00Z", "not an RFC 3339 instant"),
        ("2026-11-09T00:05:00,5Z", "not an RFC 3339 instant"),
        ("2026-11-09T00:05:00.Z", "not an RFC 3339 instant"),
        ("2026-11-09T00:05+09", "not an RFC 3339 instant"),
        ("2026-11-09T00:05+09:00:30", "not an RFC 3339 instant"),
        ("2026-11-09T00:05 Europe/Berlin", "not an RFC 3339 instant"),
        ("٢٠٢٦-11-09T00:05Z", "not an RFC 3339 instant"),
        ("２０２６-11-09T00:05Z", "not an RFC 3339 instant"),
        ("2026-11-09T00:05\x00Z", "not an RFC 3339 instant"),
        ("2026-11-09T00:05\ud800", "not an RFC 3339 instant"),
        ("2026-11-09", "names no offset"),
        ("2026-11-09T00:05", "names no offset"),
        ("2026-11-09 00:05:00.5", "names no offset"),
        ("2026-11-09T24:00:00Z", "says 24:00"),
        ("2026-11-09T24:00Z", "says 24:00"),
        ("2016-12-31T23:59:60Z", "says second 60"),
        ("2026-11-09T00:05:60Z", "says second 60"),
        ("2026-11-09T25:00Z", "not a time of day"),
        ("2026-11-09T00:60Z", "not a time of day"),
        ("2026-11-09T00:00:61Z", "not a time of day"),
        ("2026-02-29T00:00Z", "not a day of the calendar"),
        ("2026-13-01T00:00Z", "not a day of the calendar"),
        ("0000-01-01T00:00Z", "not a day of the calendar"),
        ("2026-11-09T00:05+25:00", "offset that cannot be"),
        ("2026-11-09T00:05+23:60", "offset that cannot be"),
        ("9999-12-31T23:30-01:00", "outside the years 1 to 9999"),
        ("0001-01-01T00:00+01:00", "outside the years 1 to 9999"),
    ],
)
def test_everything_else_is_refused_with_a_sentence(text, says):
    with pytest.raises(UsageError) as refused:
        parse_instant(text)
    assert says in refused.value.sentence
    assert repr(text) in refused.value.sentence
    assert refused.value.next_step.startswith("Write ")
    assert refused.value.exit_status == 64


@pytest.mark.parametrize("value", [None, b"2026-11-09T00:05Z", 1_794_182_700, datetime(2026, 11, 9, tzinfo=UTC)])
def test_only_text_is_read(value):
    with pytest.raises(UsageError, match="An instant was expected"):
        parse_instant(value)


@pytest.mark.parametrize("text", ["x" * 9000, "\n" * 9000, "2" * 9000 + "Z", "2026-11-09T00:05:00." + "1" * 9000])
def test_a_long_value_is_shown_shortened(text):
    with pytest.raises(UsageError) as refused:
        parse_instant(text)
    assert len(str(refused.value)) < 350
    assert "characters" in str(refused.value)


def test_control_characters_are_shown_escaped():
    with pytest.raises(UsageError, match=r"\\x1b\[31m\\n"):
        parse_instant("\x1b[31m\n")
    assert shown(10**5000) == "a very large int"


@given(st.text(max_size=40))
def test_no_text_raises_anything_but_a_usage_error(text):
    with contextlib.suppress(UsageError):
        parse_instant(text)


@given(st.integers(FIRST_INSTANT, INSTANTS_END - 1))
def test_printing_and_reading_agree(t):
    assert parse_instant(format_instant(t)) == t
    assert parse_instant(format_instant(t, precision="min")) == t // 60 * 60
    assert to_datetime(t).isoformat().replace("+00:00", "Z") == format_instant(t)
    assert from_datetime(to_datetime(t)) == t


@given(st.datetimes(datetime(1900, 1, 1), datetime(2200, 1, 1)), st.integers(-1439, 1439))  # noqa: DTZ001
def test_reading_agrees_with_datetime(moment, minutes):
    aware = moment.replace(tzinfo=timezone(timedelta(minutes=minutes)))
    assert parse_instant(aware.isoformat()) == pytest.approx(aware.timestamp(), abs=1e-6)
    assert from_datetime(aware) == pytest.approx(aware.timestamp(), abs=1e-6)
    assert to_datetime(from_datetime(aware)) == aware


def test_each_precision_cuts_what_it_leaves_out():
    assert format_instant(T + 59.9996) == "2026-11-09T00:05:59Z"
    assert format_instant(T + 59.9996, precision="ms") == "2026-11-09T00:05:59.999Z"
    assert format_instant(T + 59.9996, precision="min") == "2026-11-09T00:05Z"
    assert format_instant(parse_instant("2026-11-09T00:05:00.123Z"), precision="ms") == "2026-11-09T00:05:00.123Z"
    assert format_instant(-0.5, precision="ms") == "1969-12-31T23:59:59.500Z"
    with pytest.raises(ValueError, match="precision"):
        format_instant(T, precision="h")


def test_an_instant_beyond_the_calendar_is_refused():
    for t in (INSTANTS_END, INSTANTS_END - 1e-9, FIRST_INSTANT - 1, 1e300, 10**5000, float("inf"), float("nan")):
        for use in (format_instant, to_datetime):
            with pytest.raises(UsageError, match="outside the years 1 to 9999"):
                use(t)


def test_a_naive_datetime_is_refused():
    with pytest.raises(UsageError, match="is naive"):
        from_datetime(datetime(2026, 11, 9))  # noqa: DTZ001
    with pytest.raises(UsageError, match="A datetime was expected"):
        from_datetime(date(2026, 11, 9))
    with pytest.raises(UsageError, match="outside the years"):
        from_datetime(datetime(1, 1, 1, tzinfo=timezone(timedelta(hours=1))))
    with pytest.raises(UsageError, match="outside the years"):
        from_datetime(datetime(9999, 12, 31, 23, 30, tzinfo=timezone(timedelta(hours=-1))))


@pytest.mark.parametrize(
    ("text", "seconds"),
    [
        ("0", 0),
        ("0s", 0),
        ("30s", 30),
        ("5m", 300),
        ("2h", 7200),
        ("90d", 90 * 86400),
        ("2w", 14 * 86400),
        ("1h30m", 5400),
        ("1h 30m", 5400),
        ("1.5h", 5400),
        ("250ms", 0.25),
        ("1s500ms", 1.5),
        ("0.1s", 0.1),
        ("1d1h1m1s", 90061),
    ],
)
def test_a_duration_is_read(text, seconds):
    assert parse_duration(text) == seconds
    assert isinstance(parse_duration(text), int) == (seconds == int(seconds))


@pytest.mark.parametrize(
    "text",
    [
        "",
        " ",
        "10",
        "5 m",
        " 5m",
        "5m ",
        "-5m",
        "+5m",
        "5M",
        "m",
        "1m1h",
        "5m5m",
        "1y",
        "٥m",
        "5m\n",
        "1e3s",
        "inf",
        "nan",
    ],
)
def test_what_is_no_duration_is_refused(text):
    with pytest.raises(UsageError) as refused:
        parse_duration(text)
    assert repr(text) in refused.value.sentence


@pytest.mark.parametrize("text", ["999999999d", "36526d", "1" * 9000 + "s", "1m" * 9000])
def test_an_absurd_duration_is_refused(text):
    with pytest.raises(UsageError):
        parse_duration(text)


def test_a_duration_that_is_no_text_is_refused():
    with pytest.raises(UsageError, match="A duration was expected"):
        parse_duration(5)


@pytest.mark.parametrize(
    ("seconds", "text"),
    [
        (0, "0s"),
        (0.25, "250ms"),
        (1.25, "1.2s"),
        (9.99, "9.9s"),
        (12.7, "12s"),
        (59, "59s"),
        (60, "1m"),
        (61, "1m 1s"),
        (7512, "2h 5m"),
        (86400, "1d"),
        (86461, "1d"),
        (90 * 86400 + 7200, "90d 2h"),
        (-90, "-1m 30s"),
    ],
)
def test_a_duration_is_printed_in_its_two_largest_units(seconds, text):
    assert format_duration(seconds) == text


@given(st.integers(0, 36_525 * 86_400))
def test_a_printed_duration_is_read_as_no_more_than_itself(seconds):
    read = parse_duration(format_duration(seconds))
    assert read <= seconds < read + max(60, read / 24)


def test_an_endless_duration_is_refused():
    for seconds in (float("inf"), float("nan")):
        with pytest.raises(UsageError):
            format_duration(seconds)
