-- Every statement of the receiver's table, by name. `{table}` is its name; a `?` is a value. The same for SQLite and
-- PostgreSQL, but for the types of a new table.

-- name: create_sqlite
-- Keys that were received. Instants are unix seconds.
CREATE TABLE IF NOT EXISTS {table} (
    key         TEXT PRIMARY KEY NOT NULL CHECK (key <> ''),
    fingerprint TEXT NOT NULL,     -- SHA-256 of what came with it: other work under the same key is refused
    state       TEXT NOT NULL CHECK (state IN ('begun', 'answered')),
    token       TEXT NOT NULL,     -- who works on it
    begun_at    REAL NOT NULL,
    lease_until REAL NOT NULL,     -- who works on it is heard of again by then
    answered_at REAL,
    status      INTEGER,
    headers     TEXT,              -- JSON
    body        BLOB
) STRICT;

-- name: create_index
-- What pruning looks for.
CREATE INDEX IF NOT EXISTS {index} ON {table} (begun_at);

-- name: create_postgresql
-- Keys that were received. Instants are unix seconds.
CREATE TABLE IF NOT EXISTS {table} (
    key         text PRIMARY KEY CHECK (key <> ''),
    fingerprint text NOT NULL,
    state       text NOT NULL CHECK (state IN ('begun', 'answered')),
    token       text NOT NULL,
    begun_at    double precision NOT NULL,
    lease_until double precision NOT NULL,
    answered_at double precision,
    status      integer,
    headers     text,
    body        bytea
);

-- name: insert
-- Receive a key, unless it was received before.
INSERT INTO {table} (key, fingerprint, state, token, begun_at, lease_until, answered_at)
VALUES (?, ?, ?, ?, ?, ?, ?)
ON CONFLICT (key) DO NOTHING;

-- name: look
-- What is known of a key.
SELECT fingerprint, state, token, lease_until, status, headers, body FROM {table} WHERE key = ?;

-- name: take_over
-- Begin again what somebody began and was never heard of again.
UPDATE {table} SET token = ?, begun_at = ?, lease_until = ? WHERE key = ? AND state = 'begun' AND token = ?;

-- name: renew
-- Say that it is still worked on.
UPDATE {table} SET lease_until = ? WHERE key = ? AND state = 'begun' AND token = ?;

-- name: answer
-- Keep the answer, if nobody else has taken over.
UPDATE {table} SET state = 'answered', answered_at = ?, status = ?, headers = ?, body = ?
WHERE key = ? AND token = ? AND (state = 'begun' OR status IS NULL);

-- name: release
-- Give a key back: nothing was done.
DELETE FROM {table} WHERE key = ? AND state = 'begun' AND token = ?;

-- name: prune
-- Forget keys that were received long ago, a bounded number of them. Those that are worked on stay.
DELETE FROM {table} WHERE key IN (
    SELECT key FROM {table} WHERE begun_at < ? AND (state = 'answered' OR lease_until < ?) LIMIT ?
);
