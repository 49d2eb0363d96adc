"""Each thing a doctor looks at, by itself: versions, places, locks, commands, clocks."""

from __future__ import annotations

import os
import stat
import textwrap
import time
from pathlib import Path

import pytest

from ranonce.config import Config, load
from ranonce.doctor import clocks, host, jobs, locks, places, records, store
from ranonce.doctor.finding import NOTE, OK, PROBLEM
from ranonce.filesystem import FileSystem, file_system_of
from ranonce.journal import Journal
from ranonce.lifecycle import Event, Retention, RunKey, ScheduleVersion
from ranonce.merging import Told
from ranonce.stores.base import Intake
from tests.planted import Planted, at

ROOT = os.geteuid() == 0


def one(findings):
    """Return the only finding."""
    found = list(findings)
    assert len(found) == 1, [each.line for each in found]
    return found[0]


def levels(findings):
    return [finding.level for finding in findings]


# --- versions -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("sqlite", "level"),
    [
        ((3, 36, 0), PROBLEM),
        ((3, 40, 1), NOTE),
        ((3, 44, 5), NOTE),
        ((3, 44, 6), OK),
        ((3, 45, 0), NOTE),
        ((3, 50, 7), OK),
        ((3, 51, 2), NOTE),
        ((3, 51, 3), OK),
        ((3, 53, 0), OK),
    ],
    ids=lambda value: value if isinstance(value, str) else ".".join(map(str, value)),
)
def test_a_sqlite_that_is_too_old_or_known_to_be_broken_is_named(sqlite, level):
    found = one(host.versions(sqlite))
    assert found.level == level
    assert ".".join(map(str, sqlite)) in found.seen


# --- places ---------------------------------------------------------------------------------------------------------


def on(kind, problem):
    return lambda _: FileSystem(kind, "/mnt", problem)


def test_a_place_that_is_forgotten_is_a_problem_unless_it_was_accepted(tmp_path):
    found = one(places.file_system(str(tmp_path), "store-place", look=on("tmpfs", "it is kept in memory")))
    assert (found.level, "on tmpfs (mounted at /mnt)" in found.seen) == (PROBLEM, True)
    found = one(places.file_system(str(tmp_path), "store-place", accepted="tmpfs", look=on("tmpfs", "in memory")))
    assert found.level == NOTE


def test_a_lasting_place_is_named_with_the_room_there_is(tmp_path):
    found = one(places.file_system(str(tmp_path), "store-place", look=on("ext4", None)))
    assert found.level == OK
    assert "free" in found.seen


@pytest.mark.skipif(file_system_of("/dev/shm").kind != "tmpfs", reason="/dev/shm is no tmpfs here")
def test_the_tmpfs_of_this_machine_is_seen():
    assert one(places.file_system("/dev/shm", "store-place")).level == PROBLEM


@pytest.mark.parametrize(
    ("free", "files", "expected"),
    [
        (1 << 30, 10**6, [OK]),
        (100 << 20, 10**6, [NOTE]),
        (1 << 20, 10**6, [PROBLEM]),
        (1 << 30, 500, [NOTE]),
        (1 << 30, 3, [PROBLEM]),
        (1 << 30, None, [OK]),
    ],
)
def test_a_disk_with_no_room_for_bytes_or_files_is_seen(tmp_path, monkeypatch, free, files, expected):
    monkeypatch.setattr(places, "_free", lambda _: (free, files))
    assert levels(places.file_system(str(tmp_path), "store-place", look=on("ext4", None))) == expected


def test_a_folder_of_ones_own_is_fine(tmp_path):
    tmp_path.chmod(0o700)
    assert one(places.owners([str(tmp_path)], "store-owner", private=True)).level == OK


def test_a_folder_or_file_that_others_may_write_is_a_problem_with_its_cure(tmp_path):
    folder = tmp_path / "ledger"
    folder.mkdir(mode=0o700)
    file = folder / "ledger.db"
    file.touch(0o600)
    for path, mode in ((folder, 0o777), (file, 0o620)):
        before = stat.S_IMODE(path.stat().st_mode)
        path.chmod(mode)
        found = one(places.owners([str(folder), str(file)], "store-owner", private=True))
        assert (found.level, found.todo) == (PROBLEM, f"chmod go-w {path}")
        path.chmod(before)


def test_a_file_that_others_may_read_is_a_note(tmp_path):
    file = tmp_path / "ledger.db"
    file.touch()
    file.chmod(0o644)
    assert one(places.owners([str(file)], "store-owner", private=True)).level == NOTE


