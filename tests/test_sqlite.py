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
from ranonce.exchange.form import EVENTS
from ranonce.lifecycle import STATES, Retention, finish
from ranonce.stores.base import Outline, joined
from ranonce.stores.sqlite.create import create, upgrade
from ranonce.stores.sqlite.effects import SQL as EFFECTS
from ranonce.stores.sqlite.file import APPLICATION_ID, FORMAT
from ranonce.stores.sqlite.line import WaitingLine
from ranonce.stores.sqlite.store import CHECKPOINT_PAGES, MANY_COMMITS, MANY_PAGES, SqliteStore
from tests.contract.acting import START, ask, claim, ledger_over, verdict
from tests.contract.emitting import emit, mark, message, settle, settled, states, take

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


def test_every_status_and_event_that_there_is_can_be_written(used):
    db = sqlite3.connect(used)
    for status in STATES:
        db.execute("UPDATE runs SET status = ?", (status,))
    for event in EVENTS:
        db.execute(
            'INSERT INTO events SELECT NULL, at, job, window_start, "window", input, ?, reason, attempt, generation,'
            " owner, triggered_by, version, host, data, output FROM events LIMIT 1",
            (event,),
        )
    db.close()


def test_no_condition_has_a_list_that_would_be_built_anew_for_each_row(path):
    db = sqlite3.connect(path)
    written = {
        "INSERT": ("runs", "events", "leases", "outbox", "bodies", "steps"),
        "UPDATE": ("runs", "leases", "outbox"),
    }
    for table in written["INSERT"]:
        columns = [row[1] for row in db.execute(f"PRAGMA table_info({table})")]
        insert = f"INSERT INTO {table} VALUES ({', '.join('?' * len(columns))})"
        assert "OpenEphemeral" not in operations(db, insert, len(columns)), table
    for table in written["UPDATE"]:
        columns = [row[1] for row in db.execute(f"PRAGMA table_info({table})") if row[1] not in IDENTITY and not row[5]]
        changes = ", ".join(f'"{name}" = ?' for name in columns)
        update = (
            f"UPDATE {table} SET {changes} WHERE job = 'job' AND window_start = 1 AND \"window\" = '' AND input = ''"
        )
        assert "OpenEphemeral" not in operations(db, update, len(columns)), table
    db.close()


#: What a message keeps for ever.
IDENTITY = ("seq", "key", "job", "window_start", "window", "input", "destination", "content_type", "digest")


def operations(db, statement, values):
    return {row[1] for row in db.execute(f"EXPLAIN {statement}", [None] * values)}


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


