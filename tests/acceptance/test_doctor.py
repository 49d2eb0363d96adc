"""A doctor names every fault that was planted, goes on whatever is broken, changes nothing, and has nothing to say of
a world in which all is well."""

from __future__ import annotations

import contextlib
import json
import os
import random
import shutil
import signal
import sqlite3
from pathlib import Path

import pytest

from ranonce.doctor import Patient, examine, locks
from ranonce.doctor.finding import PROBLEM, Check
from ranonce.journal import decode, encode
from tests.conftest import World, wait_until

ROOT = os.geteuid() == 0


def looked(world, *names, deep=False, env=None):
    """Return everything a doctor says of a world."""
    return list(examine(Patient(list(names), None, None, {**world.env, **(env or {})}, deep)))


def problems(world, *names, **how):
    """Return (check, what was seen) of the problems."""
    return [(each.check, each.seen) for each in looked(world, *names, **how) if each.level == PROBLEM]


def only(world, **how):
    """Return the one problem."""
    found = problems(world, **how)
    assert len(found) == 1, found
    return found[0]


@pytest.fixture(scope="module")
def history(tmp_path_factory):
    """A world with some history: retries, a rerun, a release, a stop, refusals; two jobs, one of them declared."""
    world = World(tmp_path_factory.mktemp("lived"))
    world.init()
    assert world.ranonce("add", "job", "--every", "day", "--", "/bin/true").exit == 0
    world.run(now="2026-11-07T12:00:00Z", every=None)
    world.run(now="2026-11-08T12:00:00Z", every=None, sh="exit 3")
    world.run(now="2026-11-08T13:00:00Z", every=None)
    world.run(every=None)
    world.run(every=None)
    assert world.ranonce("rerun", "job", "2026-11-07", "--reason", "it was wrong", "--", "/bin/true").exit == 0
    world.run("--max-attempts", "1", job="other", every="hour", sh="exit 1")
    freed = ("release", "other", "2026-11-09T12", "--as", "not-done", "--reason", "looked")
    assert world.ranonce(*freed).exit == 0
    world.run(job="other", every="hour", sh="$RANONCE stop --reason 429 --retry-after 60")
    shutil.copytree(world.root, f"{world.root} as it was", symlinks=True)
    yield world
    world.end()


@pytest.fixture
def lived(history):
    """The same for one test, which may do with it what it likes."""
    yield history
    history.let_go()
    wait_until(history.no_process_is_left)
    shutil.rmtree(history.root)
    shutil.copytree(f"{history.root} as it was", history.root, symlinks=True)


def bare_sql(world, *statements):
    """Change the file behind the ledger's back, triggers and all."""
    with contextlib.closing(sqlite3.connect(world.store, isolation_level=None)) as db:
        for statement in statements:
            db.execute(statement)


# --- all is well ----------------------------------------------------------------------------------------------------


def test_a_world_in_which_all_is_well_has_no_problem(lived):
    ran = lived.ranonce("doctor", "--deep")
    assert (ran.exit, ran.err) == (0, ""), ran.out.decode()
    lines = ran.out.decode().splitlines()
    assert lines[-1].startswith("problems=0 notes=")
    checks = {line.split()[1].rstrip(":") for line in lines[:-1]}
    assert {"versions", "configuration", "store-place", "store-locks", "integrity", "journal", "events"} <= checks
    assert {"clock", "schedule", "claims", "attempts", "triggers"} <= checks


def test_looking_changes_nothing(lived):
    def everything():
        root = lived.root
        files = {path for path in root.rglob("*") if not path.name.endswith(("-shm", "-wal", "ledger.db"))}
        dump = [lived.sql(f"SELECT * FROM {table}") for table in ("runs", "events", "leases", "jobs", "ledger")]
        return files, dump, lived.journal.read_bytes()

    before = everything()
    looked(lived, deep=True)
    assert everything() == before


