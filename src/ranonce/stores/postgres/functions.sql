-- The functions of a ledger in PostgreSQL: one for reading all that a decision depends on, one for writing a decision.
-- Functions, so that each is one round trip and planned once a session, through a pooler that changes sessions under our
-- hands as well. They decide nothing: the rules are the program's.
--
-- Settings of the role, the database or the caller's session change nothing of it: what a statement calls has its own
-- search_path, and tells numbers in full. What is too small for that, so that it becomes part of whatever calls it, names
-- the schema of each function.
--
-- Whatever is refused here is refused whole: SQLSTATE RN001 is a race that was lost, RN002 another ledger.

-- An instant as unix seconds, and back; to the millisecond where it is written. A numeric is told in full whatever
-- extra_float_digits is.
CREATE OR REPLACE FUNCTION {schema}.seconds(instant timestamptz) RETURNS numeric
LANGUAGE sql STABLE PARALLEL SAFE AS $$ SELECT extract(epoch FROM instant) $$;

CREATE OR REPLACE FUNCTION {schema}.instant(seconds double precision) RETURNS timestamptz
LANGUAGE sql IMMUTABLE PARALLEL SAFE AS $$
    SELECT pg_catalog.to_timestamp(pg_catalog.round(seconds::numeric, 3)::double precision)
$$;

-- A row of `runs` as the program knows it.
CREATE OR REPLACE FUNCTION {schema}.run_values(r {schema}.runs) RETURNS json
LANGUAGE sql STABLE AS $$
    SELECT pg_catalog.json_build_array(
        r.job, r."window", r.input, r.window_start, r.window_end, r.status, r.generation, r.attempt, r.owner,
        r.failures, r.schedule, r.triggered_by, {schema}.seconds(r.started_at), r.version, r.fingerprint,
        {schema}.seconds(r.finished_at), {schema}.seconds(r.resume_at), r.reason, r.exit, r.late, r.reconciling,
        r.granted)
$$;

CREATE OR REPLACE FUNCTION {schema}.lease_values(l {schema}.leases) RETURNS json
LANGUAGE sql STABLE
SET search_path = pg_catalog, pg_temp SET extra_float_digits = 1 AS $$
    SELECT json_build_array(l."window", l.input, l.window_start, l.owner, l.attempt, l.domain, l.expires, l.seconds,
                            l.process, l.seen_domain, l.seen_at, l.seen_wall)
$$;

CREATE OR REPLACE FUNCTION {schema}.job_values(j {schema}.jobs) RETURNS json
LANGUAGE sql STABLE
SET search_path = pg_catalog, pg_temp SET extra_float_digits = 1 AS $$
    SELECT json_build_array(j.job, j.version, {schema}.seconds(j.declared_at), j.late_after, j.max_attempts)
$$;

CREATE OR REPLACE FUNCTION {schema}.schedule_values(s {schema}.schedules) RETURNS json
LANGUAGE sql STABLE AS $$
    SELECT pg_catalog.json_build_array(
        s.number, s.every, s.tz, s.dialect, s.window_offset, s.valid_from, {schema}.seconds(s.recorded_at))
$$;

CREATE OR REPLACE FUNCTION {schema}.gate_values(g {schema}.gates) RETURNS json
LANGUAGE sql STABLE AS $$
    SELECT pg_catalog.json_build_array(
        g.name, {schema}.seconds(g.until), g.reason, g.job, {schema}.seconds(g.closed_at))
$$;

CREATE OR REPLACE FUNCTION {schema}.event_values(e {schema}.events) RETURNS json
LANGUAGE sql STABLE AS $$
    SELECT pg_catalog.json_build_array(
        {schema}.seconds(e.at), e.job, e."window", e.input, e.window_start, e.event, e.attempt, e.generation, e.reason,
        e.owner, e.triggered_by, e.version, e.host, e.data)
$$;

