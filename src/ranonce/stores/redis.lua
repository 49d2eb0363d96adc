-- Every script that a ledger in Redis or Valkey uses, by name. All but `write` only read.
--
-- A script is carried out whole while nobody else is served, so what it reads is of one state and what it writes is
-- written together. It is not rolled back where it fails half-way; so `write` looks at everything before it writes.
-- Numbers are doubles here: instants are whole microseconds, far below 2^53, and printed with all their digits.
-- Nothing that people wrote is taken apart: values are JSON that Python made, of which at most the beginning is read.

-- name: common
-- What stands before each script. ARGV[1] is the id of the ledger that is meant; KEYS[1] is the key that has it.
local ARGS, at = #ARGV, 1

local function word()
  at = at + 1
  return ARGV[at]
end

local function key()
  return KEYS[tonumber(word())]
end

local function whole(number)
  return string.format('%.0f', number)
end

-- What to answer where another ledger lies, or none: `here` is the id that is found.
local function elsewhere(here)
  return ARGV[1] ~= '' and here ~= ARGV[1] and {'other', here or ''}
end

-- name: windows
-- What stands before the scripts that look at whole windows.
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

-- name: write
-- The one way to write: first what must still be so, then what is written.
-- KEYS are the ledger, its events, their pages, how many each page has, their outputs, then all others that a step names
-- by number. ARGV goes on with steps, each a word and its arguments: checks, then events, then all others.
-- Answers {'raced'}, having written nothing, or {'written', microseconds of the write, numbers of the events}.
local LEDGER, EVENTS, PAGES, FILL, OUTPUT = KEYS[1], KEYS[2], KEYS[3], KEYS[4], KEYS[5]
local PAGE = 256
local found = redis.call('HMGET', LEDGER, 'id', 'seq')
local other = elsewhere(found[1])
if other then return other end

local last = tonumber(found[2] or 0)
local now
local numbers, latest, held = {}, {}, {}

-- An instant as it is told: as it stands, `now`, or so many microseconds after now.
local function instant(told)
  if told == 'now' then
    local ms = math.floor((now + 500) / 1000)
    return string.format('%d.%03d', math.floor(ms / 1000), ms % 1000)
  elseif string.sub(told, 1, 1) == '+' then
    return whole(now + tonumber(string.sub(told, 2)))
  end
  return told
end

local checks = {}

-- Whoever asks may do all that a write takes: what is refused in the middle of it would leave a half. Asked once for each
-- connection; older servers cannot be asked.
function checks.may()
  local of = LEDGER
  for _, command in ipairs(redis.acl_check_cmd and {
    {'HSET', of, '', ''}, {'HSETNX', of, '', ''}, {'HDEL', of, ''}, {'HINCRBY', of, '', '1'},
    {'ZADD', of, '1', ''}, {'ZREM', of, ''}, {'RPUSH', of, ''}, {'TIME'},
  } or {}) do
    if not redis.acl_check_cmd(unpack(command)) then return false, {'denied', command[1]} end
  end
  return true
end

-- A field has this value; none is the empty one.
function checks.is()
  local of, field = key(), word()
  return (redis.call('HGET', of, field) or '') == word()
end

