-- Questions for keeping a ledger over years: pruning, looking through all of it, accepted losses. Apart from the others,
-- since no plain run needs them. `{schema}` stands for the ledger's schema; what is written goes through functions.

-- name: begin
-- Begin to write to these jobs.
SELECT {schema}.begin_upkeep($1, $2, $3);

-- name: jobs_changed
-- Whoever has read these jobs decides anew.
SELECT {schema}.jobs_changed($1);

-- name: pruned_seq
-- Up to which number may events have been pruned?
SELECT pruned_seq FROM {schema}.ledger WHERE one = 1;

-- name: forget_until
-- Remember how far events have been pruned.
SELECT {schema}.forget_until($1);

-- name: runs_from
-- The next of a job's runs in order of the window, for going through all of them in batches.
SELECT {schema}.run_values(r) FROM {schema}.runs AS r
WHERE job = $1 AND (window_start, "window", input) > ($2, $3, $4) AND window_start < $5
ORDER BY window_start, "window", input LIMIT $6;

-- name: drop_runs
-- These runs are pruned, with their stories.
SELECT {schema}.drop_runs($1, $2);

-- name: end_pruning
-- Old facts about windows without a run go, too; then the door is shut.
SELECT {schema}.end_pruning($1, $2, $3, $4);

-- name: touching
-- The spans of pruned windows that overlap or touch one.
SELECT pg_catalog.json_build_array(job, since, until, runs, failed, {schema}.seconds(pruned_at))
FROM {schema}.tombstones
WHERE job = $1 AND until >= $2 AND since <= $3 ORDER BY since;

-- name: put_tombstones
-- These windows were pruned.
SELECT {schema}.put_tombstones($1, $2);

-- name: all_runs
-- The next of all runs, in the order of the key.
SELECT {schema}.next_runs($1, $2, $3, $4, $5);

-- name: all_events
-- The next of all facts in the order of their numbers, with the output.
SELECT {schema}.next_events($1, $2);

-- name: events_by_window
-- The next of all facts, window after window.
SELECT {schema}.next_events_by_window($1, $2, $3, $4, $5);

-- name: all_messages
-- The next of all messages, with their bodies.
SELECT told, body FROM {schema}.next_messages($1, $2);

-- name: all_steps
-- The next of all steps, with their results.
SELECT told, result FROM {schema}.next_steps($1, $2, $3, $4, $5, $6, $7);

-- name: set_gate
-- Write a gate whatever it was.
SELECT {schema}.set_gate($1);

-- name: epochs
-- All losses that were accepted, oldest first.
SELECT pg_catalog.json_build_array(epoch, {schema}.seconds(began_at), reason, accepted_by)
FROM {schema}.epochs ORDER BY epoch;

-- name: open_epoch
-- A loss was accepted: no epoch that anybody remembers comes twice.
SELECT {schema}.open_epoch($1, $2, $3);
