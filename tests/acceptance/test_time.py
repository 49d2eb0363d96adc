"""Which window a trigger is for, whatever the clock, the zone and the scheduler do; and what a wrong clock breaks."""

from __future__ import annotations

import random
import time
from datetime import UTC, datetime, timedelta
from zoneinfo import ZoneInfo

import pytest

from ranonce.journal import decode, encode
from ranonce.lifecycle import ScheduleVersion
from ranonce.stores.base import Job
from ranonce.timefmt import parse_instant
from tests.behind import born_long_ago
from tests.clocks import YEAR, at_another_time, clock_warnings
from tests.conftest import TODAY, instant_in, lives, wait_until

# --- how an instant is written --------------------------------------------------------------------------------------


@pytest.mark.every_store(cases=1)
@pytest.mark.parametrize(
    "now",
    [
        "2026-11-09T15:00:00Z",
        "2026-11-09T15:00:00z",
        "2026-11-09t15:00:00Z",
        "2026-11-09 15:00:00Z",
        "2026-11-09T15:00Z",
        "2026-11-09T15:00:00.5Z",
        "2026-11-09T15:00:00.123456789Z",
        "2026-11-10T00:00:00+09:00",
        "2026-11-10T00:00:00+0900",
        "2026-11-09T10:30:00-04:30",
        "2026-11-09T15:00:00+00:00",
        "2026-11-09T15:00:00-00:00",
    ],
)
def test_every_spelling_of_an_instant_means_the_same_window(world, now):
    ran = world.run(every="hour", now=now)
    assert ran.said() == (0, "done", None)
    assert ran.receipt["window"] == "2026-11-09T15"
    assert [run.window_start for run in world.all_runs()] == [parse_instant("2026-11-09T15:00:00Z")]


@pytest.mark.every_store(cases=1)
@pytest.mark.parametrize(
    "now",
    [
        "",
        " ",
        "2026-11-09T15:00:00",
        "2026-11-09",
        " 2026-11-09T15:00:00Z",
        "2026-11-09T15:00:00Z ",
        "now",
        "tomorrow",
        "T+1",
        "1794236400",
        "2026-11-09T15:00:60Z",
        "2026-11-09T24:00:00Z",
        "2026-11-09T25:00:00Z",
        "2026-13-09T15:00:00Z",
        "2026-02-30T15:00:00Z",
        "2026-11-09T15:00:00+25:00",
        "2026-11-09T15:00:00+00:00:30",
        "20261109T150000Z",
        "2026-W46-1T15:00:00Z",
        "9999-12-31T23:30:00-01:00",
        "0001-01-01T00:00:00+01:00",
        "٢٠٢٦-11-09T15:00:00Z",
    ],
)
def test_an_instant_that_is_not_one_is_refused_before_anything_is_written(world, now):
    ran = world.run("--now", now, now=None)
    assert ran.exit == 64
    assert "--now" in ran.sentence
    assert world.run("--scheduled-at", now).exit == 64
    assert world.is_empty()
    assert world.effects() == []


def test_instants_are_kept_in_utc(world):
    world.run(now="2026-11-10T00:00:00+09:00")
    kept = world.sql("SELECT at FROM events UNION SELECT started_at FROM runs UNION SELECT declared_at FROM jobs")
    assert all(text.endswith("Z") for (text,) in kept)


# --- which window ---------------------------------------------------------------------------------------------------


@pytest.mark.every_store
def test_midnight_in_tokyo_belongs_to_the_utc_day_before(world):
    world.run(now="2026-11-09T00:30:00+09:00")
    world.run(now="2026-11-09T10:00:00Z")
    assert world.effects() == ["job 2026-11-08 1", "job 2026-11-09 1"]


@pytest.mark.every_store(cases=1)
@pytest.mark.parametrize(
    ("every", "key", "start", "end"),
    [
        ("hour", "2026-11-09T14", "2026-11-09T14:00:00Z", "2026-11-09T15:00:00Z"),
        ("day", "2026-11-09", "2026-11-09T00:00:00Z", "2026-11-10T00:00:00Z"),
        ("week", "2026-W46", "2026-11-09T00:00:00Z", "2026-11-16T00:00:00Z"),
        ("month", "2026-11", "2026-11-01T00:00:00Z", "2026-12-01T00:00:00Z"),
        ("*/15 * * * *", "2026-11-09T14:45Z", "2026-11-09T14:45:00Z", "2026-11-09T15:00:00Z"),
        ("0 2 * * *", "2026-11-09T02:00Z", "2026-11-09T02:00:00Z", "2026-11-10T02:00:00Z"),
    ],
)
def test_each_kind_of_schedule_has_windows_of_its_own_grain(world, every, key, start, end):
    show = 'echo "$RANONCE_WINDOW $RANONCE_WINDOW_START $RANONCE_WINDOW_END" >> "$EFFECTS"'
    for now in ("2026-11-09T14:59:00Z", "2026-11-09T14:46:00Z"):
        world.run(every=every, now=now, sh=show)
    assert world.effects() == [f"{key} {start} {end}"]


