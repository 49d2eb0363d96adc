-- The functions of the outbox and of steps: what a commit writes of them, what deliverers ask and exchange, in one round
-- trip each. They decide nothing: the rules are the program's.
--
-- Locks are taken in one order, so that nobody waits for each other: messages in the order of their keys, then the
-- destination's row; after that only what nobody else has locked.
--
-- Bodies travel apart from what is told of their messages, one after the other in one value; each message says how long
-- its own is. Rows are to be found by their keys, however many the planner takes there to be.

-- Messages and steps as the program knows them. Those that tell more call these where numbers are told in full.
CREATE OR REPLACE FUNCTION {schema}.message_told(m {schema}.outbox) RETURNS json
LANGUAGE sql STABLE AS $$
    SELECT pg_catalog.json_build_array(
        m.key, m.job, m."window", m.input, m.window_start, m.destination, m.content_type, m.digest, m.generation,
        m.attempt, m.item, {schema}.seconds(m.created_at), {schema}.seconds(m.due_at), m.state, m.tries, m.failures,
        m.sender, m.lease_domain, m.lease_until, {schema}.seconds(m.taken_at), m.lease_seconds,
        {schema}.seconds(m.doubt_since), {schema}.seconds(m.settled_at), m.receipt, m.error, m.resolution)
$$;

CREATE OR REPLACE FUNCTION {schema}.message_values(m {schema}.outbox) RETURNS json
LANGUAGE sql STABLE
SET search_path = pg_catalog, pg_temp SET extra_float_digits = 1 AS $$
    SELECT json_build_array({schema}.message_told(m), m.seq)
$$;

CREATE OR REPLACE FUNCTION {schema}.step_values(s {schema}.steps) RETURNS json
LANGUAGE sql STABLE AS $$
    SELECT pg_catalog.json_build_array(
        s.job, s."window", s.input, s.window_start, s.generation, s.name, s.attempt, {schema}.seconds(s.at))
$$;

-- An instant to the microsecond.
CREATE OR REPLACE FUNCTION {schema}.moment(seconds double precision) RETURNS timestamptz
LANGUAGE sql IMMUTABLE PARALLEL SAFE AS $$ SELECT pg_catalog.to_timestamp(seconds) $$;

-- Numbers for so many messages, in order. Rows are inserted in the order of their keys, and numbered in that in which
-- they were emitted; a role that may insert may not ask the sequence itself, so it is asked by the ledger's owner.
CREATE OR REPLACE FUNCTION {schema}.message_numbers(p_count integer) RETURNS bigint[]
LANGUAGE sql VOLATILE SECURITY DEFINER
SET search_path = pg_catalog, pg_temp SET extra_float_digits = 1 AS $$
    SELECT array_agg(nextval(numbers.of))
    FROM (SELECT pg_get_serial_sequence('{schema}.outbox', 'seq')::regclass AS of OFFSET 0) AS numbers,  -- asked once
         generate_series(1, least(p_count, 1000000))
$$;

-- Write new messages ([their values…], begin of the body, length of it); one that tells no instant is emitted at p_now.
-- Returns how many there were not yet: those whose key is there already are left as they are.
CREATE OR REPLACE FUNCTION {schema}.put_messages(p_messages jsonb, p_bodies bytea, p_now double precision) RETURNS bigint
LANGUAGE plpgsql AS $$
DECLARE
    numbers bigint[] := {schema}.message_numbers(jsonb_array_length(p_messages));
    many bigint;
