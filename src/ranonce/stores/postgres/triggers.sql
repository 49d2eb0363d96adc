-- What keeps events from being changed, removed or replaced, whoever asks. Pruning is the one door. And what keeps
-- messages that they are, and undelivered ones there.

CREATE OR REPLACE FUNCTION {schema}.events_are_append_only() RETURNS trigger LANGUAGE plpgsql
SET search_path = pg_catalog, pg_temp SET extra_float_digits = 1 AS $$
BEGIN
    IF TG_OP = 'DELETE' AND TG_LEVEL = 'ROW' THEN
        IF EXISTS (SELECT 1 FROM {schema}.pruning WHERE job = OLD.job) THEN
            RETURN OLD;
        END IF;
    END IF;
    RAISE EXCEPTION 'events are append-only';
END $$;

CREATE OR REPLACE FUNCTION {schema}.messages_stay() RETURNS trigger LANGUAGE plpgsql
SET search_path = pg_catalog, pg_temp SET extra_float_digits = 1 AS $$
BEGIN
    RAISE EXCEPTION 'a message stays the one it is, and is not removed before it is delivered';
END $$;

-- With messages go their bodies, by this statement and by none before it.
CREATE OR REPLACE FUNCTION {schema}.take_bodies_along() RETURNS trigger LANGUAGE plpgsql
SET enable_seqscan = off SET enable_hashjoin = off SET enable_mergejoin = off
SET search_path = pg_catalog, pg_temp SET extra_float_digits = 1 AS $$
BEGIN
    DELETE FROM {schema}.bodies AS b USING gone WHERE b.seq = gone.seq;
    RETURN NULL;
END $$;

CREATE OR REPLACE FUNCTION {schema}.bodies_stay() RETURNS trigger LANGUAGE plpgsql
SET search_path = pg_catalog, pg_temp SET extra_float_digits = 1 AS $$
BEGIN
    IF TG_OP = 'DELETE' AND TG_LEVEL = 'ROW' THEN
        IF NOT EXISTS (SELECT 1 FROM {schema}.outbox WHERE seq = OLD.seq AND state NOT IN ('sent', 'dropped')) THEN
            RETURN OLD;
        END IF;
    END IF;
    RAISE EXCEPTION 'a body is not changed, and not removed before its message is delivered';
END $$;

CREATE OR REPLACE FUNCTION {schema}.steps_stay() RETURNS trigger LANGUAGE plpgsql
SET search_path = pg_catalog, pg_temp SET extra_float_digits = 1 AS $$
BEGIN
    RAISE EXCEPTION 'a step that is done stays as it is';
END $$;

CREATE OR REPLACE TRIGGER events_are_not_changed BEFORE UPDATE OR DELETE ON {schema}.events
    FOR EACH ROW EXECUTE FUNCTION {schema}.events_are_append_only();
CREATE OR REPLACE TRIGGER events_are_not_emptied BEFORE TRUNCATE ON {schema}.events
    FOR EACH STATEMENT EXECUTE FUNCTION {schema}.events_are_append_only();
CREATE OR REPLACE TRIGGER messages_keep_what_they_are
    BEFORE UPDATE OF seq, key, job, window_start, "window", input, destination, content_type, digest
    ON {schema}.outbox FOR EACH ROW EXECUTE FUNCTION {schema}.messages_stay();
CREATE OR REPLACE TRIGGER messages_are_not_lost BEFORE DELETE ON {schema}.outbox
    FOR EACH ROW WHEN (OLD.state NOT IN ('sent', 'dropped')) EXECUTE FUNCTION {schema}.messages_stay();
CREATE OR REPLACE TRIGGER messages_are_not_emptied BEFORE TRUNCATE ON {schema}.outbox
    FOR EACH STATEMENT EXECUTE FUNCTION {schema}.messages_stay();
CREATE OR REPLACE TRIGGER messages_take_their_bodies_along AFTER DELETE ON {schema}.outbox
    REFERENCING OLD TABLE AS gone FOR EACH STATEMENT EXECUTE FUNCTION {schema}.take_bodies_along();
CREATE OR REPLACE TRIGGER bodies_are_not_changed BEFORE UPDATE OR DELETE ON {schema}.bodies
    FOR EACH ROW EXECUTE FUNCTION {schema}.bodies_stay();
CREATE OR REPLACE TRIGGER bodies_are_not_emptied BEFORE TRUNCATE ON {schema}.bodies
    FOR EACH STATEMENT EXECUTE FUNCTION {schema}.bodies_stay();
CREATE OR REPLACE TRIGGER steps_are_not_changed BEFORE UPDATE ON {schema}.steps
    FOR EACH ROW EXECUTE FUNCTION {schema}.steps_stay();
