-- What is written of messages in a ledger in Redis or Valkey, and what deliverers and people ask about them.
-- Apart from the others, since no run without messages needs any of it. `messages` stands in the script `write` between
-- its own verbs and their carrying out; before each of the others stand `common` and `windows`, and they only read.

-- name: messages
-- The verbs that messages need. Their keys are told by the first of them, `outbox`. In the indexes of a destination a
-- number has 16 digits, so that those of one instant sort as numbers do.
local MESSAGES, NUMBERED, BODIES, NUMBERS, DESTINATIONS, destination
local posted, version, next_at, closed, why
settled = {}

local function padded(number)
  return string.format('%016.0f', tonumber(number))
end

-- The keys that all messages share, and whether so many more have room: their numbers are free. What is no hash or no
-- index is met here, before anything is written.
function checks.outbox()
  MESSAGES, NUMBERED, BODIES, NUMBERS, DESTINATIONS = key(), key(), key(), key(), key()
  redis.call('HLEN', NUMBERED)
  redis.call('HLEN', BODIES)
  redis.call('ZCARD', NUMBERS)
  redis.call('HLEN', DESTINATIONS)
  local count, known = tonumber(word()), redis.call('HGET', LEDGER, 'message_seq') or '0'
  posted = string.match(known, '^%d+$') and tonumber(known)
  if not posted then return false, {'lost', known} end
  for number = posted + 1, posted + count do
    if redis.call('HEXISTS', MESSAGES, whole(number)) == 1 then return false, {'lost', whole(number)} end
  end
  return true
end

-- A key is an index, or is not there yet.
function checks.ranked()
  redis.call('ZCARD', key())
  return true
end

-- What is known of a destination may be changed: it is what somebody could have written.
function checks.line()
  destination = word()
  local value = redis.call('HGET', DESTINATIONS, destination) or '[0,0.0,null,null]'
  version, next_at, closed, why = string.match(value, '^%[(%d+),([^,]+),([^,]+),(.*)%]$')
  if not version or not tonumber(next_at) or (closed ~= 'null' and not tonumber(closed)) then
    return false, {'lost', value}
  end
  return true
end

