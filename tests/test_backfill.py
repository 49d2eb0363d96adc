"""The windows of a backfill are those the probe expects, however the time is cut."""

from __future__ import annotations

import pytest

from ranonce.backfill import Walk
from ranonce.expectation import Expectation
from ranonce.lifecycle import ScheduleVersion
from ranonce.timefmt import parse_instant

SINCE, UNTIL = (int(parse_instant(text)) for text in ("2026-01-01T00:00Z", "2027-01-01T00:00Z"))
CHANGED = int(parse_instant("2026-06-10T07:13Z"))


def starts(walk):
    return [named.window.start for stretch in walk.windows() for named in stretch]


@pytest.mark.parametrize("dialect", ["debian", "systemd", "kubernetes"])
@pytest.mark.parametrize("tz", ["UTC", "Australia/Lord_Howe"])
@pytest.mark.parametrize("every", ["30 2 * * *", "hour", "week", "month", "15 1 1 * *"])
def test_a_year_walked_in_stretches_is_the_year_the_probe_expects(every, tz, dialect):
    versions = (
        ScheduleVersion(1, every, tz, dialect, 0, None, 0.0),
        ScheduleVersion(2, "0 5 * * *", tz, dialect, 0, CHANGED, 0.0),
    )
    walk = Walk(versions, SINCE, UNTIL, now=UNTIL + 86400)
    wanted = Expectation(versions, SINCE, UNTIL)
    assert starts(walk) == [wanted.start(number) for number in range(wanted.total)]
    assert walk.count() == wanted.total


def test_the_windows_of_a_walk_are_worked_out_as_they_are_reached():
    minutes = (ScheduleVersion(1, "* * * * *", "UTC", "debian", 0, None, 0.0),)
    walk = Walk(minutes, int(parse_instant("1900-01-01T00:00Z")), UNTIL, now=UNTIL)
    assert walk.count() == 66_795_840
    assert len(next(walk.windows())) == 14 * 1440


@pytest.mark.parametrize(
    ("offset", "last"), [(0, "2026-11-09T00:00Z"), (-1, "2026-11-08T00:00Z"), (-3, "2026-11-06T00:00Z")]
)
def test_a_walk_ends_where_the_data_is_not_complete(offset, last):
    versions = (ScheduleVersion(1, "day", "UTC", "debian", offset, None, 0.0),)
    now = parse_instant("2026-11-09T12:00Z")
    assert starts(Walk(versions, SINCE, UNTIL, now=now))[-1] == parse_instant(last)
