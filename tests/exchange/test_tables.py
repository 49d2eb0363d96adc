"""The SQLite ledgers of scripts: read, never written to, whatever stands in them."""

from __future__ import annotations

import contextlib
import os
import sqlite3
from pathlib import Path

import pytest

from ranonce.errors import UsageError
from tests.exchange.acting import brought, empty, everything, rehearsed, states, story

RUNS = """
CREATE TABLE runs (idem_key TEXT PRIMARY KEY, status TEXT NOT NULL, owner TEXT NOT NULL, lease_until REAL NOT NULL,
                   attempts INTEGER NOT NULL DEFAULT 1, started_at TEXT NOT NULL, finished_at TEXT);
CREATE TABLE outbox (idem_key TEXT PRIMARY KEY, payload TEXT NOT NULL, sent_at TEXT);
"""
RECEIPTS = "CREATE TABLE receipts (key TEXT PRIMARY KEY, claimed_at TEXT NOT NULL);"
DIGEST = "411919f5f4bea6a8"


@pytest.fixture
def ledger():
    return empty()


@pytest.fixture
def path(tmp_path):
    return tmp_path / "runs.db"


def made(path, script, *statements):
    with contextlib.closing(sqlite3.connect(path, isolation_level=None)) as db:
        db.executescript(script)
        for statement, *values in statements:
            db.execute(statement, values)
    return path


def run_row(key, status, finished="2026-11-07T05:02:00+00:00", started="2026-11-07T05:00:00.5+00:00", attempts=1):
    ended = None if status == "running" else finished
    return ("INSERT INTO runs VALUES (?,?,?,?,?,?,?)", key, status, "host:17", 0.0, attempts, started, ended)


def test_runs_come_in_with_their_outbox_named(ledger, path):
    made(
        path,
        RUNS,
        run_row(f"triage:2026-11-05:{DIGEST}", "done", attempts=2),
        run_row(f"triage:2026-11-06:{DIGEST}", "failed"),
        run_row(f"triage:2026-11-07:{DIGEST}", "running"),
        ("INSERT INTO outbox VALUES (?, 'secret', NULL)", f"triage:2026-11-05:{DIGEST}"),
        ("INSERT INTO outbox VALUES (?, 'secret', 'x')", f"triage:2026-11-06:{DIGEST}"),
    )
    report = brought(ledger, path, every="day")
    assert (report.format, report.bad, report.unsent) == ("runs", 0, 1)
    assert states(ledger) == {"2026-11-05": ("done", 1), "2026-11-06": ("failed", 1), "2026-11-07": ("held", 1)}
    told = {event.key.window: event.data for event in ledger.store.upkeep().all_events() if event.event != "start"}
    fields = {"owner": "host:17", "attempts": 2, "digest": DIGEST, "outbox": "never sent"}
    assert told["2026-11-05"]["fields"] == fields
    assert "outbox" not in told["2026-11-06"]["fields"]
    assert "secret" not in str(everything(ledger))


def test_texts_without_end_are_cut(ledger, path):
    long = run_row("triage:2026-11-05:" + "a" * 100_000, "done")
    made(path, RUNS, (*long[:3], "o" * 100_000, *long[4:]))
    assert brought(ledger, path, every="day").runs == {"added": 1}
    assert len(str(everything(ledger))) < 5000


def test_two_payloads_of_a_day_are_two_completions(ledger, path):
    rows = [run_row(f"triage:2026-11-07:{digest * 16}", "done") for digest in ("a", "b")]
    made(path, RUNS, *rows)
    brought(ledger, path, every="day")
    assert states(ledger) == {"2026-11-07": ("done", 2)}
    assert story(ledger, "2026-11-07") == [("start", 1), ("done", 1), ("start", 2), ("done", 2)]


def test_a_day_that_is_done_stays_done_whatever_came_after(ledger, path):
    first = run_row("t:2026-11-07:aa", "done")
    later = {"started": "2026-11-07T09:00:00Z", "finished": "2026-11-07T09:01:00Z"}
    made(
        path, RUNS, first, run_row("t:2026-11-07:bb", "failed", **later), run_row("t:2026-11-07:cc", "running", **later)
    )
    brought(ledger, path, every="day")
    assert states(ledger) == {"2026-11-07": ("done", 3)}


def test_receipts_count_as_done(ledger, path):
    made(
        path,
        RECEIPTS,
        ("INSERT INTO receipts VALUES ('daily-report:2026-11-07', '2026-11-08T09:00:00+09:00')",),
        ("INSERT INTO receipts VALUES ('daily-report:2026-11-08', '2026-11-09T00:30:00Z')",),
    )
    report = brought(ledger, path, every="day")
    assert report.format == "receipts-table"
    assert states(ledger) == {"2026-11-07": ("done", 1), "2026-11-08": ("done", 1)}
    assert [run.key.job for run in ledger.store.upkeep().all_runs()] == ["daily-report"] * 2
    before = everything(ledger)
    assert brought(ledger, path, every="day").events == 0
    assert everything(ledger) == before
    assert rehearsed(ledger, path, every="day").windows == {"windows": 2, "done": 2}