@pytest.mark.parametrize("words", [(), ("--deep",)])
def test_looking_does_not_even_write_the_log_back(lived, words):
    lived.run(now="2026-11-10T12:00:00Z", every=None)
    files = [lived.store, lived.store.with_name("ledger.db-wal"), lived.journal]
    before = [(path.read_bytes(), path.stat().st_mtime_ns) for path in files]
    lived.ranonce("doctor", *words)
    assert [(path.read_bytes(), path.stat().st_mtime_ns) for path in files] == before


def test_looking_at_a_file_without_a_log_leaves_none(lived):
    lived.sql("PRAGMA wal_checkpoint(TRUNCATE)")  # and, as the last one, takes the log away
    before = sorted(path.name for path in lived.store.parent.iterdir())
    lived.ranonce("doctor")
    assert sorted(path.name for path in lived.store.parent.iterdir()) == before


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGHUP, signal.SIGINT])
def test_told_to_end_it_leaves_nothing(lived, number):
    looking = lived.start("doctor")
    wait_until(lambda: list(lived.store.parent.glob(".ranonce-doctor-*")) or looking.process.poll() is not None)
    looking.signal(number)
    assert looking.ends().exit in (128 + number, 0)
    assert list(lived.store.parent.glob(".ranonce-doctor-*")) == []


def test_for_machines_each_finding_is_an_object_with_lasting_names(lived):
    ran = lived.ranonce("doctor", "--json")
    found = [json.loads(line) for line in ran.out.splitlines()]
    assert all({"check", "level", "tried", "seen"} <= each.keys() for each in found)
    assert {each["level"] for each in found} <= {"ok", "note", "problem"}
    assert all(each.get("todo") for each in found if each["level"] == "problem")


def test_quiet_says_problems_only(lived):
    assert lived.ranonce("doctor", "--quiet").out == b""
    lived.store.parent.chmod(0o777)
    ran = lived.ranonce("doctor", "--quiet")
    assert ran.exit == 1
    (line,) = ran.out.decode().splitlines()
    assert line.startswith("problem  store-owner: ")
    assert line.endswith(f"-> chmod go-w {lived.store.parent}")


# --- the store is not there, or not what it should be ---------------------------------------------------------------


def gone(world):
    shutil.rmtree(world.store.parent)


def emptied(world):
    os.truncate(world.store, 0)


def nonsense(world):
    world.store.write_bytes(b"nonsense" * 1000)


def a_folder(world):
    world.store.unlink()
    world.store.mkdir()


def older_tables(world):
    world.sql("PRAGMA user_version = 1")


def another_ledger(world):
    world.sql("UPDATE ledger SET id = ?", "f" * 32)


@pytest.mark.parametrize("lost", [gone, emptied, nonsense, a_folder, older_tables, another_ledger])
def test_a_store_that_is_not_the_ledger_is_a_finding_and_the_rest_is_still_looked_at(lived, lost):
    lost(lived)
    found = looked(lived, deep=True)
    assert next(each.check for each in found if each.level == PROBLEM) == "store"
    assert {"versions", "job", "clock", "attempts"} <= {each.check for each in found}
    assert all(each.todo for each in found if each.level == PROBLEM)


def test_a_configuration_that_cannot_be_read_is_a_finding_and_the_rest_is_still_looked_at(lived):
    lived.config.chmod(0o666)
    assert {check for check, _ in problems(lived)} == {"configuration", "store"}
    store = {"RANONCE_STORE": f"sqlite:///{lived.store}"}
    assert {check for check, _ in problems(lived, env=store)} == {"configuration"}


def test_a_job_whose_command_is_missing_is_named(lived):
    assert lived.ranonce("add", "broken", "--every", "day", "--", "/srv/no/such.sh").exit == 0
    assert only(lived) == ("job", "its command /srv/no/such.sh is not there: No such file or directory")


def test_a_job_that_nobody_knows_is_a_finding(lived):
    assert problems(lived, "typo") == [("jobs", "neither of them has it")]


# --- damage inside --------------------------------------------------------------------------------------------------


