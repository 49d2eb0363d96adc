-- What cannot stand in the tables of a ledger in PostgreSQL, each question answered by sentences; none: all is well.
-- `{schema}` stands for the ledger's schema, `{name}` for its name as text.

-- name: triggers
-- The triggers that keep events and messages from being changed must be there, and on; no others, nor rules or hidden
-- rows.
SELECT 'the trigger ' || wanted.name || ', which keeps ' || replace(wanted.of, 'outbox', 'messages')
    || ' from being changed, is ' || CASE WHEN t.tgname IS NULL THEN 'missing' ELSE 'switched off' END
FROM (VALUES {triggers}) AS wanted (name, of)
LEFT JOIN pg_catalog.pg_trigger AS t ON t.tgname = wanted.name
    AND t.tgrelid = to_regclass(format('%I.%I', '{name}', wanted.of))
WHERE t.tgname IS NULL OR t.tgenabled NOT IN ('O', 'A')
UNION ALL
SELECT 'there is a trigger ' || t.tgname || ' on the table ' || c.relname || ' that is not ours'
FROM pg_catalog.pg_trigger AS t JOIN pg_catalog.pg_class AS c ON c.oid = t.tgrelid
JOIN pg_catalog.pg_namespace AS n ON n.oid = c.relnamespace
WHERE n.nspname = '{name}' AND NOT t.tgisinternal
  AND (t.tgname, c.relname) NOT IN (VALUES {triggers})
UNION ALL
SELECT 'there is a rule ' || r.rulename || ' on the table ' || c.relname || ' that is not ours'
FROM pg_catalog.pg_rewrite AS r JOIN pg_catalog.pg_class AS c ON c.oid = r.ev_class
JOIN pg_catalog.pg_namespace AS n ON n.oid = c.relnamespace
WHERE n.nspname = '{name}' AND c.relkind IN ('r', 'p');

-- name: tables
-- A table must survive a crash of the server, and show all of its rows.
SELECT 'the table ' || c.relname || ' is UNLOGGED: a crash of the server empties it'
FROM pg_catalog.pg_class AS c JOIN pg_catalog.pg_namespace AS n ON n.oid = c.relnamespace
WHERE n.nspname = '{name}' AND c.relkind IN ('r', 'p') AND c.relpersistence <> 'p'
UNION ALL
SELECT 'the table ' || c.relname || ' hides rows from some roles (row level security)'
FROM pg_catalog.pg_class AS c JOIN pg_catalog.pg_namespace AS n ON n.oid = c.relnamespace
WHERE n.nspname = '{name}' AND c.relkind IN ('r', 'p') AND c.relrowsecurity;

-- name: indexes
-- An index that the server does not trust keeps nothing unique and finds nothing.
SELECT 'the index ' || c.relname || ' is invalid: REINDEX INDEX {name}.' || c.relname
FROM pg_catalog.pg_index AS i JOIN pg_catalog.pg_class AS c ON c.oid = i.indexrelid
JOIN pg_catalog.pg_namespace AS n ON n.oid = c.relnamespace
WHERE n.nspname = '{name}' AND NOT (i.indisvalid AND i.indisready AND i.indislive)
UNION ALL
SELECT 'the index ' || wanted.name || ' is missing'
FROM (VALUES {indexes}) AS wanted (name)
WHERE NOT EXISTS (
    SELECT 1 FROM pg_catalog.pg_class AS c JOIN pg_catalog.pg_namespace AS n ON n.oid = c.relnamespace
    WHERE n.nspname = '{name}' AND c.relname = wanted.name AND c.relkind = 'i');

-- name: contradictions
-- The tables keep accounts of each other.
SELECT 'events of the job ' || job || ' may be removed at any time: the door that only pruning opens was left open'
FROM {schema}.pruning
UNION ALL
SELECT 'it says that events up to ' || pruned_seq || ' were pruned, and there are none after '
    || (SELECT coalesce(max(seq), 0) FROM {schema}.events) || ': what is lost would not be missed'
FROM {schema}.ledger WHERE pruned_seq > (SELECT coalesce(max(seq), 0) FROM {schema}.events)
UNION ALL
SELECT 'it is in epoch ' || ledger.epoch || ', and the last loss that was accepted began epoch '
    || (SELECT coalesce(max(epoch), 1) FROM {schema}.epochs)