BEGIN
    INSERT INTO {schema}.outbox (seq, key, job, "window", input, window_start, destination, content_type, digest,
                                 generation, attempt, item, created_at, due_at, state, tries, failures, sender,
                                 lease_domain, lease_until, taken_at, lease_seconds, doubt_since, settled_at, receipt,
                                 error, resolution)
    SELECT numbers[place], m->>0, m->>1, m->>2, m->>3, (m->>4)::bigint, m->>5, m->>6, m->>7, (m->>8)::bigint,
           (m->>9)::bigint, m->>10, {schema}.moment(coalesce((m->>11)::double precision, p_now)),
           {schema}.moment(coalesce((m->>12)::double precision, p_now)), m->>13, (m->>14)::bigint, (m->>15)::bigint,
           m->>16, m->>17, (m->>18)::double precision, {schema}.moment((m->>19)::double precision),
           (m->>20)::double precision, {schema}.moment((m->>21)::double precision),
           {schema}.moment((m->>22)::double precision), m->>23, m->>24, m->>25
    FROM jsonb_array_elements(p_messages) WITH ORDINALITY AS told (m, place)
    ORDER BY (m->>0) COLLATE "C"
    ON CONFLICT (key) DO NOTHING;
    GET DIAGNOSTICS many = ROW_COUNT;
    INSERT INTO {schema}.bodies (seq, body)
    SELECT numbers[place], substring(p_bodies FROM (m->>26)::integer + 1 FOR (m->>27)::integer)
    FROM jsonb_array_elements(p_messages) WITH ORDINALITY AS told (m, place)
    WHERE m->>27 IS NOT NULL
      AND (many = jsonb_array_length(p_messages)
           OR EXISTS (SELECT 1 FROM {schema}.outbox AS o WHERE o.seq = numbers[place]));
    RETURN many;
END $$;

-- Write steps that are done ([their values…], begin of the result, length of it), and return how many there were not yet.
CREATE OR REPLACE FUNCTION {schema}.put_steps(p_steps jsonb, p_results bytea, p_now double precision) RETURNS bigint
LANGUAGE plpgsql AS $$
DECLARE
    many bigint;
BEGIN
    INSERT INTO {schema}.steps (job, "window", input, window_start, generation, name, attempt, at, result)
    SELECT s->>0, s->>1, s->>2, (s->>3)::bigint, (s->>4)::bigint, s->>5, (s->>6)::bigint,
           {schema}.moment(coalesce((s->>7)::double precision, p_now)),
           substring(p_results FROM (s->>8)::integer + 1 FOR (s->>9)::integer)
    FROM jsonb_array_elements(p_steps) AS s
    ORDER BY (s->>0) COLLATE "C", (s->>3)::bigint, (s->>1) COLLATE "C", (s->>2) COLLATE "C", (s->>4)::bigint,
             (s->>5) COLLATE "C"
    ON CONFLICT (job, window_start, "window", input, generation, name) DO NOTHING;
    GET DIAGNOSTICS many = ROW_COUNT;
    RETURN many;
END $$;

-- Write moves, each if its message is still as it was: [key, state, tries and sender that it had, what it is now…].
-- Returns the keys of those that were. Whoever calls this has locked the messages.
CREATE OR REPLACE FUNCTION {schema}.write_moves(p_moves jsonb) RETURNS text[]
LANGUAGE plpgsql AS $$
DECLARE
    moved text[];
BEGIN
    WITH written AS (
        UPDATE {schema}.outbox AS o SET
            due_at = {schema}.moment((m->>4)::double precision), state = m->>5, tries = (m->>6)::bigint,
            failures = (m->>7)::bigint, sender = m->>8, lease_domain = m->>9, lease_until = (m->>10)::double precision,
            taken_at = {schema}.moment((m->>11)::double precision), lease_seconds = (m->>12)::double precision,
            doubt_since = {schema}.moment((m->>13)::double precision),
            settled_at = {schema}.moment((m->>14)::double precision), receipt = m->>15, error = m->>16,
            resolution = m->>17
        FROM jsonb_array_elements(p_moves) AS m
        WHERE o.key = m->>0 AND o.state = m->>1 AND o.tries = (m->>2)::bigint AND o.sender = m->>3
        RETURNING o.key
    ) SELECT coalesce(array_agg(key), '{}') INTO moved FROM written;
    RETURN moved;
END $$;

-- The same, after waiting for whoever has locked one of the messages.
CREATE OR REPLACE FUNCTION {schema}.move_messages(p_moves jsonb) RETURNS text[]
LANGUAGE plpgsql AS $$
BEGIN
    PERFORM 1 FROM {schema}.outbox AS o
    WHERE o.key = ANY (ARRAY(SELECT m->>0 FROM jsonb_array_elements(p_moves) AS m))
    ORDER BY o.key FOR NO KEY UPDATE;
    RETURN {schema}.write_moves(p_moves);
END $$;

