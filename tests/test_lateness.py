"""What is late each time by the same is told from what is late once, and from what is fired in another zone."""

from __future__ import annotations

import pytest

from ranonce.lateness import habit
from ranonce.timefmt import parse_instant
from ranonce.windows import Schedule

DAY = 86400


def fired(schedule, first, days, *, jitter=(3, 40, 11)):
    """Return (tick, start) of runs that were started every day from an instant on, each for the window that is then."""
    starts = []
    for day in range(days):
        began = parse_instant(first) + day * DAY + jitter[day % len(jitter)]
        starts.append((schedule.window_at(began + 5).start, began))
    return starts


def in_zone(schedule, zone, first, days):
    """Return the same for a line with the same rule that fires in another zone."""
    there = Schedule(schedule.every, zone)
    begin = parse_instant(first)
    return [(schedule.window_at(tick + 7).start, tick + 2) for tick in there.starts(begin, begin + days * DAY)]


NIGHTLY = Schedule("30 2 * * *", "Europe/Berlin")


def test_a_job_in_time_has_no_such_habit():
    assert habit(NIGHTLY, in_zone(NIGHTLY, "Europe/Berlin", "2026-03-01T00:00Z", 60), ["UTC"]) is None


@pytest.mark.parametrize("zone", ["UTC", "America/New_York", "Asia/Kolkata"])
def test_a_line_that_fires_in_another_zone_is_known_by_that_zone_over_changes_of_summer_time(zone):
    starts = in_zone(NIGHTLY, zone, "2026-03-10T00:00Z", 30)
    assert habit(NIGHTLY, starts, ["Africa/Lagos", zone]).zone == zone


def test_a_line_that_fires_before_its_tick_is_nearly_a_day_late():
    # 02:30 in UTC is 22:30 of the evening before in New York: the tick it is meant for has not come.
    schedule = Schedule("30 2 * * *", "America/New_York")
    found = habit(schedule, in_zone(schedule, "UTC", "2026-06-01T00:00Z", 10), ["UTC"])
    assert (found.zone, round(found.seconds / 3600)) == ("UTC", 20)


def test_a_line_at_another_hour_is_late_by_so_much_and_fits_no_zone():
    found = habit(NIGHTLY, fired(NIGHTLY, "2026-06-01T05:10Z", 10), ["UTC", "Asia/Tokyo"])
    assert (found.zone, round(found.seconds / 60), found.runs) == (None, 280, 10)


def test_one_late_night_is_no_habit():
    starts = in_zone(NIGHTLY, "Europe/Berlin", "2026-06-01T00:00Z", 10)
    tick, began = starts[4]
    starts[4] = (tick, began + 5 * 3600)
    assert habit(NIGHTLY, starts, ["UTC"]) is None


def test_two_runs_are_no_habit():
    assert habit(NIGHTLY, fired(NIGHTLY, "2026-06-01T05:10Z", 2), ["UTC"]) is None


def test_starts_at_all_hours_are_no_habit():
    starts = [(tick, began + day * 3000) for day, (tick, began) in enumerate(fired(NIGHTLY, "2026-06-01T05:10Z", 10))]
    assert habit(NIGHTLY, starts, ["UTC"]) is None


def test_a_job_that_fires_every_few_minutes_is_never_late():
    often = Schedule("*/5 * * * *", "Europe/Berlin")
    assert habit(often, in_zone(often, "UTC", "2026-06-01T00:00Z", 2), ["UTC"]) is None


def test_a_zone_that_this_machine_does_not_know_fits_nothing():
    assert habit(NIGHTLY, fired(NIGHTLY, "2026-06-01T02:30Z", 5), ["Mars/Olympus"]).zone is None
