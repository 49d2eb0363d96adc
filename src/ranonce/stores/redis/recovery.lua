-- How a lost ledger in Redis or Valkey is replaced. Nobody else is served while a script is carried out.

-- name: rename
-- Give everything whose key begins with ARGV[1] keys that begin with ARGV[2], where nothing is yet. Answers how many
-- keys there were, or -1 where something stands there, after `moved`.
local from, to = ARGV[1], ARGV[2]
if #redis.call('KEYS', to .. '*') > 0 then
  return {'moved', -1}
end
local found = redis.call('KEYS', from .. '*')
for _, name in ipairs(found) do
  redis.call('RENAME', name, to .. string.sub(name, #from + 1))
end
return {'moved', #found}

-- name: decide_anew
-- Let the version of every job rise by ARGV[1]: none that anybody has read comes again, so no decision that was taken on
-- the lost ledger is written into the new one.
for _, job in ipairs(redis.call('HKEYS', KEYS[1])) do
  redis.call('HINCRBY', KEYS[1], job, ARGV[1])
end
return {'moved', 0}
