-- How a lost ledger in PostgreSQL is replaced. `{schema}` stands for the ledger's schema, `{aside}` for the name that
-- what stood there has by then, `{building}` for the one under which the new one was built.

-- name: beside
-- The schemas whose names are like this.
SELECT nspname FROM pg_catalog.pg_namespace WHERE nspname::text OPERATOR(pg_catalog.~) $1;

-- name: patience
-- The transaction that holds everybody up is idle while the new ledger is built.
SET LOCAL idle_in_transaction_session_timeout = 0;

-- name: schema
-- Does the schema stand, and whose is it?
SELECT nspowner::regrole::text, pg_has_role(nspowner, 'USAGE'), quote_ident(current_user)
FROM pg_catalog.pg_namespace WHERE nspname = $1;

-- name: may_make
-- Who are we, and may we make a schema?
SELECT quote_ident(current_user), has_database_privilege(current_database(), 'CREATE'),
       quote_ident(current_database());

-- name: halt
-- Writers wait, readers need not.
LOCK TABLE {tables} IN EXCLUSIVE MODE;

-- name: move_aside
-- What stood there keeps all it has, under another name.
ALTER SCHEMA {schema} RENAME TO {aside};

-- name: take_place
-- And the new one has its.
ALTER SCHEMA {building} RENAME TO {schema};

-- name: decide_anew
-- No version of a job that anybody has read comes again: a decision that was taken on the lost ledger is not committed.
UPDATE {schema}.jobs SET version = version + floor(extract(epoch FROM clock_timestamp()) * 1000)::bigint;

-- name: rights
-- The statements that give each role the rights it had on the schema, and on tables and functions of the same name; $1
-- and $2 are the names of the old schema and of the new one.
SELECT told FROM (
    SELECT 1 AS step, format('GRANT %s ON SCHEMA %I TO %s', a.privilege_type, $2::text, {grantee}) AS told
    FROM pg_catalog.pg_namespace AS n, aclexplode(n.nspacl) AS a
    WHERE n.nspname = $1 AND a.grantee <> n.nspowner
    UNION ALL
    SELECT 2, format('GRANT %s ON TABLE %I.%I TO %s', a.privilege_type, $2::text, c.relname, {grantee})
    FROM pg_catalog.pg_class AS c JOIN pg_catalog.pg_namespace AS n ON n.oid = c.relnamespace, aclexplode(c.relacl) AS a
    WHERE n.nspname = $1 AND c.relkind IN ('r', 'p') AND a.grantee <> c.relowner
      AND EXISTS (SELECT 1 FROM pg_catalog.pg_class AS now WHERE now.relname = c.relname
                  AND now.relnamespace = to_regnamespace(quote_ident($2)))
    UNION ALL
    SELECT 3, format('REVOKE ALL ON FUNCTION %s FROM PUBLIC', now.oid::regprocedure)
    FROM pg_catalog.pg_proc AS p JOIN pg_catalog.pg_namespace AS n ON n.oid = p.pronamespace
    JOIN pg_catalog.pg_proc AS now ON now.proname = p.proname AND now.pronamespace = to_regnamespace(quote_ident($2))
    WHERE n.nspname = $1 AND p.proacl IS NOT NULL
    UNION ALL
    SELECT 4, format('GRANT EXECUTE ON FUNCTION %s TO %s', now.oid::regprocedure, {grantee})
    FROM pg_catalog.pg_proc AS p JOIN pg_catalog.pg_namespace AS n ON n.oid = p.pronamespace
    JOIN pg_catalog.pg_proc AS now ON now.proname = p.proname AND now.pronamespace = to_regnamespace(quote_ident($2)),
         aclexplode(p.proacl) AS a
    WHERE n.nspname = $1 AND a.grantee <> p.proowner
) AS told ORDER BY step;

-- name: owners
-- The statements that give all of a schema to a role.
SELECT told FROM (
    SELECT 2 AS step, format('ALTER TABLE %I.%I OWNER TO %s', n.nspname, c.relname, $2::text) AS told
    FROM pg_catalog.pg_class AS c JOIN pg_catalog.pg_namespace AS n ON n.oid = c.relnamespace
    WHERE n.nspname = $1 AND c.relkind IN ('r', 'p')
    UNION ALL
    SELECT 3, format('ALTER FUNCTION %s OWNER TO %s', p.oid::regprocedure, $2::text)
    FROM pg_catalog.pg_proc AS p JOIN pg_catalog.pg_namespace AS n ON n.oid = p.pronamespace WHERE n.nspname = $1
    UNION ALL
    SELECT 1, format('ALTER SCHEMA %I OWNER TO %s', $1::text, $2::text)
) AS told ORDER BY step;
