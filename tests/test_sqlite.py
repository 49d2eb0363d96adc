"""What is true of the SQLite store beyond the contract of all stores."""

from __future__ import annotations

import os
import shutil
import signal
import sqlite3
import stat
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest

from ranonce.errors import NotThisLedger, StoreUnavailable, UsageError
from ranonce.lifecycle import Retention
from ranonce.stores.base import Outline, joined
from ranonce.stores.sqlite.create import create, upgrade
from ranonce.stores.sqlite.file import APPLICATION_ID
from ranonce.stores.sqlite.line import WaitingLine
from ranonce.stores.sqlite.store import SqliteStore
from tests.contract.acting import ask, claim, ledger_over, verdict

LEDGER = "ab" * 16


@pytest.fixture
def path(tmp_path):
    file = tmp_path / "ledger" / "ledger.db"
    create(str(file), LEDGER)
    return str(file)


@pytest.fixture
def used(path):
    ledger = ledger_over(SqliteStore(path))
    ledger.finish(claim(ledger), verdict())
    return path


@pytest.mark.parametrize(
    "statement",
    [
        "UPDATE events SET event = 'done'",
        "DELETE FROM events",
        "INSERT OR REPLACE INTO events SELECT seq, at, job, window_start, \"window\", input, 'failed', reason, attempt,"
        " generation, owner, triggered_by, version, host, data, output FROM events LIMIT 1",
    ],
)
def test_events_cannot_be_changed_removed_or_replaced(used, statement):
    db = sqlite3.connect(used)
    before = db.execute("SELECT * FROM events").fetchall()
    with pytest.raises(sqlite3.IntegrityError, match="append-only"):
        db.execute(statement)
    assert db.execute("SELECT * FROM events").fetchall() == before
    db.close()


@pytest.mark.parametrize("status", ["Failed", "faild", "", None])
def test_a_status_nobody_knows_cannot_be_written(used, status):
    db = sqlite3.connect(used)
    with pytest.raises(sqlite3.IntegrityError):
        db.execute("UPDATE runs SET status = ?", (status,))
    db.close()


@pytest.mark.parametrize(
    "damage",
    [
        "UPDATE runs SET status = 'dome'",
        "UPDATE runs SET attempt = 9223372036854775807",
        "UPDATE runs SET started_at = 'x'",
        "UPDATE runs SET finished_at = ''",
        "UPDATE jobs SET declared_at = 'yesterday'",
        "UPDATE schedules SET recorded_at = 'x'",
        "UPDATE ledger SET created_at = 'x'",
    ],
)
def test_a_damaged_cell_is_said_and_nothing_is_started(used, damage):
    db = sqlite3.connect(used, isolation_level=None)
    db.execute("PRAGMA ignore_check_constraints = 1")
    db.execute(damage)
    db.close()
    with pytest.raises(NotThisLedger, match="damaged"):
        store = SqliteStore(used)
        store.jobs()
        ledger_over(store).claim(ask())


def test_a_done_run_whose_row_says_otherwise_is_not_started_again(used):
    db = sqlite3.connect(used, isolation_level=None)
    db.execute("UPDATE runs SET status = 'running'")
    db.close()
    with pytest.raises(NotThisLedger, match="tell different stories"):
        ledger_over(SqliteStore(used)).claim(ask())


def test_people_can_ask_with_plain_sql(used):
    db = sqlite3.connect(used)
    assert db.execute("SELECT status, count(*) FROM runs GROUP BY 1").fetchall() == [("done", 1)]
    assert db.execute("SELECT date(window_start, 'unixepoch') FROM runs").fetchone() == ("2025-11-10",)
    db.close()


def test_the_file_and_its_folder_are_private_under_any_umask(tmp_path):
    before = os.umask(0)
    try:
        create(str(tmp_path / "new" / "ledger.db"), LEDGER)
        ledger_over(SqliteStore(str(tmp_path / "new" / "ledger.db")))
    finally:
        os.umask(before)
    assert stat.S_IMODE(os.stat(tmp_path / "new").st_mode) == 0o700
    for name in os.listdir(tmp_path / "new"):
        assert stat.S_IMODE(os.stat(tmp_path / "new" / name).st_mode) == 0o600, name


def test_a_new_ledger_is_durable_without_its_wal(path, tmp_path):
    copy = tmp_path / "copy.db"
    shutil.copyfile(path, copy)
    copy.chmod(0o600)
    assert SqliteStore(str(copy)).identity().ledger == LEDGER


