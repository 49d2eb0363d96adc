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
CREATE OR REPLACE TRIGGER messages_keep_their_body BEFORE UPDATE OF body ON {schema}.outbox
    FOR EACH ROW WHEN (NEW.body IS NOT NULL OR OLD.state NOT IN ('sent', 'dropped'))
    EXECUTE FUNCTION {schema}.messages_stay();
CREATE OR REPLACE TRIGGER messages_are_not_lost BEFORE DELETE ON {schema}.outbox
    FOR EACH ROW WHEN (OLD.state NOT IN ('sent', 'dropped')) EXECUTE FUNCTION {schema}.messages_stay();
CREATE OR REPLACE TRIGGER messages_are_not_emptied BEFORE TRUNCATE ON {schema}.outbox
    FOR EACH STATEMENT EXECUTE FUNCTION {schema}.messages_stay();
CREATE OR REPLACE TRIGGER steps_are_not_changed BEFORE UPDATE ON {schema}.steps
    FOR EACH ROW EXECUTE FUNCTION {schema}.steps_stay();
