-- What keeps events from being changed, removed or replaced, whoever asks. Pruning is the one door.

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

CREATE OR REPLACE TRIGGER events_are_not_changed BEFORE UPDATE OR DELETE ON {schema}.events
    FOR EACH ROW EXECUTE FUNCTION {schema}.events_are_append_only();
CREATE OR REPLACE TRIGGER events_are_not_emptied BEFORE TRUNCATE ON {schema}.events
    FOR EACH STATEMENT EXECUTE FUNCTION {schema}.events_are_append_only();
