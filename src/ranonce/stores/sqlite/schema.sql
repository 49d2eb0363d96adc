-- The tables of a ledger in SQLite. They are for people too: SELECT status, count(*) FROM runs GROUP BY 1.
-- Window bounds are unix seconds; other instants are RFC 3339 text in UTC; lease times count in the lease's own domain.
-- No condition has a list of more than two values: SQLite would build a table of them anew for each row it writes.

-- Which ledger this is: one row, written by `ranonce init`.
CREATE TABLE ledger (
    one        INTEGER PRIMARY KEY CHECK (one = 1),
    id         TEXT NOT NULL,
    created_at TEXT NOT NULL,
    epoch      INTEGER NOT NULL,   -- rises with each accepted loss
    volatile   TEXT,               -- why a place that may be lost was accepted, if it was
    pruned_seq INTEGER NOT NULL DEFAULT 0   -- events up to this number may have been pruned
) STRICT;

-- Every loss that was accepted, and by whom.
CREATE TABLE epochs (
    epoch       INTEGER PRIMARY KEY NOT NULL,
    began_at    TEXT NOT NULL,
    reason      TEXT NOT NULL,
    accepted_by TEXT NOT NULL
) STRICT;

-- Every job the ledger has heard of. `version` moves with each state change of any of its runs.
CREATE TABLE jobs (
    job          TEXT PRIMARY KEY NOT NULL,
    version      INTEGER NOT NULL,
    schedules    INTEGER NOT NULL, -- how many versions its schedule has had
    declared_at  TEXT NOT NULL,
    late_after   REAL NOT NULL,    -- seconds after which a due window without a run counts as missing
    max_attempts INTEGER NOT NULL
) STRICT, WITHOUT ROWID;

-- The versions of each job's schedule. A window is judged by the one in force when it starts.
CREATE TABLE schedules (
    job          TEXT NOT NULL,
    number       INTEGER NOT NULL,
    every        TEXT NOT NULL,
    tz           TEXT NOT NULL,
    dialect      TEXT NOT NULL,
    window_offset INTEGER NOT NULL,
    valid_from   INTEGER,          -- the first version has no beginning
    recorded_at  TEXT NOT NULL,
    PRIMARY KEY (job, number)
) STRICT, WITHOUT ROWID;

-- The newest state of each run, written in the same transaction as its event.
CREATE TABLE runs (
    job          TEXT NOT NULL CHECK (job <> ''),
    window_start INTEGER NOT NULL,
    "window"     TEXT NOT NULL CHECK ("window" <> ''),
    input        TEXT NOT NULL,    -- SHA-256 where other input is other work, else empty
    window_end   INTEGER NOT NULL CHECK (window_end > window_start),
    status       TEXT NOT NULL CHECK (status = 'running' OR status = 'done' OR status = 'failed'
                               OR status = 'stopped' OR status = 'held'),
    generation   INTEGER NOT NULL CHECK (generation > 0),
    attempt      INTEGER NOT NULL CHECK (attempt > 0),
    owner        TEXT NOT NULL CHECK (owner <> ''),
    failures     INTEGER NOT NULL CHECK (failures >= 0),
    schedule     INTEGER NOT NULL,
    triggered_by TEXT NOT NULL,
    started_at   TEXT NOT NULL,
    finished_at  TEXT,
    resume_at    TEXT,
    version      TEXT,
    fingerprint  TEXT,
    reason       TEXT,
    exit         INTEGER,
    late         INTEGER NOT NULL CHECK (late IN (0, 1)),
    reconciling  INTEGER NOT NULL CHECK (reconciling IN (0, 1)),
    granted      INTEGER NOT NULL CHECK (granted IN (0, 1)),   -- a person allowed one more attempt
    PRIMARY KEY (job, window_start, "window", input)
) STRICT, WITHOUT ROWID;

-- Runs that wait for somebody: what a catch-up looks for, however old, and what a probe counts. Plain runs never touch
-- it; it holds all that counting needs.
CREATE INDEX runs_unfinished ON runs (job, status, window_start, failures, granted, resume_at)
    WHERE status NOT IN ('running', 'done');

