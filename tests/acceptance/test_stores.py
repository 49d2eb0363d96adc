"""A ledger that is lost, replaced, foreign, damaged, locked, full or not ours: the job refuses to run rather than run
again, and says so in one sentence."""

from __future__ import annotations

import contextlib
import os
import shutil
import signal
import sqlite3
import subprocess
import sys
import tempfile
import threading
from pathlib import Path

import pytest

from ranonce.filesystem import file_system_of
from ranonce.liveness import boot_clock
from tests.conftest import EFFECT, HELD_EFFECT, NOON, RANONCE, TODAY, Ran, World, lives, wait_until

ROOT = os.geteuid() == 0


def refused(ran, status=78):
    """Nothing was run, and one sentence and one receipt say so."""
    assert ran.exit == status, ran.err
    assert ran.sentence.startswith("ranonce: ")
    assert (ran.receipt["event"], ran.receipt["exit"]) == ("unavailable", status)
    return ran.sentence


def store_files(world):
    return sorted(world.store.parent.glob("ledger.db*"))


def copied(world, name):
    """Copy the ledger's files as a backup would; return where they are."""
    backup = world.root / name
    backup.mkdir()
    for file in store_files(world):
        shutil.copy2(file, backup)
    return backup


def put_back(world, backup):
    for file in store_files(world):
        file.unlink()
    for file in backup.iterdir():
        shutil.copy2(file, world.store.parent)


# --- lost, emptied, rolled back, replaced ---------------------------------------------------------------------------


def wiped(world):
    shutil.rmtree(world.store.parent)


def deleted(world):
    for file in store_files(world):
        file.unlink()


def emptied(world):
    for file in store_files(world):
        file.write_bytes(b"")


def truncated(world):
    os.truncate(world.store, 0)


def rolled_back(world):
    put_back(world, world.root / "yesterday")


def without_its_wal(world):
    world.store.with_name("ledger.db-wal").unlink()
    world.store.with_name("ledger.db-shm").unlink()


def created_anew(world):
    from ranonce.stores.sqlite.create import create

    deleted(world)
    create(str(world.store), "f" * 32)


def created_anew_under_the_same_id(world):
    from ranonce.stores.sqlite.create import create

    deleted(world)
    create(str(world.store), world.ledger)


