"""A ledger with a long past, written straight into its tables: a run through the front door takes a third of a
millisecond, and ten million of them are needed.

Hourly jobs, every window done at the first attempt, both events of each; and in the last two days of each job what a
real ledger has: one window that is missing, one that failed first, and one trigger too many. The tables and indexes are
those that `create` makes. One transaction, not durable while it is written.
"""

from __future__ import annotations

import sqlite3
import time

from benchmarks.claims import HOUR, LEDGER_ID
from ranonce.stores.sqlite.create import create

DECLARE = """
INSERT INTO jobs (job, version, schedules, declared_at, late_after, max_attempts)
VALUES (:job, :windows, 1, strftime('%Y-%m-%dT%H:%M:%fZ', :first, 'unixepoch'), 3600.0, 3)
"""
SCHEDULE = """
INSERT INTO schedules (job, number, every, tz, dialect, window_offset, valid_from, recorded_at)
VALUES (:job, 1, 'hour', 'UTC', 'debian', 0, NULL, strftime('%Y-%m-%dT%H:%M:%fZ', :first, 'unixepoch'))
"""
RUNS = """
WITH RECURSIVE hours(start) AS (SELECT :first UNION ALL SELECT start + 3600 FROM hours WHERE start < :last)
INSERT INTO runs (job, window_start, "window", input, window_end, status, generation, attempt, owner, failures,
                  schedule, triggered_by, started_at, finished_at, exit, late, reconciling, granted)
SELECT :job, start, strftime('%Y-%m-%dT%H', start, 'unixepoch'), '', start + 3600, 'done', 1, 1,
       lower(hex(randomblob(16))), 0, 1, 'schedule', strftime('%Y-%m-%dT%H:%M:%fZ', start + 2, 'unixepoch'),
       strftime('%Y-%m-%dT%H:%M:%fZ', start + 60, 'unixepoch'), 0, 0, 0, 0
FROM hours WHERE start <> :missing
"""
COPIED_RUNS = """
INSERT INTO runs (job, window_start, "window", input, window_end, status, generation, attempt, owner, failures,
                  schedule, triggered_by, started_at, finished_at, exit, late, reconciling, granted)
SELECT :job, window_start, "window", input, window_end, status, generation, attempt, owner, failures, schedule,
       triggered_by, started_at, finished_at, exit, late, reconciling, granted
FROM runs WHERE job = :pattern
"""
FAILED_FIRST = "UPDATE runs SET attempt = 2, failures = 1 WHERE job = :job AND window_start = :failed_first"
EVENTS = """
INSERT INTO events (at, job, window_start, "window", input, event, reason, attempt, generation, owner, triggered_by,
                    host, data)
SELECT CASE happened.event WHEN 'start' THEN started_at ELSE finished_at END, job, window_start, "window", input,
       happened.event, happened.reason, happened.attempt, 1, owner, triggered_by, 'bench', '{"exit": 0}'
FROM runs,
     (SELECT 1 AS attempt, 'start' AS event, 'start' AS reason UNION ALL SELECT 1, 'failed', NULL
      UNION ALL SELECT 2, 'start', 'retry' UNION ALL SELECT 2, 'done', NULL UNION ALL SELECT 1, 'done', NULL
      UNION ALL SELECT 0, 'skipped', 'done') happened
WHERE job = :job AND window_start >= :events_from AND CASE
    WHEN happened.attempt = 0 THEN window_start = :repeated
    WHEN window_start = :failed_first THEN (happened.attempt, happened.event) <> (1, 'done')
    ELSE happened.attempt = 1 AND happened.event <> 'failed' END
"""


def plant(path: str, *, jobs: int, runs: int, events_from: int = 0) -> None:
    """Create a ledger with `runs` runs, evenly among the jobs; the windows of each are the last ones up to now.

    Events are written for windows from `events_from` on (unix seconds).
    """
    create(path, LEDGER_ID)
    db = sqlite3.connect(path, isolation_level=None)
    db.execute("PRAGMA journal_mode = OFF")
    db.execute("PRAGMA synchronous = OFF")
    db.execute("BEGIN")
    last = int(time.time()) // HOUR * HOUR
    windows = runs // jobs
    told = {
        "windows": windows,
        "first": last - (windows - 1) * HOUR,
        "last": last,
        "missing": last - 10 * HOUR,
        "failed_first": last - 20 * HOUR,
        "repeated": last - 30 * HOUR,
        "events_from": events_from,
        "pattern": job_name(0),
    }
    for number in range(jobs):
        named = {**told, "job": job_name(number)}
        db.execute(DECLARE, named)
        db.execute(SCHEDULE, named)
        db.execute(COPIED_RUNS if number else RUNS, named)
        db.execute(FAILED_FIRST, named)
        db.execute(EVENTS, named)
    db.execute("COMMIT")
    db.execute("PRAGMA journal_mode = WAL")
    db.close()


def job_name(number: int) -> str:
    """Return the name of a planted job."""
    return f"job-{number:04}"
