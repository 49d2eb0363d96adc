-- The functions with which a ledger in PostgreSQL is kept over years: pruned, filled from another one, opened anew after
-- a loss. They decide nothing: the rules are the program's.
--
-- Whoever calls them has begun with `begin_upkeep`, in the same transaction. Locks are taken in the order in which a
-- decision takes them, so that nobody waits for each other: jobs by name, leases in the order of their windows, runs and
-- events, steps and messages in the order of their keys, gates by name, the ledger's own row.

-- Begin to write to these jobs: whoever decides about one of them meanwhile waits, and then decides anew. Rows are to be
-- found by their keys: a planner that has not counted the rows of an import yet would go through all of them.
CREATE OR REPLACE FUNCTION {schema}.begin_upkeep(p_ledger text, p_wait integer, p_jobs jsonb) RETURNS void
LANGUAGE plpgsql
SET search_path = pg_catalog, pg_temp SET extra_float_digits = 1 AS $$
BEGIN
    PERFORM {schema}.begin_writing(p_ledger, p_wait);
    PERFORM set_config(setting, 'off', true)
    FROM unnest(ARRAY['enable_seqscan', 'enable_bitmapscan', 'enable_hashjoin', 'enable_mergejoin']) AS setting;
    PERFORM 1 FROM {schema}.jobs WHERE job = ANY (ARRAY(SELECT jsonb_array_elements_text(p_jobs)))
    ORDER BY job FOR NO KEY UPDATE;
END $$;

-- The next of all runs in the order of the key, by index for the same reason.
CREATE OR REPLACE FUNCTION {schema}.next_runs(p_job text, p_start bigint, p_window text, p_input text, p_count integer)
RETURNS SETOF json LANGUAGE sql STABLE SET enable_seqscan = off SET enable_bitmapscan = off
SET search_path = pg_catalog, pg_temp SET extra_float_digits = 1 AS $$
    SELECT {schema}.run_values(r) FROM {schema}.runs AS r
    WHERE (job, window_start, "window", input) > (p_job, p_start, p_window, p_input)
    ORDER BY job, window_start, "window", input LIMIT p_count
$$;

-- The next of all facts in the order of their numbers: each fact, its number, and its output.
CREATE OR REPLACE FUNCTION {schema}.next_events(p_seq bigint, p_count integer)
RETURNS SETOF json LANGUAGE sql STABLE SET enable_seqscan = off SET enable_bitmapscan = off
SET search_path = pg_catalog, pg_temp SET extra_float_digits = 1 AS $$
    SELECT json_build_array({schema}.event_values(e), seq, encode(output, 'base64')) FROM {schema}.events AS e
    WHERE seq > p_seq ORDER BY seq LIMIT p_count
$$;

-- The same, window after window; the output if it is asked for.
CREATE OR REPLACE FUNCTION {schema}.next_events_by_window(
    p_job text, p_start bigint, p_seq bigint, p_output boolean, p_count integer
) RETURNS SETOF json LANGUAGE sql STABLE SET enable_seqscan = off SET enable_bitmapscan = off
SET search_path = pg_catalog, pg_temp SET extra_float_digits = 1 AS $$
    SELECT json_build_array({schema}.event_values(e), seq, CASE WHEN p_output THEN encode(output, 'base64') END)
    FROM {schema}.events AS e
    WHERE (job, window_start, seq) > (p_job, p_start, p_seq) ORDER BY job, window_start, seq LIMIT p_count
$$;

-- Whoever has read these jobs decides anew.
CREATE OR REPLACE FUNCTION {schema}.jobs_changed(p_jobs jsonb) RETURNS void
LANGUAGE sql
SET search_path = pg_catalog, pg_temp SET extra_float_digits = 1 AS $$
    UPDATE {schema}.jobs SET version = version + 1 WHERE job = ANY (ARRAY(SELECT jsonb_array_elements_text(p_jobs)))
$$;

-- Note that events up to a number may have been pruned.
CREATE OR REPLACE FUNCTION {schema}.forget_until(p_seq bigint) RETURNS void
LANGUAGE sql
SET search_path = pg_catalog, pg_temp SET extra_float_digits = 1 AS $$
    UPDATE {schema}.ledger SET pruned_seq = p_seq WHERE one = 1 AND pruned_seq < p_seq