def test_one_flipped_bit_in_an_index_is_found(lived):
    lived.sql("PRAGMA wal_checkpoint(TRUNCATE)")
    page_size = lived.sql("PRAGMA page_size")[0][0]
    (root,) = lived.sql("SELECT rootpage FROM sqlite_schema WHERE name = 'events_of_window'")[0]
    data = bytearray(lived.store.read_bytes())
    page = slice((root - 1) * page_size, root * page_size)
    at = data.index(b"job", page.start, page.stop)
    data[at] ^= 1
    lived.store.write_bytes(data)
    found = problems(lived, deep=True)
    assert "integrity" in {check for check, _ in found}
    assert lived.sql("PRAGMA quick_check")[0][0] == "ok"  # which would not have seen it


def test_no_flipped_bit_makes_a_doctor_give_up(lived, monkeypatch):
    monkeypatch.setattr(locks, "contest", lambda folder, name, **_: Check(name, "").ok("not tried again"))
    lived.sql("PRAGMA wal_checkpoint(TRUNCATE)")
    whole = lived.store.read_bytes()
    places = [at for at, byte in enumerate(whole) if byte]
    for at in random.Random(7).sample(places, 60):
        data = bytearray(whole)
        data[at] ^= 1 << at % 8
        lived.store.write_bytes(data)
        found = looked(lived, deep=True)
        assert {"versions", "job", "clock"} <= {each.check for each in found}
        assert all(each.todo for each in found if each.level == PROBLEM)


def test_a_changed_row_is_named_with_what_its_events_say(lived):
    bare_sql(lived, "UPDATE runs SET status = 'failed', exit = 1 WHERE \"window\" = '2026-11-09'")
    found = problems(lived, deep=True)
    assert ("events", "job:2026-11-09: its row has status 'failed', its events say 'done'") in found
    assert ("events", "job:2026-11-09: its row has exit 1, its events say 0") in found


def test_a_row_that_is_gone_is_named(lived):
    bare_sql(lived, "DELETE FROM runs WHERE \"window\" = '2026-11-09'")
    (found,) = problems(lived, deep=True)
    assert found == ("events", "job:2026-11-09: its events tell of a run (done at attempt 1), and it has no row")


DROP = "DROP TRIGGER events_are_not_removed"
MAKE = """CREATE TRIGGER events_are_not_removed BEFORE DELETE ON events
    WHEN NOT EXISTS (SELECT 1 FROM pruning WHERE job = OLD.job)
    BEGIN SELECT RAISE(ABORT, 'events are append-only'); END"""


@pytest.mark.parametrize("event", ["start", "done", "failed", "skipped", "rerun", "released"])
def test_an_event_that_was_removed_is_named_even_where_nobody_misses_it(lived, event):
    (seq,) = lived.sql("SELECT min(seq) FROM events WHERE event = ?", event)[0]
    bare_sql(lived, DROP, f"DELETE FROM events WHERE seq = {seq}", MAKE)
    found = problems(lived, deep=True)
    assert ("events", f"event {seq} is gone, and nothing was pruned there") in found
    assert "journal" in {check for check, _ in found}


def test_a_trigger_that_was_dropped_is_named(lived):
    bare_sql(lived, DROP)
    assert only(lived) == ("tables", "the trigger events_are_not_removed is missing")


def test_a_trigger_that_was_weakened_behind_sqlites_back_is_named(lived):
    with contextlib.closing(sqlite3.connect(lived.store, isolation_level=None)) as db:
        db.execute("PRAGMA writable_schema = ON")
        weak = "CREATE TRIGGER events_are_not_removed BEFORE DELETE ON events WHEN 0 BEGIN SELECT 1; END"
        db.execute("UPDATE sqlite_schema SET sql = ? WHERE name = 'events_are_not_removed'", (weak,))
        db.execute("PRAGMA writable_schema = OFF")
    assert only(lived) == ("tables", "the trigger events_are_not_removed is not what it should be")


