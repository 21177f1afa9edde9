-- flags:
-- enqueue: write jobs; what has a job's id already is treated as `domain::conflict` says.
-- ARGV: now, actions (see `meet` in arrive.lua), topics; per topic: its name, jobs, indexes of the jobs in
--       the call (two bytes each; empty: they begin at 0 and leave nothing out); per job: id, blob
--       (`enqueue.rs`). At most 512 jobs and 1 MiB.
-- Reply: now, next upkeep (0: none), then for each job that was not simply created:
--        index, action, state, due.
--#include clock
local actions, arrivals, a, total = ARGV[2], nil, 4, 0
local reply, slow, upkeep_at = { now, 0 }, {}, 0
local pack, unpack_, byte, sub = struct.pack, struct.unpack, string.byte, string.sub

-- Validate: what is there already, or twice in this call, goes the slow way.
local groups = {}
for g = 1, tonumber(ARGV[3]) do
  local name, n, indexes = ARGV[a], tonumber(ARGV[a + 1]), ARGV[a + 2]
  local ids = {}
  for i = 1, n do ids[i] = ARGV[a + 1 + 2 * i] end
  groups[g] = { name = name, n = n, indexes = indexes, at = a + 3, ids = ids,
                found = call('HMGET', P .. 'jobs:' .. name, unpack(ids)) }
  a, total = a + 3 + 2 * n, total + n
end

-- Mutate.
arrivals = call('INCRBY', P .. 'seq', total) - total
for g = 1, #groups do
  local group = groups[g]
  local name, found, ids = group.name, group.found, group.ids
  local key = P .. 'topic:' .. name
  local ranks = call('HGET', key, 'ranks')
  if not ranks then
    ranks = '0'
    call('HSET', key, 'created', string.format('%.0f', now), 'ranks', ranks)
    call('ZADD', P .. 'topics', 0, name)
  end
  local records, orders, bodies, alarms, seen = {}, {}, nil, nil, {}
  local fresh, now_text = 0, nil
  for i = 1, group.n do
    local id, blob = ids[i], ARGV[group.at + 2 * i - 1]
    local index = i - 1
    if group.indexes ~= '' then index = unpack_('>I2', group.indexes, 2 * i - 1) end
    local mode, due, due_text, static = byte(blob, 1), now, nil, nil
    local expires, payload = 0, nil
    if mode < 128 then
      static = sub(blob, 2)
    else
      local micros, until_expiry, length = unpack_('>I7I7I4', blob, 2)
      if mode % 2 >= 1 then due = math.min(now + micros, 9007199254740991) end
      if mode % 4 >= 2 then due = math.max(now, micros) end
      if mode % 8 >= 4 then expires = math.min(now + until_expiry, 9007199254740991) end
      if mode % 16 >= 8 then expires = math.max(until_expiry, 1) end
      static = sub(blob, 20, 19 + length)
      if expires ~= 0 then
        static = sub(static, 1, 28) .. pack('>I7', expires) .. sub(static, 36)
      end
      if #blob > 19 + length then payload = sub(blob, 20 + length) end
    end
    if found[i] or seen[id] or (expires ~= 0 and expires <= now) then
      slow[#slow + 1] = { name, id, blob, index }
    else
      if due == now then
        now_text = now_text or string.format('%.0f', now)
        due_text = now_text
      else
        due_text = string.format('%.0f', due)
      end
      local record = pack('>I6I7I7', arrivals + index + 1, due, now) .. static
      local m, prio = sub(record, 1, 6) .. id, byte(record, 28)
      local order = orders[prio]
      if not order then
        order = { add = {}, first = m, due = due }
        orders[prio] = order
      elseif due < order.due then
        order.first, order.due = m, due
      end
      local add = order.add
      add[#add + 1], add[#add + 2] = due_text, m
      records[#records + 1], records[#records + 2] = id, record
      fresh = fresh + 1
      if payload then
        bodies = bodies or {}
        bodies[#bodies + 1], bodies[#bodies + 2] = 'p' .. id, payload
      end
      if expires ~= 0 then
        alarms = alarms or {}
        alarms[#alarms + 1] = string.format('%.0f', expires)
        alarms[#alarms + 1] = name .. '\0' .. id
        if upkeep_at == 0 or expires < upkeep_at then upkeep_at = expires end
      end
    end
    seen[id] = true
  end
  if fresh > 0 then
    call('HSET', P .. 'jobs:' .. name, unpack(records))
    call('HINCRBY', key, 'enqueued', fresh)
    if bodies then call('HSET', P .. 'more:' .. name, unpack(bodies)) end
    if alarms then call('ZADD', P .. 'alarms', unpack(alarms)) end
    for prio, order in pairs(orders) do
      local wait = P .. 'wait:' .. prio .. ':' .. name
      call('ZADD', wait, unpack(order.add))
      local letter = string.char(48 + prio)
      if not string.find(ranks, letter, 1, true) then
        ranks = ranks .. letter
        call('HSET', key, 'ranks', ranks)
      end
      -- Whoever sleeps is told only if something here comes before what was there.
      if call('ZRANGE', wait, 0, 0)[1] == order.first then
        call('PUBLISH', P .. 'w', string.format('%.0f', order.due) .. ' ' .. name)
      end
    end
  end
end

if #slow > 0 then
  --#include record
  --#include lifecycle
  --#include arrive
  local last
  for _, job in ipairs(slow) do
    local name, id, blob, index = job[1], job[2], job[3], job[4]
    if not last or last.name ~= name then last = topic_of(name) end
    local action, at, due = arrive(last, id, blob, arrivals + index + 1, actions)
    local r = #reply
    reply[r + 1], reply[r + 2], reply[r + 3], reply[r + 4] = index, action, at, due
  end
  if upkeep ~= 0 and (upkeep_at == 0 or upkeep < upkeep_at) then upkeep_at = upkeep end
end
reply[2] = upkeep_at
return reply