def test_creating_over_anything_is_refused(path):
    with pytest.raises(NotThisLedger, match="exists already"):
        create(path, "cd" * 16)
    assert SqliteStore(path).identity().ledger == LEDGER


def test_creating_leaves_nothing_half_made(tmp_path, monkeypatch):
    monkeypatch.setattr("ranonce.stores.sqlite.create.read_schema", lambda: "CREATE TABLE broken (;")
    with pytest.raises(StoreUnavailable):
        create(str(tmp_path / "ledger.db"), LEDGER)
    assert os.listdir(tmp_path) == []


def test_it_is_wal_and_fully_synchronous(path):
    store = SqliteStore(path)
    assert store._db.execute("PRAGMA journal_mode").fetchone() == ("wal",)
    assert store._db.execute("PRAGMA synchronous").fetchone() == (2,)


@pytest.mark.parametrize("swap", ["deleted", "replaced", "emptied"])
def test_a_file_swapped_under_an_open_ledger_is_noticed_before_the_commit(used, tmp_path, swap):
    ledger = ledger_over(SqliteStore(used))
    if swap == "deleted":
        os.unlink(used)
    elif swap == "replaced":
        create(str(tmp_path / "other.db"), LEDGER)
        os.replace(tmp_path / "other.db", used)
    else:
        os.truncate(used, 0)
    with pytest.raises(NotThisLedger):
        ledger.claim(ask(1))


def test_a_store_locked_by_another_program_is_unavailable_after_the_wait(used):
    ledger = ledger_over(SqliteStore(used, wait_seconds=0.3))
    other = sqlite3.connect(used, isolation_level=None)
    other.execute("BEGIN IMMEDIATE")
    with pytest.raises(StoreUnavailable, match="locked by another program"):
        ledger.claim(ask(1))
    other.execute("ROLLBACK")
    assert claim(ledger, 1).attempt == 1
    other.close()


