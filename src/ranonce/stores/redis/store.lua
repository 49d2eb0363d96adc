-- What a run needs of a ledger in Redis or Valkey: the script that reads, and the one that writes.
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
local numbers, latest, held, settled = {}, {}, {}

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

-- The next numbers of events are free, so that of several none is refused half-way.
function checks.room()
  for number = last + 1, last + tonumber(word()) do
    if redis.call('HEXISTS', EVENTS, whole(number)) == 1 then return false, {'seq', whole(last)} end
  end
  return true
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

-- One more event, under the next number, or under the one it had elsewhere if that is free and follows its story. Where
-- the counter has gone back, there is one already, and an event is never changed.
function writes.event()
  local index, start, head, rest, output = key(), word(), word(), word(), word()
  local wanted, story, after = tonumber(word()), word(), tonumber(word())
  local number = last + 1
  if wanted > (latest[story] or after) and redis.call('HEXISTS', EVENTS, whole(wanted)) == 0 then
    number = wanted
  end
  local name = whole(number)
  if redis.call('HSETNX', EVENTS, name, '[' .. instant(head) .. rest) == 0 then
    return false
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

-- name: carry out
-- The end of `write`, after its verbs; those of `outbox.lua` add what was settled to the answer.
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
return {'written', whole(now or 0), numbers, settled}

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