@pytest.mark.parametrize(
    ("statement", "seen"),
    [
        ("INSERT INTO pruning VALUES ('job')", "events of the job job may be removed at any time"),
        ("UPDATE ledger SET pruned_seq = 999999", "it says that events up to 999999 were pruned"),
        ("UPDATE ledger SET epoch = 7", "it is in epoch 7, and the last loss that was accepted began epoch 1"),
        ("DELETE FROM schedules WHERE job = 'job'", "the job job should have 1 versions of its schedule, and has 0"),
        ("DELETE FROM jobs WHERE job = 'job'", "the job job has a schedule, and is none of the jobs"),
    ],
)
def test_tables_that_contradict_each_other_are_named(lived, statement, seen):
    bare_sql(lived, statement)
    found = [told for check, told in problems(lived) if check == "tables"]
    assert [told[: len(seen)] for told in found] == [seen]


def test_a_journal_mode_that_somebody_changed_is_named(lived):
    bare_sql(lived, "PRAGMA journal_mode = DELETE")
    assert only(lived) == ("durability", "journal_mode is delete, not wal")


# --- the second witness ---------------------------------------------------------------------------------------------


def test_a_journal_that_knows_more_than_the_store_is_named(lived):
    last = decode(lived.journal.read_bytes().splitlines()[-1])
    with lived.journal.open("ab") as file:
        file.write(encode({**last, "seq": 900, "event": "done", "window": "2026-11-30"}))
    check, seen = only(lived)
    assert check == "journal"
    assert "gone back in time" in seen
    assert "done of other:2026-11-30 (event 900)" in seen


def test_an_event_that_differs_from_the_journal_far_back_is_found_deep_and_located(lived):
    bare_sql(
        lived,
        "DROP TRIGGER events_are_not_changed",
        "UPDATE events SET owner = 'somebody' WHERE seq = 2",
        "CREATE TRIGGER events_are_not_changed BEFORE UPDATE ON events"
        " BEGIN SELECT RAISE(ABORT, 'events are append-only'); END",
    )
    assert problems(lived) == []
    found = [seen for check, seen in problems(lived, deep=True) if check == "journal"]
    begins = lived.journal.read_bytes().index(b"\n") + 1
    assert [seen.split(":")[0] for seen in found] == [f"line 2 (byte {begins})"]


def test_torn_lines_are_counted_and_located_and_are_no_problem(lived):
    whole = lived.journal.read_bytes().splitlines(keepends=True)
    lived.journal.write_bytes(b"".join([whole[0], b'{"len":12,"crc":"0\n', b"\0" * 300 + b"\n", *whole[1:]]))
    found = [each for each in looked(lived, deep=True) if each.check == "journal"]
    assert not [each for each in found if each.level == PROBLEM]
    assert any(f"2 lines torn, which mislead nobody: line 2 (byte {len(whole[0])})" in each.seen for each in found)


# --- places, clocks, processes --------------------------------------------------------------------------------------


def test_a_ledger_on_a_disk_that_forgets_is_named_unless_that_was_accepted(bare):
    shm = Path("/dev/shm") / f"ranonce-{os.getpid()}"
    if not os.path.ismount("/dev/shm"):
        pytest.skip("no /dev/shm here")
    bare.store = shm / "ledger.db"
    try:
        bare.init()
        assert problems(bare) == []
        bare.sql("UPDATE ledger SET volatile = NULL")
        assert "store-place" in {check for check, _ in problems(bare)}
    finally:
        shutil.rmtree(shm)


@pytest.mark.skipif(not ROOT, reason="only root can give files away")
def test_a_ledger_that_belongs_to_somebody_else_is_named(lived):
    os.chown(lived.store, 65534, 65534)
    found = problems(lived)
    assert ("store-owner", True) in [(check, "belongs to" in seen) for check, seen in found]


def test_a_clock_that_was_set_back_is_named(lived):
    lived.sql("DROP TRIGGER events_are_not_changed")
    lived.sql("UPDATE events SET at = '2099-01-01T00:00:00.000Z' WHERE seq = (SELECT max(seq) FROM events)")
    assert ("clock", True) in [(check, "behind the ledger's last event" in seen) for check, seen in problems(lived)]