-- The number of a message that is still as it was: its value begins with this.
local function unchanged(name, was)
  local number = redis.call('HGET', NUMBERED, name)
  local value = number and redis.call('HGET', MESSAGES, number) or ''
  return string.sub(value, 1, #was) == was and number
end

-- A message is as it was.
function checks.stands()
  local name = word()
  return unchanged(name, word()) ~= false
end

-- A move as it is told: whose, from what, to what; the indexes of its destination that it leaves and comes into, if any,
-- when it is due; the index of what the job has not delivered, and the start of the window.
local function told()
  local name, was = word(), word()
  return {
    number = unchanged(name, was), value = word(), from = key(), to = key(), due = word(), waiting = key(), start = word(),
  }
end

-- Write a move, and what it changes of the indexes.
local function moves(move)
  redis.call('HSET', MESSAGES, move.number, move.value)
  if move.from and move.from ~= move.to then
    redis.call('ZREM', move.from, padded(move.number))
  end
  if move.to then
    redis.call('ZADD', move.to, move.due, padded(move.number))
    redis.call('ZADD', move.waiting, move.start, move.number)
  else
    redis.call('ZREM', move.waiting, move.number)
  end
end

-- A move that `stands` has found to be one.
function writes.shift()
  moves(told())
end

-- A move by itself: it is written if its message is as it was, and then the answer has its place among them.
function writes.settle()
  local place, move = word(), told()
  if move.number then
    moves(move)
    settled[#settled + 1] = place
  end
end

-- Write what is known of the destination.
local function line()
  redis.call('HSET', DESTINATIONS, destination, '[' .. table.concat({version, next_at, closed, why}, ',') .. ']')
end

-- The destination is left alone until an instant; a later one wins, and none opens it.
function writes.close()
  local till, words = word(), word()
  if till == 'null' or closed == 'null' or tonumber(till) > tonumber(closed) then
    closed, why = till, words
    line()
  end
end

-- So many moves, all or none: if nobody has taken any since this version. The answer has a 0 if they were written.
function writes.take()
  local after, later, taken = word(), word(), {}
  local free = after == version
  for number = 1, tonumber(word()) do
    taken[number] = told()
    free = free and taken[number].number
  end
  if not free then return end
  version, next_at = whole(tonumber(version) + 1), later
  line()
  for _, move in ipairs(taken) do
    moves(move)
  end
  settled[#settled + 1] = '0'
end

-- An instant as it is told, or the millisecond that the moment of the write lies in.
local function begun(moment)
  local ms = math.floor(now / 1000)
  return moment == 'now' and string.format('%d.%03d', math.floor(ms / 1000), ms % 1000) or moment
end

-- One more message, under the next number.
function writes.post()
  local name, state, due, created, rest, body = word(), word(), begun(word()), begun(word()), word(), word()
  local to, waiting, emitted, start, of = key(), key(), key(), word(), word()
  posted = posted + 1
  local number = whole(posted)
  redis.call('HSET', MESSAGES, number, state .. due .. ',' .. created .. rest)
  redis.call('HSET', NUMBERED, name, number)
  redis.call('ZADD', NUMBERS, number, number)
  redis.call('ZADD', emitted, start, number)
  if body ~= '' then
    redis.call('HSET', BODIES, number, string.sub(body, 2))
  end
  if to then
    redis.call('ZADD', to, due, padded(number))
    redis.call('ZADD', waiting, start, number)
  end
  redis.call('HSETNX', DESTINATIONS, of, '[0,0.0,null,null]')
  redis.call('HSET', LEDGER, 'message_seq', number)
end

-- name: outbox
-- What the questions share: members of a destination's index, as numbers.
local function numbers(members)
  local found = {}
  for number, member in ipairs(members) do
    found[number] = string.gsub(member, '^0+', '')
  end
  return found
end

-- name: queue
-- What stands at a destination, and the clock.
-- KEYS: the ledger, destinations, its pending messages, those being sent, messages, bodies.
-- ARGV: the ledger, the destination, how many that are due, whether those being sent are wanted (1).
local line = redis.call('HGET', KEYS[2], word())
local clock = redis.call('TIME')
local now = string.format('%d.%06d', tonumber(clock[1]), tonumber(clock[2]))
local due = numbers(redis.call('ZRANGEBYSCORE', KEYS[3], '-inf', now, 'LIMIT', 0, word()))
local sending = word() == '1' and numbers(redis.call('ZRANGE', KEYS[4], 0, -1)) or {}
local later = redis.call('ZRANGEBYSCORE', KEYS[3], '(' .. now, '+inf', 'WITHSCORES', 'LIMIT', 0, 1)
return {
  'queue', line, due, values(KEYS[5], due), values(KEYS[6], due), sending, values(KEYS[5], sending), later[2] or false,
  clock[1], clock[2],
}

-- name: known
-- The messages of these keys. KEYS: the ledger, numbers by key, messages. ARGV: the ledger, the keys.
local names = {}
while at < ARGS do
  names[#names + 1] = word()
end
local found = values(KEYS[2], names)
local there = {}
for number, each in ipairs(found) do
  there[number] = each or ''
end
return {'known', found, values(KEYS[3], there)}

-- name: undelivered
-- The numbers of all messages that stand in these indexes of destinations. KEYS: the ledger, the indexes.
local found = {}
for number = 2, #KEYS do
  for _, each in ipairs(numbers(redis.call('ZRANGE', KEYS[number], 0, -1))) do
    found[#found + 1] = each
  end
end
return {'undelivered', found}

-- name: tally
-- How many of these messages there are of each kind: state, whether emitted before an instant, job, count, the first
-- instant. Then the numbers of those whose values a pattern does not take apart.
-- KEYS: the ledger, messages. ARGV: the ledger, the instant, the numbers.
local before, names = tonumber(word()), {}
while at < ARGS do
  names[#names + 1] = word()
end
local kinds, order, others = {}, {}, {}
for number, value in ipairs(values(KEYS[2], names)) do
  local state, created, job = string.match(
    value or '', '^%["(%a+)",%d+,"[^"\\]*",[%d.]+,([%d.]+),"[^"\\]*","([^"\\]*)",')
  local instant = tonumber(created or '')
  if instant then
    local late = instant < before and 'late' or ''
    local name = state .. '\n' .. late .. '\n' .. job
    local kind = kinds[name]
    if not kind then
      kind = {state, late, job, 0, instant, created}
      kinds[name] = kind
      order[#order + 1] = kind
    end
    kind[4] = kind[4] + 1
    if instant < kind[5] then kind[5], kind[6] = instant, created end
  else
    others[#others + 1] = names[number]
  end
end
local answer = {}
for number, kind in ipairs(order) do
  answer[number] = {kind[1], kind[2], kind[3], whole(kind[4]), kind[6]}
end
return {'tally', answer, others}

-- name: sums
-- How many there are of what must be as many: messages, their keys and their numbers; those in the indexes of all jobs,
-- those of them that are not delivered, and those in the indexes of destinations; then the numbers of jobs that have not
-- as many steps as places of steps.
-- KEYS: the ledger, messages, their keys, their numbers, then of each job emitted, undelivered, steps and results, then
-- the indexes of destinations. ARGV: the ledger, how many jobs.
local emitted, undelivered, waiting, odd = 0, 0, 0, {}
local last = 4 + 4 * tonumber(word())
for number = 5, last, 4 do
  emitted = emitted + redis.call('ZCARD', KEYS[number])
  undelivered = undelivered + redis.call('ZCARD', KEYS[number + 1])
  if redis.call('ZCARD', KEYS[number + 2]) ~= redis.call('HLEN', KEYS[number + 3]) then
    odd[#odd + 1] = (number - 5) / 4
  end
end
for number = last + 1, #KEYS do
  waiting = waiting + redis.call('ZCARD', KEYS[number])
end
return {
  'sums', redis.call('HLEN', KEYS[2]), redis.call('HLEN', KEYS[3]), redis.call('ZCARD', KEYS[4]),
  emitted, undelivered, waiting, odd,
}
