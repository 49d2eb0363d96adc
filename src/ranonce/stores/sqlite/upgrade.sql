-- How the tables of one format become those of the next. Each is run whole, in one transaction.

-- name: upgrade_1
-- Tombstones, epochs, and the one door for pruning.
ALTER TABLE ledger ADD COLUMN pruned_seq INTEGER NOT NULL DEFAULT 0;
CREATE TABLE epochs (
    epoch       INTEGER PRIMARY KEY NOT NULL,
    began_at    TEXT NOT NULL,
    reason      TEXT NOT NULL,
    accepted_by TEXT NOT NULL
) STRICT;
CREATE TABLE tombstones (
    job       TEXT NOT NULL,
    since     INTEGER NOT NULL,
    until     INTEGER NOT NULL CHECK (until > since),
    runs      INTEGER NOT NULL,
    failed    INTEGER NOT NULL CHECK (failed BETWEEN 0 AND runs),
    pruned_at TEXT NOT NULL,
    PRIMARY KEY (job, since)
) STRICT, WITHOUT ROWID;
CREATE TABLE pruning (job TEXT PRIMARY KEY NOT NULL) STRICT, WITHOUT ROWID;
DROP TRIGGER events_are_not_removed;
CREATE TRIGGER events_are_not_removed BEFORE DELETE ON events
    WHEN NOT EXISTS (SELECT 1 FROM pruning WHERE job = OLD.job)
    BEGIN SELECT RAISE(ABORT, 'events are append-only'); END;
