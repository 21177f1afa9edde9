-- flags:
-- enqueue: write jobs; what has a job's id already is treated as `domain::conflict` says.
-- ARGV: now, actions (see `meet` in arrive.lua), whether an id comes twice in the call (0 or 1), topics, jobs;
--       per topic: its name, jobs, indexes of the jobs in the call (two bytes each; empty: they begin at 0
--       and leave nothing out), then all ids, then all blobs (`enqueue.rs`). At most 512 jobs and 1 MiB.
-- Reply: now, next upkeep (0: none), then for each job that was not simply created:
--        index, action, state, due.
--#include clock
local pack, unpack_, byte, sub = struct.pack, struct.unpack, string.byte, string.sub
local reply, slow, upkeep_at, LAST = { now, 0 }, nil, 0, 9007199254740991
local repeats, topics, a, founds = ARGV[3] == '1', ARGV[4] + 0, 6, {}

-- Validate: what is there already goes the slow way, and so does an id that comes again in this call.
for t = 1, topics do
  local n = ARGV[a + 1] + 0
  founds[t] = call('HMGET', P .. 'jobs:' .. ARGV[a], unpack(ARGV, a + 3, a + 2 + n))
  a = a + 3 + 2 * n
end

-- Mutate.
local arrived = call('INCRBY', P .. 'seq', ARGV[5]) - ARGV[5]
local undelayed = pack('>I7I7', now, now)
a = 6
for t = 1, topics do
  local name, n, indexes, found = ARGV[a], ARGV[a + 1] + 0, ARGV[a + 2], founds[t]
  local key, ids, blobs = P .. 'topic:' .. name, a + 2, a + 2 + n
  local records, r, bodies, alarms, ranks, seen = {}, 0, nil, nil, nil, repeats and {}
  -- The order that jobs go to: of one priority, as a rule; then `others` has those of the others.
  local prio, adds, size, first, first_due, first_text, others
  for i = 1, n do
    local id, blob, index = ARGV[ids + i], ARGV[blobs + i], i - 1
    local usual, static, due, due_text = not found[i], blob, now, now_text
    local times, expires, payload = undelayed, 0, nil
    if indexes ~= '' then index = unpack_('>I2', indexes, 2 * i - 1) end
    if repeats then
      usual = usual and not seen[id]
      seen[id] = true
    end
    if usual and byte(blob, 1) >= 128 then
      local mode, micros, until_expiry, length = unpack_('>BI7I7I4', blob)
      if mode % 2 >= 1 then due = math.min(now + micros, LAST) end
      if mode % 4 >= 2 then due = math.max(now, micros) end
      if mode % 8 >= 4 then expires = math.min(now + until_expiry, LAST) end
      if mode % 16 >= 8 then expires = math.max(until_expiry, 1) end
      usual = expires == 0 or expires > now
      static = sub(blob, 20, 19 + length)
      if #blob > 19 + length then payload = sub(blob, 20 + length) end
      if expires ~= 0 then
        static = sub(static, 1, 28) .. pack('>I7', expires) .. sub(static, 36)
      end
      if due ~= now then
        due_text, times = string.format('%d', due), pack('>I7I7', due, now)
      end
    end
    if not usual then
      slow = slow or {}
      slow[#slow + 1] = { name, id, blob, index }
    else
      local seq = pack('>I6', arrived + index + 1)
      local m, p = seq .. id, byte(static, 8)
      records[r + 1], records[r + 2] = id, seq .. times .. static
      r = r + 2
      if p ~= prio then
        others = prio and (others or {})
        if prio then others[prio] = { adds, size, first, first_due, first_text } end
        prio, adds, size, first, first_due, first_text = p, {}, 0, m, due, due_text
        if others and others[p] then adds, size, first, first_due, first_text = unpack(others[p]) end
      end
      if due < first_due then first, first_due, first_text = m, due, due_text end
      adds[size + 1], adds[size + 2] = due_text, m
      size = size + 2
      if payload then
        bodies = bodies or {}
        bodies[#bodies + 1], bodies[#bodies + 2] = 'p' .. id, payload
      end
      if expires ~= 0 then
        alarms = alarms or {}
        alarms[#alarms + 1], alarms[#alarms + 2] = string.format('%d', expires), name .. '\0' .. id
        if upkeep_at == 0 or expires < upkeep_at then upkeep_at = expires end
      end
    end
  end
  if r > 0 then
    call('HSET', P .. 'jobs:' .. name, unpack(records))
    -- The first jobs of a topic make it.
    local enqueued = call('HINCRBY', key, 'enqueued', r == 2 * n and ARGV[a + 1] or r / 2)
    if enqueued == r / 2 and call('HSETNX', key, 'created', now_text) == 1 then
      call('HSET', key, 'ranks', '0')
      call('ZADD', P .. 'topics', '0', name)
    end
    if bodies then call('HSET', P .. 'more:' .. name, unpack(bodies)) end
    if alarms then call('ZADD', P .. 'alarms', unpack(alarms)) end
    while prio do
      local wait = P .. 'wait:' .. prio .. ':' .. name
      call('ZADD', wait, unpack(adds))
      if prio > 0 then
        local letter = string.char(48 + prio)
        ranks = ranks or call('HGET', key, 'ranks')
        if not string.find(ranks, letter, 1, true) then
          ranks = ranks .. letter
          call('HSET', key, 'ranks', ranks)
        end
      end
      -- Whoever sleeps is told only if something here comes before what was there.
      if call('ZRANGE', wait, '0', '0')[1] == first then
        call('PUBLISH', P .. 'w', first_text .. ' ' .. name)
      end
      if others then others[prio] = nil end
      prio = others and next(others)
      if prio then adds, size, first, first_due, first_text = unpack(others[prio]) end
    end
  end
  a = a + 3 + 2 * n
end

if slow then
  --#include record
  --#include lifecycle
  --#include arrive
  local last
  for _, job in ipairs(slow) do
    local name, id, blob, index = job[1], job[2], job[3], job[4]
    if not last or last.name ~= name then last = topic_or_create(name) end
    local action, at, due = arrive(last, id, blob, arrived + index + 1, ARGV[2])
    local r = #reply
    reply[r + 1], reply[r + 2], reply[r + 3], reply[r + 4] = index, action, at, due
  end
  if upkeep ~= 0 and (upkeep_at == 0 or upkeep < upkeep_at) then upkeep_at = upkeep end
end
reply[2] = upkeep_at
return reply