def test_a_folder_above_that_everybody_may_write_is_a_problem_unless_it_is_sticky(tmp_path):
    above = tmp_path / "above"
    below = above / "between" / "ledger"
    below.mkdir(parents=True)
    below.chmod(0o700)
    above.chmod(0o777)
    assert f"the folder {above}" in one(places.owners([str(below)], "store-owner", private=True)).seen
    above.chmod(0o1777)
    assert one(places.owners([str(below)], "store-owner", private=True)).level == OK


@pytest.mark.skipif(not ROOT, reason="only root can give files away")
def test_what_belongs_to_another_user_is_a_problem(tmp_path):
    file = tmp_path / "ledger.db"
    file.touch(0o600)
    os.chown(file, 65534, 65534)
    found = one(places.owners([str(file)], "store-owner", private=True))
    assert (found.level, "belongs to" in found.seen) == (PROBLEM, True)


def test_a_symbolic_link_is_a_problem(tmp_path):
    (tmp_path / "link").symlink_to("/nowhere")
    assert one(places.owners([str(tmp_path / "link")], "store-owner", private=True)).level == PROBLEM


# --- locks ----------------------------------------------------------------------------------------------------------


def contender(tmp_path, body):
    """Write a program that answers requests as no honest file system lets it."""
    path = tmp_path / "contender.py"
    path.write_text("import sys, time\n" + textwrap.dedent(body))
    return str(path)


@pytest.mark.parametrize("database", [True, False], ids=["flock and SQLite", "flock"])
def test_on_a_disk_whose_locks_hold_one_of_two_processes_wins_and_nothing_is_left(tmp_path, database):
    assert locks.contest(str(tmp_path), "store-locks", database=database).level == OK
    assert list(tmp_path.iterdir()) == []


def test_what_a_killed_doctor_left_is_removed_by_the_next_and_nobody_elses(tmp_path):
    for name, age in ((".ranonce-doctor-old", 3600), (".ranonce-doctor-now", 0), ("mine", 3600)):
        (tmp_path / name).mkdir()
        (tmp_path / name / "line").touch()
        os.utime(tmp_path / name, (time.time() - age,) * 2)
    assert locks.contest(str(tmp_path), "store-locks", database=False).level == OK
    assert sorted(path.name for path in tmp_path.iterdir()) == [".ranonce-doctor-now", "mine"]


def test_locks_that_both_get_are_a_problem(tmp_path):
    program = contender(tmp_path, "for line in sys.stdin: print('flock database', flush=True)")
    found = locks.contest(str(tmp_path), "store-locks", database=True, program=program)
    assert (found.level, "both had them at once" in found.seen) == (PROBLEM, True)


def test_a_commit_that_the_other_process_does_not_see_is_a_problem(tmp_path):
    body = """
        import os
        for line in sys.stdin:
            if line == "look\\n":
                answer = "0"
            else:  # the first that is asked is the first
                try:
                    os.mkdir(sys.argv[1] + "/first")
                    answer = "flock database"
                except FileExistsError:
                    answer = "nothing"
            print(answer, flush=True)
        """
    found = locks.contest(str(tmp_path), "store-locks", database=True, program=contender(tmp_path, body))
    assert (found.level, "did not see" in found.seen) == (PROBLEM, True)


def test_a_lock_that_hangs_is_a_problem_in_time(tmp_path, monkeypatch):
    monkeypatch.setattr(locks, "DEADLINE_SECONDS", 0.3)
    program = contender(tmp_path, "time.sleep(60)")
    found = locks.contest(str(tmp_path), "store-locks", database=True, program=program)
    assert (found.level, "hangs" in found.seen) == (PROBLEM, True)
    assert [entry.name for entry in tmp_path.iterdir()] == ["contender.py"]


def test_a_process_that_cannot_work_there_says_why(tmp_path):
    program = contender(tmp_path, "raise OSError('no locks available')")
    found = locks.contest(str(tmp_path), "store-locks", database=True, program=program)
    assert (found.level, "no locks available" in found.seen) == (PROBLEM, True)


def test_a_folder_in_which_nothing_can_be_written_is_a_problem():
    assert locks.contest("/proc", "store-locks", database=True).level == PROBLEM


# --- commands -------------------------------------------------------------------------------------------------------