def test_only_a_store_that_commits_much_lets_the_wal_grow(path):
    store = SqliteStore(path)
    ledger = ledger_over(store)
    pages = []
    for number in range(MANY_COMMITS // 2 + 1):
        pages.append(store._db.execute("PRAGMA wal_autocheckpoint").fetchone()[0])
        ledger.finish(claim(ledger, number), verdict())
    assert (pages[0], pages[-1]) == (CHECKPOINT_PAGES, MANY_PAGES)
    assert SqliteStore(path)._db.execute("PRAGMA wal_autocheckpoint").fetchone()[0] == CHECKPOINT_PAGES


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


# --- messages and steps ---


@pytest.fixture
def emitted(path):
    """A ledger with two messages, a and b, and two steps."""
    ledger = ledger_over(SqliteStore(path))
    held = claim(ledger)
    for name in ("a", "b"):
        mark(ledger, held, name, message(ledger, held, name), result=b"r")
    ledger.finish(held, verdict())
    return ledger.store


@pytest.mark.parametrize(
    "statement",
    [
        "UPDATE outbox SET key = key || '2'",
        "UPDATE outbox SET digest = replace(digest, 'a', 'b')",
        "UPDATE outbox SET job = 'other'",
        "UPDATE outbox SET window_start = 0, input = 'x'",
        "UPDATE outbox SET seq = seq + 10",
        "UPDATE outbox SET destination = 'other'",
        "UPDATE bodies SET body = x'00'",
        "UPDATE bodies SET seq = seq + 10",
        "DELETE FROM bodies",
        "INSERT OR REPLACE INTO bodies SELECT seq, x'00' FROM bodies",
        "UPDATE outbox SET state = 'gone'",
        "UPDATE outbox SET tries = -1",
        "DELETE FROM outbox",
        "INSERT OR REPLACE INTO outbox SELECT * FROM outbox",
        "UPDATE steps SET result = x'00'",
    ],
)
def test_no_statement_makes_another_message_of_one_or_loses_it(emitted, statement):
    db = sqlite3.connect(emitted.path)

    def everything():
        return [db.execute(f"SELECT * FROM {table}").fetchall() for table in ("outbox", "bodies", "steps")]

    before = everything()
    with pytest.raises(sqlite3.IntegrityError):
        db.execute(statement)
    db.rollback()
    assert everything() == before
    db.close()


def test_a_person_may_remove_what_was_sent_and_bodies_of_it(emitted):
    for taken in take(emitted):
        settle(emitted, taken)
    db = sqlite3.connect(emitted.path)
    db.execute("DELETE FROM bodies WHERE seq = 1")
    db.execute("DELETE FROM outbox WHERE seq = 2")
    assert db.execute("SELECT count(*) FROM bodies").fetchone() == (0,)
    db.commit()
    db.close()
    assert [known.body for known in emitted.upkeep().all_messages()] == [None]


@pytest.mark.parametrize(
    "damage",
    [
        "UPDATE outbox SET state = 'sendign'",
        "UPDATE outbox SET created_at = 'x'",
        "UPDATE outbox SET due_at = ''",
        "UPDATE outbox SET taken_at = 'x'",
    ],
)
def test_a_damaged_cell_of_a_message_is_said(emitted, damage):
    _damage(emitted.path, damage)
    with pytest.raises(NotThisLedger, match="damaged"):
        emitted.outbox().message(1)


@pytest.mark.parametrize(
    "damage",
    [
        "UPDATE outbox SET tries = -1 WHERE seq = 2",
        "UPDATE outbox SET generation = 0 WHERE seq = 2",
        "UPDATE outbox SET key = '' WHERE seq = 2",
        "UPDATE outbox SET digest = 'f00' WHERE seq = 2",
        "UPDATE outbox SET destination = '' WHERE seq = 2",
        "UPDATE steps SET attempt = 0 WHERE name = 'b'",
        "UPDATE steps SET at = 'x' WHERE name = 'b'",
    ],
)
def test_what_comes_before_the_damage_is_gone_through_and_what_no_table_takes_is_damage(emitted, damage):
    _damage(emitted.path, damage)
    upkeep = emitted.upkeep()
    whole = upkeep.all_steps() if "steps" in damage else upkeep.all_messages()
    read = []
    with pytest.raises(NotThisLedger, match="damaged"):
        read.extend(whole)
    assert len(read) == 1
    assert len(list(upkeep.all_messages() if "steps" in damage else upkeep.all_steps())) == 2


def _damage(path, statement):
    db = sqlite3.connect(path, isolation_level=None)
    triggers = ("messages_keep_what_they_are", "bodies_are_not_changed", "bodies_are_not_lost", "steps_are_not_changed")
    for trigger in triggers:
        db.execute(f"DROP TRIGGER {trigger}")
    db.execute("PRAGMA ignore_check_constraints = 1")
    db.execute(statement)
    db.close()


TABLE_LEAF, INDEX_LEAF, PAGE = 13, 10, 4096  # sqlite.org/fileformat2.html


@pytest.mark.parametrize(
    ("kind", "holds", "whole"),
    [(TABLE_LEAF, b"job:2025-11-10/web/30", "all_messages"), (INDEX_LEAF, b"2025-11-1030", "all_steps")],
)
def test_of_a_half_readable_file_what_comes_before_the_bad_page_is_gone_through(path, kind, holds, whole):
    ledger = ledger_over(SqliteStore(path))
    held = claim(ledger)
    for number in range(60):
        name = f"{number:02}"
        mark(ledger, held, name, message(ledger, held, name, body=b"x" * 300), result=b"r" * 300)
    ledger.store._db.execute("PRAGMA wal_checkpoint(TRUNCATE)")
    data = bytearray(Path(path).read_bytes())
    (leaf,) = (at for at in range(0, len(data), PAGE) if data[at] == kind and holds in data[at : at + PAGE])
    data[leaf : leaf + PAGE] = bytes(PAGE)
    Path(path).write_bytes(data)
    read = []
    with pytest.raises(NotThisLedger, match="damaged"):
        read.extend(getattr(SqliteStore(path).upkeep(), whole)())
    assert 0 < len(read) < 60


def test_a_body_that_is_not_the_one_that_was_emitted_is_found_by_the_deep_check(emitted):
    _damage(emitted.path, "UPDATE bodies SET body = x'00' WHERE seq = 2")
    assert emitted.upkeep().problems(deep=False) == []
    (problem,) = emitted.upkeep().problems(deep=True)
    assert "message 2 (job:2025-11-10/web/b)" in problem
    assert "another body" in problem


def test_a_message_that_waits_without_a_body_is_found_by_the_deep_check(emitted):
    _damage(emitted.path, "DELETE FROM bodies WHERE seq = 1")
    (problem,) = emitted.upkeep().problems(deep=True)
    assert "is pending and has no body" in problem


#: Dies at a failpoint on its way: claims, marks an item with a message, and finishes with one more.
WORK = """
import sys
from ranonce.stores.sqlite.store import SqliteStore
from tests.contract.acting import claim, ledger_over, verdict
from tests.contract.emitting import mark, message
ledger = ledger_over(SqliteStore(sys.argv[1]))
held = claim(ledger)
mark(ledger, held, "item", message(ledger, held, "item"))
ledger.finish(held, verdict(messages=(message(ledger, held, "a"), message(ledger, held, "b"))))
"""


def killed_at(point, code, path):
    env = {**os.environ, "RANONCE_FAILPOINT": point, "PYTHONPATH": os.getcwd()}
    assert subprocess.run([sys.executable, "-c", code, path], env=env, timeout=60).returncode == -signal.SIGKILL, point


MARK, FINISH = 2, 3  # commits, after that of the claim


@pytest.mark.parametrize(
    ("point", "marked", "finished"),
    [
        *((f"commit:{point}:{MARK}", False, False) for point in ("before-writes", "after-events", "before-commit")),
        *((f"commit:{point}:{1}", False, False) for point in ("after-steps", "after-messages", "after-moves")),
        (f"commit:after-commit:{MARK}", True, False),
        *((f"commit:{point}:{FINISH}", True, False) for point in ("before-writes", "after-events", "before-commit")),
        *((f"commit:{point}:{2}", True, False) for point in ("after-steps", "after-messages", "after-moves")),
        ("commit:after-run:2", True, False),
        ("commit:after-drop", True, False),
        (f"commit:after-commit:{FINISH}", True, True),
    ],
)
def test_work_that_dies_on_its_way_leaves_its_messages_with_what_they_belong_to_or_not_at_all(
    path, point, marked, finished
):
    killed_at(point, WORK, path)
    store = SqliteStore(path)
    wanted = ["item"] * marked + ["a", "b"] * finished
    assert [known.key.rpartition("/")[2] for known in store.upkeep().all_messages()] == wanted
    assert store.steps(ask().key, START, 1) == ["item"] * marked
    assert [run.status for run in store.runs("job", 0, 1 << 60)] == ["done" if finished else "running"]


DELIVER = """
import sys
from ranonce import messages as rules
from ranonce.stores.sqlite.store import SqliteStore
from tests.contract.emitting import ROUTE, settled, take
store = SqliteStore(sys.argv[1])
(taken,) = take(store, 1)
queue = store.outbox().queue("web", 1)
closing = rules.Closing(4e9, "429")
store.outbox().exchange("web", [settled(store, taken)], closing=closing, take=rules.take(queue, ROUTE, "me", 1))
"""


@pytest.mark.parametrize(
    ("point", "then"),
    [
        ("exchange:after-moves:2", ["sending", "pending"]),
        ("exchange:before-commit:2", ["sending", "pending"]),
        ("exchange:after-commit:2", ["sent", "sending"]),
    ],
)
def test_an_exchange_that_dies_on_its_way_is_written_whole_or_not_at_all(emitted, point, then):
    killed_at(point, DELIVER, emitted.path)
    assert states(emitted) == then
    assert (emitted.outbox().queue("web", 1).closed_until is not None) == (then[0] == "sent")


@pytest.mark.parametrize("end", ["COMMIT", "ROLLBACK"])
def test_messages_of_a_finish_in_the_callers_transaction_come_with_it_or_not_at_all(path, end):
    ledger = ledger_over(SqliteStore(path))
    held = claim(ledger)
    mark(ledger, held, "one", message(ledger, held, "a"))
    told = verdict(messages=(message(ledger, held, "a"), message(ledger, held, "b")))
    db = sqlite3.connect(path, isolation_level=None)
    db.execute("PRAGMA synchronous = FULL")
    db.execute("BEGIN IMMEDIATE")
    store = ledger.store.inside(db)
    snap = store.read(held.key, held.window.start)
    known = store.outbox().known([each.key for each in told.messages])
    assert store.commit(finish(snap, held, told, {}), held.key, snap.version) is None  # a is there already
    assert store.commit(finish(snap, held, told, known), held.key, snap.version) is not None
    assert db.in_transaction
    db.execute(end)
    db.close()
    assert [known.key.rpartition("/")[2] for known in ledger.store.upkeep().all_messages()] == (
        ["a", "b"] if end == "COMMIT" else ["a"]
    )


def test_a_temporary_table_that_hides_the_outbox_is_refused(path):
    ledger = ledger_over(SqliteStore(path))
    db = sqlite3.connect(path, isolation_level=None)
    db.execute("PRAGMA synchronous = FULL")
    db.execute("CREATE TEMP TABLE outbox (key)")
    db.execute("BEGIN IMMEDIATE")
    with pytest.raises(UsageError, match="temporary table outbox"):
        ledger.store.inside(db)
    db.close()


@pytest.mark.parametrize(
    "statement", ["due", "next_due", "sending", "messages_undelivered", "destinations", "tally", "waiting"]
)
def test_what_waits_is_found_without_looking_at_what_was_sent(path, statement):
    db = sqlite3.connect(path)
    values = [None] * max(EFFECTS[statement].count("?"), 0)
    values = values if "?1" not in EFFECTS[statement] else [None] * 6
    plan = " ".join(row[3] for row in db.execute(f"EXPLAIN QUERY PLAN {EFFECTS[statement]}", values))
    db.close()
    assert "INDEX outbox_" in plan
    assert "SCAN outbox" not in plan.replace("SCAN outbox USING INDEX outbox_undelivered", "")


def test_people_can_ask_for_messages_with_plain_sql(emitted):
    settle(emitted, *take(emitted, 1))
    db = sqlite3.connect(emitted.path)
    waiting = (
        "SELECT destination, state, count(*), min(created_at) FROM outbox WHERE state NOT IN ('sent', 'dropped')"
        " GROUP BY 1, 2"
    )
    ((destination, state, count, since),) = db.execute(waiting).fetchall()
    assert (destination, state, count, since[10], since[-1]) == ("web", "pending", 1, "T", "Z")
    assert db.execute("SELECT name, CAST(result AS TEXT) FROM steps").fetchall() == [("a", "r"), ("b", "r")]
    db.close()


def test_a_full_disk_leaves_an_exchange_undone(emitted):
    (first, second) = take(emitted)
    move = settled(emitted, first)
    pages = emitted._db.execute("PRAGMA page_count").fetchone()[0]
    emitted._db.execute(f"PRAGMA max_page_count = {pages}")
    huge = move.replace(now=move.now.replace(receipt="x" * 100_000))
    with pytest.raises(StoreUnavailable, match="is full"):
        emitted.outbox().exchange("web", [settled(emitted, second), huge])
    assert states(emitted) == ["sending", "sending"]


# --- upkeep ---


def old_ledger(folder, number=1):
    """Make a ledger file as an older format had it."""
    path = folder / "old.db"
    db = sqlite3.connect(path, isolation_level=None)
    schema = (Path(__file__).parent / "data" / f"sqlite_schema_format_{number}.sql").read_text()
    pruned_seq = ", 0" if number > 1 else ""
    db.executescript(
        f"PRAGMA journal_mode = WAL; PRAGMA application_id = {APPLICATION_ID}; PRAGMA user_version = {number}; {schema}"
        f"INSERT INTO ledger VALUES (1, '{LEDGER}', '2026-01-01T00:00:00.000Z', 1, NULL{pruned_seq});"
    )
    db.close()
    path.chmod(0o600)
    return str(path)


def without_comments(sql):
    lines = (line.partition(" -- ")[0] for line in (sql or "").splitlines())
    return " ".join(" ".join(lines).split())


def tables_of(path):
    db = sqlite3.connect(path)
    try:
        columns = {
            name: sorted(row[1:4] for row in db.execute(f"PRAGMA table_info({name})"))
            for (name,) in db.execute("SELECT name FROM sqlite_schema WHERE type = 'table'")
        }
        others = sorted(
            (kind, name, without_comments(sql))
            for kind, name, sql in db.execute("SELECT type, name, sql FROM sqlite_schema WHERE type <> 'table'")
        )
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


@pytest.mark.parametrize("number", range(1, FORMAT))
def test_an_upgraded_ledger_has_the_tables_of_a_new_one_and_works(tmp_path, path, number):
    old = old_ledger(tmp_path, number)
    assert upgrade(old)
    assert not upgrade(old)
    assert tables_of(old) == tables_of(path)
    ledger = ledger_over(SqliteStore(old))
    emit(ledger)
    assert settle(ledger.store, *take(ledger.store)) == "sent"
    ledger.store.upkeep().prune("job", Retention(4e9, 4e9))


@pytest.mark.parametrize("number", range(1, FORMAT))
def test_the_checks_of_an_upgraded_ledgers_tables_are_those_of_a_new_one(tmp_path, path, number):
    old = old_ledger(tmp_path, number)
    upgrade(old)
    told = []
    for file in (old, path):
        db = sqlite3.connect(file)
        tables = "SELECT name, sql FROM sqlite_schema WHERE type = 'table' AND name <> 'ledger'"
        told.append({name: without_comments(sql) for name, sql in db.execute(tables)})
        db.close()
    assert told[0] == told[1]
    assert len(told[0]) > 10


@pytest.mark.parametrize("number", range(1, FORMAT))
def test_an_upgrade_keeps_what_the_ledger_knows_and_what_it_refuses(tmp_path, number):
    old = old_ledger(tmp_path, number)
    db = sqlite3.connect(old, isolation_level=None)
    db.executescript(
        """INSERT INTO jobs VALUES ('job', 7, 0, '2026-01-01T00:00:00.000Z', 3600.0, 3);
        INSERT INTO runs (job, window_start, "window", input, window_end, status, generation, attempt, owner, failures,
                          schedule, triggered_by, started_at, late, reconciling, granted)
            SELECT 'job', 3600 * value, 'w' || value, '', 3600 * value + 3600,
                   CASE value % 3 WHEN 0 THEN 'done' WHEN 1 THEN 'failed' ELSE 'running' END, 1, 2, 'me', 1, 1,
                   'schedule', '2026-01-01T00:00:00.000Z', 0, 0, 0
            FROM json_each('[1,2,3,4,5,6]');
        INSERT INTO events (at, job, window_start, "window", input, event, attempt, generation, owner, triggered_by,
                            host, data)
            SELECT started_at, job, window_start, "window", input, 'start', attempt, generation, owner, triggered_by,
                   'here', '{"chosen_by": "clock"}'
            FROM runs;"""
    )
    kept = [db.execute(f"SELECT * FROM {table}").fetchall() for table in ("jobs", "runs", "events")]
    assert upgrade(old)
    assert [db.execute(f"SELECT * FROM {table}").fetchall() for table in ("jobs", "runs", "events")] == kept
    assert db.execute("PRAGMA integrity_check").fetchall() == [("ok",)]
    for statement in ("UPDATE runs SET status = 'Done'", "UPDATE events SET event = 'done'", "DELETE FROM events"):
        with pytest.raises(sqlite3.IntegrityError):
            db.execute(statement)
    with pytest.raises(sqlite3.IntegrityError, match="CHECK"):
        db.execute("INSERT INTO events SELECT 99, at, job, window_start, \"window\", input, 'began', reason, attempt,"
                   " generation, owner, triggered_by, version, host, data, output FROM events LIMIT 1")  # fmt: skip
    db.close()
    store = SqliteStore(old)
    assert [run.window_start for run in store.unfinished("job", 1 << 60, 9)] == [4 * 3600, 3600]
    assert [event.event for event in store.newest_events(9)] == ["start"] * 6


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