-- What a decision says of messages and steps, or nothing of it: RN001.
CREATE OR REPLACE FUNCTION {schema}.put_outcome(
    p_steps jsonb, p_messages jsonb, p_bodies bytea, p_moves jsonb, p_now double precision
) RETURNS void LANGUAGE plpgsql AS $$
BEGIN
    IF p_steps IS NOT NULL AND {schema}.put_steps(p_steps, p_bodies, p_now) <> jsonb_array_length(p_steps) THEN
        RAISE EXCEPTION 'a step is done already' USING ERRCODE = 'RN001';
    END IF;
    IF p_messages IS NOT NULL
       AND {schema}.put_messages(p_messages, p_bodies, p_now) <> jsonb_array_length(p_messages) THEN
        RAISE EXCEPTION 'a message of this key is there already' USING ERRCODE = 'RN001';
    END IF;
    IF p_moves IS NOT NULL
       AND cardinality({schema}.move_messages(p_moves)) <> jsonb_array_length(p_moves) THEN
        RAISE EXCEPTION 'a message has moved on' USING ERRCODE = 'RN001';
    END IF;
END $$;

-- What stands at a destination, of one moment: which ledger says so, what deliverers know of it, messages that are due
-- and how long their bodies are, those that are being sent (if they are asked for), when the next one is due, and the
-- clock; and the bodies.
CREATE OR REPLACE FUNCTION {schema}.queue_at(
    p_destination text, p_most integer, p_sending boolean, OUT told json, OUT bodies bytea
)
LANGUAGE plpgsql STABLE SET enable_seqscan = off SET enable_bitmapscan = off SET enable_hashjoin = off
SET enable_mergejoin = off SET jit = off
SET search_path = pg_catalog, pg_temp SET extra_float_digits = 1 AS $$
DECLARE
    now_ timestamptz := clock_timestamp();
    due json;
BEGIN
    SELECT json_agg(json_build_array({schema}.message_told(o), o.seq, length(b.body)) ORDER BY o.due_at, o.seq),
           string_agg(b.body, ''::bytea ORDER BY o.due_at, o.seq)
    INTO due, bodies
    FROM (
        SELECT * FROM {schema}.outbox
        WHERE destination = p_destination AND state = 'pending' AND due_at <= now_
        ORDER BY due_at, seq LIMIT p_most
    ) AS o LEFT JOIN {schema}.bodies AS b ON b.seq = o.seq;
    told := (SELECT json_build_array(
        (SELECT id FROM {schema}.ledger AS l WHERE l.one = 1),
        d.version, {schema}.seconds(d.closed_until), d.closed_why, d.next_at, due,
        (SELECT json_agg(json_build_array({schema}.message_told(o), o.seq) ORDER BY o.seq) FROM {schema}.outbox AS o
         WHERE p_sending AND o.destination = p_destination AND o.state = 'sending'),
        (SELECT {schema}.seconds(o.due_at) FROM {schema}.outbox AS o
         WHERE o.destination = p_destination AND o.state = 'pending' AND o.due_at > now_
         ORDER BY o.due_at LIMIT 1),
        {schema}.seconds(now_))
        FROM (SELECT 1) AS one LEFT JOIN {schema}.destinations AS d ON d.destination = p_destination);
END $$;

-- Write moves, close or open the destination, and take messages: all or none, if nobody has taken any since its version
-- was read. What somebody else has locked at that moment is not as it was. Returns the keys that were moved, and whether
-- messages were taken. Whoever only settles waits for no taker, and no taker for one that only settles.
CREATE OR REPLACE FUNCTION {schema}.exchange(
    p_ledger text, p_wait integer, p_destination text,
    p_moves jsonb,
    p_closing jsonb,  -- until when, and why
    p_take jsonb      -- the version, when the rate lets the next one go, moves
) RETURNS json LANGUAGE plpgsql SET enable_seqscan = off SET enable_bitmapscan = off SET enable_hashjoin = off
SET enable_mergejoin = off SET jit = off
SET search_path = pg_catalog, pg_temp SET extra_float_digits = 1 AS $$
DECLARE
    moved text[] := '{}';
    taken boolean := false;
    line {schema}.destinations;
    until timestamptz;
    many bigint;
