-- What people ask of a ledger in Redis or Valkey: scripts that look at whole windows of a job, and only read.
-- Apart from the others, since no plain run needs them. `common` of the other file stands before each, then `windows`.

-- name: windows
-- Is it this ledger, and what all of them use.
local other = elsewhere(redis.call('HGET', KEYS[1], 'id'))
if other then return other end

-- The values of many fields, without more arguments at once than Lua can hold.
local function values(of, fields)
  local found = {}
  for first = 1, #fields, 1000 do
    local part = redis.call('HMGET', of, unpack(fields, first, math.min(first + 999, #fields)))
    for _, value in ipairs(part) do
      found[#found + 1] = value
    end
  end
  return found
end

-- How far whole windows reach from `since` on, of those that begin before `until`, if each of these keys gives no more
-- than `limit` members: (the last start, whether more follow), or nil where there is nothing.
local function reach(keys, since, till, limit)
  local first, bound
  for _, of in ipairs(keys) do
    local found = redis.call('ZRANGEBYSCORE', of, since, till, 'WITHSCORES', 'LIMIT', 0, limit)
    if #found > 0 then
      local low, high = tonumber(found[2]), tonumber(found[#found])
      if not first or low < first then first = low end
      if #found == 2 * limit and (not bound or high - 1 < bound) then bound = high - 1 end
    end
  end
  if not first then return nil end
  if bound and bound < first then bound = first end
  return bound and whole(bound) or till, bound ~= nil
end

-- What the runs at places (with their scores) are in outline: their starts, when they began, when they ended. The place
-- of a run that is not there is the fourth.
local function outlined(places, of)
  local names, starts, began, ended = {}, {}, {}, {}
  for number = 1, #places, 2 do
    names[#names + 1] = places[number]
    starts[#starts + 1] = places[number + 1]
  end
  for number, value in ipairs(values(of, names)) do
    local first, second = string.match(value or '', '^%[([^,]*),([^,]*),')
    if not first then return nil, nil, nil, names[number] end
    began[number] = first
    ended[number] = second == 'null' and first or second
  end
  return table.concat(starts, ','), table.concat(began, ','), table.concat(ended, ',')
end

-- name: chapter
-- The next windows of a job, whole and of one state: runs, events, and what was kept of outputs.
-- KEYS: the ledger, order of runs, runs, starts and ends, other events, events, outputs, notable runs, waiting ones.
-- ARGV: the ledger, its edition (or nothing), since, until, how many, then what is wanted: runs, events, outputs, and
-- the indexes of runs. Answers with how far it came (nothing: to the end).
local edition, since, till, limit = word(), word(), word(), tonumber(word())
local runs, events, outputs, indexes = word() == '1', word() == '1', word() == '1', word() == '1'
if edition ~= '' and (redis.call('HGET', KEYS[1], 'edition') or '0') ~= edition then
  return {'changed'}
end
local keys = {}
if runs then keys[#keys + 1] = KEYS[2] end
if events then
  keys[#keys + 1] = KEYS[4]
  keys[#keys + 1] = KEYS[5]
end
local bound, more = reach(keys, since, till, limit)
if not bound then bound = till end
local answer = {'chapter', more and bound or '', {}, {}, {}, {}, {}, {}, {}, {}}
if runs then
  answer[3] = redis.call('ZRANGEBYSCORE', KEYS[2], since, bound)
  answer[4] = values(KEYS[3], answer[3])
end
if events then
  local plain = redis.call('ZRANGEBYSCORE', KEYS[4], since, bound)
  local others = redis.call('ZRANGEBYSCORE', KEYS[5], since, bound)
  answer[5], answer[6] = plain, others
  local all = {}
  for _, seq in ipairs(plain) do all[#all + 1] = seq end
  for _, seq in ipairs(others) do all[#all + 1] = seq end
  answer[7] = values(KEYS[6], all)
  if outputs then answer[8] = values(KEYS[7], all) end
end
if indexes then
  answer[9] = redis.call('ZRANGEBYSCORE', KEYS[8], since, bound)
  answer[10] = redis.call('ZRANGEBYSCORE', KEYS[9], since, bound)
end
return answer

-- name: outline
-- The runs of the next windows in outline: where they start, when they began and ended, and which are notable.
-- KEYS: the ledger, order of runs, runs, notable runs. ARGV: the ledger, since, until, how many.
local since, till, limit = word(), word(), tonumber(word())
local bound, more = reach({KEYS[2]}, since, till, limit)
if not bound then return {'outline', ''} end
local starts, began, ended, lost = outlined(
  redis.call('ZRANGEBYSCORE', KEYS[2], since, bound, 'WITHSCORES'), KEYS[3])
if lost then return {'lost', lost} end
return {'outline', more and bound or '', starts, began, ended, redis.call('ZRANGEBYSCORE', KEYS[4], since, bound)}

-- name: glance
-- What a survey of a span begins with, all of one state; or that it is too much for one go.
-- KEYS: the ledger, order of runs, runs, notable runs, events, other events, leases, waiting runs, tombstones.
-- ARGV: the ledger, since, until, where the future begins, how much is too much.
local since, till, future, most = word(), word(), word(), tonumber(word())
for _, span in ipairs({
  {KEYS[2], since, till}, {KEYS[2], future, '+inf'}, {KEYS[6], since, till}, {KEYS[8], '-inf', '(' .. since},
}) do
  if redis.call('ZCOUNT', unpack(span)) > most then return {'many'} end
end
local starts, began, ended, lost = outlined(
  redis.call('ZRANGEBYSCORE', KEYS[2], since, till, 'WITHSCORES'), KEYS[3])
if lost then return {'lost', lost} end
local notable = redis.call('ZRANGEBYSCORE', KEYS[4], since, till)
local seqs = redis.call('ZRANGEBYSCORE', KEYS[6], since, till)
local waiting = redis.call('ZRANGEBYSCORE', KEYS[8], '-inf', '(' .. since)
local later = redis.call('ZRANGEBYSCORE', KEYS[2], future, '+inf')
return {
  'glance', starts, began, ended,
  notable, values(KEYS[3], notable),
  seqs, values(KEYS[5], seqs),
  redis.call('HGETALL', KEYS[7]),
  waiting, values(KEYS[3], waiting),
  redis.call('ZREVRANGEBYSCORE', KEYS[9], since, '-inf', 'LIMIT', 0, 1),
  redis.call('ZRANGEBYSCORE', KEYS[9], '(' .. since, till),
  later, values(KEYS[3], later),
}

-- name: ends
-- The latest end of the next windows, of runs that were started under a schedule version or a later one.
-- KEYS: the ledger, order of runs, runs. ARGV: the ledger, since, until, how many, the version.
local since, till, limit, version = word(), word(), tonumber(word()), tonumber(word())
local bound, more = reach({KEYS[2]}, since, till, limit)
if not bound then return {'ends', ''} end
local latest
local names = redis.call('ZRANGEBYSCORE', KEYS[2], since, bound)
for number, value in ipairs(values(KEYS[3], names)) do
  local ending, schedule = string.match(value or '', '^%[[^,]*,[^,]*,([^,]*),([^,]*),')
  if not ending then return {'lost', names[number]} end
  if tonumber(schedule) >= version and (not latest or tonumber(ending) > latest) then latest = tonumber(ending) end
end
return {'ends', more and bound or '', latest and whole(latest)}

-- name: counts
-- How many there are of what must be as many: events, in the indexes of all jobs, and in all pages; pages, twice; jobs,
-- twice; then the numbers of jobs that have not as many runs as places.
-- KEYS: the ledger, events, pages, fill, jobs, versions, then of each job runs, order, starts and ends, other events.
local indexed, filled = 0, 0
local odd = {}
for number = 7, #KEYS, 4 do
  if redis.call('HLEN', KEYS[number]) ~= redis.call('ZCARD', KEYS[number + 1]) then
    odd[#odd + 1] = (number - 7) / 4
  end
  indexed = indexed + redis.call('ZCARD', KEYS[number + 2]) + redis.call('ZCARD', KEYS[number + 3])
end
for _, count in ipairs(redis.call('HVALS', KEYS[4])) do
  filled = filled + tonumber(count)
end
return {
  'counts',
  redis.call('HLEN', KEYS[2]),
  indexed,
  filled,
  redis.call('ZCARD', KEYS[3]),
  redis.call('HLEN', KEYS[4]),
  redis.call('HLEN', KEYS[5]),
  redis.call('HLEN', KEYS[6]),
  odd,
}