def test_four_slots_of_an_hour_are_four_windows(world):
    for minute in ("00", "15", "30", "45"):
        world.run(every="*/15 * * * *", now=f"2026-11-09T14:{minute}:01Z")
    assert len(world.effects()) == 4


def test_a_trigger_that_comes_a_little_early_is_for_the_window_that_begins(world):
    world.run(now="2026-11-08T12:00:00Z")
    assert world.run(now="2026-11-08T23:59:58Z").receipt["window"] == "2026-11-09"
    assert world.run(now="2026-11-09T00:00:01Z").said() == (0, "skipped", "done")
    assert world.run("--early", "0", now="2026-11-09T23:59:58Z").said() == (0, "skipped", "done")
    assert world.effects() == ["job 2026-11-08 1", "job 2026-11-09 1"]


@pytest.mark.every_store
def test_a_timer_that_jitters_around_midnight_loses_no_day(world):
    jitter = random.Random(31)
    first = datetime(2026, 11, 1, tzinfo=UTC)
    days = [first + timedelta(days=day) for day in range(7)]
    for day in days:
        world.run(now=(day + timedelta(seconds=jitter.uniform(-2, 2))).isoformat())
    assert world.effects() == [f"job {day:%Y-%m-%d} 1" for day in days]


@pytest.mark.every_store
def test_the_slot_the_scheduler_meant_counts_and_not_when_it_came(world):
    late = world.run("--scheduled-at", "2026-11-08T23:50:00Z", every="50 23 * * *", now="2026-11-09T00:20:00Z")
    own = world.run("--scheduled-at", "2026-11-09T23:50:00Z", every="50 23 * * *", now="2026-11-09T23:50:01Z")
    assert [late.receipt["window"], own.receipt["window"]] == ["2026-11-08T23:50Z", "2026-11-09T23:50Z"]
    assert late.receipt["chosen_by"] == "scheduled-at"
    assert len(world.effects()) == 2


def test_a_host_that_slept_over_its_slot_still_works_on_that_slot(world):
    late = world.run(every="50 23 * * *", now="2026-11-09T00:20:00Z")
    assert late.receipt["window"] == "2026-11-08T23:50Z"
    assert world.run(every="50 23 * * *", now="2026-11-09T23:50:00Z").receipt["window"] == "2026-11-09T23:50Z"


def test_what_systemd_meant_counts_while_it_is_near(world):
    meant = int(parse_instant("2026-11-08T23:50:00Z")) * 1_000_000
    env = {"TRIGGER_TIMER_REALTIME_USEC": str(meant)}
    ran = world.run(every="50 23 * * *", now="2026-11-09T00:20:00Z", env=env)
    assert (ran.receipt["window"], ran.receipt["chosen_by"]) == ("2026-11-08T23:50Z", "systemd")
    stale = world.run(every="50 23 * * *", now="2026-11-19T23:50:00Z", env=env)
    assert (stale.receipt["window"], stale.receipt["chosen_by"]) == ("2026-11-19T23:50Z", "clock")


def test_a_job_that_processes_the_day_before_is_given_that_day(world):
    ran = world.run("--offset", "-1", now="2026-11-09T00:05:00Z")
    assert ran.receipt["window"] == "2026-11-08"
    assert world.run("--offset", "-1", now="2026-11-09T23:05:00Z").said() == (0, "skipped", "done")


def test_a_window_named_by_hand_is_that_window(world):
    for now in ("2026-11-09T12:00:00Z", "2026-12-24T12:00:00Z"):
        ran = world.run("--window", "2026-11-05", now=now)
        assert ran.receipt["chosen_by"] == "window"
        assert ran.receipt["trigger"] == "manual"
    assert world.effects() == ["job 2026-11-05 1"]


@pytest.mark.parametrize("name", ["WINDOW", "RANONCE_WINDOW", "RANONCE_JOB", "RANONCE_NOW"])
def test_what_a_shell_once_exported_chooses_no_window(world, name):
    world.run(env={name: "2026-01-01"})
    assert world.effects() == [f"job {TODAY} 1"]