def test_the_line_lets_one_through_at_a_time(tmp_path):
    inside, most = [0], [0]
    guard = threading.Lock()

    def walk() -> None:
        line = WaitingLine(str(tmp_path / "line"), 20)
        for _ in range(25):
            with line:
                with guard:
                    inside[0] += 1
                    most[0] = max(most[0], inside[0])
                time.sleep(0.0002)
                with guard:
                    inside[0] -= 1
        line.close()

    threads = [threading.Thread(target=walk) for _ in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(30)
    assert most == [1]


def test_a_holder_that_was_stopped_does_not_stop_the_others_for_ever(tmp_path):
    line = str(tmp_path / "line")
    holder = subprocess.Popen(
        [
            sys.executable,
            "-c",
            "import fcntl, os, sys\n"
            "fd = os.open(sys.argv[1], os.O_RDWR | os.O_CREAT, 0o600)\n"
            "fcntl.flock(fd, fcntl.LOCK_EX)\n"
            "print('held', flush=True)\n"
            "sys.stdin.read()",
            line,
        ],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
    )
    assert holder.stdout.readline() == b"held\n"
    holder.send_signal(signal.SIGSTOP)
    try:
        waiting = WaitingLine(line, 0.2)
        with pytest.raises(StoreUnavailable, match="was busy for"), waiting:
            raise AssertionError("let through")
    finally:
        holder.send_signal(signal.SIGCONT)
        holder.communicate()
    with WaitingLine(line, 5):
        pass


def test_a_forked_child_stands_in_the_line_on_its_own(tmp_path):
    line = WaitingLine(str(tmp_path / "line"), 0.2)
    with line:
        child = os.fork()
        if child == 0:
            try:
                with line:
                    os._exit(1)  # let through beside its parent
            except StoreUnavailable:
                os._exit(0)
        assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0


# --- upkeep ---


def old_ledger(folder):
    """Make a ledger file as the first format had it."""
    path = folder / "old.db"
    db = sqlite3.connect(path, isolation_level=None)
    schema = (Path(__file__).parent / "data" / "sqlite_schema_format_1.sql").read_text()
    db.executescript(
        f"PRAGMA journal_mode = WAL; PRAGMA application_id = {APPLICATION_ID}; PRAGMA user_version = 1; {schema}"
        f"INSERT INTO ledger VALUES (1, '{LEDGER}', '2026-01-01T00:00:00.000Z', 1, NULL);"
    )
    db.close()
    path.chmod(0o600)
    return str(path)


def tables_of(path):
    db = sqlite3.connect(path)
    try:
        columns = {
            name: sorted(row[1:4] for row in db.execute(f"PRAGMA table_info({name})"))
            for (name,) in db.execute("SELECT name FROM sqlite_schema WHERE type = 'table'")
        }
        others = sorted(db.execute("SELECT type, name FROM sqlite_schema WHERE type <> 'table'"))
        return columns, others, db.execute("PRAGMA user_version").fetchone()
    finally:
        db.close()


def test_a_read_only_place_is_not_blamed_on_the_owner(used, monkeypatch):
    monkeypatch.setattr(os, "access", lambda place, _: str(place) == used)
    with pytest.raises(NotThisLedger, match="or its folder is read-only") as refused:
        SqliteStore(used)
    assert "owner" not in str(refused.value)


def test_an_older_ledger_says_how_to_bring_it_up_to_date(tmp_path):
    with pytest.raises(NotThisLedger, match=r"format 1.*ranonce init"):
        SqliteStore(old_ledger(tmp_path))


def test_an_upgraded_ledger_has_the_tables_of_a_new_one_and_works(tmp_path, path):
    old = old_ledger(tmp_path)
    assert upgrade(old)
    assert not upgrade(old)
    assert tables_of(old) == tables_of(path)
    ledger = ledger_over(SqliteStore(old))
    ledger.finish(claim(ledger), verdict())
    ledger.store.upkeep().prune("job", Retention(4e9, 4e9))


def test_another_ledger_than_the_one_that_is_meant_is_not_upgraded(tmp_path):
    old = old_ledger(tmp_path)
    before = tables_of(old)
    with pytest.raises(NotThisLedger, match=f"is ledger {LEDGER}, and f00 is expected"):
        upgrade(old, "f00")
    assert tables_of(old) == before
    assert upgrade(old, LEDGER)


def test_no_event_leaves_except_through_a_pruning(used):
    store = SqliteStore(used)
    store.upkeep().prune("job", Retention(4e9, 4e9))
    db = sqlite3.connect(used)
    assert db.execute("SELECT count(*) FROM pruning").fetchone() == (0,)
    with pytest.raises(sqlite3.IntegrityError, match="append-only"):
        db.execute("DELETE FROM events")
    db.close()


def test_a_backup_is_whole_private_and_the_same_ledger(used, tmp_path):
    copy = tmp_path / "backup.db"
    assert SqliteStore(used).upkeep().backup(str(copy)) == 2
    assert stat.S_IMODE(os.stat(copy).st_mode) == 0o600
    assert sorted(os.listdir(tmp_path)) == ["backup.db", "ledger"]
    store = SqliteStore(str(copy))
    assert store.identity() == SqliteStore(used).identity()
    assert [run.status for run in store.runs("job", 0, 1 << 60)] == ["done"]


def test_a_backup_overwrites_nothing(used, tmp_path):
    (tmp_path / "taken").write_text("mine")
    with pytest.raises(UsageError, match="exists already"):
        SqliteStore(used).upkeep().backup(str(tmp_path / "taken"))
    assert (tmp_path / "taken").read_text() == "mine"
    assert sorted(os.listdir(tmp_path)) == ["ledger", "taken"]


def test_a_flipped_bit_in_an_index_is_found_by_the_deep_check(used):
    SqliteStore(used)._db.execute("PRAGMA wal_checkpoint(TRUNCATE)")
    db = sqlite3.connect(used)
    root, size = db.execute(
        "SELECT rootpage, (SELECT page_size FROM pragma_page_size) FROM sqlite_schema WHERE name = 'events_of_window'"
    ).fetchone()
    db.close()
    data = bytearray(Path(used).read_bytes())
    page = slice((root - 1) * size, root * size)
    at = page.start + data[page].index(b"job")
    data[at] ^= 0x01
    Path(used).write_bytes(data)
    assert SqliteStore(used).upkeep().problems(deep=False) == []
    assert "index" in " ".join(SqliteStore(used).upkeep().problems(deep=True))


def test_parts_of_an_outline_that_are_evenly_spaced_stay_a_range():
    def part(*starts):
        return Outline(range(starts[0], starts[-1] + 1, 60), [], True, float(starts[-1]), float(starts[0]))

    assert joined([part(0, 60, 120), part(180), part(240, 300)]).starts == range(0, 301, 60)
    assert list(joined([part(0, 60, 120), part(240, 300)]).starts) == [0, 60, 120, 240, 300]
    assert list(joined([]).starts) == []