FROM {schema}.ledger WHERE ledger.epoch <> (SELECT coalesce(max(epoch), 1) FROM {schema}.epochs)
UNION ALL
SELECT 'the job ' || job || ' should have ' || schedules || ' versions of its schedule, and has '
    || (SELECT count(*) FROM {schema}.schedules AS kept WHERE kept.job = jobs.job)
FROM {schema}.jobs WHERE schedules <> (SELECT count(*) FROM {schema}.schedules AS kept WHERE kept.job = jobs.job)
UNION ALL
SELECT 'the job ' || job || ' has a schedule, and is none of the jobs'
FROM {schema}.schedules WHERE job NOT IN (SELECT job FROM {schema}.jobs)
UNION ALL
SELECT 'the message ' || seq || ' waits, and has lost its body: it cannot be sent'
FROM {schema}.outbox AS o WHERE state IN ('pending', 'sending', 'unsure', 'dead')
  AND NOT EXISTS (SELECT 1 FROM {schema}.bodies AS b WHERE b.seq = o.seq)
UNION ALL
SELECT 'the message ' || seq || ' is ' || state || ', and ' || CASE sender WHEN '' THEN 'no deliverer' ELSE sender END
    || ' has it'
FROM {schema}.outbox WHERE state IN ('pending', 'sending', 'unsure', 'dead') AND (state = 'sending') = (sender = '')
UNION ALL
SELECT 'the next ' || what || ' would get numbers that are taken, from ' || given || ' on'
FROM (VALUES ('events', pg_get_serial_sequence('{schema}.events', 'seq')::regclass,
              (SELECT max(seq) FROM {schema}.events)),
             ('messages', pg_get_serial_sequence('{schema}.outbox', 'seq')::regclass,
              (SELECT max(seq) FROM {schema}.outbox))) AS numbers (what, of, last),
     LATERAL (SELECT CASE WHEN has_sequence_privilege(of, 'USAGE, SELECT')
                          THEN coalesce(pg_sequence_last_value(of), 0) END) AS s (given)  -- else it is not told
WHERE given < last;

-- name: bodies
-- A body must be the one that was emitted: all of them are read.
SELECT 'the message ' || seq || ' has another body than was emitted'
FROM {schema}.outbox JOIN {schema}.bodies USING (seq)
WHERE digest <> encode(sha256(convert_to(content_type, 'UTF8') || decode('00', 'hex') || body), 'hex')
LIMIT 5;

-- name: amcheck
-- Where is the server's own check of tables and indexes, if it may be used here?
SELECT n.nspname FROM pg_catalog.pg_extension AS e JOIN pg_catalog.pg_namespace AS n ON n.oid = e.extnamespace
JOIN pg_catalog.pg_proc AS p ON p.pronamespace = n.oid AND p.proname IN ('bt_index_check', 'verify_heapam')
WHERE e.extname = 'amcheck' GROUP BY n.nspname
HAVING bool_and(has_function_privilege(p.oid, 'EXECUTE')) AND count(DISTINCT p.proname) = 2;

-- name: all_tables
-- What is to be gone through.
SELECT c.oid, c.relname FROM pg_catalog.pg_class AS c JOIN pg_catalog.pg_namespace AS n ON n.oid = c.relnamespace
WHERE n.nspname = '{name}' AND c.relkind = 'r' ORDER BY c.relname;

-- name: all_indexes
-- And the B-trees.
SELECT c.oid, c.relname FROM pg_catalog.pg_class AS c JOIN pg_catalog.pg_namespace AS n ON n.oid = c.relnamespace
JOIN pg_catalog.pg_am AS a ON a.oid = c.relam
WHERE n.nspname = '{name}' AND c.relkind = 'i' AND a.amname = 'btree' ORDER BY c.relname;

-- name: read_all
-- Every value of every row of a table, so that what cannot be read is found.
SELECT count(*), sum(length(t::text)) FROM {schema}.{table} AS t;

-- name: check_table
-- The server's check of a table: what it finds wrong, block by block.
SELECT DISTINCT 'the table {table} is damaged: ' || found.msg FROM {amcheck}.verify_heapam($1::oid::regclass) AS found
LIMIT 5;

-- name: check_index
-- The server's check of an index, with its table.
SELECT {amcheck}.bt_index_check($1::oid::regclass, true);