@pytest.mark.every_store
def test_windows_missed_are_caught_up_where_that_is_wanted(world):
    since = parse_instant("2026-11-01T00:00:00Z")
    with world.opened() as store:
        version = ScheduleVersion(1, "day", "UTC", "debian", 0, None, since)
        assert store.record_schedule(Job("job", 0, since, 3600.0, 3), version, -1)
    work = "shift 0; echo {window} >> $EFFECTS"
    options = ("--catch-up", "all", "--catch-up-limit", "3")
    ran = world.run(*options, now="2026-11-04T12:00:00Z", sh=work)
    assert world.effects() == ["2026-11-01", "2026-11-02", "2026-11-03", "2026-11-04"]
    assert [receipt["trigger"] for receipt in ran.receipts] == ["catch-up"] * 3 + ["schedule"]
    world.run(*options, now="2026-11-04T13:00:00Z", sh=work)
    assert len(world.effects()) == 4


def test_a_window_that_failed_is_done_by_a_later_trigger_where_that_is_wanted(world):
    world.run(sh="exit 3")
    ran = world.run("--catch-up", "unfinished", now="2026-11-10T12:00:00Z", sh="echo {window} >> $EFFECTS")
    assert world.effects() == ["2026-11-09", "2026-11-10"]
    assert ran.exit == 0


def test_a_very_late_scheduled_trigger_is_refused_where_that_is_wanted(world):
    options = ("--max-late", "2h", "--trigger", "schedule")
    assert world.run(*options, now="2026-11-09T01:59:00Z").said() == (0, "done", None)
    assert world.run(*options, now="2026-11-10T02:01:00Z").said() == (80, "skipped", "late")
    assert world.run("--max-late", "2h", "--trigger", "manual", now="2026-11-10T02:01:00Z").exit == 0


# --- zones ----------------------------------------------------------------------------------------------------------


@pytest.mark.every_store(cases=1)
@pytest.mark.parametrize(
    ("zone", "hour", "night"),
    [
        ("Europe/Berlin", 2, "2026-03-28"),
        ("Europe/Berlin", 2, "2026-10-24"),
        ("Europe/London", 0, "2026-03-28"),
        ("Europe/London", 0, "2026-10-24"),
        ("America/New_York", 1, "2026-10-31"),
        ("America/Havana", 0, "2026-03-07"),
    ],
)
def test_a_nightly_job_has_one_effect_for_each_local_day(world, zone, hour, night):
    """A trigger at every instant at which the wall shows the job's time, and one more."""
    for offset in range(2):
        day = datetime.fromisoformat(night) + timedelta(days=offset)
        local = day.replace(hour=hour, minute=30, tzinfo=ZoneInfo(zone))
        instants = {local.replace(fold=fold).astimezone(UTC) for fold in (0, 1)}
        for instant in (*sorted(instants), max(instants) + timedelta(minutes=3)):
            assert world.run("--tz", zone, every=f"30 {hour} * * *", now=instant.isoformat()).exit == 0
    assert len(world.effects()) == 2


def test_calendar_days_of_a_zone_are_its_dates(world):
    show = 'echo "$RANONCE_WINDOW $RANONCE_WINDOW_START $RANONCE_WINDOW_END" >> "$EFFECTS"'
    for day in ("2026-03-29", "2026-10-25"):
        world.run("--tz", "Europe/Berlin", now=f"{day}T12:00:00Z", sh=show)
    assert world.effects() == [
        "2026-03-29 2026-03-28T23:00:00Z 2026-03-29T22:00:00Z",
        "2026-10-25 2026-10-24T22:00:00Z 2026-10-25T23:00:00Z",
    ]


def test_both_hours_that_the_clock_shows_twice_are_run(world):
    for hour in (0, 1):
        world.run("--tz", "Europe/Berlin", every="hour", now=f"2026-10-25T0{hour}:30:00Z")
    assert world.effects() == ["job 2026-10-25T02+02:00 1", "job 2026-10-25T02+01:00 1"]


# --- clocks that are wrong ------------------------------------------------------------------------------------------


def test_a_clock_before_the_birth_of_the_ledger_is_refused(world):
    ran = at_another_time(world, -10 * YEAR, *world.words())
    assert ran.exit == 78
    assert "before the ledger's birth" in ran.sentence
    assert world.effects() == []


@pytest.mark.every_store(cases=1)
@pytest.mark.parametrize("offset", [3600, -3600, 1200, 4 * YEAR])
def test_a_live_owner_is_not_robbed_by_a_clock_that_is_wrong(world, offset):
    born_long_ago(world)
    working, child = world.hold("--lease", "5m")
    words = world.words("--window", TODAY)
    for env in ({}, world.another_host()):  # where its process is seen, and where only its lease speaks for it
        assert at_another_time(world, offset, *words, env=env).said() == (75, "skipped", "busy")
    assert lives(child)
    world.let_go()
    assert working.ends().exit == 0


@pytest.mark.every_store
def test_a_claim_under_a_clock_of_the_far_future_blocks_no_longer_than_its_lease(world):
    crashing = world.words("--lease", world.lease, "--window", TODAY, sh="kill -9 $PPID; exit 0")
    assert at_another_time(world, 4 * YEAR, *crashing).receipts == []
    elsewhere = world.another_host()  # where no death can be proved
    wait_until(lambda: world.run("--lease", world.lease, "--window", TODAY, env=elsewhere).exit == 0, 10)
    assert world.state() == ("done", 2)