$$;

-- The runs at these places ([start, window, input]) are pruned, and their stories with them, through the one door, which
-- `end_pruning` shuts. Returns how many events went, and the last of their numbers.
CREATE OR REPLACE FUNCTION {schema}.drop_runs(p_job text, p_places jsonb) RETURNS json
LANGUAGE plpgsql
SET search_path = pg_catalog, pg_temp SET extra_float_digits = 1 AS $$
DECLARE
    here record;
BEGIN
    INSERT INTO {schema}.pruning (job) VALUES (p_job) ON CONFLICT DO NOTHING;
    DELETE FROM {schema}.leases AS l USING jsonb_array_elements(p_places) AS place
    WHERE l.job = p_job AND l.window_start = (place->>0)::bigint AND l."window" = place->>1 AND l.input = place->>2;
    DELETE FROM {schema}.runs AS r USING jsonb_array_elements(p_places) AS place
    WHERE r.job = p_job AND r.window_start = (place->>0)::bigint AND r."window" = place->>1 AND r.input = place->>2;
    WITH gone AS (
        DELETE FROM {schema}.events AS e USING jsonb_array_elements(p_places) AS place
        WHERE e.job = p_job AND e.window_start = (place->>0)::bigint AND e."window" = place->>1 AND e.input = place->>2
        RETURNING e.seq
    ) SELECT count(*) AS count, coalesce(max(seq), 0) AS seq INTO here FROM gone;
    PERFORM {schema}.drop_what_runs_left(p_job, p_places);
    RETURN json_build_array(here.count, here.seq);
END $$;

-- With the runs at these places go their steps, and their messages that nobody waits for: those whose key is of the window
-- (`job:window/…`), since nobody can emit them again. The others keep their key, and lose their bodies.
CREATE OR REPLACE FUNCTION {schema}.drop_what_runs_left(p_job text, p_places jsonb) RETURNS void
LANGUAGE plpgsql AS $$
DECLARE
    over bigint[];
BEGIN
    DELETE FROM {schema}.steps AS s USING jsonb_array_elements(p_places) AS place
    WHERE s.job = p_job AND s.window_start = (place->>0)::bigint AND s."window" = place->>1 AND s.input = place->>2;
    over := ARRAY(
        SELECT o.seq FROM jsonb_array_elements(p_places) AS place JOIN {schema}.outbox AS o
            ON o.job = p_job AND o.window_start = (place->>0)::bigint AND o."window" = place->>1 AND o.input = place->>2
        WHERE o.state IN ('sent', 'dropped') ORDER BY o.key FOR UPDATE OF o);
    DELETE FROM {schema}.outbox WHERE seq = ANY (over) AND position(':' IN split_part(key, '/', 1)) > 0;
    DELETE FROM {schema}.bodies WHERE seq = ANY (over);
END $$;

-- Old facts go about windows that start in [p_since, p_until) and have no run: triggers that were refused, notes. Never
-- the newest one, by which a ledger that went back in time is known. Returns as `drop_runs` does; the door is shut.
CREATE OR REPLACE FUNCTION {schema}.end_pruning(
    p_job text, p_since bigint, p_until bigint, p_before double precision
) RETURNS json LANGUAGE plpgsql
SET search_path = pg_catalog, pg_temp SET extra_float_digits = 1 AS $$
DECLARE
    here record;
BEGIN
    WITH gone AS (
        DELETE FROM {schema}.events AS e
        WHERE e.job = p_job AND e.window_start >= p_since AND e.window_start < p_until
          AND {schema}.seconds(e.at) < p_before AND e.seq < (SELECT max(seq) FROM {schema}.events)
          AND NOT EXISTS (SELECT 1 FROM {schema}.runs AS r WHERE r.job = e.job AND r.window_start = e.window_start)
        RETURNING seq
    ) SELECT count(*) AS count, coalesce(max(seq), 0) AS seq INTO here FROM gone;
    DELETE FROM {schema}.pruning WHERE job = p_job;
    RETURN json_build_array(here.count, here.seq);
END $$;