-- Live claims. A renewal touches its own row here and nothing else.
CREATE TABLE leases (
    job          TEXT NOT NULL,
    window_start INTEGER NOT NULL,
    "window"     TEXT NOT NULL,
    input        TEXT NOT NULL,
    owner        TEXT NOT NULL,
    attempt      INTEGER NOT NULL,
    domain       TEXT NOT NULL,    -- the clock that `expires` counts in: this boot, this time namespace
    expires      REAL NOT NULL,
    seconds      REAL NOT NULL CHECK (seconds > 0),
    process      TEXT NOT NULL,
    seen_domain  TEXT NOT NULL,
    seen_at      REAL NOT NULL,
    seen_wall    REAL NOT NULL,
    PRIMARY KEY (job, window_start, "window", input)
) STRICT, WITHOUT ROWID;

-- What happened, append-only.
CREATE TABLE events (
    seq          INTEGER PRIMARY KEY NOT NULL,
    at           TEXT NOT NULL,
    job          TEXT NOT NULL,
    window_start INTEGER NOT NULL,
    "window"     TEXT NOT NULL,
    input        TEXT NOT NULL,
    event        TEXT NOT NULL CHECK (event = 'start' OR event = 'done' OR event = 'failed' OR event = 'stopped'
                              OR event = 'held' OR event = 'skipped' OR event = 'lost' OR event = 'unavailable'
                              OR event = 'expired' OR event = 'rerun' OR event = 'released' OR event = 'noted'),
    reason       TEXT,
    attempt      INTEGER NOT NULL,
    generation   INTEGER NOT NULL,
    owner        TEXT NOT NULL,
    triggered_by TEXT NOT NULL,
    version      TEXT,
    host         TEXT NOT NULL,
    data         TEXT NOT NULL,    -- JSON
    output       BLOB              -- head and tail of what the command printed
) STRICT;

CREATE INDEX events_of_window ON events (job, window_start);
CREATE INDEX events_notable ON events (job, window_start) WHERE event NOT IN ('start', 'done');

-- What stands where finished windows were pruned: every window that starts in [since, until) has had its run, or still
-- has its row. A window in such a span is never claimable again. `failed` of its `runs` had failed.
CREATE TABLE tombstones (
    job       TEXT NOT NULL,
    since     INTEGER NOT NULL,
    until     INTEGER NOT NULL CHECK (until > since),
    runs      INTEGER NOT NULL,
    failed    INTEGER NOT NULL CHECK (failed BETWEEN 0 AND runs),
    pruned_at TEXT NOT NULL,
    PRIMARY KEY (job, since)
) STRICT, WITHOUT ROWID;

-- The one door through which events leave: a job stands here only inside the transaction that prunes it.
CREATE TABLE pruning (job TEXT PRIMARY KEY NOT NULL) STRICT, WITHOUT ROWID;

-- A resource shared by jobs, closed until an instant.
CREATE TABLE gates (
    name  TEXT PRIMARY KEY NOT NULL,
    until TEXT NOT NULL,
    reason TEXT NOT NULL,
    job   TEXT NOT NULL,               -- which closed it
    closed_at TEXT NOT NULL
) STRICT, WITHOUT ROWID;

