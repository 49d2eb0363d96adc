-- Statements for messages and steps. Apart from the others, since a run without messages needs none of them.
-- `state NOT IN ('sent', 'dropped')` stands wherever an index that holds only those is to be used.

-- name: fenced
-- Does this attempt still have the run?
SELECT 1 FROM runs
WHERE job = ? AND window_start = ? AND "window" = ? AND input = ? AND status = 'running' AND attempt = ? AND owner = ?;

-- name: add_step
-- A step is done, unless it is done already.
INSERT INTO steps (job, window_start, "window", input, generation, name, attempt, at, result)
VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?)
ON CONFLICT DO NOTHING;

-- name: steps
-- The steps of a run that are done in a generation.
SELECT name FROM steps
WHERE job = ? AND window_start = ? AND "window" = ? AND input = ? AND generation = ? ORDER BY name;

-- name: step
-- One of them, with its result.
SELECT job, "window", input, window_start, generation, name, attempt, at, result FROM steps
WHERE job = ? AND window_start = ? AND "window" = ? AND input = ? AND generation = ? AND name = ?;

-- name: add_message
-- One new message. One whose key is there already is refused by a trigger.
INSERT INTO outbox (key, job, "window", input, window_start, destination, content_type, digest, generation, attempt,
                    item, created_at, due_at, state, tries, failures, sender, lease_domain, lease_until, taken_at,
                    lease_seconds, doubt_since, settled_at, receipt, error, resolution)
VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?);

-- name: add_body
-- What it says.
INSERT INTO bodies (seq, body) VALUES (?, ?);

-- name: move
-- A message goes its way, if it is still as it was.
UPDATE outbox SET
    due_at = ?, state = ?, tries = ?, failures = ?, sender = ?, lease_domain = ?, lease_until = ?, taken_at = ?,
    lease_seconds = ?, doubt_since = ?, settled_at = ?, receipt = ?, error = ?, resolution = ?
WHERE seq = ? AND key = ? AND state = ? AND tries = ? AND sender = ?;

-- name: line
-- What is known of a destination.
SELECT version, closed_until, closed_why, next_at FROM destinations WHERE destination = ?;

-- name: put_line
-- What is known of it now.
INSERT INTO destinations (destination, version, closed_until, closed_why, next_at) VALUES (?, ?, ?, ?, ?)
ON CONFLICT (destination) DO UPDATE SET version = excluded.version, closed_until = excluded.closed_until,
                                        closed_why = excluded.closed_why, next_at = excluded.next_at;

-- name: due
-- The messages that may go now, the longest due first, with their bodies.
SELECT key, job, "window", input, window_start, destination, content_type, digest, generation, attempt, item,
       created_at, due_at, state, tries, failures, sender, lease_domain, lease_until, taken_at, lease_seconds,
       doubt_since, settled_at, receipt, error, resolution, outbox.seq, body
FROM outbox INDEXED BY outbox_undelivered LEFT JOIN bodies ON bodies.seq = outbox.seq
WHERE state NOT IN ('sent', 'dropped') AND destination = ? AND state = 'pending' AND due_at <= ?
ORDER BY due_at, outbox.seq LIMIT ?;

-- name: next_due
-- When is the first of the others due?
SELECT min(due_at) FROM outbox INDEXED BY outbox_undelivered
WHERE state NOT IN ('sent', 'dropped') AND destination = ? AND state = 'pending' AND due_at > ?;

-- name: sending
-- The messages that deliverers have.
SELECT key, job, "window", input, window_start, destination, content_type, digest, generation, attempt, item,
       created_at, due_at, state, tries, failures, sender, lease_domain, lease_until, taken_at, lease_seconds,
       doubt_since, settled_at, receipt, error, resolution, seq
FROM outbox INDEXED BY outbox_undelivered
WHERE state NOT IN ('sent', 'dropped') AND destination = ? AND state = 'sending' ORDER BY seq;

-- name: message_of_key
-- One message by its key.
SELECT key, job, "window", input, window_start, destination, content_type, digest, generation, attempt, item,
       created_at, due_at, state, tries, failures, sender, lease_domain, lease_until, taken_at, lease_seconds,
       doubt_since, settled_at, receipt, error, resolution, seq
FROM outbox WHERE key = ?;

-- name: message
-- One message by its number or its key (the other is NULL), with its body.
SELECT key, job, "window", input, window_start, destination, content_type, digest, generation, attempt, item,
       created_at, due_at, state, tries, failures, sender, lease_domain, lease_until, taken_at, lease_seconds,
       doubt_since, settled_at, receipt, error, resolution, outbox.seq, body
FROM outbox LEFT JOIN bodies ON bodies.seq = outbox.seq WHERE outbox.seq = ? OR key = ?;

