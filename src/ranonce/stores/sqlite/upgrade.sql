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

-- name: upgrade_2
-- Messages, what deliverers know of destinations, and steps. Before that, two conditions say the same in another way;
-- the rows need not be written again for it. Source: sqlite.org/lang_altertable.html#otheralter.
PRAGMA writable_schema = ON;
UPDATE sqlite_schema SET sql = replace(sql,
    'status IN (''running'', ''done'', ''failed'', ''stopped'', ''held'')',
    'status = ''running'' OR status = ''done'' OR status = ''failed''
                               OR status = ''stopped'' OR status = ''held''')
WHERE name = 'runs';
UPDATE sqlite_schema SET sql = replace(sql,
    'event IN (''start'', ''done'', ''failed'', ''stopped'', ''held'', ''skipped'', ''lost'',
                                                ''unavailable'', ''expired'', ''rerun'', ''released'', ''noted'')',
    'event = ''start'' OR event = ''done'' OR event = ''failed'' OR event = ''stopped''
                              OR event = ''held'' OR event = ''skipped'' OR event = ''lost'' OR event = ''unavailable''
                              OR event = ''expired'' OR event = ''rerun'' OR event = ''released'' OR event = ''noted''')
WHERE name = 'events';
PRAGMA writable_schema = RESET;
DROP INDEX runs_unfinished;
CREATE INDEX runs_unfinished ON runs (job, status, window_start, failures, granted, resume_at)
    WHERE status NOT IN ('running', 'done');
CREATE TABLE outbox (
    seq          INTEGER PRIMARY KEY AUTOINCREMENT NOT NULL,
    key          TEXT NOT NULL UNIQUE CHECK (key <> ''),
    job          TEXT NOT NULL CHECK (job <> ''),
    window_start INTEGER NOT NULL,
    "window"     TEXT NOT NULL CHECK ("window" <> ''),
    input        TEXT NOT NULL,
    destination  TEXT NOT NULL CHECK (destination <> ''),
    content_type TEXT NOT NULL CHECK (content_type <> ''),
    digest       TEXT NOT NULL CHECK (length(digest) = 64),
    generation   INTEGER NOT NULL CHECK (generation > 0),
    attempt      INTEGER NOT NULL CHECK (attempt > 0),
    item         TEXT NOT NULL,
    created_at   TEXT NOT NULL,
    due_at       TEXT NOT NULL,
    state        TEXT NOT NULL CHECK (state = 'pending' OR state = 'sending' OR state = 'sent'
                              OR state = 'unsure' OR state = 'dead' OR state = 'dropped'),
    tries        INTEGER NOT NULL CHECK (tries >= 0),
    failures     INTEGER NOT NULL CHECK (failures >= 0),
    sender       TEXT NOT NULL,
    lease_domain TEXT NOT NULL,
    lease_until  REAL NOT NULL,
    taken_at     TEXT,
    lease_seconds REAL NOT NULL CHECK (lease_seconds >= 0),
    doubt_since  TEXT,
    settled_at   TEXT,
    receipt      TEXT,
    error        TEXT,
    resolution   TEXT
) STRICT;
CREATE TABLE bodies (
    seq  INTEGER PRIMARY KEY NOT NULL,
    body BLOB NOT NULL
) STRICT;
CREATE INDEX outbox_undelivered ON outbox (destination, state, due_at, seq, job, created_at)
    WHERE state NOT IN ('sent', 'dropped');
CREATE INDEX outbox_waiting ON outbox (job, window_start, "window", state)
    WHERE state NOT IN ('sent', 'dropped');
CREATE INDEX outbox_of_run ON outbox (job, window_start, "window", input);
CREATE TABLE destinations (
    destination  TEXT PRIMARY KEY NOT NULL CHECK (destination <> ''),
    version      INTEGER NOT NULL,
    closed_until TEXT,
    closed_why   TEXT,
    next_at      REAL NOT NULL
) STRICT, WITHOUT ROWID;
CREATE TABLE steps (
    job          TEXT NOT NULL CHECK (job <> ''),
    window_start INTEGER NOT NULL,
    "window"     TEXT NOT NULL CHECK ("window" <> ''),
    input        TEXT NOT NULL,
    generation   INTEGER NOT NULL CHECK (generation > 0),
    name         TEXT NOT NULL CHECK (name <> ''),
    attempt      INTEGER NOT NULL CHECK (attempt > 0),
    at           TEXT NOT NULL,
    result       BLOB,
    PRIMARY KEY (job, window_start, "window", input, generation, name)
) STRICT, WITHOUT ROWID;
CREATE TRIGGER messages_keep_what_they_are
    BEFORE UPDATE OF seq, key, job, window_start, "window", input, destination, content_type, digest ON outbox
    BEGIN SELECT RAISE(ABORT, 'a message stays the one it is'); END;
CREATE TRIGGER messages_are_not_lost BEFORE DELETE ON outbox
    WHEN OLD.state NOT IN ('sent', 'dropped')
    BEGIN SELECT RAISE(ABORT, 'a message that is not delivered is not removed'); END;
CREATE TRIGGER messages_are_not_replaced BEFORE INSERT ON outbox
    WHEN EXISTS (SELECT 1 FROM outbox WHERE key = NEW.key OR seq = NEW.seq)
    BEGIN SELECT RAISE(ABORT, 'a message stays the one it is'); END;
CREATE TRIGGER messages_take_their_bodies_along AFTER DELETE ON outbox
    BEGIN DELETE FROM bodies WHERE seq = OLD.seq; END;
CREATE TRIGGER bodies_are_not_changed BEFORE UPDATE ON bodies
    BEGIN SELECT RAISE(ABORT, 'a body is not changed'); END;
CREATE TRIGGER bodies_are_not_lost BEFORE DELETE ON bodies
    WHEN EXISTS (SELECT 1 FROM outbox WHERE seq = OLD.seq AND state NOT IN ('sent', 'dropped'))
    BEGIN SELECT RAISE(ABORT, 'the body of a message that is not delivered is not removed'); END;
CREATE TRIGGER bodies_are_not_replaced BEFORE INSERT ON bodies
    WHEN EXISTS (SELECT 1 FROM bodies WHERE seq = NEW.seq)
    BEGIN SELECT RAISE(ABORT, 'a body is not changed'); END;
CREATE TRIGGER steps_are_not_changed BEFORE UPDATE ON steps
    BEGIN SELECT RAISE(ABORT, 'a step that is done stays as it is'); END;