-- The claims that are held on a job's runs. One whose run has ended is none: see `forget_ended_claims`.
CREATE OR REPLACE FUNCTION {schema}.claims_of(p_job text) RETURNS SETOF {schema}.leases
LANGUAGE sql STABLE AS $$
    SELECT l.* FROM {schema}.leases AS l WHERE l.job = p_job AND EXISTS (
        SELECT 1 FROM {schema}.runs AS r WHERE r.job = l.job AND r.window_start = l.window_start
          AND r."window" = l."window" AND r.input = l.input AND r.status = 'running')
$$;

-- All that a decision about one run depends on, of one moment, and which ledger says so; the clock is read last. The
-- versions of the schedule only come if there are not as many as the program knows: they are never rewritten. The events
-- are asked as well whether the run ever began, and which generation of it was done last: its row says the same, unless
-- it is damaged.
CREATE OR REPLACE FUNCTION {schema}.read_run(
    p_job text, p_start bigint, p_window text, p_input text, p_known integer
) RETURNS json LANGUAGE plpgsql STABLE
SET search_path = pg_catalog, pg_temp SET extra_float_digits = 1 AS $$
BEGIN
    RETURN (SELECT json_build_array(
        known.version,
        CASE WHEN r.job IS NOT NULL THEN {schema}.run_values(r) END,
        (SELECT json_agg({schema}.lease_values(l)) FROM {schema}.claims_of(p_job) AS l),
        (SELECT json_agg({schema}.gate_values(g) ORDER BY g.name) FROM {schema}.gates AS g),
        CASE WHEN known.schedules IS DISTINCT FROM p_known THEN (
            SELECT json_agg({schema}.schedule_values(s) ORDER BY s.number)
            FROM {schema}.schedules AS s WHERE s.job = p_job) END,
        (SELECT json_build_array(before.runs, before.failed) FROM (
            SELECT until, runs, failed FROM {schema}.tombstones
            WHERE job = p_job AND since <= p_start ORDER BY since DESC LIMIT 1
        ) AS before WHERE r.job IS NULL AND p_start < before.until),
        (SELECT json_build_array(bool_or(event = 'start'), max(generation) FILTER (WHERE event = 'done'))
         FROM {schema}.events
         WHERE job = p_job AND window_start = p_start AND "window" = p_window AND input = p_input),
        {schema}.seconds(clock_timestamp()),
        (SELECT id FROM {schema}.ledger AS l WHERE l.one = 1))
    FROM (SELECT 1) AS one
    LEFT JOIN {schema}.jobs AS known ON known.job = p_job
    LEFT JOIN {schema}.runs AS r
        ON r.job = p_job AND r.window_start = p_start AND r."window" = p_window AND r.input = p_input);
END $$;

-- How many older runs of a job wait for somebody, by kind. Spent: failed, and no attempt is left; waiting: stopped, and
-- the time to resume is yet to come.
CREATE OR REPLACE FUNCTION {schema}.backlog_of(
    p_job text, p_before bigint, p_max_attempts bigint, p_now double precision
) RETURNS TABLE (status text, spent boolean, waiting boolean, number bigint, first bigint, last bigint)
LANGUAGE sql STABLE
SET search_path = pg_catalog, pg_temp SET extra_float_digits = 1 AS $$
    SELECT r.status, r.status = 'failed' AND r.failures >= p_max_attempts AND NOT r.granted,
           coalesce({schema}.seconds(r.resume_at) > p_now, false), count(*), min(r.window_start), max(r.window_start)
    FROM {schema}.runs AS r
    WHERE r.job = p_job AND r.window_start < p_before AND r.status IN ('stopped', 'failed', 'held')
    GROUP BY 1, 2, 3
$$;

