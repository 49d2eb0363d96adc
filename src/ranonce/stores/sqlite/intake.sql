-- Statements for taking in what another ledger tells: what is here of a window, and what is added to it.

-- name: rows_between
-- Does this ledger know anything of a job's windows in a span?
SELECT EXISTS (SELECT 1 FROM runs WHERE job = ?1 AND window_start BETWEEN ?2 AND ?3)
    OR EXISTS (SELECT 1 FROM events WHERE job = ?1 AND window_start BETWEEN ?2 AND ?3)
    OR EXISTS (SELECT 1 FROM tombstones WHERE job = ?1 AND until > ?2 AND since <= ?3);

-- name: run
-- One run.
SELECT job, "window", input, window_start, window_end, status, generation, attempt, owner, failures, schedule,
       triggered_by, started_at, version, fingerprint, finished_at, resume_at, reason, exit, late, reconciling,
       granted
FROM runs WHERE job = ? AND window_start = ? AND "window" = ? AND input = ?;

-- name: story
-- The events of one run, in order.
SELECT at, job, "window", input, window_start, event, attempt, generation, reason, owner, triggered_by, version, host,
       data, seq
FROM events WHERE job = ? AND window_start = ? AND "window" = ? AND input = ? ORDER BY seq;

-- name: lease
-- The claim that is held on one run.
SELECT "window", input, window_start, owner, attempt, domain, expires, seconds, process, seen_domain, seen_at,
       seen_wall
FROM leases WHERE job = ? AND window_start = ? AND "window" = ? AND input = ?;

-- name: seq_is_taken
-- Has an event this number?
SELECT 1 FROM events WHERE seq = ?;

-- name: has_events
-- Has anything ever happened here?
SELECT EXISTS (SELECT 1 FROM events) OR pruned_seq > 0 FROM ledger;

-- name: add_numbered_event
-- Append one fact, under the number it had (NULL: the next one).
INSERT INTO events (seq, at, job, window_start, "window", input, event, reason, attempt, generation, owner,
                    triggered_by, version, host, data, output)
VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?);

-- name: covering
-- Is this span pruned already?
SELECT 1 FROM tombstones WHERE job = ? AND since <= ? AND until >= ?;

-- name: last_event
-- The newest event.
SELECT coalesce(max(seq), 0) FROM events;