BEGIN
    PERFORM {schema}.begin_writing(p_ledger, p_wait);
    IF p_moves IS NOT NULL THEN
        moved := {schema}.move_messages(p_moves);
    END IF;
    IF p_closing IS NULL AND p_take IS NULL THEN
        RETURN json_build_array(array_to_json(moved), false);
    END IF;
    SELECT * INTO line FROM {schema}.destinations WHERE destination = p_destination FOR NO KEY UPDATE;
    IF NOT FOUND THEN
        INSERT INTO {schema}.destinations (destination, version, next_at) VALUES (p_destination, 0, 0)
        ON CONFLICT (destination) DO NOTHING;
        SELECT * INTO line FROM {schema}.destinations WHERE destination = p_destination FOR NO KEY UPDATE;
    END IF;
    IF p_closing IS NOT NULL THEN
        until := {schema}.moment((p_closing->>0)::double precision);
        IF until IS NULL OR line.closed_until IS NULL OR until > line.closed_until THEN
            UPDATE {schema}.destinations SET closed_until = until, closed_why = p_closing->>1
            WHERE destination = p_destination;
        END IF;
    END IF;
    IF line.version = (p_take->>0)::bigint THEN
        SELECT count(*) INTO many FROM (
            SELECT 1 FROM jsonb_array_elements(p_take->2) AS m
            JOIN {schema}.outbox AS o
                ON o.key = m->>0 AND o.state = m->>1 AND o.tries = (m->>2)::bigint AND o.sender = m->>3
            FOR NO KEY UPDATE OF o SKIP LOCKED
        ) AS locked;
        taken := many = jsonb_array_length(p_take->2);
    END IF;
    IF taken THEN
        UPDATE {schema}.destinations SET version = version + 1, next_at = (p_take->>1)::double precision
        WHERE destination = p_destination;
        PERFORM {schema}.write_moves(p_take->2);
    END IF;
    RETURN json_build_array(array_to_json(moved), taken);
END $$;

-- The messages of these keys that there are.
CREATE OR REPLACE FUNCTION {schema}.messages_known(p_keys jsonb) RETURNS SETOF json
LANGUAGE sql STABLE SET enable_seqscan = off SET enable_bitmapscan = off
SET search_path = pg_catalog, pg_temp SET extra_float_digits = 1 AS $$
    SELECT json_build_array({schema}.message_told(o), o.seq) FROM {schema}.outbox AS o
    WHERE o.key = ANY (ARRAY(SELECT jsonb_array_elements_text(p_keys)))
$$;

-- The destinations of messages that are not delivered: from one to the next by the index, however many wait at each.
CREATE OR REPLACE FUNCTION {schema}.destinations_of_waiting() RETURNS SETOF text
LANGUAGE plpgsql STABLE SET enable_seqscan = off SET enable_bitmapscan = off
SET search_path = pg_catalog, pg_temp SET extra_float_digits = 1 AS $$
DECLARE
    here text := '';
BEGIN
    LOOP
        SELECT destination INTO here FROM {schema}.outbox
        WHERE state IN ('pending', 'sending', 'unsure', 'dead') AND destination > here
        ORDER BY destination LIMIT 1;
        EXIT WHEN NOT FOUND;
        RETURN NEXT here;
    END LOOP;
END $$;

-- How many messages to a destination are not delivered, by job and state; late: emitted before an instant and on its way.
CREATE OR REPLACE FUNCTION {schema}.tally_of(p_destination text, p_late_before double precision) RETURNS SETOF json
LANGUAGE sql STABLE SET enable_seqscan = off
SET search_path = pg_catalog, pg_temp SET extra_float_digits = 1 AS $$
    SELECT json_build_array(job, destination, state, late, count(*), {schema}.seconds(min(created_at)))
    FROM (
        SELECT job, destination, state, created_at,
               state IN ('pending', 'sending') AND {schema}.seconds(created_at) < p_late_before AS late
        FROM {schema}.outbox
        WHERE destination = p_destination AND state IN ('pending', 'sending', 'unsure', 'dead')
    ) AS waiting
    GROUP BY job, destination, state, late ORDER BY job, state, late
$$;

-- How many messages of a job's windows in a span are not delivered, by window and state.
CREATE OR REPLACE FUNCTION {schema}.waiting_of(p_job text, p_since bigint, p_until bigint) RETURNS SETOF json
LANGUAGE sql STABLE SET enable_seqscan = off
SET search_path = pg_catalog, pg_temp SET extra_float_digits = 1 AS $$
    SELECT json_build_array("window", window_start, state, count(*)) FROM {schema}.outbox
    WHERE job = p_job AND window_start >= p_since AND window_start < p_until
      AND state IN ('pending', 'sending', 'unsure', 'dead')
    GROUP BY window_start, "window", state ORDER BY window_start, "window", state
$$;
