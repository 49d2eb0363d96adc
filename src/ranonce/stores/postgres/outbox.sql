-- Every question about messages and steps, by name. Apart from the others, since no plain run needs them. What is
-- exchanged with the outbox goes through the functions beside the tables. `{schema}` stands for the ledger's schema.

-- name: queue
-- What stands at a destination?
SELECT told, bodies FROM {schema}.queue_at($1, $2, $3);

-- name: exchange
-- Write moves, close a destination, take messages.
SELECT {schema}.exchange($1, $2, $3, $4, $5, $6);

-- name: known
-- The messages of these keys that there are.
SELECT {schema}.messages_known($1);

-- name: by_seq
-- One message by its number, with its body.
SELECT {schema}.message_values(o), pg_catalog.encode(b.body, 'base64')
FROM {schema}.outbox AS o LEFT JOIN {schema}.bodies AS b ON b.seq = o.seq WHERE o.seq = $1;

-- name: by_key
-- The same by its key.
SELECT {schema}.message_values(o), pg_catalog.encode(b.body, 'base64')
FROM {schema}.outbox AS o LEFT JOIN {schema}.bodies AS b ON b.seq = o.seq WHERE o.key = $1;

-- name: messages
-- Messages in the order of their numbers; more conditions and the limit follow.
SELECT {schema}.message_values(o) FROM {schema}.outbox AS o WHERE o.seq > $1

-- name: destinations
-- The destinations of messages that are not delivered.
SELECT {schema}.destinations_of_waiting();

-- name: tally
-- How many messages to a destination wait?
SELECT {schema}.tally_of($1, $2);

-- name: waiting
-- How many messages of a job's windows wait?
SELECT {schema}.waiting_of($1, $2, $3);

-- name: steps
-- The names of the steps of a run that are done in a generation.
SELECT pg_catalog.to_json(name) FROM {schema}.steps
WHERE job = $1 AND window_start = $2 AND "window" = $3 AND input = $4 AND generation = $5 ORDER BY name;

-- name: step
-- One of them, with its result.
SELECT {schema}.step_values(s), pg_catalog.encode(s.result, 'base64') FROM {schema}.steps AS s
WHERE job = $1 AND window_start = $2 AND "window" = $3 AND input = $4 AND generation = $5 AND name = $6;