-- Put tombstones where others stood that they stand for, too: [job, since], and the tombstones as they are listed.
CREATE OR REPLACE FUNCTION {schema}.put_tombstones(p_replaced jsonb, p_stones jsonb) RETURNS void
LANGUAGE plpgsql
SET search_path = pg_catalog, pg_temp SET extra_float_digits = 1 AS $$
BEGIN
    DELETE FROM {schema}.tombstones AS t USING jsonb_array_elements(p_replaced) AS old
    WHERE t.job = old->>0 AND t.since = (old->>1)::bigint;
    INSERT INTO {schema}.tombstones (job, since, until, runs, failed, pruned_at)
    SELECT stone->>0, (stone->>1)::bigint, (stone->>2)::bigint, (stone->>3)::bigint, (stone->>4)::bigint,
           {schema}.instant((stone->>5)::double precision)
    FROM jsonb_array_elements(p_stones) AS stone;
END $$;

-- Write what another ledger tells of windows: claims that are over now ([job, start, window, input], in order), rows,
-- and facts in their order. Each fact comes with the number it had and one that it must come after: it keeps its number
-- where nobody has it here. Where numbers are kept, others wait to append theirs, so that none is given twice.
CREATE OR REPLACE FUNCTION {schema}.take_in_windows(p_dropped jsonb, p_runs jsonb, p_events jsonb, p_keep boolean)
RETURNS void LANGUAGE plpgsql
SET search_path = pg_catalog, pg_temp SET extra_float_digits = 1 AS $$
DECLARE
    told jsonb;
    wanted bigint;
    number bigint := 0;
    last bigint;
BEGIN
    FOR told IN SELECT jsonb_array_elements(p_dropped) LOOP
        DELETE FROM {schema}.leases WHERE job = told->>0 AND window_start = (told->>1)::bigint
          AND "window" = told->>2 AND input = told->>3;
    END LOOP;
    PERFORM {schema}.put_run(run, NULL) FROM jsonb_array_elements(p_runs) AS run;
    IF NOT p_keep THEN
        PERFORM {schema}.add_event(fact->0, NULL) FROM jsonb_array_elements(p_events) AS fact;
        RETURN;
    END IF;
    LOCK TABLE {schema}.events IN SHARE ROW EXCLUSIVE MODE;
    SELECT max((fact->>1)::bigint) INTO last FROM jsonb_array_elements(p_events) AS fact;
    PERFORM {schema}.number_after(last);
    FOR told IN SELECT jsonb_array_elements(p_events) LOOP
        wanted := (told->>1)::bigint;
        IF wanted > coalesce((told->>2)::bigint, number)
           AND NOT EXISTS (SELECT 1 FROM {schema}.events WHERE seq = wanted) THEN
            number := {schema}.add_numbered_event(told->0, wanted);
        ELSE
            number := {schema}.add_event(told->0, NULL);
        END IF;
    END LOOP;
END $$;

-- Append one fact under the number it had.
CREATE OR REPLACE FUNCTION {schema}.add_numbered_event(p_event jsonb, p_seq bigint) RETURNS bigint
LANGUAGE plpgsql AS $$
BEGIN
    INSERT INTO {schema}.events (seq, at, job, "window", input, window_start, event, attempt, generation, reason, owner,
                                 triggered_by, version, host, data, output)
    SELECT p_seq, {schema}.instant((p_event->>0)::double precision), p_event->>1, p_event->>2, p_event->>3,
           (p_event->>4)::bigint, p_event->>5, (p_event->>6)::bigint, (p_event->>7)::bigint, p_event->>8,
           p_event->>9, p_event->>10, p_event->>11, p_event->>12, (p_event->>13)::json, decode(p_event->>14, 'base64');
    RETURN p_seq;
END $$;

-- From now on facts get numbers beyond this one. The caller keeps others from appending any.
CREATE OR REPLACE FUNCTION {schema}.number_after(p_seq bigint) RETURNS void
LANGUAGE plpgsql AS $$
DECLARE
    numbers regclass := pg_get_serial_sequence('{schema}.events', 'seq');
    given bigint;
BEGIN
    EXECUTE 'SELECT last_value FROM ' || numbers INTO given;
    IF p_seq >= given THEN
        PERFORM setval(numbers, p_seq);
    END IF;
END $$;

