"""Windows named by people: by key, by date, and refused where a date is not one window."""

from __future__ import annotations

import pytest

from ranonce.errors import UsageError
from ranonce.lifecycle import ScheduleVersion
from ranonce.naming import all_named, beginning, one_named
from ranonce.timefmt import format_instant, parse_instant


def versions(*rules, tz="UTC"):
    """Return versions of a schedule: the first has no beginning, the others begin when they say."""
    return tuple(
        ScheduleVersion(number, every, tz, "debian", 0, None if since is None else int(parse_instant(since)), 0.0)
        for number, (every, since) in enumerate(rules, 1)
    )


DAILY, HOURLY, WEEKLY = versions(("day", None)), versions(("hour", None)), versions(("week", None))
NIGHTLY = versions(("0 2 * * *", None))


@pytest.mark.parametrize(
    ("versions", "text", "key"),
    [
        (DAILY, "2026-11-09", "2026-11-09"),
        (HOURLY, "2026-11-09T02", "2026-11-09T02"),
        (NIGHTLY, "2026-11-09T02:00Z", "2026-11-09T02:00Z"),
        (NIGHTLY, "2026-11-09", "2026-11-09T02:00Z"),
        (WEEKLY, "2026-W46", "2026-W46"),
        (WEEKLY, "2026-11-11", "2026-W46"),
        (versions(("month", None)), "2026-11-11", "2026-11"),
        # 02:00 in Tokyo is 17:00 of the day before in UTC: the date is that of the job's zone.
        (versions(("0 2 * * *", None), tz="Asia/Tokyo"), "2026-11-09", "2026-11-08T17:00Z"),
    ],
)
def test_a_key_or_a_date_names_a_window(versions, text, key):
    assert one_named(versions, text).window.key == key


def test_a_date_that_holds_several_windows_is_refused_with_their_keys():
    with pytest.raises(UsageError, match=r"2026-11-09 holds 24 windows: 2026-11-09T00, .*, 2026-11-09T23") as refused:
        one_named(HOURLY, "2026-11-09")
    assert refused.value.next_step == "Write one of them."
    with pytest.raises(UsageError, match="and 1415 more"):
        one_named(versions(("* * * * *", None)), "2026-11-09")


def test_a_day_on_which_nothing_begins_names_no_window():
    sundays = versions(("0 2 * * 0", None))
    assert all_named(sundays, "2026-11-09") == []
    with pytest.raises(UsageError, match="no window of the job begins on 2026-11-09"):
        one_named(sundays, "2026-11-09")


def test_a_window_belongs_to_the_version_that_was_in_force():
    changed = versions(("day", None), ("hour", "2026-11-10T00:00:00Z"))
    assert one_named(changed, "2026-11-09").version.number == 1
    assert one_named(changed, "2026-11-10T05").version.number == 2
    with pytest.raises(UsageError):
        one_named(changed, "2026-11-09T05")
    assert len(all_named(changed, "2026-11-10")) == 24


@pytest.mark.parametrize("text", ["", "yesterday", "2026-13-40", "2026-11-09T02:30", "2026-11-9", "09.11.2026"])
def test_what_is_neither_names_nothing(text):
    with pytest.raises(UsageError):
        one_named(DAILY, text)


@pytest.mark.parametrize(
    ("versions", "text", "instant"),
    [
        (DAILY, "2026-11-09T02:30+01:00", "2026-11-09T01:30:00Z"),
        (DAILY, "2026-11-09", "2026-11-09T00:00:00Z"),
        (HOURLY, "2026-11-09T02", "2026-11-09T02:00:00Z"),
        (WEEKLY, "2026-W46", "2026-11-09T00:00:00Z"),
        (versions(("0 2 * * *", None), tz="Asia/Tokyo"), "2026-11-09", "2026-11-08T15:00:00Z"),
    ],
)
def test_a_time_begins_at_an_instant_a_day_or_a_window(versions, text, instant):
    assert format_instant(beginning(versions, text)) == instant


@pytest.mark.parametrize("text", ["2026-11-09T02:30", "2026-11-09T25:00Z", "yesterday", "2026-W99"])
def test_a_naive_or_impossible_time_is_no_beginning(text):
    with pytest.raises(UsageError):
        beginning(DAILY, text)


def test_a_date_without_a_job_is_no_instant():
    with pytest.raises(UsageError, match="names no offset"):
        beginning((), "2026-11-09")