-- What a survey of a span begins with, of one moment: the starts of its windows, whether its runs worked one after the
-- other, the last instant and the first beginning; the runs that are more than done at the first attempt and in time,
-- and the events that are more than their start and end; the claims, how many older runs wait for somebody, the spans
-- that were pruned, and the runs that lie in the future. One long text costs a fraction of so many rows.
CREATE OR REPLACE FUNCTION {schema}.glance(
    p_job text, p_since bigint, p_until bigint, p_future bigint, p_max_attempts bigint, p_now double precision
) RETURNS json LANGUAGE plpgsql STABLE
SET search_path = pg_catalog, pg_temp SET extra_float_digits = 1 AS $$
BEGIN
    RETURN (
        WITH spanned AS MATERIALIZED (
            SELECT * FROM {schema}.runs
            WHERE job = p_job AND window_start >= p_since AND window_start < p_until
            ORDER BY window_start, "window", input
        )
        SELECT json_build_array(
            (SELECT json_build_array(string_agg(window_start::text, ','), bool_and(ended <= next_began),
                                     {schema}.seconds(max(greatest(ended, started_at))),
                                     {schema}.seconds(min(started_at)))
             FROM (SELECT window_start, started_at, coalesce(finished_at, started_at) AS ended,
                          lead(started_at) OVER (ORDER BY window_start, "window", input) AS next_began
                   FROM spanned) AS in_order),
            (SELECT json_agg({schema}.run_values(r::{schema}.runs)) FROM spanned AS r
             WHERE NOT (r.attempt = 1 AND r.status = 'done' AND NOT r.late)),
            (SELECT json_agg(json_build_array({schema}.event_values(e), e.seq) ORDER BY e.seq) FROM {schema}.events AS e
             WHERE e.job = p_job AND e.window_start >= p_since AND e.window_start < p_until
               AND e.event NOT IN ('start', 'done')),
            (SELECT json_agg({schema}.lease_values(l)) FROM {schema}.claims_of(p_job) AS l),
            (SELECT json_agg(json_build_array(status, spent, waiting, number, first, last)
                             ORDER BY status, spent, waiting)
             FROM {schema}.backlog_of(p_job, p_since, p_max_attempts, p_now)),
            (SELECT json_agg(json_build_array(job, since, until, runs, failed, {schema}.seconds(pruned_at))
                             ORDER BY since)
             FROM {schema}.tombstones WHERE job = p_job AND until > p_since AND since < p_until),
            (SELECT json_agg({schema}.run_values(r) ORDER BY r.window_start, r."window", r.input) FROM {schema}.runs AS r
             WHERE r.job = p_job AND r.window_start >= p_future)));
END $$;

-- What every write begins with: it is this ledger, it does not wait for ever, and its commit waits for the disk.
CREATE OR REPLACE FUNCTION {schema}.begin_writing(p_ledger text, p_wait integer) RETURNS void
LANGUAGE plpgsql AS $$
BEGIN
    IF NOT EXISTS (SELECT 1 FROM {schema}.ledger WHERE one = 1 AND id = p_ledger) THEN
        RAISE EXCEPTION 'this is not the ledger %', p_ledger USING ERRCODE = 'RN002';
    END IF;
    IF p_wait IS NOT NULL THEN
        PERFORM set_config('lock_timeout', p_wait::text, true);
    END IF;
    IF current_setting('synchronous_commit') = 'off' THEN
        PERFORM set_config('synchronous_commit', 'on', true);
    END IF;
END $$;

-- Write a claim's lease. Without p_expires it ends when it says.
CREATE OR REPLACE FUNCTION {schema}.put_lease(p_job text, p_lease jsonb, p_expires double precision) RETURNS void
LANGUAGE plpgsql AS $$
BEGIN
    INSERT INTO {schema}.leases (job, window_start, "window", input, owner, attempt, domain, expires, seconds, process,
                                 seen_domain, seen_at, seen_wall)
    VALUES (p_job, (p_lease->>2)::bigint, p_lease->>0, p_lease->>1, p_lease->>3, (p_lease->>4)::bigint, p_lease->>5,
            coalesce(p_expires, (p_lease->>6)::double precision), (p_lease->>7)::double precision, p_lease->>8,
            p_lease->>9, (p_lease->>10)::double precision, (p_lease->>11)::double precision)
    ON CONFLICT (job, window_start, "window", input) DO UPDATE SET
        owner = excluded.owner, attempt = excluded.attempt, domain = excluded.domain, expires = excluded.expires,
        seconds = excluded.seconds, process = excluded.process, seen_domain = excluded.seen_domain,
        seen_at = excluded.seen_at, seen_wall = excluded.seen_wall;