-- Write messages and steps that another ledger tells of, where there are none of their keys here.
CREATE OR REPLACE FUNCTION {schema}.take_in_messages(p_steps jsonb, p_messages jsonb, p_bodies bytea) RETURNS void
LANGUAGE plpgsql
SET search_path = pg_catalog, pg_temp SET extra_float_digits = 1 AS $$
BEGIN
    IF p_steps IS NOT NULL THEN
        PERFORM {schema}.put_steps(p_steps, p_bodies, NULL);
    END IF;
    IF p_messages IS NOT NULL THEN
        PERFORM {schema}.put_messages(p_messages, p_bodies, NULL);
    END IF;
END $$;

-- The next of all messages in the order of their numbers, with their bodies.
CREATE OR REPLACE FUNCTION {schema}.next_messages(p_seq bigint, p_count integer)
RETURNS TABLE (told json, body text) LANGUAGE sql STABLE SET enable_seqscan = off SET enable_bitmapscan = off
SET search_path = pg_catalog, pg_temp SET extra_float_digits = 1 AS $$
    SELECT json_build_array({schema}.message_told(o), o.seq),
           (SELECT encode(b.body, 'base64') FROM {schema}.bodies AS b WHERE b.seq = o.seq)
    FROM {schema}.outbox AS o WHERE o.seq > p_seq ORDER BY o.seq LIMIT p_count
$$;

-- The next of all steps in the order of the key, with their results.
CREATE OR REPLACE FUNCTION {schema}.next_steps(
    p_job text, p_start bigint, p_window text, p_input text, p_generation bigint, p_name text, p_count integer
) RETURNS TABLE (told json, result text) LANGUAGE sql STABLE SET enable_seqscan = off SET enable_bitmapscan = off
SET search_path = pg_catalog, pg_temp SET extra_float_digits = 1 AS $$
    SELECT {schema}.step_values(s), encode(s.result, 'base64') FROM {schema}.steps AS s
    WHERE (job, window_start, "window", input, generation, name)
        > (p_job, p_start, p_window, p_input, p_generation, p_name)
    ORDER BY job, window_start, "window", input, generation, name LIMIT p_count
$$;

-- Write what belongs to no window: gates, by name.
CREATE OR REPLACE FUNCTION {schema}.put_gates(p_gates jsonb) RETURNS void
LANGUAGE plpgsql
SET search_path = pg_catalog, pg_temp SET extra_float_digits = 1 AS $$
DECLARE
    gate jsonb;
BEGIN
    FOR gate IN SELECT told FROM jsonb_array_elements(p_gates) AS told ORDER BY (told->>0) COLLATE "C" LOOP
        PERFORM {schema}.put_gate(gate);
    END LOOP;
END $$;

-- Write a gate as a person wants it, whatever it was.
CREATE OR REPLACE FUNCTION {schema}.set_gate(p_gate jsonb) RETURNS void
LANGUAGE sql
SET search_path = pg_catalog, pg_temp SET extra_float_digits = 1 AS $$
    INSERT INTO {schema}.gates (name, until, reason, job, closed_at)
    SELECT p_gate->>0, {schema}.instant((p_gate->>1)::double precision), p_gate->>2, p_gate->>3,
           {schema}.instant((p_gate->>4)::double precision)
    ON CONFLICT (name) DO UPDATE SET until = excluded.until, reason = excluded.reason, job = excluded.job,
                                     closed_at = excluded.closed_at
$$;

-- A loss was accepted: open an epoch that nobody remembers. Returns its number and its beginning.
CREATE OR REPLACE FUNCTION {schema}.open_epoch(p_after integer, p_reason text, p_by text) RETURNS json
LANGUAGE plpgsql
SET search_path = pg_catalog, pg_temp SET extra_float_digits = 1 AS $$
DECLARE
    number integer;
    began timestamptz := {schema}.instant({schema}.seconds(clock_timestamp()));
BEGIN
    UPDATE {schema}.ledger SET epoch = greatest(epoch, p_after) + 1 WHERE one = 1 RETURNING epoch INTO number;
    INSERT INTO {schema}.epochs (epoch, began_at, reason, accepted_by) VALUES (number, began, p_reason, p_by);
    RETURN json_build_array(number, {schema}.seconds(began));
END $$;
