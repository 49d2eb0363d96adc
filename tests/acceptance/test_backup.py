"""A backup is one consistent state, made while jobs run; put back, it makes nothing run again."""

from __future__ import annotations

import contextlib
import errno
import json
import os
import re
import shutil
import signal
import sqlite3
import subprocess

import pytest

from ranonce.errors import UsageError
from ranonce.stores.sqlite.store import SqliteStore
from ranonce.storeurl import server_of
from tests.acceptance.test_stores import fill, small  # noqa: F401 - small is a fixture
from tests.conftest import NOON, TODAY, wait_until
from tests.servers import forget

TOMORROW = "2026-11-10T12:00:00Z"


def asked(path, statement):
    with contextlib.closing(sqlite3.connect(path)) as db:
        return db.execute(statement).fetchall()


def left(folder):
    return sorted(path.name for path in folder.iterdir())


@pytest.fixture
def safe(world):
    """A folder for backups."""
    folder = world.root / "safe"
    folder.mkdir()
    return folder


def backup(world, path, *options):
    ran = world.ranonce("backup", str(path), "--json", *options)
    assert ran.exit == 0, ran.err
    return json.loads(ran.out)


def put_back(world, copy):
    for name in left(world.store.parent):
        (world.store.parent / name).unlink()
    shutil.copy(copy, world.store)
    world.store.chmod(0o600)


def test_a_backup_says_how_far_it_goes_and_how_it_is_put_back(world, safe):
    world.run()
    ran = world.ranonce("backup", str(safe / "copy.db"))
    assert ran.exit == 0
    said = ran.out.decode()
    assert said.startswith(f"Wrote {safe}/copy.db: the ledger {world.ledger} up to event 2.\n")
    assert f"copy it to {world.store}, mode 0600" in said
    assert "accept-loss" in said


def test_a_backup_is_private_whole_and_alone(world, safe):
    world.run()
    told = backup(world, safe / "copy.db")
    assert left(safe) == ["copy.db"]
    assert (safe / "copy.db").stat().st_mode & 0o777 == 0o600
    assert told == {
        "event": "backup",
        "path": str(safe / "copy.db"),
        "bytes": (safe / "copy.db").stat().st_size,
        "last_event": 2,
        "ledger": world.ledger,
        "epoch": 1,
    }
    assert asked(safe / "copy.db", "PRAGMA integrity_check") == [("ok",)]


def test_what_stands_only_in_the_wal_is_in_the_backup(world, safe):
    reader = sqlite3.connect(world.store, isolation_level=None)
    with contextlib.closing(reader):
        reader.execute("BEGIN")
        reader.execute("SELECT count(*) FROM runs").fetchall()  # nothing can be moved out of the WAL meanwhile
        world.run()
        shutil.copy(world.store, safe / "by hand.db")
        backup(world, safe / "copy.db")
    assert asked(safe / "by hand.db", "SELECT count(*) FROM runs") == [(0,)]
    assert asked(safe / "copy.db", "SELECT count(*) FROM runs") == [(1,)]


def test_a_backup_in_a_folder_is_named_after_the_instant(world, safe):
    path = backup(world, safe)["path"]
    assert re.fullmatch(rf"{safe}/ranonce-[0-9]{{8}}T[0-9]{{6}}Z\.db", path)


def test_a_relative_path_counts_from_where_the_caller_stands(world):
    assert backup(world, "copy.db")["path"] == str(world.root / "work" / "copy.db")


def test_while_jobs_run_each_backup_is_one_state(world, safe):
    working, _ = world.hold(job="long")
    jobs = [world.start(*world.words(job=f"job-{number}", sh="true")) for number in range(6)]
    for number in range(4):
        backup(world, safe / f"{number}.db")
    for job in jobs:
        assert job.ends().exit == 0
    world.let_go()
    assert working.ends().exit == 0
    for number in range(4):
        copy = safe / f"{number}.db"
        assert asked(copy, "SELECT status FROM runs WHERE job = 'long'") == [("running",)]
        unlike = (
            "SELECT job FROM runs WHERE (status = 'done') <> EXISTS"
            " (SELECT 1 FROM events WHERE events.job = runs.job AND event = 'done')"
        )
        assert asked(copy, unlike) == []


def test_what_was_done_before_the_backup_is_not_done_again_from_it(world, safe):
    world.run()
    backup(world, safe / "copy.db")
    put_back(world, safe / "copy.db")
    assert world.run().said() == (0, "skipped", "done")
    assert world.run(now=TOMORROW).said() == (0, "done", None)
    assert world.effects() == [f"job {TODAY} 1", "job 2026-11-10 1"]


def test_a_backup_from_before_later_work_is_refused_by_the_host_that_did_it(world, safe):
    backup(world, safe / "copy.db")
    world.run()
    put_back(world, safe / "copy.db")
    ran = world.run()
    assert ran.exit == 78
    assert "gone back in time" in ran.err
    assert world.effects() == [f"job {TODAY} 1"]


def test_a_run_that_worked_during_the_backup_still_works_in_the_restored_ledger_until_its_lease_ends(world, safe):
    world.run(job="other")
    working, _ = world.hold()
    backup(world, safe / "copy.db")
    world.let_go()
    working.ends()
    put_back(world, safe / "copy.db")
    show = world.ranonce(
        "show", "job", TODAY, "--now", NOON, env=world.another_host() | {"RANONCE_LEDGER": world.ledger}
    )
    assert show.exit == 2
    assert "attempt 1 is at work" in show.out.decode()


