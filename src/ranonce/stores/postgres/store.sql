-- Every question that is asked of a ledger in PostgreSQL, by name. What is decided on and what is written goes through
-- the functions beside the tables. `{schema}` stands for the ledger's schema.

-- name: identity
-- Which ledger is this?
SELECT id, {schema}.seconds(created_at), epoch, volatile, format FROM {schema}.ledger WHERE one = 1;

-- name: clock
-- What time is it?
SELECT {schema}.seconds(pg_catalog.clock_timestamp());

-- name: read_run
-- All that a decision about one run depends on.
SELECT {schema}.read_run($1, $2, $3, $4, $5);

-- name: commit
-- Write a decision, whole or not at all.
SELECT {schema}.commit_decision($1, $2, $3, $4, $5, $6, $7, $8, $9, $10, $11, $12, $13);

-- name: commit_more
-- The same of one that says something of steps or messages, or is fenced.
SELECT {schema}.commit_decision($1, $2, $3, $4, $5, $6, $7, $8, $9, $10, $11, $12, $13, $14, $15, $16, $17, $18);

-- name: record_schedule
-- Record a job's settings, and perhaps one more version of its schedule.
SELECT {schema}.record_schedule($1, $2, $3, $4, $5, $6, $7, $8);

-- name: done
-- Is this run done in this ledger, and by whom? The whole question of a duplicate trigger.
SELECT attempt, owner, fingerprint FROM {schema}.runs
WHERE job = $1 AND window_start = $2 AND "window" = $3 AND input = $4 AND status = 'done'
  AND EXISTS (SELECT 1 FROM {schema}.ledger WHERE one = 1 AND id = $5);

-- name: witnessed
-- Did an attempt of this run ever start (or: was its generation done)? Answered by the events, so that a damaged run
-- row is noticed.
SELECT 1 FROM {schema}.events
WHERE job = $1 AND window_start = $2 AND "window" = $3 AND input = $4
  AND (event = 'done' AND generation = $5 OR event = 'start' AND $5::bigint IS NULL)
LIMIT 1;

-- name: job
-- One job.
SELECT {schema}.job_values(j) FROM {schema}.jobs AS j WHERE job = $1;

-- name: jobs
-- All jobs, by name.
SELECT {schema}.job_values(j) FROM {schema}.jobs AS j ORDER BY job;

-- name: schedules
-- The versions of the job's schedule, oldest first.
SELECT {schema}.schedule_values(s) FROM {schema}.schedules AS s WHERE job = $1 ORDER BY number;

-- name: gates
-- The gates that were ever closed; few.
SELECT {schema}.gate_values(g) FROM {schema}.gates AS g ORDER BY name;

-- name: leases
-- The claims held on any of the job's runs.
SELECT {schema}.lease_values(l) FROM {schema}.claims_of($1) AS l;

-- name: runs
-- The runs whose window starts in a span.
SELECT {schema}.run_values(r) FROM {schema}.runs AS r
WHERE job = $1 AND window_start >= $2 AND window_start < $3 ORDER BY window_start, "window", input;

-- name: stopped
-- Runs that were stopped and wait to be resumed, oldest first.
SELECT {schema}.run_values(r) FROM {schema}.runs AS r
WHERE job = $1 AND window_start < $2 AND status IN ('stopped', 'failed', 'held') AND status = 'stopped'
ORDER BY window_start, "window", input;

-- name: latest
-- The newest windows of a job, newest first.
SELECT {schema}.run_values(r) FROM {schema}.runs AS r
WHERE job = $1 ORDER BY window_start DESC, "window" DESC, input DESC LIMIT $2;

-- name: last_done
-- The newest window that is done.
SELECT {schema}.run_values(r) FROM {schema}.runs AS r
WHERE job = $1 AND window_start < $2 AND status = 'done'
ORDER BY window_start DESC, "window" DESC, input DESC LIMIT 1;

-- name: runs_named
-- The runs with a key that no schedule of the job knows any more. Looks at all runs of the job.
SELECT {schema}.run_values(r) FROM {schema}.runs AS r
WHERE job = $1 AND "window" = $2 ORDER BY window_start, input;

-- name: outline
-- The runs of a span in one row: the starts of windows, those of runs that are not plain, whether they worked one after
-- the other, the last instant and the first beginning. One long text costs a fraction of so many rows.
SELECT pg_catalog.string_agg(window_start::text, ','),
       pg_catalog.string_agg(CASE WHEN NOT (attempt = 1 AND status = 'done' AND NOT late) THEN window_start::text END, ','),
       pg_catalog.bool_and(ended <= next_began),
       {schema}.seconds(pg_catalog.max(greatest(ended, started_at))), {schema}.seconds(pg_catalog.min(started_at))
FROM (
    SELECT window_start, attempt, status, late, started_at, coalesce(finished_at, started_at) AS ended,
           pg_catalog.lead(started_at) OVER (ORDER BY window_start, "window", input) AS next_began
    FROM {schema}.runs WHERE job = $1 AND window_start >= $2 AND window_start < $3
    ORDER BY window_start, "window", input
) AS in_order;

-- name: notable
-- The runs of a span that are more than done at the first attempt and in time.
SELECT {schema}.run_values(r) FROM {schema}.runs AS r
WHERE job = $1 AND window_start >= $2 AND window_start < $3 AND NOT (attempt = 1 AND status = 'done' AND NOT late)
ORDER BY window_start, "window", input;

-- name: backlog
-- How many older runs wait for somebody, by kind.
SELECT * FROM {schema}.backlog_of($1, $2, $3, $4) ORDER BY 1, 2, 3;

-- name: glance
-- What a survey of a span begins with.
SELECT {schema}.glance($1, $2, $3, $4, $5, $6);

-- name: unfinished
-- The newest of them.
SELECT {schema}.run_values(r) FROM {schema}.runs AS r
WHERE job = $1 AND window_start < $2 AND status IN ('stopped', 'failed', 'held')
ORDER BY window_start DESC, "window" DESC, input DESC LIMIT $3;

-- name: last_started_end
-- Where the last window ends that was started under a schedule version or a newer one; records of a future clock do
-- not count.
SELECT pg_catalog.max(window_end) FROM {schema}.runs WHERE job = $1 AND schedule >= $2 AND window_start <= $3;

-- name: events
-- The story of the windows in a span.
SELECT {schema}.event_values(e), seq FROM {schema}.events AS e
WHERE job = $1 AND window_start >= $2 AND window_start < $3 ORDER BY seq;

-- name: notable_events
-- The same without the plain start and done.
SELECT {schema}.event_values(e), seq FROM {schema}.events AS e
WHERE job = $1 AND window_start >= $2 AND window_start < $3 AND event NOT IN ('start', 'done') ORDER BY seq;

-- name: newest_events
-- The last facts of the ledger, newest first.
SELECT {schema}.event_values(e), seq FROM {schema}.events AS e ORDER BY seq DESC LIMIT $1;

-- name: event
-- One fact by its number.
SELECT {schema}.event_values(e), seq FROM {schema}.events AS e WHERE seq = $1;

-- name: output
-- What was kept of a child's output.
SELECT pg_catalog.encode(output, 'base64') FROM {schema}.events WHERE seq = $1;

-- name: tombstones
-- The spans of pruned windows that reach into [since, until).
SELECT pg_catalog.json_build_array(job, since, until, runs, failed, {schema}.seconds(pruned_at))
FROM {schema}.tombstones
WHERE job = $1 AND until > $2 AND since < $3 ORDER BY since;