@pytest.fixture
def declared(tmp_path):
    """Return what is found of one job with some settings, in a configuration that is read as any other."""

    def examined(**settings):
        table = {"every": '"day"', "command": '["/bin/true"]', **settings}
        path = tmp_path / "ranonce.toml"
        path.write_text("[jobs.j]\n" + "".join(f"{key} = {value}\n" for key, value in table.items()))
        path.chmod(0o600)
        environ = {"HOME": str(tmp_path), "PATH": f"{tmp_path}/bin:/usr/bin:/bin"}
        config = load(str(path), environ, pass_over=True)
        assert isinstance(config, Config)
        return list(jobs.declared(config, [], environ))

    return examined


def script(path: Path, text: str, mode: int = 0o755) -> str:
    path.parent.mkdir(exist_ok=True)
    path.write_text(text)
    path.chmod(mode)
    return f'["{path}"]'


def test_a_job_that_could_be_started_is_fine(declared, tmp_path):
    assert levels(declared()) == [OK]
    assert levels(declared(command='["true"]')) == [OK]
    assert levels(declared(command=script(tmp_path / "own.sh", "#!/bin/sh\ntrue\n"))) == [OK]
    assert levels(declared(command='["./own.sh", "{window}"]')) == [OK]


def test_a_command_that_is_missing_is_named(declared):
    found = one(declared(command='["/srv/gone/report.sh"]'))
    assert (found.level, found.job) == (PROBLEM, "j")
    assert "/srv/gone/report.sh is not there" in found.seen
    assert "nowhere in PATH" in one(declared(command='["no-such-tool"]')).seen


def test_a_command_that_may_not_be_executed_is_named_with_its_cure(declared, tmp_path):
    found = one(declared(command=script(tmp_path / "plain.sh", "#!/bin/sh\n", 0o644)))
    assert (found.level, found.todo) == (PROBLEM, f"chmod +x {tmp_path}/plain.sh")
    assert "is no file" in one(declared(command=f'["{tmp_path}"]')).seen


@pytest.mark.parametrize(
    ("first_line", "level", "word"),
    [
        ("#!/no/such/interpreter\n", PROBLEM, "/no/such/interpreter"),
        ("#!/bin/sh\r\n", PROBLEM, "CR LF"),
        ("echo no first line\n", NOTE, "no shell reads commands here"),
    ],
)
def test_a_script_that_the_kernel_could_not_start_is_named(declared, tmp_path, first_line, level, word):
    found = one(each for each in declared(command=script(tmp_path / "x.sh", first_line)) if each.level != OK)
    assert found.level == level
    assert word in found.seen + found.todo


def test_a_command_that_only_this_path_has_is_noted_since_cron_has_another(declared, tmp_path):
    script(tmp_path / "bin" / "only-here", "#!/bin/sh\n")
    found = one(declared(command='["only-here"]'))
    assert (found.level, "cron's PATH" in found.seen) == (NOTE, True)


def test_folder_version_file_and_receipts_must_be_there(declared):
    assert "its folder /no/where is not there" in one(declared(cwd='"/no/where"')).seen
    assert "/no/model.yaml" in one(declared(version='{ file = "/no/model.yaml" }')).seen
    assert "its receipts go to /no/where" in one(declared(receipt='"/no/where/receipts.jsonl"')).seen


def test_a_job_that_cannot_be_read_is_named_and_hides_no_other(declared):
    found = one(declared(every='"nonsense"'))
    assert (found.level, found.job) == (PROBLEM, "j")


# --- clocks ---------------------------------------------------------------------------------------------------------


class Clocks:
    """A real clock and a boot clock that go as they are told."""

    def __init__(self, wall: float, *, frozen: bool = False) -> None:
        self.wall = wall
        self.boot = 1000.0
        self.frozen = frozen

    def pass_time(self, seconds: float) -> None:
        self.boot += seconds
        self.wall += 0 if self.frozen else seconds

    def seen(self, planted=None, journal=None, facts=(), *, server=False):
        store = planted.store if planted else None
        if store is not None and not server:
            store.beside = "/var/lib"  # a file: its clock is this host's
        return list(
            clocks.clock(
                store, journal, list(facts), wall=lambda: self.wall, boot=lambda: self.boot, sleep=self.pass_time
            )
        )


NOON = at("2026-11-09T12:00:00Z")


def test_a_clock_that_nothing_contradicts_is_fine():
    planted = Planted("day")
    planted.run("2026-11-09")
    assert levels(Clocks(NOON).seen(planted)) == [OK]