-- name: messages
-- Messages in the order of their numbers, as far as they are wanted; NULL is any, and states stand between blanks.
SELECT key, job, "window", input, window_start, destination, content_type, digest, generation, attempt, item,
       created_at, due_at, state, tries, failures, sender, lease_domain, lease_until, taken_at, lease_seconds,
       doubt_since, settled_at, receipt, error, resolution, seq
FROM outbox
WHERE seq > ?1 AND (?2 IS NULL OR job = ?2) AND (?3 IS NULL OR window_start = ?3)
  AND (?4 IS NULL OR destination = ?4) AND (?5 IS NULL OR instr(?5, ' ' || state || ' '))
ORDER BY seq LIMIT ?6;

-- name: messages_of_window
-- The same of one window of one job.
SELECT key, job, "window", input, window_start, destination, content_type, digest, generation, attempt, item,
       created_at, due_at, state, tries, failures, sender, lease_domain, lease_until, taken_at, lease_seconds,
       doubt_since, settled_at, receipt, error, resolution, seq
FROM outbox INDEXED BY outbox_of_run
WHERE seq > ?1 AND job = ?2 AND window_start = ?3
  AND (?4 IS NULL OR destination = ?4) AND (?5 IS NULL OR instr(?5, ' ' || state || ' '))
ORDER BY seq LIMIT ?6;

-- name: messages_undelivered
-- The same where only messages that are not delivered are wanted.
SELECT key, job, "window", input, window_start, destination, content_type, digest, generation, attempt, item,
       created_at, due_at, state, tries, failures, sender, lease_domain, lease_until, taken_at, lease_seconds,
       doubt_since, settled_at, receipt, error, resolution, seq
FROM outbox INDEXED BY outbox_undelivered
WHERE state NOT IN ('sent', 'dropped')
  AND seq > ?1 AND (?2 IS NULL OR job = ?2) AND (?3 IS NULL OR window_start = ?3)
  AND (?4 IS NULL OR destination = ?4) AND (?5 IS NULL OR instr(?5, ' ' || state || ' '))
ORDER BY seq LIMIT ?6;

-- name: destinations
-- The destinations of messages that are not delivered: from one to the next, however many messages each has.
WITH RECURSIVE each (destination) AS (
    SELECT min(destination) FROM outbox INDEXED BY outbox_undelivered
    WHERE state NOT IN ('sent', 'dropped')
    UNION ALL
    SELECT (SELECT min(destination) FROM outbox INDEXED BY outbox_undelivered
            WHERE state NOT IN ('sent', 'dropped') AND destination > each.destination)
    FROM each WHERE each.destination IS NOT NULL)
SELECT destination FROM each WHERE destination IS NOT NULL;

-- name: tally
-- How many messages to a destination are not delivered, by job and state, and which of them are late.
SELECT job, destination, state, state IN ('pending', 'sending') AND created_at < ?, count(*), min(created_at)
FROM outbox INDEXED BY outbox_undelivered
WHERE state NOT IN ('sent', 'dropped') AND destination = ?
GROUP BY 1, 3, 4 ORDER BY 1, 3, 4;

-- name: waiting
-- How many messages of the windows of a span are not delivered.
SELECT "window", window_start, state, count(*) FROM outbox INDEXED BY outbox_waiting
WHERE state NOT IN ('sent', 'dropped') AND job = ? AND window_start >= ? AND window_start < ?
GROUP BY window_start, "window", state ORDER BY window_start, "window", state;

-- name: drop_steps
-- The steps of a pruned run go with it.
DELETE FROM steps WHERE job = ? AND window_start = ? AND "window" = ? AND input = ?;

-- name: over
-- The messages of a run that nobody waits for any more.
SELECT seq, key FROM outbox INDEXED BY outbox_of_run
WHERE job = ? AND window_start = ? AND "window" = ? AND input = ? AND state IN ('sent', 'dropped');

-- name: drop_message
-- Nobody can emit it again.
DELETE FROM outbox WHERE seq = ?;

-- name: empty_message
-- Its key stays.
DELETE FROM bodies WHERE seq = ?;

-- name: all_messages
-- Every message in the order of its number, with its body.
SELECT key, job, "window", input, window_start, destination, content_type, digest, generation, attempt, item,
       created_at, due_at, state, tries, failures, sender, lease_domain, lease_until, taken_at, lease_seconds,
       doubt_since, settled_at, receipt, error, resolution, outbox.seq, body
FROM outbox LEFT JOIN bodies ON bodies.seq = outbox.seq ORDER BY outbox.seq;

-- name: all_steps
-- Every step in the order of its run, with its result.
SELECT job, "window", input, window_start, generation, name, attempt, at, result FROM steps
ORDER BY job, window_start, "window", input, generation, name;