-- The value of a field begins with this.
function checks.begins()
  local of, field, start = key(), word(), word()
  return string.sub(redis.call('HGET', of, field) or '', 1, #start) == start
end

-- The value of a field, a list, has this after its first four.
function checks.holds()
  local of, field, part = key(), word(), word()
  local value = redis.call('HGET', of, field) or ''
  local _, fourth = string.find(value, '^%[[^,]*,[^,]*,[^,]*,[^,]*,')
  held[field] = value
  return fourth ~= nil and string.sub(value, fourth + 1, fourth + #part) == part
end

-- A field is not there.
function checks.lacks()
  local of = key()
  return redis.call('HEXISTS', of, word()) == 0
end

-- Nothing is there.
function checks.none()
  return redis.call('EXISTS', key()) == 0
end

local writes = {}

-- A list that begins with an instant.
function writes.set()
  local of, field, head = key(), word(), word()
  redis.call('HSET', of, field, '[' .. instant(head) .. word())
end

-- The same, and the instant stays as `holds` has found it: what a verdict changes of a run that began.
function writes.keep()
  local of, field = key(), word()
  redis.call('HSET', of, field, string.match(held[field], '^[^,]*') .. word())
end

function writes.put()
  local of, field = key(), word()
  redis.call('HSET', of, field, word())
end

function writes.del()
  local of = key()
  redis.call('HDEL', of, word())
end

function writes.add()
  local of, score = key(), word()
  redis.call('ZADD', of, score, word())
end

function writes.rem()
  local of = key()
  redis.call('ZREM', of, word())
end

function writes.push()
  local of, head = key(), word()
  redis.call('RPUSH', of, '[' .. instant(head) .. word())
end

-- A number goes up by one.
function writes.move()
  local of = key()
  redis.call('HINCRBY', of, word(), 1)
end

-- A number is at least this.
function writes.least()
  local of, field, value = key(), word(), word()
  if tonumber(redis.call('HGET', of, field) or 0) < tonumber(value) then
    redis.call('HSET', of, field, value)
  end
end

-- A gate: the later end wins, except over one that was closed under a clock ahead of this one.
function writes.gate()
  local of, name, till, closed, value = key(), word(), word(), word(), word()
  local ends, since = string.match(redis.call('HGET', of, name) or '', '^%[([^,]+),([^,]+),')
  if not ends or tonumber(till) > tonumber(ends) or tonumber(since) > tonumber(closed) then
    redis.call('HSET', of, name, value)
  end
end

-- One more event, under the next number, or under the one it had elsewhere if that is free and follows its story.
function writes.event()
  local index, start, head, rest, output = key(), word(), word(), word(), word()
  local wanted, story, after = tonumber(word()), word(), tonumber(word())
  local number = last + 1
  if wanted > (latest[story] or after) and redis.call('HEXISTS', EVENTS, whole(wanted)) == 0 then
    number = wanted
  end
  local name = whole(number)
  if redis.call('HSETNX', EVENTS, name, '[' .. instant(head) .. rest) == 0 then
    return false -- the counter has gone back, and an event is never changed
  end
  latest[story] = number
  last = math.max(last, number)
  redis.call('ZADD', index, start, name)
  local page = whole(math.floor(number / PAGE))
  if redis.call('HINCRBY', FILL, page, 1) == 1 then
    redis.call('ZADD', PAGES, page, page)
  end
  if output ~= '' then
    redis.call('HSET', OUTPUT, name, string.sub(output, 2))
  end
  numbers[#numbers + 1] = name
  return true
end

-- An event is pruned.
function writes.prune()
  local index, name = key(), word()
  if redis.call('HDEL', EVENTS, name) == 0 then return end
  redis.call('ZREM', index, name)
  redis.call('HDEL', OUTPUT, name)
  local page = whole(math.floor(tonumber(name) / PAGE))
  if redis.call('HINCRBY', FILL, page, -1) == 0 then
    redis.call('HDEL', FILL, page)
    redis.call('ZREM', PAGES, page)
  end
end

while at < ARGS do
  local step = word()
  if checks[step] then
    local stands, why = checks[step]()
    if not stands then return why or {'raced'} end
  else
    if not now then
      local clock = redis.call('TIME')
      now = tonumber(clock[1]) * 1000000 + tonumber(clock[2])
    end
    if writes[step]() == false then return {'seq', whole(last)} end
  end
end
if #numbers > 0 then
  redis.call('HSET', LEDGER, 'seq', whole(last))
end
return {'written', whole(now or 0), numbers}

-- name: read
-- All that a decision about a run depends on, and the clock, read last.
-- KEYS: the ledger, versions of jobs, runs, leases, gates, schedules, tombstones, starts and ends, events.
-- ARGV: the ledger, the job, the place of the run, the start of its window.
local other = elsewhere(redis.call('HGET', KEYS[1], 'id'))
if other then return other end
local job, place, start = word(), word(), word()
local seqs = redis.call('ZRANGEBYSCORE', KEYS[8], start, start, 'LIMIT', 0, 101)
local answer = {
  'read',
  redis.call('HGET', KEYS[2], job),
  redis.call('HGET', KEYS[3], place),
  redis.call('HGETALL', KEYS[4]),
  redis.call('HVALS', KEYS[5]),
  redis.call('LRANGE', KEYS[6], 0, -1),
  redis.call('ZREVRANGEBYSCORE', KEYS[7], start, '-inf', 'LIMIT', 0, 1),
  #seqs == 0 and {} or #seqs < 101 and redis.call('HMGET', KEYS[9], unpack(seqs)),
}
local clock = redis.call('TIME')
answer[9], answer[10] = clock[1], clock[2]
return answer

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
local places = redis.call('ZRANGEBYSCORE', KEYS[2], since, bound, 'WITHSCORES')
local names, starts = {}, {}
for number = 1, #places, 2 do
  names[#names + 1] = places[number]
  starts[#starts + 1] = places[number + 1]
end
local began, ended = {}, {}
for number, value in ipairs(values(KEYS[3], names)) do
  local first, second = string.match(value or '', '^%[([^,]*),([^,]*),')
  if not first then return {'lost', names[number]} end
  began[number] = first
  ended[number] = second == 'null' and first or second
end
return {
  'outline',
  more and bound or '',
  table.concat(starts, ','),
  table.concat(began, ','),
  table.concat(ended, ','),
  redis.call('ZRANGEBYSCORE', KEYS[4], since, bound),
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
local other = elsewhere(redis.call('HGET', KEYS[1], 'id'))
if other then return other end
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