-- Side effects on their way to a destination, each committed with the work it comes from. What waits, and since when:
-- SELECT destination, state, count(*), min(created_at) FROM outbox WHERE state NOT IN ('sent', 'dropped') GROUP BY 1, 2;
CREATE TABLE outbox (
    seq          INTEGER PRIMARY KEY AUTOINCREMENT NOT NULL,   -- the number that people know it by; never given twice
    key          TEXT NOT NULL UNIQUE CHECK (key <> ''),     -- the dedupe key, constant for ever
    job          TEXT NOT NULL CHECK (job <> ''),
    window_start INTEGER NOT NULL,
    "window"     TEXT NOT NULL CHECK ("window" <> ''),
    input        TEXT NOT NULL,
    destination  TEXT NOT NULL CHECK (destination <> ''),
    content_type TEXT NOT NULL CHECK (content_type <> ''),
    digest       TEXT NOT NULL CHECK (length(digest) = 64),    -- SHA-256 of content type, a zero byte, and body
    generation   INTEGER NOT NULL CHECK (generation > 0),
    attempt      INTEGER NOT NULL CHECK (attempt > 0),
    item         TEXT NOT NULL,                                -- the item or step it was committed with, else empty
    created_at   TEXT NOT NULL,
    due_at       TEXT NOT NULL,                                -- not before
    state        TEXT NOT NULL CHECK (state = 'pending' OR state = 'sending' OR state = 'sent'
                              OR state = 'unsure' OR state = 'dead' OR state = 'dropped'),
    tries        INTEGER NOT NULL CHECK (tries >= 0),          -- how often it was taken; never goes back
    failures     INTEGER NOT NULL CHECK (failures >= 0),       -- those that count against its attempts
    sender       TEXT NOT NULL,                                -- the deliverer that has it, else empty
    lease_domain TEXT NOT NULL,                                -- the clock that `lease_until` counts in
    lease_until  REAL NOT NULL,
    taken_at     TEXT,
    lease_seconds REAL NOT NULL CHECK (lease_seconds >= 0),
    doubt_since  TEXT,                                         -- since then it may have been received already
    settled_at   TEXT,
    receipt      TEXT,                                         -- what the destination said when it took it
    error        TEXT,                                         -- what went wrong last
    resolution   TEXT                                          -- what a person said of it, who and why
) STRICT;

-- What the messages say. Apart, since a message is written again with each step of its way, and its body never is. One
-- that is over may have lost its body: it was pruned.
CREATE TABLE bodies (
    seq  INTEGER PRIMARY KEY NOT NULL,
    body BLOB NOT NULL
) STRICT;

-- What is not delivered, by destination: what deliverers and probes ask is answered here.
CREATE INDEX outbox_undelivered ON outbox (destination, state, due_at, seq, job, created_at)
    WHERE state NOT IN ('sent', 'dropped');
-- The same by window.
CREATE INDEX outbox_waiting ON outbox (job, window_start, "window", state)
    WHERE state NOT IN ('sent', 'dropped');
-- All messages of a run.
CREATE INDEX outbox_of_run ON outbox (job, window_start, "window", input);

-- What all deliverers know of a destination.
CREATE TABLE destinations (
    destination  TEXT PRIMARY KEY NOT NULL CHECK (destination <> ''),
    version      INTEGER NOT NULL,   -- moves with each take, so that two deliverers never take the same message
    closed_until TEXT,               -- it is left alone until then
    closed_why   TEXT,
    next_at      REAL NOT NULL       -- when its rate lets the next one go: unix seconds, finer than a millisecond
) STRICT, WITHOUT ROWID;

-- Named pieces of a run that are done in one generation, with their results. An item of a batch is one.
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

CREATE TRIGGER events_are_not_changed BEFORE UPDATE ON events
    BEGIN SELECT RAISE(ABORT, 'events are append-only'); END;
CREATE TRIGGER events_are_not_removed BEFORE DELETE ON events
    WHEN NOT EXISTS (SELECT 1 FROM pruning WHERE job = OLD.job)
    BEGIN SELECT RAISE(ABORT, 'events are append-only'); END;
-- INSERT OR REPLACE fires no delete trigger, so it is refused where it would replace.
CREATE TRIGGER events_are_not_replaced BEFORE INSERT ON events
    WHEN EXISTS (SELECT 1 FROM events WHERE seq = NEW.seq)
    BEGIN SELECT RAISE(ABORT, 'events are append-only'); END;

CREATE TRIGGER messages_keep_what_they_are
    BEFORE UPDATE OF seq, key, job, window_start, "window", input, destination, content_type, digest ON outbox
    BEGIN SELECT RAISE(ABORT, 'a message stays the one it is'); END;
CREATE TRIGGER messages_are_not_lost BEFORE DELETE ON outbox
    WHEN OLD.state NOT IN ('sent', 'dropped')
    BEGIN SELECT RAISE(ABORT, 'a message that is not delivered is not removed'); END;
-- INSERT OR REPLACE fires no delete trigger here either.
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