def test_the_job_can_be_named_anew(ledger, path):
    made(path, RECEIPTS, ("INSERT INTO receipts VALUES ('old:2026-11-07', '2026-11-08T00:00:00Z')",))
    brought(ledger, path, every="day", job="new")
    assert [str(run.key) for run in ledger.store.upkeep().all_runs()] == ["new:2026-11-07"]


@pytest.mark.parametrize(
    ("statement", "why"),
    [
        ("UPDATE runs SET status = 'faild'", "status is 'faild'"),
        ("UPDATE runs SET status = x'00ff'", "status is"),
        ("UPDATE runs SET idem_key = NULL", "its key is None"),
        ("UPDATE runs SET idem_key = 7", "names no job"),
        ("UPDATE runs SET idem_key = x'ff00'", "its key is"),
        ("UPDATE runs SET idem_key = 'triage:2026-11-07T02:aa'", "not a window"),
        ("UPDATE runs SET idem_key = 'a b:2026-11-07:aa'", "not a name for a job"),
        ("UPDATE runs SET started_at = 'soon'", "not an RFC 3339 instant"),
        ("UPDATE runs SET started_at = 9e99", "not an RFC 3339 instant"),
        ("UPDATE runs SET started_at = '2026-11-07T05:00:00'", "names no offset"),
        ("UPDATE runs SET finished_at = NULL", "finished_at is empty"),
        ("UPDATE runs SET finished_at = '2029-01-01T00:00:00Z'", "ahead of the clock"),
    ],
)
def test_a_row_that_cannot_be_is_named_and_the_rest_comes_in(ledger, path, statement, why):
    made(path, RUNS, run_row("triage:2026-11-07:aa", "done"), (statement,), run_row("triage:2026-11-08:aa", "done"))
    report = brought(ledger, path, every="day")
    assert report.bad == 1
    assert why in report.first_bad[0].why
    assert "row" in report.first_bad[0].place
    assert states(ledger) == {"2026-11-08": ("done", 1)}


def test_times_may_be_numbers(ledger, path):
    made(
        path,
        RUNS.replace("started_at TEXT", "started_at REAL"),
        run_row("t:2026-11-07:aa", "done", started=1794027600.5),
    )
    brought(ledger, path, every="day")
    assert states(ledger) == {"2026-11-07": ("done", 1)}


def folder_of(path):
    return {file.name: (file.read_bytes(), file.stat().st_mtime_ns) for file in path.parent.iterdir()}


@pytest.mark.parametrize("mode", ["delete", "wal"])
def test_the_file_and_its_folder_stay_as_they_are(ledger, path, mode):
    made(path, f"PRAGMA journal_mode = {mode};" + RUNS, run_row("t:2026-11-07:aa", "done"))
    before = folder_of(path)
    brought(ledger, path, every="day")
    assert folder_of(path) == before


def test_what_stands_only_in_the_log_is_read_too(ledger, path):
    writer = sqlite3.connect(path, isolation_level=None)
    writer.executescript("PRAGMA journal_mode = wal;" + RUNS)
    statement, *values = run_row("t:2026-11-07:aa", "done")
    writer.execute(statement, values)
    assert os.path.getsize(f"{path}-wal") > 0
    brought(ledger, path, every="day")
    assert states(ledger) == {"2026-11-07": ("done", 1)}
    writer.close()


@pytest.mark.parametrize(
    "script",
    [
        "CREATE TABLE x (y); CREATE VIEW runs AS SELECT 'a:2026-11-07' idem_key, 'done' status, '' owner, 1 attempts,"
        " '2026-11-07T05:00:00Z' started_at, '2026-11-07T05:00:00Z' finished_at FROM x;",
        "CREATE TABLE runs (job, status);",
        "CREATE TABLE other (key, claimed_at);",
        "",
    ],
    ids=["a view", "other columns", "another table", "nothing"],
)
def test_a_database_without_the_tables_is_refused(ledger, path, script):
    made(path, script + "PRAGMA user_version = 1;")
    with pytest.raises(UsageError, match="neither a table"):
        brought(ledger, path, every="day")


def test_a_ledger_of_ranonce_is_named_and_not_read(ledger, tmp_path):
    from ranonce.stores.sqlite.create import create

    create(str(tmp_path / "ledger.db"), "0" * 32)
    with pytest.raises(UsageError, match="is a ranonce ledger"):
        brought(ledger, tmp_path / "ledger.db", every="day")


def test_a_damaged_file_gives_what_can_be_read(ledger, path):
    rows = [
        run_row(f"t:2026-{month:02}-{day:02}:{'a' * 300}", "done", "2026-11-07T05:02:00Z")
        for month in range(1, 11)
        for day in range(1, 28)
    ]
    made(path, RUNS, *rows)
    data = bytearray(Path(path).read_bytes())
    middle = len(data) // 2 // 4096 * 4096
    data[middle : middle + 4096] = b"\xff" * 4096
    path.write_bytes(data)
    report = brought(ledger, path, every="day")
    assert report.bad >= 1
    assert "damaged" in report.first_bad[-1].why
    assert 0 < len(states(ledger)) < 270


def test_what_is_no_database_at_all_is_said_so(ledger, path):
    path.write_bytes(b"SQLite format 3\0" + b"\xff" * 5000)
    with pytest.raises(UsageError, match="cannot be read"):
        brought(ledger, path, every="day")
