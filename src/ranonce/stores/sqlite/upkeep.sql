-- Statements for keeping a ledger over years: pruning, looking through all of it, accepted losses.
-- Apart from the others, since no plain run needs them.

-- name: new_epoch
-- A loss was accepted: no epoch that anybody remembers comes twice.
UPDATE ledger SET epoch = max(epoch, ?) + 1 WHERE one = 1 RETURNING epoch;

-- name: add_epoch
-- When, why and by whom.
INSERT INTO epochs (epoch, began_at, reason, accepted_by) VALUES (?, ?, ?, ?);

-- name: set_gate
-- Write a gate whatever it was.
INSERT OR REPLACE INTO gates (name, until, reason, job, closed_at) VALUES (?, ?, ?, ?, ?);

-- name: epochs
-- All losses that were accepted, oldest first.
SELECT epoch, began_at, reason, accepted_by FROM epochs ORDER BY epoch;

-- name: pruned_seq
-- Up to which number may events have been pruned?
SELECT pruned_seq FROM ledger WHERE one = 1;

-- name: touching
-- The spans of pruned windows that overlap or touch one.
SELECT since, until, runs, failed, pruned_at FROM tombstones WHERE job = ? AND until >= ? AND since <= ?;

-- name: drop_tombstone
-- It becomes part of a longer one.
DELETE FROM tombstones WHERE job = ? AND since = ?;

-- name: put_tombstone
-- These windows were pruned.
INSERT INTO tombstones (job, since, until, runs, failed, pruned_at) VALUES (?, ?, ?, ?, ?, ?);

-- name: runs_from
-- The next of a job's runs in order of the window, for going through all of them in batches.
SELECT job, "window", input, window_start, window_end, status, generation, attempt, owner, failures, schedule,
       triggered_by, started_at, version, fingerprint, finished_at, resume_at, reason, exit, late, reconciling,
       granted
FROM runs WHERE job = ? AND (window_start, "window", input) > (?, ?, ?) AND window_start < ?
ORDER BY window_start, "window", input LIMIT ?;

-- name: open_door
-- From here on events of the job may be removed, until the door is shut in the same transaction.
INSERT INTO pruning (job) VALUES (?);

-- name: shut_door
-- No event may be removed any more.
DELETE FROM pruning;

-- name: drop_run
-- The run is pruned.
DELETE FROM runs WHERE job = ? AND window_start = ? AND "window" = ? AND input = ?;

-- name: drop_events
-- The story of a pruned run goes with it.
DELETE FROM events WHERE job = ? AND window_start = ? AND "window" = ? AND input = ? RETURNING seq;

-- name: drop_loose_events
-- Old facts about windows that have no run: triggers that were refused, notes. Never the newest: SQLite would give its
-- number again.
DELETE FROM events WHERE job = ? AND window_start >= ? AND window_start < ? AND at < ?
  AND seq < (SELECT max(seq) FROM events)
  AND NOT EXISTS (SELECT 1 FROM runs WHERE runs.job = events.job AND runs.window_start = events.window_start)
RETURNING seq;

-- name: forgotten
-- Remember how far events have been pruned.
UPDATE ledger SET pruned_seq = max(pruned_seq, ?) WHERE one = 1;

-- name: job_changed
-- Whoever has read the job decides anew.
UPDATE jobs SET version = version + 1 WHERE job = ?;

-- name: all_runs
-- Every run, in the order of its key.
SELECT job, "window", input, window_start, window_end, status, generation, attempt, owner, failures, schedule,
       triggered_by, started_at, version, fingerprint, finished_at, resume_at, reason, exit, late, reconciling,
       granted
FROM runs ORDER BY job, window_start, "window", input;

-- name: all_events
-- Every fact in the order it was written, with the output.
SELECT at, job, "window", input, window_start, event, attempt, generation, reason, owner, triggered_by, version, host,
       data, seq, output
FROM events ORDER BY seq;

-- name: events_by_window
-- Every fact, window after window.
SELECT at, job, "window", input, window_start, event, attempt, generation, reason, owner, triggered_by, version, host,
       data, seq
FROM events ORDER BY job, window_start, seq;

-- name: events_by_window_with_output
-- The same with what was kept of the output.
SELECT at, job, "window", input, window_start, event, attempt, generation, reason, owner, triggered_by, version, host,
       data, seq, output
FROM events ORDER BY job, window_start, seq;