END $$;

-- Remove claims on a job's runs that have ended, if nobody is about to claim any. Where a run is finished in somebody
-- else's transaction its claim is left, so that it can be renewed until that is committed, however long it takes.
CREATE OR REPLACE FUNCTION {schema}.forget_ended_claims(p_job text) RETURNS void
LANGUAGE plpgsql
SET search_path = pg_catalog, pg_temp SET extra_float_digits = 1 AS $$
BEGIN
    PERFORM 1 FROM {schema}.jobs WHERE job = p_job FOR NO KEY UPDATE SKIP LOCKED;
    IF FOUND THEN
        DELETE FROM {schema}.leases AS l WHERE l.job = p_job AND NOT EXISTS (
            SELECT 1 FROM {schema}.runs AS of WHERE of.job = l.job AND of.window_start = l.window_start
              AND of."window" = l."window" AND of.input = l.input AND of.status = 'running');
    END IF;
END $$;

-- Write a run's new state. One that says nothing else began at p_now.
CREATE OR REPLACE FUNCTION {schema}.put_run(p_run jsonb, p_now double precision) RETURNS void
LANGUAGE plpgsql AS $$
BEGIN
    INSERT INTO {schema}.runs (job, "window", input, window_start, window_end, status, generation, attempt, owner,
                               failures, schedule, triggered_by, started_at, version, fingerprint, finished_at,
                               resume_at, reason, exit, late, reconciling, granted)
    VALUES (p_run->>0, p_run->>1, p_run->>2, (p_run->>3)::bigint, (p_run->>4)::bigint, p_run->>5, (p_run->>6)::bigint,
            (p_run->>7)::bigint, p_run->>8, (p_run->>9)::bigint, (p_run->>10)::integer, p_run->>11,
            {schema}.instant(coalesce((p_run->>12)::double precision, p_now)), p_run->>13, p_run->>14,
            {schema}.instant((p_run->>15)::double precision), {schema}.instant((p_run->>16)::double precision),
            p_run->>17, (p_run->>18)::integer, (p_run->>19)::boolean, (p_run->>20)::boolean, (p_run->>21)::boolean)
    ON CONFLICT (job, window_start, "window", input) DO UPDATE SET
        status = excluded.status, generation = excluded.generation, attempt = excluded.attempt,
        owner = excluded.owner, failures = excluded.failures, schedule = excluded.schedule,
        triggered_by = excluded.triggered_by, started_at = excluded.started_at, version = excluded.version,
        fingerprint = excluded.fingerprint, finished_at = excluded.finished_at, resume_at = excluded.resume_at,
        reason = excluded.reason, exit = excluded.exit, late = excluded.late, reconciling = excluded.reconciling,
        granted = excluded.granted;
END $$;

-- Write the verdict on an attempt: what a verdict can change, and only while that attempt has the run.
CREATE OR REPLACE FUNCTION {schema}.settle_run(p_run jsonb) RETURNS boolean
LANGUAGE plpgsql AS $$
BEGIN
    UPDATE {schema}.runs SET
        status = p_run->>5, failures = (p_run->>9)::bigint,
        finished_at = {schema}.instant((p_run->>15)::double precision),
        resume_at = {schema}.instant((p_run->>16)::double precision), reason = p_run->>17,
        exit = (p_run->>18)::integer, late = (p_run->>19)::boolean, reconciling = (p_run->>20)::boolean,
        granted = (p_run->>21)::boolean
    WHERE job = p_run->>0 AND window_start = (p_run->>3)::bigint AND "window" = p_run->>1 AND input = p_run->>2
      AND attempt = (p_run->>7)::bigint AND owner = p_run->>8;
    RETURN FOUND;
END $$;

