-- Every statement that a SQLite ledger uses, by name.

-- name: identity
-- Which ledger is this?
SELECT id, created_at, epoch, volatile FROM ledger WHERE one = 1;

-- name: create
-- Give the new ledger its identity.
INSERT INTO ledger (one, id, created_at, epoch, volatile, pruned_seq) VALUES (1, ?, ?, ?, ?, 0);

-- name: run_of_job
-- The job's version, the number of its schedules, and the newest state of one of its runs (NULLs if it has none).
SELECT jobs.version, jobs.schedules,
       runs.job, runs."window", runs.input, window_start, window_end, status, generation, attempt, owner, failures,
       schedule, triggered_by, started_at, runs.version, fingerprint, finished_at, resume_at, reason, exit, late,
       reconciling, granted
FROM jobs LEFT JOIN runs
  ON runs.job = jobs.job AND runs.window_start = ? AND runs."window" = ? AND runs.input = ?
WHERE jobs.job = ?;

-- name: done
-- Is this run done, and by whom? The whole question of a duplicate trigger.
SELECT attempt, owner, fingerprint FROM runs
WHERE job = ? AND window_start = ? AND "window" = ? AND input = ? AND status = 'done';

-- name: leases
-- The claims held on any of the job's runs: this run's own, and its rivals.
SELECT "window", input, window_start, owner, attempt, domain, expires, seconds, process, seen_domain, seen_at,
       seen_wall
FROM leases WHERE job = ?;

-- name: gates
-- The gates that were ever closed; few.
SELECT name, until, reason, job, closed_at FROM gates ORDER BY name;

-- name: schedules
-- The versions of the job's schedule, oldest first.
SELECT number, every, tz, dialect, window_offset, valid_from, recorded_at FROM schedules WHERE job = ? ORDER BY number;

-- name: witnessed
-- Did an attempt of this run ever start (or: was its generation done)? Answered by the events, so that a damaged run
-- row is noticed.
SELECT 1 FROM events
WHERE job = ? AND window_start = ? AND "window" = ? AND input = ?
  AND (event = 'done' AND generation = ? OR event = 'start' AND ? IS NULL)
LIMIT 1;

-- name: move_version
-- The gate of every guarded commit: nobody changed the job since it was read.
UPDATE jobs SET version = version + 1 WHERE job = ? AND version = ?;

-- name: lease_unchanged
-- Is a lease that was taken to be over still as it was read?
SELECT 1 FROM leases
WHERE job = ? AND window_start = ? AND "window" = ? AND input = ? AND owner = ? AND attempt = ? AND expires = ?;

-- name: put_run
-- Write the run's new state.
INSERT INTO runs (job, "window", input, window_start, window_end, status, generation, attempt, owner, failures,
                  schedule, triggered_by, started_at, version, fingerprint, finished_at, resume_at, reason, exit, late,
                  reconciling, granted)
VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?)
ON CONFLICT (job, window_start, "window", input) DO UPDATE SET
    status = excluded.status, generation = excluded.generation, attempt = excluded.attempt, owner = excluded.owner,
    failures = excluded.failures, schedule = excluded.schedule, triggered_by = excluded.triggered_by,
    started_at = excluded.started_at, version = excluded.version, fingerprint = excluded.fingerprint,
    finished_at = excluded.finished_at, resume_at = excluded.resume_at, reason = excluded.reason,
    exit = excluded.exit, late = excluded.late, reconciling = excluded.reconciling,
    granted = excluded.granted;

-- name: settle_run
-- Write the verdict on an attempt: what a verdict can change, and only while that attempt has the run.
UPDATE runs SET
    status = ?, failures = ?, finished_at = ?, resume_at = ?, reason = ?, exit = ?, late = ?, reconciling = ?,
    granted = ?
WHERE job = ? AND window_start = ? AND "window" = ? AND input = ? AND attempt = ? AND owner = ?;

-- name: put_lease
-- Write the run's lease.
INSERT INTO leases (job, window_start, "window", input, owner, attempt, domain, expires, seconds, process, seen_domain,
                    seen_at, seen_wall)
VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?)
ON CONFLICT (job, window_start, "window", input) DO UPDATE SET
    owner = excluded.owner, attempt = excluded.attempt, domain = excluded.domain, expires = excluded.expires,
    seconds = excluded.seconds, process = excluded.process, seen_domain = excluded.seen_domain,
    seen_at = excluded.seen_at, seen_wall = excluded.seen_wall;

-- name: drop_lease
-- The attempt has its verdict.
DELETE FROM leases WHERE job = ? AND window_start = ? AND "window" = ? AND input = ?;

-- name: add_event
-- Append one fact.
INSERT INTO events (at, job, window_start, "window", input, event, reason, attempt, generation, owner, triggered_by,
                    version, host, data, output)
VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?);

-- name: put_gate
-- Close a gate; the later end wins, except over one that was closed under a clock ahead of this one.
INSERT INTO gates (name, until, reason, job, closed_at) VALUES (?, ?, ?, ?, ?)
ON CONFLICT (name) DO UPDATE SET until = excluded.until, reason = excluded.reason, job = excluded.job,
                                 closed_at = excluded.closed_at
    WHERE excluded.until > gates.until OR gates.closed_at > excluded.closed_at;

-- name: add_job
-- The first time the ledger hears of a job.
INSERT OR IGNORE INTO jobs (job, version, schedules, declared_at, late_after, max_attempts) VALUES (?, 0, 0, ?, ?, ?);

-- name: put_job
-- Keep what a probe must know about a job even where its configuration is not at hand.
UPDATE jobs SET late_after = ?, max_attempts = ?, schedules = schedules + ? WHERE job = ?;

-- name: add_schedule
-- One more version of a job's schedule.
INSERT INTO schedules (job, number, every, tz, dialect, window_offset, valid_from, recorded_at)
VALUES (?, ?, ?, ?, ?, ?, ?, ?);

-- name: job
-- One job.
SELECT job, version, declared_at, late_after, max_attempts FROM jobs WHERE job = ?;

-- name: jobs
-- All jobs, by name.
SELECT job, version, declared_at, late_after, max_attempts FROM jobs ORDER BY job;

-- name: runs
-- The runs whose window starts in a span.
SELECT job, "window", input, window_start, window_end, status, generation, attempt, owner, failures, schedule,
       triggered_by, started_at, version, fingerprint, finished_at, resume_at, reason, exit, late, reconciling,
       granted
FROM runs WHERE job = ? AND window_start >= ? AND window_start < ? ORDER BY window_start, "window", input;

-- name: stopped
-- Runs that were stopped and wait to be resumed, oldest first.
SELECT job, "window", input, window_start, window_end, status, generation, attempt, owner, failures, schedule,
       triggered_by, started_at, version, fingerprint, finished_at, resume_at, reason, exit, late, reconciling,
       granted
FROM runs INDEXED BY runs_unfinished
WHERE job = ? AND window_start < ? AND status NOT IN ('running', 'done') AND status = 'stopped'
ORDER BY window_start, "window", input;

-- name: latest
-- The newest windows of a job, newest first.
SELECT job, "window", input, window_start, window_end, status, generation, attempt, owner, failures, schedule,
       triggered_by, started_at, version, fingerprint, finished_at, resume_at, reason, exit, late, reconciling,
       granted
FROM runs WHERE job = ? ORDER BY window_start DESC, "window" DESC, input DESC LIMIT ?;

-- name: last_done
-- The newest window that is done.
SELECT job, "window", input, window_start, window_end, status, generation, attempt, owner, failures, schedule,
       triggered_by, started_at, version, fingerprint, finished_at, resume_at, reason, exit, late, reconciling,
       granted
FROM runs WHERE job = ? AND window_start < ? AND status = 'done'
ORDER BY window_start DESC, "window" DESC, input DESC LIMIT 1;

-- name: runs_named
-- The runs with a key that no schedule of the job knows any more. Looks at all runs of the job.
SELECT job, "window", input, window_start, window_end, status, generation, attempt, owner, failures, schedule,
       triggered_by, started_at, version, fingerprint, finished_at, resume_at, reason, exit, late, reconciling,
       granted