def test_a_clock_that_stands_still_is_seen():
    assert "stands still" in one(Clocks(NOON, frozen=True).seen()).seen


def test_a_clock_behind_the_last_event_is_seen():
    planted = Planted("day")
    planted.run("2026-11-09")
    found = one(Clocks(NOON - 2 * 86400).seen(planted))
    assert (found.level, "behind the ledger's last event" in found.seen) == (PROBLEM, True)


@pytest.mark.parametrize(("off", "said"), [(10800, "3h ahead of the store's"), (-91, "1m 30s behind the store's")])
def test_a_clock_that_differs_from_a_servers_is_seen_and_the_servers_dates_what_is_recorded(off, said):
    planted = Planted("day")
    planted.clock = NOON
    planted.run("2026-11-09")
    found = one(Clocks(NOON + off).seen(planted, server=True))
    assert (found.level, said in found.seen) == (PROBLEM, True)
    assert levels(Clocks(NOON + 0.5).seen(planted, server=True)) == [OK]


@pytest.mark.parametrize(("jump", "word"), [(-660.0, "back"), (90 * 86400.0, "forward")])
def test_a_clock_that_jumped_since_this_hosts_last_event_is_seen(tmp_path, monkeypatch, jump, word):
    journal = Journal(str(tmp_path))
    monkeypatch.setattr(journal, "clock_jump", lambda facts, now: jump)
    found = one(Clocks(NOON).seen(journal=journal))
    assert (found.level, f"gone {word}" in found.seen) == (PROBLEM, True)


def test_events_whose_clock_went_back_are_noted():
    planted = Planted("hour")
    for hour, minute in (("09", 5), ("10", 5), ("08", 5)):
        planted.event("skipped", f"2026-11-09T{hour}", at=at(f"2026-11-09T{hour}:{minute:02}:00Z"), host="a")
    found = one(Clocks(NOON).seen(planted))
    assert (found.level, "it went back 1 time" in found.seen) == (NOTE, True)


def of_schedules(planted, zone="UTC"):
    return list(clocks.schedules(planted.store, [planted.store.job("j")], host=lambda: zone))


def scheduled(every, tz, first, days, **job):
    """Plant runs that were started at the same UTC time every day, each in the window that was then."""
    planted = Planted(every, tz=tz, **job)
    schedule = planted.schedules[-1]
    for day in range(days):
        began = at(first) + day * 86400
        planted.run(schedule.window_at(began + 5).key, started_at=float(began))
    return planted


def test_a_job_whose_line_fires_in_another_zone_is_told_by_how_much_and_what_fits():
    planted = scheduled("30 2 * * *", "America/New_York", "2026-10-01T02:30:04Z", 10)
    found = one(of_schedules(planted))
    assert found.level == PROBLEM
    assert "starts 20h late, each time (the last 10 scheduled runs)" in found.seen
    assert "by the clock of UTC" in found.seen
    assert "CRON_TZ=America/New_York" in found.todo
    assert "ranonce add j --tz UTC" in found.todo


def test_a_job_whose_line_has_another_hour_is_told_which_and_what_fits():
    planted = scheduled("0 2 * * *", "UTC", "2026-10-01T05:10:02Z", 10)
    found = one(of_schedules(planted))
    assert found.level == PROBLEM
    assert "starts 3h 10m late" in found.seen
    assert "05:10 by UTC" in found.seen
    assert "--every '10 5 * * *' --tz UTC" in found.todo


def test_a_steady_delay_that_the_job_allows_is_a_note():
    planted = scheduled("0 2 * * *", "UTC", "2026-10-01T02:30:00Z", 10)
    assert one(of_schedules(planted)).level == NOTE


def test_a_job_in_time_in_its_zone_is_fine_whatever_the_hosts_zone():
    planted = scheduled("30 2 * * *", "Europe/Berlin", "2026-07-01T00:30:03Z", 10)
    assert levels(of_schedules(planted, zone="Asia/Tokyo")) == [OK]


def test_manual_and_later_attempts_say_nothing_of_the_line():
    planted = scheduled("0 2 * * *", "UTC", "2026-10-01T02:00:02Z", 4)
    for day in ("10", "11", "12", "13", "14", "15", "16", "17"):
        planted.run(f"2026-10-{day}T02:00Z", started=f"2026-10-{day}T22:00:00Z", trigger="manual")
        planted.run(f"2026-09-{day}T02:00Z", started=f"2026-09-{day}T22:00:00Z", attempt=2)
    assert levels(of_schedules(planted)) == [OK]


