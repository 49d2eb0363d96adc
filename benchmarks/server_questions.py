"""What a long past costs on PostgreSQL: the questions of a morning in a ledger of ten million runs.

The past is written straight into the tables, with the indexes that `init` makes: hourly jobs, every window done at the
first attempt, and events of the span that is asked about. In the last two days one window of each job is missing, one
failed first, and one was triggered too often.
"""

from __future__ import annotations

import time
from collections.abc import Iterator

import psycopg

from benchmarks.claims import HOUR, LEDGER_ID
from benchmarks.installation import Installation, finished
from benchmarks.measure import MEGABYTES, SECONDS, Line, Sizes, beside, in_turn, within
from benchmarks.planted import job_name
from benchmarks.servers import WAIT_SECONDS, _bare, _postgres, running
from ranonce.stores import site_of
from ranonce.timefmt import format_instant

DAY = 86400
MOST_MEMORY = 200e6
#: Apart from its indexes, which are built once it is full.
WITHOUT = """
ALTER TABLE bench.runs DROP CONSTRAINT runs_pkey;
DROP INDEX bench.runs_unfinished;
"""
RUNS = """
INSERT INTO bench.runs (job, window_start, "window", input, window_end, status, generation, attempt, owner, failures,
                        schedule, triggered_by, started_at, finished_at, exit, late, reconciling, granted)
SELECT job, start, to_char(to_timestamp(start) AT TIME ZONE 'UTC', 'YYYY-MM-DD"T"HH24'), '', start + 3600, 'done', 1,
       CASE WHEN start = %(failed_first)s THEN 2 ELSE 1 END, md5(job || start), 0, 1, 'schedule',
       to_timestamp(start + 2), to_timestamp(start + 60), 0, false, false, false
FROM unnest(%(jobs)s::text[]) AS job, generate_series(%(first)s::bigint, %(last)s::bigint, 3600) AS start
WHERE start <> %(missing)s
"""
INDEXES = """
ALTER TABLE bench.runs ADD PRIMARY KEY (job, window_start, "window", input);
CREATE INDEX runs_unfinished ON bench.runs (job, window_start, "window", input)
    WHERE status IN ('stopped', 'failed', 'held');
"""
JOBS = """
INSERT INTO bench.jobs SELECT job, %(windows)s, 1, to_timestamp(%(first)s), 3600, 3
FROM unnest(%(jobs)s::text[]) AS job;
"""
SCHEDULES = """
INSERT INTO bench.schedules
SELECT job, 1, 'hour', 'UTC', 'debian', 0, NULL, to_timestamp(%(first)s) FROM unnest(%(jobs)s::text[]) AS job;
"""
EVENTS = """
INSERT INTO bench.events (at, job, window_start, "window", input, event, attempt, generation, owner, triggered_by, host,
                          data)
SELECT CASE kind WHEN 'start' THEN started_at ELSE finished_at END, job, window_start, "window", input,
       kind, number, 1, owner, triggered_by, 'bench', '{"exit": 0}'
FROM bench.runs, (VALUES ('start', 1), ('failed', 1), ('start', 2), ('done', 2), ('done', 1), ('skipped', 0))
     AS happened (kind, number)
WHERE window_start >= %(events_from)s AND CASE
    WHEN number = 0 THEN window_start = %(repeated)s
    WHEN window_start = %(failed_first)s THEN (number, kind) <> (1, 'done')
    ELSE number = 1 AND kind <> 'failed' END
ORDER BY window_start
"""
#: The bare read: all starts of windows of each job in the span, by the same index, fetched at once.
BARE_READ = """
import sys, psycopg
db = psycopg.connect(sys.argv[1])
query = "SELECT window_start FROM bench.runs WHERE job = %s AND window_start >= %s"
for (job,) in db.execute("SELECT job FROM bench.jobs").fetchall():
    db.execute(query, (job, sys.argv[2])).fetchall()
"""


def plant(address: str, *, jobs: int, runs: int, events_from: int) -> None:
    """Fill the empty ledger in the schema `bench` with `runs` runs, evenly among the jobs, up to now."""
    windows = runs // jobs
    last = int(time.time()) // HOUR * HOUR - HOUR
    told = {
        "jobs": [job_name(number) for number in range(jobs)],
        "windows": windows,
        "first": last - (windows - 1) * HOUR,
        "last": last,
        "missing": last - 20 * HOUR,
        "failed_first": last - 30 * HOUR,
        "repeated": last - 40 * HOUR,
        "events_from": events_from,
    }
    with psycopg.connect(address) as db:
        db.execute("SET maintenance_work_mem = '512MB'")
        db.execute(WITHOUT)
        for statement in (JOBS, SCHEDULES, RUNS):
            db.execute(statement, told)
        db.execute(INDEXES)
        db.execute(EVENTS, told)
    with psycopg.connect(address, autocommit=True) as db:
        db.execute("VACUUM ANALYZE")
        db.execute("CHECKPOINT")


def probe(folder: str, sizes: Sizes) -> Iterator[Line]:
    """A probe over 30 days of 1,000 hourly jobs, beside the bare read, and the questions about one job."""
    installed = Installation(folder, with_drivers=True)
    since = int(time.time()) // HOUR * HOUR - sizes.probed_days * DAY
    with running(_postgres(folder)) as server:
        url = server.url("bench")  # type: ignore[attr-defined]
        site_of(url, wait_seconds=WAIT_SECONDS).create(LEDGER_ID)
        plant(_bare(server), jobs=sizes.probed_jobs, runs=sizes.probed_runs, events_from=since)
        environment = installed.environment(RANONCE_STORE=url, RANONCE_LEDGER=LEDGER_ID)
        question = [installed.ranonce, "probe", "--since", format_instant(since)]
        bare = [installed.python, "-c", BARE_READ, _bare(server), str(since)]

        def ask() -> float:
            return finished(question, environment, 1).seconds

        def read() -> float:
            return finished(bare, environment).seconds

        ask()
        read()
        what = (
            f"PostgreSQL: probe of {sizes.probed_jobs:,} jobs × {sizes.probed_days} days in {sizes.probed_runs:,} runs"
        )
        yield beside(f"{what}, beside the bare read", SECONDS, *in_turn(sizes.probes, ask, read), at_most=3)
        yield within(f"{what}, memory", MEGABYTES, installed.peak_memory(question, environment), MOST_MEMORY)
        for words in (["status"], ["status", job_name(0)], ["show", job_name(0)], ["probe", job_name(0)]):
            began = time.perf_counter()
            finished([installed.ranonce, *words], environment, 0, 1)
            yield within(f"PostgreSQL: {' '.join(words)} in the same", SECONDS, time.perf_counter() - began, 5.0)