-- Append one fact; one that has no instant of its own happened at p_now. Its data is a text, to be kept as it is.
CREATE OR REPLACE FUNCTION {schema}.add_event(p_event jsonb, p_now double precision) RETURNS bigint
LANGUAGE plpgsql AS $$
DECLARE
    number bigint;
BEGIN
    INSERT INTO {schema}.events (at, job, "window", input, window_start, event, attempt, generation, reason, owner,
                                 triggered_by, version, host, data, output)
    VALUES ({schema}.instant(coalesce((p_event->>0)::double precision, p_now)), p_event->>1, p_event->>2, p_event->>3,
            (p_event->>4)::bigint, p_event->>5, (p_event->>6)::bigint, (p_event->>7)::bigint, p_event->>8,
            p_event->>9, p_event->>10, p_event->>11, p_event->>12, (p_event->>13)::json,
            decode(p_event->>14, 'base64'))
    RETURNING seq INTO number;
    RETURN number;
END $$;

-- Close a gate; the later end wins, except over one that was closed under a clock ahead of this one.
CREATE OR REPLACE FUNCTION {schema}.put_gate(p_gate jsonb) RETURNS void
LANGUAGE plpgsql AS $$
BEGIN
    INSERT INTO {schema}.gates (name, until, reason, job, closed_at)
    VALUES (p_gate->>0, {schema}.instant((p_gate->>1)::double precision), p_gate->>2, p_gate->>3,
            {schema}.instant((p_gate->>4)::double precision))
    ON CONFLICT (name) DO UPDATE SET until = excluded.until, reason = excluded.reason, job = excluded.job,
                                     closed_at = excluded.closed_at
        WHERE excluded.until > gates.until OR gates.closed_at > excluded.closed_at;
END $$;

-- Write a decision, whole or not at all. NULL: it no longer stands, and nothing was written; else the clock at the
-- write and the numbers of the events.
--
-- The job's row comes first, then leases in the order of their windows, the run, steps and messages in the order of their
-- names, gates: whoever takes more than one lock takes them in this order, so nobody waits for each other. The clock is
-- read after all waiting, but for messages that somebody else is just writing.
CREATE OR REPLACE FUNCTION {schema}.commit_decision(
    p_ledger text, p_wait integer,
    p_job text, p_after bigint,    -- the job's version, NULL for facts that stay true whatever else happened
    p_unchanged jsonb,             -- leases that were taken to be over, and must be as they were read
    p_run jsonb, p_settle boolean, -- the run's new state; a verdict changes the row of its own attempt only
    p_lease jsonb, p_timed boolean, -- the lease; timed: it begins now
    p_drop jsonb,                  -- the run whose lease is over
    p_sighted jsonb, p_events jsonb, p_gates jsonb,
    p_fence jsonb DEFAULT NULL,    -- the attempt that must still have the run, until this is committed
    p_steps jsonb DEFAULT NULL, p_messages jsonb DEFAULT NULL, p_bodies bytea DEFAULT NULL,
    p_moves jsonb DEFAULT NULL     -- of messages, which must be as they were
) RETURNS json LANGUAGE plpgsql
SET search_path = pg_catalog, pg_temp SET extra_float_digits = 1 AS $$
DECLARE
    held jsonb;
    told jsonb;
    now_ double precision;
    numbers bigint[] := '{}';