FROM runs WHERE job = ? AND "window" = ? ORDER BY window_start, input;

-- name: outline
-- The runs of a span in one row: the starts of windows, those of runs that are not plain, when each began and when it
-- ended. One long text costs a fraction of so many rows.
SELECT group_concat(window_start),
       group_concat(CASE WHEN attempt = 1 AND status = 'done' AND late = 0 THEN NULL ELSE window_start END),
       group_concat(started_at),
       group_concat(coalesce(finished_at, started_at))
FROM runs WHERE job = ? AND window_start >= ? AND window_start < ?;

-- name: reach
-- From where to where a job has runs in a span.
SELECT (SELECT window_start FROM runs WHERE job = ? AND window_start >= ? AND window_start < ?
        ORDER BY window_start LIMIT 1),
       (SELECT window_start FROM runs WHERE job = ? AND window_start >= ? AND window_start < ?
        ORDER BY window_start DESC LIMIT 1);

-- name: backlog
-- How many older runs wait for somebody, by kind.
SELECT status, status = 'failed' AND failures >= ? AND NOT granted, coalesce(resume_at > ?, 0), count(*),
       min(window_start), max(window_start)
FROM runs
WHERE job = ? AND window_start < ? AND status NOT IN ('running', 'done')
GROUP BY 1, 2, 3;

-- name: unfinished
-- The newest of them.
SELECT job, "window", input, window_start, window_end, status, generation, attempt, owner, failures, schedule,
       triggered_by, started_at, version, fingerprint, finished_at, resume_at, reason, exit, late, reconciling,
       granted
FROM runs INDEXED BY runs_unfinished
WHERE job = ? AND window_start < ? AND status NOT IN ('running', 'done')
ORDER BY window_start DESC, "window" DESC, input DESC LIMIT ?;

-- name: notable
-- The runs of a span that are more than done at the first attempt and in time.
SELECT job, "window", input, window_start, window_end, status, generation, attempt, owner, failures, schedule,
       triggered_by, started_at, version, fingerprint, finished_at, resume_at, reason, exit, late, reconciling,
       granted
FROM runs
WHERE job = ? AND window_start >= ? AND window_start < ?
  AND NOT (attempt = 1 AND status = 'done' AND late = 0)
ORDER BY window_start, "window", input;

-- name: last_started_end
-- Where the last window ends that was started under a schedule version or a newer one; records of a future clock do
-- not count.
SELECT max(window_end) FROM runs WHERE job = ? AND schedule >= ? AND window_start <= ?;

-- name: events
-- The story of the windows in a span.
SELECT at, job, "window", input, window_start, event, attempt, generation, reason, owner, triggered_by, version, host,
       data, seq
FROM events WHERE job = ? AND window_start >= ? AND window_start < ? ORDER BY seq;

-- name: notable_events
-- The same without the plain start and done.
SELECT at, job, "window", input, window_start, event, attempt, generation, reason, owner, triggered_by, version, host,
       data, seq
FROM events WHERE job = ? AND window_start >= ? AND window_start < ? AND event NOT IN ('start', 'done') ORDER BY seq;

-- name: newest_events
-- The last facts of the ledger, newest first.
SELECT at, job, "window", input, window_start, event, attempt, generation, reason, owner, triggered_by, version, host,
       data, seq
FROM events ORDER BY seq DESC LIMIT ?;

-- name: event
-- One fact by its number.
SELECT at, job, "window", input, window_start, event, attempt, generation, reason, owner, triggered_by, version, host,
       data, seq
FROM events WHERE seq = ?;

-- name: output
-- What was kept of a child's output.
SELECT output FROM events WHERE seq = ?;

-- name: tombstone_before
-- The last span of pruned windows that begins at or before an instant.
SELECT until, runs, failed FROM tombstones WHERE job = ? AND since <= ? ORDER BY since DESC LIMIT 1;

-- name: tombstones
-- The spans of pruned windows that reach into [since, until).
SELECT since, until, runs, failed, pruned_at FROM tombstones WHERE job = ? AND until > ? AND since < ? ORDER BY since;
