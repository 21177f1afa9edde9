-- flags: no-writes
-- stats: reads the numbers of topics.
-- ARGV: now, whether jobs past their time must be pruned first (0 or 1), microseconds from now in which a job is due
-- soon, whether stored bytes are asked for (0 or 1), whether kept records are (0 or 1), then names.
-- Reply: false when a prune is needed first. Else now, then per topic false or: created, enqueued, succeeded, dead
-- (since the topic exists); scheduled, ready, running, backoff, due soon (scheduled or in backoff), dead; due time of
-- the job that has been ready longest (0: none); stored bytes (false: not asked for; text: the error with which Redis
-- refuses to report them); succeeded, cancelled, expired (the kept records, 0 if not asked for). The reply ends early once the script has read much: the caller requests the rest again.
--#include clock
--#include ready_list
--#include order_of_mark
local alarm = ARGV[2] == '1' and call('ZRANGE', P .. 'alarms', 0, 0, 'WITHSCORES')[2]
if alarm and tonumber(alarm) <= now then return false end
local reply, keys, soon = { now }, 0, tonumber(ARGV[3])
-- Bounds of the due times of jobs that are due soon.
local from, to = '(' .. now_text, string.format('%d', now + soon)

local function count(name, marks)
  local ready, oldest = line_count(name, marks), 0
  if ready > 0 then oldest = line_first(name, marks) end
  local ahead, near = { 0, 0 }, 0
  for letter in string.gmatch(marks, '[0-9a-l]') do
    local order, failed = order_of_mark(letter)
    order = P .. order .. ':' .. name
    local all, due = call('ZCARD', order), call('ZCOUNT', order, '-inf', now_text)
    local kind = failed and 2 or 1
    ahead[kind], ready = ahead[kind] + all - due, ready + due
    if soon > 0 and all > due then near = near + call('ZCOUNT', order, from, to) end
    if due > 0 then
      local first = tonumber(call('ZRANGE', order, 0, 0, 'WITHSCORES')[2])
      if oldest == 0 or first < oldest then oldest = first end
    end
  end
  return ahead[1], ready, ahead[2], near, oldest
end

-- Bytes of all keys of a topic that grow with its jobs, as Redis reports them, or the error with which it refuses to.
-- It measures as many entries of a key as given, and takes the others to be as large on average; entries of orders
-- differ little.
local function stored(name, marks)
  local sum = 0
  local function add(key, samples)
    local bytes = redis.pcall('MEMORY', 'USAGE', P .. key .. ':' .. name, 'SAMPLES', samples)
    if type(bytes) == 'table' then return bytes.err or 'no number' end
    sum = sum + (bytes or 0)
  end
  local failure = add('jobs', $call.looks)
  if failure then return failure end
  add('more', $call.looks)
  for _, key in ipairs({ 'ends', 'line', 'done:$phase.succeeded', 'done:$phase.dead', 'done:$phase.cancelled',
                         'done:$phase.expired' }) do
    add(key, 64)
  end
  for letter in string.gmatch(marks, '[0-9a-l]') do add(order_of_mark(letter), 64) end
  if string.find(marks, 'k', 1, true) then
    -- The orders of lanes have the members of `grouped` once more.
    for _, key in ipairs({ 'grouped:0', 'grouped:1', 'groups', 'lanes', 'ready', 'later' }) do add(key, 64) end
  end
  looks = looks + math.min(call('HLEN', P .. 'jobs:' .. name), $call.looks)
    + math.min(call('HLEN', P .. 'more:' .. name), $call.looks)
  return sum
end

for a = 6, #ARGV do
  local name = ARGV[a]
  local topic = call('HMGET', P .. 'topic:' .. name, 'created', 'arrived', 'succeeded', 'dead', 'ignored')
  local known, stats = call('HGET', P .. 'claims', name), false
  if known then
    stats = {}
    for i = 1, 4 do stats[i] = tonumber(topic[i] or 0) end
    stats[2] = stats[2] - (topic[5] or 0)
    stats[5], stats[6], stats[8], stats[9], stats[11] = count(name, string.sub(known, $claims.marks))
    stats[7] = call('ZCARD', P .. 'ends:' .. name)
    stats[10] = call('ZCARD', P .. 'done:$phase.dead:' .. name)
    stats[12] = ARGV[4] == '1' and stored(name, string.sub(known, $claims.marks))
    if stats[12] then keys = keys + 10 + #known end
    for i, phase in ipairs({ '$phase.succeeded', '$phase.cancelled', '$phase.expired' }) do
      stats[12 + i] = ARGV[5] == '1' and call('ZCARD', P .. 'done:' .. phase .. ':' .. name) or 0
    end
  end
  reply[#reply + 1] = stats
  keys = keys + 8 + (known and 4 * #known or 0)
  if keys >= $part.looks or looks >= $part.looks or looked_enough() then break end
end
return reply
