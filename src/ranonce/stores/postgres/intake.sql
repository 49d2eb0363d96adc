-- Questions for taking in what another ledger tells: what is here of its windows, and what is added to them.
-- `{schema}` stands for the ledger's schema; what is written goes through functions.

-- name: known
-- What this ledger knows of windows ([job, start, window, input]), where it knows anything: their place in the list, the
-- run, the claim on it, its story, and whether finished windows were pruned there.
SELECT told.number, CASE WHEN r.job IS NOT NULL THEN {schema}.run_values(r) END,
       CASE WHEN l.job IS NOT NULL THEN {schema}.lease_values(l) END, story.told, pruned.so
FROM (
    SELECT number - 1 AS number, place->>0 AS job, (place->>1)::bigint AS start, place->>2 AS name, place->>3 AS input
    FROM jsonb_array_elements($1::jsonb) WITH ORDINALITY AS listed (place, number)
) AS told
LEFT JOIN {schema}.runs AS r
    ON r.job = told.job AND r.window_start = told.start AND r."window" = told.name AND r.input = told.input
LEFT JOIN {schema}.leases AS l
    ON l.job = told.job AND l.window_start = told.start AND l."window" = told.name AND l.input = told.input
CROSS JOIN LATERAL (
    SELECT json_agg(json_build_array({schema}.event_values(e), e.seq) ORDER BY e.seq) AS told FROM {schema}.events AS e
    WHERE e.job = told.job AND e.window_start = told.start AND e."window" = told.name AND e.input = told.input
) AS story
CROSS JOIN LATERAL (
    SELECT EXISTS (
        SELECT 1 FROM {schema}.tombstones AS t
        WHERE t.job = told.job AND t.since <= told.start AND t.until > told.start
    ) AS so
) AS pruned
WHERE r.job IS NOT NULL OR story.told IS NOT NULL OR pruned.so
ORDER BY told.number;

-- name: take_in
-- Write claims that are over, rows and facts.
SELECT {schema}.take_in_windows($1, $2, $3, $4);

-- name: take_in_messages
-- Write steps and messages that are not here.
SELECT {schema}.take_in_messages($1, $2, $3);

-- name: jobs_changed
-- Whoever has read these jobs decides anew.
SELECT {schema}.jobs_changed($1);

-- name: put_gates
-- Gates that were closed elsewhere.
SELECT {schema}.put_gates($1);