def half_gone(world):
    sqlite3.connect(world.store).execute("PRAGMA wal_checkpoint(TRUNCATE)").connection.close()
    os.truncate(world.store, world.store.stat().st_size // 2)


def header_gone(world):
    with world.store.open("r+b") as file:
        file.write(b"\0" * 100)


def a_directory(world):
    deleted(world)
    world.store.mkdir()


def not_a_database(world):
    deleted(world)
    world.store.write_bytes(b"start,2026-11-09\n" * 1000)
    world.store.chmod(0o600)


def somebody_elses_database(world):
    deleted(world)
    with contextlib.closing(sqlite3.connect(world.store)) as db:
        db.execute("CREATE TABLE runs (x)")


def a_link(world):
    elsewhere = world.root / "elsewhere.db"
    shutil.move(world.store, elsewhere)
    world.store.symlink_to(elsewhere)


def writable_by_others(world):
    world.store.chmod(0o666)


def without_tables(world):
    world.sql("DROP TABLE runs")


def without_its_identity(world):
    world.sql("DELETE FROM ledger")


def of_another_format(world):
    world.sql("PRAGMA user_version = 99")


@pytest.mark.parametrize(
    "lost",
    [
        wiped,
        deleted,
        emptied,
        rolled_back,
        without_its_wal,
        created_anew,
        created_anew_under_the_same_id,
        half_gone,
        header_gone,
        a_directory,
        not_a_database,
        somebody_elses_database,
        a_link,
        writable_by_others,
        without_tables,
        without_its_identity,
        of_another_format,
    ],
    ids=lambda lost: lost.__name__,
)
def test_a_store_that_is_not_the_ledger_it_should_be_runs_nothing(world, lost):
    world.run(now="2026-11-08T12:00:00Z")
    copied(world, "yesterday")
    world.run()
    lost(world)
    for now in ("2026-11-09T12:00:00Z", "2026-11-10T12:00:00Z"):
        sentence = refused(world.run(now=now))
        assert str(world.store) in sentence or "gone back in time" in sentence
    assert world.effects() == ["job 2026-11-08 1", f"job {TODAY} 1"]


def test_init_never_makes_a_second_ledger_where_one_was_lost(world):
    world.run()
    deleted(world)
    refusal = world.ranonce("init", "--accept-volatile", "--store", f"sqlite:///{world.store}")
    assert refusal.exit == 78
    assert world.ledger in refusal.sentence
    assert not world.store.exists()
    refused(world.run())


def test_init_again_changes_nothing(world):
    world.run()
    config = world.config.read_bytes()
    again = world.ranonce("init")
    assert again.exit == 0
    assert world.ledger.encode() in again.out
    assert world.config.read_bytes() == config
    assert world.run().said() == (0, "skipped", "done")


def test_of_many_inits_at_once_one_makes_the_ledger_and_the_others_find_it(bare):
    store = f"sqlite:///{bare.store}"
    ran = bare.at_once(6, "init", "--accept-volatile", "--json", "--store", store)
    assert [one.exit for one in ran] == [0] * 6, [one.err for one in ran]
    assert len({one.out.split(b'"ledger": ')[1].split(b",")[0] for one in ran}) == 1
    assert sum(b'"created": true' in one.out for one in ran) == 1
    assert bare.run().said() == (0, "done", None)


def test_running_never_makes_a_ledger(bare):
    ran = bare.run("--store", f"sqlite:///{bare.store}")
    assert "ranonce init" in refused(ran)
    assert not bare.store.exists()
    assert bare.effects() == []


def test_a_run_that_vanished_from_its_table_is_damage_and_no_first_run(world):
    world.run()
    world.sql("DELETE FROM runs")
    assert "damaged" in refused(world.run())
    assert world.effects() == [f"job {TODAY} 1"]


def test_no_flipped_bit_makes_a_window_run_again(world):
    world.run()
    world.run(now="2026-11-10T12:00:00Z")
    world.sql("PRAGMA wal_checkpoint(TRUNCATE)")  # and the last to close the file removes the rest
    whole = world.store.read_bytes()
    places = [at for at in range(len(whole)) if whole.startswith(b"2026-11-09", at)]
    assert len(places) >= 3  # in the run, its events and their indexes
    for at in places:
        world.store.write_bytes(whole[: at + 9] + bytes([whole[at + 9] ^ 1]) + whole[at + 10 :])
        ran = world.run()
        assert ran.said() == (0, "skipped", "done") or (ran.exit, ran.receipt["event"]) == (78, "unavailable"), at
        assert "Traceback" not in ran.err
        for file in store_files(world)[1:]:
            file.unlink()
    assert len(world.effects()) == 2


def test_the_working_directory_decides_nothing(world):
    for folder in ("/", world.root, world.root / "work"):
        ran = world.run(cwd=folder)
        assert ran.exit == 0
    assert len(world.effects()) == 1


def test_another_ledger_behind_a_swapped_folder_is_noticed(world, tmp_path_factory):
    other = tmp_path_factory.mktemp("other")
    from ranonce.stores.sqlite.create import create

    real = world.root / "release-1"
    world.store.parent.rename(real)
    world.store.parent.symlink_to(real)
    assert world.run().said() == (0, "done", None)
    create(str(other / "ledger.db"), "f" * 32)
    world.store.parent.unlink()
    world.store.parent.symlink_to(other)
    assert f"is ledger {'f' * 32}, not {world.ledger}" in refused(world.run())


@pytest.mark.parametrize(
    "store", ["", " ", ":memory:", "memory", "ledger.db", "/ledger.db", "sqlite://", "sqlite:///", "sqlite:///x.db"]
)
def test_an_address_that_names_no_store_for_sure_runs_nothing(world, store):
    assert refused(world.run(env={"RANONCE_STORE": store}))
    assert world.effects() == []


def test_a_tilde_in_an_address_is_the_home_folder(world):
    home = world.root / "home"
    made = world.ranonce("init", "--accept-volatile", "--store", "sqlite:///~/own.db", "--config", f"{home}/own.toml")
    assert made.exit == 0
    assert (home / "own.db").exists()


def test_without_anything_that_names_the_ledger_an_unknown_one_is_refused(world):
    elsewhere = {"XDG_CONFIG_HOME": str(world.root / "empty"), "XDG_STATE_HOME": str(world.root / "empty")}
    assert "RANONCE_LEDGER" in refused(world.run("--store", f"sqlite:///{world.store}", env=elsewhere))
    named = {**elsewhere, "RANONCE_LEDGER": world.ledger, "RANONCE_STORE": f"sqlite:///{world.store}"}
    assert world.run(env=named).said() == (0, "done", None)


# --- gone while the work goes on ------------------------------------------------------------------------------------


def beaten(world, invocation):
    """Wait until a lease of one second would be over, had its heartbeats not been tried meanwhile."""
    over = boot_clock() + 1.5
    wait_until(lambda: boot_clock() > over)
    assert invocation.process.poll() is None


def test_a_pipe_among_what_this_host_remembers_hangs_nobody(world):
    (world.root / "state" / "ranonce" / "odd").mkdir()
    os.mkfifo(world.root / "state" / "ranonce" / "odd" / "store")
    world.config.unlink()
    ran = world.run(env={"RANONCE_STORE": f"sqlite:///{world.store}"}, seconds=20)
    assert ran.said() == (0, "done", None)


def test_a_ledger_that_vanished_during_the_work_leaves_the_outcome_with_this_host(world):
    working, child = world.hold("--lease", "1s")
    away = world.root / "away"
    world.store.parent.rename(away)
    beaten(world, working)
    assert lives(child)
    world.let_go()
    ran = working.ends()
    assert (ran.exit, ran.receipt["event"], ran.receipt["reason"]) == (74, "done", "not-recorded")
    assert "Traceback" not in ran.err
    refused(world.run())
    away.rename(world.store.parent)
    again = world.run()
    assert again.said() == (0, "skipped", "done")
    assert "recorded first" in again.receipt["warnings"][0]
    assert world.effects() == [f"job {TODAY} 1"]


@pytest.mark.parametrize("lost", [rolled_back, created_anew, created_anew_under_the_same_id, truncated])
def test_a_ledger_replaced_during_the_work_kills_no_healthy_job_and_is_not_written_into(world, lost):
    world.run(now="2026-11-08T12:00:00Z")
    copied(world, "yesterday")
    working, child = world.hold("--lease", "1s")
    today = copied(world, "today")
    lost(world)
    replaced = world.store.read_bytes()
    beaten(world, working)
    assert lives(child)
    world.let_go()
    ran = working.ends()
    assert (ran.exit, ran.receipt["event"]) == (74, "done")
    assert world.store.read_bytes() == replaced
    refused(world.run())
    put_back(world, today)
    assert world.run().said() == (0, "skipped", "done")
    assert world.effects() == ["job 2026-11-08 1", f"job {TODAY} 1"]


def test_evidence_removed_during_the_work_lets_nobody_in(world):
    working, child = world.hold("--lease", "1s")
    shutil.rmtree(world.folder / "attempts")
    world.store.with_name("ledger.db-line").unlink()
    wait_until(lambda: world.run("--lease", "1s", "--busy-exit", "0").receipt["reason"] == "busy")
    assert lives(child)
    world.let_go()
    assert working.ends().said() == (0, "done", None)


@pytest.mark.parametrize("lost", [rolled_back, created_anew, created_anew_under_the_same_id, truncated])
def test_init_finds_no_ledger_in_one_that_was_replaced(world, lost):
    copied(world, "yesterday")
    world.run()
    lost(world)
    before = world.store.read_bytes()
    found = world.ranonce("init", "--accept-volatile")
    assert found.exit == 78
    assert "ranonce: " in found.sentence
    assert world.store.read_bytes() == before


# --- locked ---------------------------------------------------------------------------------------------------------


@pytest.fixture
def locked(world):
    """A way to hold the ledger's write lock, as another program would."""
    held = []

    def lock():
        db = sqlite3.connect(world.store, isolation_level=None, timeout=20, check_same_thread=False)
        db.execute("BEGIN IMMEDIATE")
        held.append(db)
        return db

    yield lock
    for db in held:
        db.close()


def test_a_ledger_that_is_locked_too_long_runs_nothing(world, locked):
    world.run(now="2026-11-08T12:00:00Z")
    world.wait_for_the_store(0.3)
    db = locked()
    assert "locked" in world.run().receipt["sentence"]
    ran = world.run()
    assert ran.said() == (69, "unavailable", "store-unavailable")
    db.close()
    assert world.run().said() == (0, "done", None)
    assert world.effects() == ["job 2026-11-08 1", f"job {TODAY} 1"]


def test_a_ledger_that_is_locked_when_a_job_is_new_runs_nothing(world, locked):
    world.wait_for_the_store(0.3)
    locked()
    refused(world.run(), 69)
    assert world.effects() == []


def test_a_ledger_that_is_locked_for_a_while_is_waited_for(world, locked):
    db = locked()
    threading.Timer(0.5, db.close).start()
    assert world.run().said() == (0, "done", None)


def test_a_stop_while_the_ledger_is_waited_for_starts_nothing(world, locked):
    world.run(now="2026-11-08T12:00:00Z")
    db = locked()
    waiting = world.start(*world.words())
    with pytest.raises(subprocess.TimeoutExpired):
        waiting.process.wait(1)
    waiting.signal(signal.SIGTERM)
    db.close()
    assert waiting.ends().said() == (-signal.SIGTERM, "stopped", "signal")
    assert len(world.effects()) == 1
    assert world.run().said() == (0, "done", None)


def test_an_outcome_waits_for_a_locked_ledger(world, locked):
    working, _ = world.hold()
    db = locked()
    world.let_go()
    with pytest.raises(subprocess.TimeoutExpired):
        working.process.wait(0.5)
    db.close()
    assert working.ends().said() == (0, "done", None)


def test_an_outcome_that_could_not_be_recorded_is_recorded_by_the_next_trigger(world, locked):
    world.wait_for_the_store(0.3)
    working, _ = world.hold()
    db = locked()
    world.let_go()
    ran = working.ends()
    assert ran.said() == (74, "done", "not-recorded")
    assert world.run().exit == 69
    db.close()
    assert world.run().said() == (0, "skipped", "done")
    assert world.state() == ("done", 1)
    assert world.effects() == [f"job {TODAY} 1"]


def test_a_locked_ledger_kills_no_healthy_job(world, locked):
    world.wait_for_the_store(20)
    working, child = world.hold("--lease", "1s")
    db = locked()
    expires = db.execute("SELECT expires FROM leases").fetchone()[0]
    wait_until(lambda: boot_clock() > expires + 0.5)
    assert lives(child)
    db.close()
    world.let_go()
    assert working.ends().said() == (0, "done", None)


# --- whose, and where -----------------------------------------------------------------------------------------------


def test_everything_kept_is_private_whatever_the_umask(bare):
    before = os.umask(0)
    try:
        bare.init()
        bare.run()
        bare.hold(now="2026-11-10T12:00:00Z")
    finally:
        os.umask(before)
    kept = [bare.store.parent, *store_files(bare), bare.folder, *bare.folder.rglob("*")]
    assert len(kept) >= 8
    for path in kept:
        assert path.stat().st_mode & 0o077 == 0, path
    bare.let_go()


def test_a_planted_link_is_never_written_through(world):
    treasure = world.root / "treasure"
    treasure.write_text("precious")
    line = world.store.with_name("ledger.db-line")
    line.unlink(missing_ok=True)
    line.symlink_to(treasure)
    ran = world.run()
    assert ran.exit in (69, 78)
    assert ran.sentence
    line.unlink()
    world.journal.unlink(missing_ok=True)
    world.journal.symlink_to(treasure)
    refused(world.run())
    assert treasure.read_text() == "precious"
    assert world.effects() == []


def test_attempts_in_a_folder_where_others_may_plant_files_are_refused(world):
    world.run(now="2026-11-08T12:00:00Z")
    (world.folder / "attempts").chmod(0o777)
    ran = world.run()
    assert (ran.exit, ran.receipt["event"]) == (69, "unavailable")
    assert "others can write" in ran.receipt["sentence"]
    assert len(world.effects()) == 1


@pytest.mark.parametrize("thing", ["a folder", "garbage"])
def test_a_journal_that_cannot_be_read_runs_nothing_and_garbage_is_passed_over(world, thing):
    world.run()
    if thing == "a folder":
        world.journal.unlink()
        world.journal.mkdir()
        assert "journal.jsonl" in refused(world.run())
    else:
        world.journal.write_bytes(b"\xff" * 50_000)
        assert world.run().said() == (0, "skipped", "done")


def test_where_there_is_no_place_for_a_journal_the_receipt_says_so(world):
    nowhere = {"XDG_STATE_HOME": "/proc/nowhere"}
    ran = world.run(env=nowhere)
    assert ran.said() == (0, "done", None)
    assert "no journal and no proof of death" in ran.receipt["warnings"][0]


NOBODY = ["setpriv", "--reuid=65534", "--regid=65534", "--clear-groups"]


@pytest.fixture
def shared_world():
    """A world in a folder that other users may enter."""
    if not ROOT or not shutil.which("setpriv"):
        pytest.skip("needs root and setpriv")
    if subprocess.run([*NOBODY, sys.executable, "-c", "import ranonce.cli.run"], capture_output=True).returncode:
        pytest.skip("needs a Python that other users may run")
    with tempfile.TemporaryDirectory(prefix="ranonce-test-", ignore_cleanup_errors=True) as folder:
        os.chmod(folder, 0o755)
        world = World(Path(folder))
        world.init()
        yield world
        world.end()


def run_as_nobody(world):
    """Run a job of another user, with a home of its own, in the ledger of this world."""
    home = world.root / "nobody"
    for folder in (home, home / "config", home / "state"):
        folder.mkdir()
        os.chown(folder, 65534, 65534)
    env = {
        **world.env,
        "HOME": str(home),
        "XDG_CONFIG_HOME": str(home / "config"),
        "XDG_STATE_HOME": str(home / "state"),
        "RANONCE_STORE": f"sqlite:///{world.store}",
        "RANONCE_LEDGER": world.ledger,
    }
    ran = subprocess.run([*NOBODY, *RANONCE, *world.words()], env=env, cwd="/", capture_output=True, timeout=30)
    return Ran(ran.returncode, ran.stdout, ran.stderr)


def test_another_users_ledger_is_refused_by_name(shared_world):
    shared_world.run(now="2026-11-08T12:00:00Z")
    assert "You are nobody (uid 65534)" in refused(run_as_nobody(shared_world))
    assert len(shared_world.effects()) == 1


def test_another_users_ledger_in_an_open_folder_is_refused_by_name(shared_world):
    shared_world.run(now="2026-11-08T12:00:00Z")
    shared_world.store.parent.chmod(0o755)
    sentence = refused(run_as_nobody(shared_world))
    assert "belongs to root (uid 0), and nobody (uid 65534) may not write it" in sentence
    assert len(shared_world.effects()) == 1


def test_a_ledger_in_a_folder_that_may_not_be_written_is_refused(shared_world):
    os.chown(shared_world.store, 65534, 65534)
    shared_world.store.parent.chmod(0o755)
    refused(run_as_nobody(shared_world))
    assert shared_world.effects() == []


@pytest.mark.skipif(file_system_of("/dev/shm").kind != "tmpfs", reason="/dev/shm is no tmpfs here")
def test_a_place_that_is_kept_in_memory_is_refused_by_name_unless_it_is_accepted(bare):
    store = f"/dev/shm/ranonce-test-{os.getpid()}/ledger.db"
    words = ("init", "--json", "--store", f"sqlite:///{store}")
    try:
        refusal = bare.ranonce(*words)
        assert refusal.exit == 78
        assert "tmpfs" in refusal.sentence
        assert not os.path.exists(store)
        assert bare.ranonce(*words, "--accept-volatile").exit == 0
        with contextlib.closing(sqlite3.connect(store)) as db:
            assert "tmpfs" in db.execute("SELECT volatile FROM ledger").fetchone()[0]
        ran = bare.run()
        assert ran.said() == (0, "done", None)
        assert "warnings" not in ran.receipt
    finally:
        shutil.rmtree(os.path.dirname(store), ignore_errors=True)


# --- full -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("handles", [8, 9, 11, 12, 13, 16])
def test_too_few_file_handles_start_nothing(world, handles):
    ran = world.shell(f"ulimit -n {handles}; $RANONCE run job --every day --now {NOON} -- /bin/sh -c '{EFFECT}'")
    assert ran.exit in (69, 78, 126)
    assert ran.receipt["event"] in ("unavailable", "failed")
    assert "Traceback" not in ran.err
    assert world.effects() == []
    assert world.run().said() == (0, "done", None)


@pytest.fixture
def small(bare):
    """A world whose ledger and state folder are on a disk of 3 MiB."""
    disk = bare.root / "disk"
    disk.mkdir()
    mounted = (
        ROOT and subprocess.run(["mount", "-t", "tmpfs", "-o", "size=3m,mode=0700", "tmpfs", disk]).returncode == 0
    )
    if not mounted:
        pytest.skip("a small disk cannot be mounted here (needs root)")
    try:
        (disk / "state").mkdir(mode=0o700)
        bare.env["XDG_STATE_HOME"] = str(disk / "state")
        bare.store = disk / "ledger" / "ledger.db"
        bare.init()
        bare.wait_for_the_store(0.3)
        yield bare
        bare.end()
    finally:
        subprocess.run(["umount", "-l", disk])


def folder_of(world):
    return world.root / "disk" / "state" / "ranonce" / world.ledger


def fill(world):
    """Leave no byte on the disk; return what fills it."""
    filler = world.root / "disk" / "filler"
    with filler.open("wb", buffering=0) as file, contextlib.suppress(OSError):
        while True:
            file.write(b"x" * 4096)
    return filler


def test_a_full_disk_starts_nothing(small):
    small.run(now="2026-11-08T12:00:00Z")
    filler = fill(small)
    ran = small.run()
    assert ran.exit in (69, 78)
    assert ran.receipt["event"] == "unavailable"
    assert "Traceback" not in ran.err
    filler.unlink()
    assert small.run().said() == (0, "done", None)
    assert small.effects() == ["job 2026-11-08 1", f"job {TODAY} 1"]


def test_a_disk_that_fills_up_during_the_work_makes_nothing_run_again(small):
    working, _ = small.hold()
    filler = fill(small)
    small.let_go()
    ran = working.ends()
    assert "Traceback" not in ran.err
    assert ran.receipt["event"] == "done"
    assert ran.exit in (0, 74)
    again = small.run()
    assert again.exit in (0, 69, 78)
    filler.unlink()
    assert small.run().said() == (0, "skipped", "done")
    assert small.effects() == [f"job {TODAY} 1"]


def test_a_disk_that_fills_up_kills_no_healthy_job_whose_output_and_verdict_are_large(small):
    large = 'i=0; while test $i -lt 3000; do echo "a line of the output that goes on and on $i"; i=$((i+1)); done'
    working, child = small.hold("--lease", "1s", sh=f"{HELD_EFFECT}; {large}; exit 3")
    filler = fill(small)
    seen = small.sql("SELECT expires FROM leases")[0][0]
    wait_until(lambda: boot_clock() > seen + 0.5)
    assert lives(child)
    small.let_go()
    ran = working.ends()
    assert "Traceback" not in ran.err
    assert ran.receipt["event"] == "failed"
    filler.unlink()
    again = small.run("--max-attempts", "1")
    assert again.said() == (80, "skipped", "exhausted")
    assert small.effects() == [f"job {TODAY} 1"]


def test_a_kill_on_a_full_disk_loses_no_kept_outcome(small):
    working, _ = small.hold(env={"RANONCE_FAILPOINT": "finish:outcome-kept"})
    filler = fill(small)
    small.let_go()
    assert working.ends().exit == -signal.SIGKILL
    filler.unlink()
    assert small.run().said() == (0, "skipped", "done")
    assert small.effects() == [f"job {TODAY} 1"]


def test_a_second_init_does_not_put_another_ledger_into_the_configuration(world):
    assert world.run(sh=EFFECT).exit == 0
    other = f"sqlite:///{world.store.parent}/other.db"
    said = world.ranonce("init", "--accept-volatile", "--store", other)
    assert said.exit == 78
    assert "already names the ledger" in said.err
    assert world.run(sh=EFFECT).exit == 0
    assert len(world.effects()) == 1


# --- of an older version ----------------------------------------------------------------------------------------------


def test_a_ledger_of_an_older_version_is_brought_up_to_date_by_init(bare):
    from tests.test_sqlite import LEDGER, old_ledger

    bare.store.parent.mkdir(mode=0o700)
    Path(old_ledger(bare.store.parent)).rename(bare.store)
    named = {"RANONCE_STORE": f"sqlite:///{bare.store}", "RANONCE_LEDGER": LEDGER}
    refused = bare.ranonce("run", "job", "--every", "day", "--", "true", env=named)
    assert (refused.exit, "ranonce init" in refused.err) == (78, True)
    first, again = (bare.ranonce("init", "--accept-volatile", "--json", env=named) for _ in range(2))
    assert (b'"upgraded": true' in first.out, b'"upgraded": true' in again.out) == (True, False)
    assert bare.ranonce("run", "job", "--every", "day", "--", "true", env=named).exit == 0