def test_a_record_made_under_a_clock_of_the_far_future_does_not_block_the_present(world):
    future = at_another_time(world, 4 * YEAR, *world.words(now=None))
    assert future.exit == 0
    ran = world.run(now=None)
    assert ran.said() == (0, "done", None)
    assert ran.receipt["window"] < future.receipt["window"]
    assert clock_warnings(ran)
    assert len(world.effects()) == 2


def test_a_clock_that_went_back_is_reported_and_makes_nothing_run_twice(world):
    born_long_ago(world)
    world.run("--window", TODAY)
    ran = at_another_time(world, -3600, *world.words("--window", TODAY))
    assert ran.said() == (0, "skipped", "done")
    assert clock_warnings(ran)
    assert [event for event, _, _ in world.events()] == ["start", "done", "skipped"]  # by their numbers


def test_a_clock_that_stands_still_is_reported(world):
    born_long_ago(world)
    frozen = time.time()
    words = world.words("--window", TODAY)
    assert at_another_time(world, 0, *words, stands=frozen).exit == 0
    text = world.journal.read_text()
    assert clock_warnings(at_another_time(world, 0, *words)) == []
    facts = [decode(line) for line in text.encode().splitlines()]
    earlier = [encode({**fact, "boot": fact["boot"] - 86400}) for fact in facts]  # a day ago, by the boot clock
    world.journal.write_bytes(b"".join(earlier))
    assert clock_warnings(at_another_time(world, 0, *words, stands=frozen))


def test_an_event_from_the_future_is_reported_and_blocks_nothing(world):
    world.run("--window", "2026-11-08")
    world.sql("DROP TRIGGER events_are_not_changed")
    world.sql("UPDATE events SET at = '2036-01-01T00:00:00.000Z'")
    ran = world.run()
    assert ran.said() == (0, "done", None)
    assert any("behind the ledger's last event" in warning for warning in ran.receipt["warnings"])


@pytest.mark.every_store
def test_a_window_of_the_future_is_refused_and_leaves_the_present_alone(world):
    ran = world.run("--window", "2038-01-19", now=None)
    assert ran.said() == (75, "skipped", "early")
    assert world.run(now=None).said() == (0, "done", None)


def test_a_lease_that_lies_absurdly_far_ahead_blocks_for_one_lease_and_not_for_years(world):
    working, child = world.hold("--lease", world.lease)
    working.signal(19)
    world.sql("UPDATE leases SET expires = expires + 1e9")
    elsewhere = world.another_host()
    assert world.run("--lease", world.lease, env=elsewhere).said() == (75, "skipped", "busy")
    began = time.monotonic()
    wait_until(lambda: world.run("--lease", world.lease, env=elsewhere).exit == 0, 10)
    assert time.monotonic() - began < 8
    working.signal(18)
    assert working.ends().exit == 76
    assert not lives(child)


def test_a_lease_of_another_boot_is_waited_for_once(world):
    working, _ = world.hold("--lease", "2s")
    working.signal(19)
    world.sql("UPDATE leases SET domain = 'another boot', expires = 5")
    elsewhere = world.another_host()
    assert world.run("--lease", "2s", env=elsewhere).said() == (75, "skipped", "busy")
    wait_until(lambda: world.run("--lease", "2s", env=elsewhere).exit == 0, 10)
    working.signal(18)
    assert working.ends().exit == 76
    assert world.state() == ("done", 2)


@pytest.mark.every_store
def test_now_moves_no_lease(world):
    working, child = world.hold("--lease", "5m")
    for now in (instant_in(86400 * 365), "2020-01-01T00:00:00Z", "2037-01-01T00:00:00Z"):
        ran = world.run("--window", TODAY, now=now)
        assert ran.exit == 75, now
    assert lives(child)
    world.let_go()
    assert working.ends().exit == 0


@pytest.mark.parametrize(
    "words",
    [
        ("note", "job", TODAY, "power cut"),
        ("release", "job", TODAY, "--as", "done", "--reason", "it was"),
        ("gate", "model-api", "--close-for", "1h", "--reason", "429"),
        ("add", "job", "--every", "hour", "--", "true"),
        ("remove", "job"),
    ],
)
def test_whatever_a_person_writes_they_are_told_of_a_clock_that_has_jumped(world, words):
    world.run()
    *_, fact = map(decode, world.journal.read_bytes().splitlines())
    world.journal.write_bytes(encode({**fact, "boot": fact["boot"] + 7230}))
    assert "ranonce: this host's clock has gone forward by 2h" in world.ranonce(*words).err