@pytest.mark.parametrize("path", ["safe/copy.db", "ledger/ledger.db"])
def test_a_file_that_exists_is_never_written_over(world, safe, path):
    (safe / "copy.db").write_text("mine")
    before = (world.root / path).read_bytes()
    ran = world.ranonce("backup", str(world.root / path))
    assert ran.exit == 64
    assert "exists already" in ran.sentence
    assert (world.root / path).read_bytes() == before
    assert left(safe) == ["copy.db"]


def test_a_folder_that_is_not_there_is_a_sentence(world):
    ran = world.ranonce("backup", str(world.root / "nowhere" / "copy.db"))
    assert ran.exit == 69
    assert "no backup could be written" in ran.sentence


def test_a_damaged_ledger_gives_no_backup(world, safe):
    for day in range(1, 10):
        world.run("--window", f"2026-10-0{day}", sh="true")
    world.sql("PRAGMA wal_checkpoint(TRUNCATE)")
    root = world.sql("SELECT rootpage FROM sqlite_schema WHERE name = 'events_of_window'")[0][0]
    with world.store.open("r+b") as file:
        file.seek((root - 1) * 4096 + 4090)
        byte = file.read(1)
        file.seek(-1, 1)
        file.write(bytes([byte[0] ^ 1]))
    ran = world.ranonce("backup", str(safe / "copy.db"))
    assert ran.exit in (69, 78)
    assert "damaged" in ran.sentence
    assert left(safe) == []


def test_a_full_disk_gives_no_backup_and_leaves_nothing(small):  # noqa: F811 - the fixture
    small.run()
    folder = small.root / "disk" / "safe"
    folder.mkdir()
    filler = fill(small)
    ran = small.ranonce("backup", str(folder / "copy.db"))
    assert ran.exit == 69
    assert f"no backup could be written to '{folder}/copy.db'" in ran.sentence  # it is not the ledger's disk
    assert left(folder) == []
    filler.unlink()
    assert small.run().said() == (0, "skipped", "done")


def test_a_backup_that_is_killed_has_not_got_its_name(world, safe):
    world.run()
    env = {"RANONCE_FAILPOINT": "backup:copied"}
    assert world.ranonce("backup", str(safe / "copy.db"), env=env).exit == -signal.SIGKILL
    assert [name.rpartition(".")[2] for name in left(safe)] == ["part"]
    assert backup(world, safe / "copy.db")["last_event"] == 2


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
def test_a_backup_that_is_told_to_end_leaves_nothing(world, safe, number):
    world.run()
    with contextlib.closing(sqlite3.connect(world.store)) as db:
        db.execute("CREATE TABLE ballast (bytes BLOB)")
        db.execute("INSERT INTO ballast VALUES (zeroblob(400000000))")
        db.commit()
    invocation = world.start("backup", str(safe / "copy.db"))
    wait_until(lambda: left(safe))
    invocation.signal(number)
    ran = invocation.ends()
    assert (ran.exit, ran.out, ran.err) == (-number, b"", "")
    assert left(safe) == []


def test_on_a_file_system_without_hard_links_a_backup_gets_its_name_all_the_same(world, safe, monkeypatch):
    world.run()

    def refused(*_):
        raise OSError(errno.EPERM, "Operation not permitted")

    monkeypatch.setattr(os, "link", refused)
    upkeep = SqliteStore(str(world.store)).upkeep()
    assert upkeep.backup(str(safe / "copy.db")) == 2
    assert left(safe) == ["copy.db"]
    assert asked(safe / "copy.db", "PRAGMA integrity_check") == [("ok",)]
    with pytest.raises(UsageError, match="exists already"):
        upkeep.backup(str(safe / "copy.db"))
    assert left(safe) == ["copy.db"]


@pytest.mark.parametrize("store_kind", ["postgres", "redis"], indirect=True)
def test_a_ledger_on_a_server_is_backed_up_by_what_its_server_has(world, safe):
    ran = world.ranonce("backup", str(safe / "copy.db"))
    assert ran.exit == 64
    assert ("pg_dump" in ran.sentence) != ("BGSAVE" in ran.sentence)
    assert "ranonce export" in ran.sentence
    assert left(safe) == []


@pytest.mark.parametrize("store_kind", ["postgres"], indirect=True)
def test_what_pg_dump_wrote_is_put_back_whole_and_an_old_one_is_noticed(world, postgres, safe):
    tools = getattr(postgres, "bin", None) or pytest.skip("the server's own programs are not here")
    server = server_of(world.url)
    names = server.namespace, server.address

    def tool(name, *words):
        subprocess.run([tools / name, *words], check=True, capture_output=True, timeout=60)

    def dumped(path):
        tool("pg_dump", "--format=custom", f"--schema={names[0]}", f"--file={path}", names[1])

    def restored(path):
        forget(world.url)
        tool("pg_restore", "--exit-on-error", f"--dbname={names[1]}", str(path))

    world.run(now="2026-11-08T12:00:00Z")
    dumped(safe / "yesterday")
    world.run()
    dumped(safe / "today")
    restored(safe / "today")
    assert world.run().said() == (0, "skipped", "done")
    assert world.ranonce("doctor", "--deep", "--quiet").out.decode() == ""
    restored(safe / "yesterday")
    refused = world.run()
    assert refused.exit == 78
    assert "gone back in time" in refused.sentence
    assert world.ranonce("accept-loss", "--reason", "restored from yesterday").exit == 0
    assert world.run().said() == (0, "skipped", "done")
    assert len(world.effects()) == 2