def test_a_real_clock_that_left_the_boot_clock_is_named(lived):
    whole = lived.journal.read_bytes().splitlines()
    last = decode(whole[-1])
    moved = encode({**last, "at": "2031-01-01T00:00:00.000Z"})
    lived.journal.write_bytes(b"\n".join(whole[:-1]) + b"\n" + moved)
    check, seen = only(lived)
    assert (check, "it has gone back, or stands still," in seen) == ("clock", True)


def test_a_crashed_attempt_is_named_with_the_way_on(lived):
    assert lived.run(env={"RANONCE_FAILPOINT": "run:child-started"}, now="2026-11-10T12:00:00Z", every=None).exit < 0
    check, seen = only(lived)
    assert check == "claims"
    assert seen.startswith("job:2026-11-10 began at ")
    assert "its process is dead" in seen


def test_an_outcome_that_waits_on_this_host_is_named(lived):
    lived.run(env={"RANONCE_FAILPOINT": "finish:outcome-kept"}, now="2026-11-10T12:00:00Z", every=None)
    check, seen = only(lived)
    assert check == "attempts"
    assert seen.startswith("job:2026-11-10 ended (done) at ")
    assert lived.run(now="2026-11-11T12:00:00Z", every=None).exit == 0
    assert problems(lived) == []


def test_a_file_of_an_attempt_that_is_long_over_is_noted(lived):
    (lived.folder / "attempts" / ("a" * 32)).write_bytes(b"")
    found = [each for each in looked(lived) if each.check == "attempts"]
    assert [(each.level, each.seen) for each in found] == [("note", "1 file of attempts that are long over: harmless")]


def test_who_works_is_no_finding(lived):
    working, _ = lived.hold(now="2026-11-10T12:00:00Z", every=None)
    assert problems(lived, deep=True) == []
    assert "1 claim is held, by who works" in [each.seen for each in looked(lived) if each.check == "claims"]
    lived.let_go()
    assert working.ends().exit == 0


def test_lines_that_fire_twice_for_every_window_are_noted(world):
    for day in ("05", "06", "07"):
        world.run(now=f"2026-11-{day}T12:00:00Z")
        world.run(now=f"2026-11-{day}T12:00:00Z")
    found = [each for each in looked(world) if each.check == "triggers"]
    assert [each.level for each in found] == ["note"]
    assert "3 windows of the last 3 had up to 2 triggers" in found[0].seen


LINES = """{"event": "start", "window": "old:2026-10-01", "ts": "2026-10-01T02:00:00Z"}
{"event": "fail", "window": "old:2026-10-01", "ts": "2026-10-01T02:10:00Z"}
{"event": "start", "window": "old:2026-10-01", "ts": "2026-10-01T03:00:00Z"}
{"event": "done", "window": "old:2026-10-01", "ts": "2026-10-01T03:10:00Z"}
{"event": "start", "window": "old:2026-10-02", "ts": "2026-10-02T02:00:00Z"}
"""


def test_what_was_imported_and_what_was_put_back_after_a_loss_is_whole(lived):
    (lived.root / "work" / "old.jsonl").write_text(LINES)
    assert lived.ranonce("import", "old.jsonl", "--every", "day").exit == 0
    assert problems(lived, deep=True) == []
    gone(lived)
    ran = lived.ranonce("accept-loss", "--reason", "the disk died")
    assert ran.exit == 0, ran.err
    assert problems(lived, deep=True) == []
    assert ["the disk died" in each.seen for each in looked(lived) if each.check == "losses"] == [True]


def test_jobs_that_go_on_meanwhile_are_not_called_damaged(lived):
    days = [f"2026-10-{day}T12:00:00Z" for day in range(10, 15)]
    started = [lived.start(*lived.words("--overlap", "allow", job="busy", now=now)) for now in days]
    while any(invocation.process.poll() is None for invocation in started):
        assert problems(lived, deep=True) == []
    assert [invocation.ends().exit for invocation in started] == [0] * 5