BEGIN
    PERFORM {schema}.begin_writing(p_ledger, p_wait);
    IF p_after IS NOT NULL THEN
        UPDATE {schema}.jobs SET version = version + 1 WHERE job = p_job AND version = p_after;
        IF NOT FOUND THEN
            RETURN NULL;
        END IF;
    END IF;
    FOR held IN SELECT jsonb_array_elements(p_unchanged) LOOP
        PERFORM 1 FROM {schema}.leases
        WHERE job = p_job AND window_start = (held->>2)::bigint AND "window" = held->>0 AND input = held->>1
          AND owner = held->>3 AND attempt = (held->>4)::bigint AND expires = (held->>6)::double precision
        FOR UPDATE;
        IF NOT FOUND THEN
            IF p_after IS NULL THEN
                RETURN NULL;
            END IF;
            RAISE EXCEPTION 'a lease was renewed meanwhile' USING ERRCODE = 'RN001';
        END IF;
    END LOOP;
    IF p_fence IS NOT NULL THEN
        PERFORM 1 FROM {schema}.runs
        WHERE job = p_fence->>0 AND window_start = (p_fence->>1)::bigint AND "window" = p_fence->>2
          AND input = p_fence->>3 AND status = 'running' AND attempt = (p_fence->>4)::bigint AND owner = p_fence->>5
        FOR SHARE;
        IF NOT FOUND THEN
            RAISE EXCEPTION 'the attempt has the run no more' USING ERRCODE = 'RN001';
        END IF;
    END IF;
    now_ := {schema}.seconds(clock_timestamp());
    IF p_settle THEN
        IF NOT {schema}.settle_run(p_run) THEN
            RAISE EXCEPTION 'the attempt has the run no more' USING ERRCODE = 'RN001';
        END IF;
    ELSIF p_run IS NOT NULL THEN
        PERFORM {schema}.put_run(p_run, now_);
    END IF;
    IF p_lease IS NOT NULL THEN
        PERFORM {schema}.put_lease(p_job, p_lease, CASE WHEN p_timed THEN now_ + (p_lease->>7)::double precision END);
    END IF;
    FOR held IN SELECT jsonb_array_elements(p_sighted) LOOP
        PERFORM {schema}.put_lease(p_job, held, NULL);
    END LOOP;
    IF p_drop IS NOT NULL THEN
        DELETE FROM {schema}.leases
        WHERE job = p_job AND window_start = (p_drop->>2)::bigint AND "window" = p_drop->>0 AND input = p_drop->>1;
    END IF;
    FOR told IN SELECT jsonb_array_elements(p_events) LOOP
        numbers := numbers || {schema}.add_event(told, now_);
    END LOOP;
    IF p_steps IS NOT NULL OR p_messages IS NOT NULL OR p_moves IS NOT NULL THEN
        PERFORM {schema}.put_outcome(p_steps, p_messages, p_bodies, p_moves, now_);
    END IF;
    FOR told IN SELECT jsonb_array_elements(p_gates) LOOP
        PERFORM {schema}.put_gate(told);
    END LOOP;
    RETURN json_build_array(now_, array_to_json(numbers));
END $$;

-- Record a job's settings and, if given, one more version of its schedule. False: the job has moved on.
CREATE OR REPLACE FUNCTION {schema}.record_schedule(
    p_ledger text, p_wait integer, p_job text, p_after bigint, p_declared double precision,
    p_late_after double precision, p_max_attempts integer, p_schedule jsonb
) RETURNS boolean LANGUAGE plpgsql
SET search_path = pg_catalog, pg_temp SET extra_float_digits = 1 AS $$
BEGIN
    PERFORM {schema}.begin_writing(p_ledger, p_wait);
    INSERT INTO {schema}.jobs (job, version, schedules, declared_at, late_after, max_attempts)
    VALUES (p_job, 0, 0, {schema}.instant(p_declared), p_late_after, p_max_attempts) ON CONFLICT (job) DO NOTHING;
    UPDATE {schema}.jobs SET
        version = version + 1, late_after = p_late_after, max_attempts = p_max_attempts,
        schedules = schedules + CASE WHEN p_schedule IS NULL THEN 0 ELSE 1 END
    WHERE job = p_job AND version = p_after;
    IF NOT FOUND THEN
        RETURN false;
    END IF;
    IF p_schedule IS NOT NULL THEN
        INSERT INTO {schema}.schedules (job, number, every, tz, dialect, window_offset, valid_from, recorded_at)
        SELECT p_job, (p_schedule->>0)::integer, p_schedule->>1, p_schedule->>2, p_schedule->>3,
               (p_schedule->>4)::integer, (p_schedule->>5)::bigint,
               {schema}.instant((p_schedule->>6)::double precision);
    END IF;
    RETURN true;
END $$;
