-- What is asked of a PostgreSQL server about itself and our role; none of it changes anything.

-- name: server
-- Which server is it, can it be written to, and how many connections are taken?
SELECT pg_catalog.current_setting('server_version'), pg_catalog.current_setting('server_version_num'),
       pg_catalog.pg_is_in_recovery(), pg_catalog.current_setting('transaction_read_only'),
       (SELECT pg_catalog.count(*) FROM pg_catalog.pg_stat_activity WHERE backend_type = 'client backend'),
       pg_catalog.current_setting('max_connections');

-- name: settings
-- The settings that decide what becomes of a commit, as they are for us.
SELECT name, pg_catalog.current_setting(name) FROM pg_catalog.unnest(ARRAY[
    'fsync', 'full_page_writes', 'synchronous_commit', 'synchronous_standby_names', 'session_replication_role',
    'zero_damaged_pages', 'ignore_checksum_failure', 'data_checksums']) AS name;

-- name: standbys
-- How many servers follow this one?
SELECT pg_catalog.count(*) FROM pg_catalog.pg_stat_replication;

-- name: role
-- Who are we, may we look into the schema, and do we own it or everything?
SELECT current_user, pg_catalog.has_schema_privilege(n.oid, 'USAGE'), pg_catalog.pg_has_role(n.nspowner, 'USAGE'),
       (SELECT rolsuper FROM pg_catalog.pg_roles WHERE rolname = current_user)
FROM pg_catalog.pg_namespace AS n WHERE n.nspname = $1;

-- name: may
-- May we do this with a table?
SELECT pg_catalog.has_table_privilege($1, $2);