def test_a_job_without_runs_in_another_zone_than_crons_is_noted():
    found = one(of_schedules(Planted("30 2 * * *", tz="Europe/Berlin")))
    assert (found.level, "cron here counts in UTC" in found.seen) == (NOTE, True)


def test_a_daily_job_may_be_served_at_any_hour_unless_it_looks_like_another_zones_midnight():
    assert levels(of_schedules(scheduled("day", "UTC", "2026-10-01T21:30:00Z", 10))) == [OK]
    found = one(of_schedules(scheduled("day", "America/New_York", "2026-10-01T00:00:03Z", 10)))
    assert (found.level, "by the clock of UTC" in found.seen) == (NOTE, True)


def test_a_zone_that_this_machine_does_not_know_is_a_finding_and_no_end():
    planted = Planted("30 2 * * *", tz="Europe/Berlin")
    version = ScheduleVersion(2, "0 2 * * *", "Mars/Olympus", "debian", 0, at("2026-01-01T00:00:00Z"), 0.0)
    job = planted.store.job("j")
    assert planted.store.record_schedule(job, version, job.version)
    assert one(of_schedules(planted)).level == PROBLEM


# --- events and jobs ------------------------------------------------------------------------------------------------


def test_gaps_in_the_numbers_of_events_are_found_as_ranges():
    numbers = records.Numbers(after=100)
    for seq in (7, 99, 101, 102, 105, *range(110, 140), 141):
        numbers.see(seq)
    assert list(numbers.gone()) == [(103, 104), (106, 109), (140, 140)]


def test_no_gap_is_no_gap_however_many_there_are():
    numbers = records.Numbers(after=0)
    for seq in range(1, 100_001):
        numbers.see(seq)
    assert (list(numbers.gone()), numbers.count) == ([], 100_000)


def test_a_number_that_cannot_be_true_takes_no_more_room_than_any_other():
    numbers = records.Numbers(after=0)
    for seq in (1, 2, (1 << 53) - 1, 1 << 62):
        numbers.see(seq)
    assert list(numbers.gone()) == [(3, (1 << 53) - 2), (1 << 53, (1 << 62) - 1)]


def test_numbers_that_never_came_in_with_an_import_are_a_note_and_those_gone_since_a_problem():
    planted = Planted("hour")
    born = planted.store.identity().created_at
    for number, when in ((3, born - 60), (5, born - 30), (9, born), (12, born + 1)):
        told = Event(when, RunKey("j", "2026-11-09T10"), at("2026-11-09T10:00:00Z"), "noted", 0, 1, seq=number)
        planted.store.upkeep().take_in(Intake([Told(None, (told,))], keep_numbers=True), lambda run, lease: False)
    found = [(each.level, each.seen.partition(":")[0]) for each in records.records(planted.store)]
    assert found == [
        (NOTE, "events 1 to 2 are not there"),
        (NOTE, "event 4 is not there"),
        (PROBLEM, "events 6 to 8 are gone, and nothing was pruned there"),
        (PROBLEM, "events 10 to 11 are gone, and nothing was pruned there"),
    ]


def test_runs_and_events_of_a_store_that_is_whole_tell_the_same():
    planted = Planted("hour")
    planted.hours("2026-11-08T00:00:00Z", "2026-11-09T12:00:00Z")
    found = one(records.records(planted.store))
    assert (found.level, found.seen) == (OK, "36 runs and 72 events tell the same")


def test_what_was_pruned_is_not_missed():
    planted = Planted("hour")
    planted.hours("2026-11-01T00:00:00Z", "2026-11-09T12:00:00Z")
    before = at("2026-11-08T00:00:00Z")
    assert planted.store.upkeep().prune("j", Retention(before, before), limit=1000).runs > 100
    assert one(records.records(planted.store)).level == OK


def test_jobs_that_only_the_ledger_or_only_the_file_has_are_named():
    planted = Planted("day")
    found = {each.job: each for each in store.jobs_known(planted.store, {"new"}, "/etc/r.toml", [])}
    assert levels(found.values()) == [NOTE, NOTE]
    assert "not in /etc/r.toml" in found["j"].seen
    assert "has never heard of it" in found["new"].seen
    assert one(store.jobs_known(planted.store, {"j"}, "/etc/r.toml", [])).level == OK
    assert one(store.jobs_known(planted.store, {"j"}, "/etc/r.toml", ["typo"])).level == PROBLEM
