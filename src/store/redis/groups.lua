-- flags: no-writes
-- groups: lists groups of a topic in the order of their names, with their numbers.
-- ARGV: now, whether jobs past their time must be pruned first (0 or 1), topic, group to begin after (with `(` in front;
-- `-`: begin with the jobs without a group), limit.
-- Reply: false when a prune is needed first. Else now, whether more may follow (0 or 1), then per group: name, ready,
-- scheduled, running, due time of the job that has been ready longest (0: none), weight, paused (0 or 1).
--#include clock
--#include ready_list
--#include lanes
--#include order_of_mark
local name, after, limit = ARGV[3], ARGV[4], ARGV[5] + 0
local alarm = ARGV[2] == '1' and call('ZRANGE', P .. 'alarms', 0, 0, 'WITHSCORES')[2]
if alarm and tonumber(alarm) <= now then return false end
local t, reply, keys = lanes_of(name), { now, 0 }, 0

-- Returns the numbers of ready and of scheduled jobs of these orders, and the due time of the first ready one (0: none).
local function count(marks, suffix, ready, oldest)
  local scheduled = 0
  for mark in string.gmatch(marks, '[0-9a-j]') do
    local order = P .. order_of_mark(mark) .. ':' .. suffix
    local all, due = call('ZCARD', order), call('ZCOUNT', order, '-inf', now_text)
    ready, scheduled, keys = ready + due, scheduled + all - due, keys + 2
    if due > 0 then
      local first = tonumber(call('ZRANGE', order, 0, 0, 'WITHSCORES')[2])
      if oldest == 0 or first < oldest then oldest = first end
    end
  end
  return ready, scheduled, oldest
end

local function add(group, ready, scheduled, running, oldest, weight, paused)
  local r = #reply
  reply[r + 1], reply[r + 2], reply[r + 3], reply[r + 4] = group, ready, scheduled, running
  reply[r + 5], reply[r + 6], reply[r + 7] = oldest, weight, paused
end

if after == '-' and limit > 0 then
  local known = call('HGET', P .. 'claims', name)
  local marks = known and string.sub(known, $claims.marks) or ''
  local lined, oldest = line_count(name, marks), 0
  if lined > 0 then oldest = line_first(name, marks) end
  local ready, scheduled, first = count(marks, name, lined, oldest)
  local running = call('ZCARD', P .. 'ends:' .. name) - t.running
  if ready + scheduled + running > 0 then
    add('', ready, scheduled, running, first, lane_setting(name, ''))
    limit = limit - 1
  end
end
local names = limit > 0 and call('ZRANGEBYLEX', t.lanes, after, '+', 'LIMIT', 0, limit) or {}
for i = 1, #names do
  local l = lane_of(t, names[i])
  if l then
    local ready, scheduled, oldest = count(l.marks, name .. '\0' .. l.group, 0, 0)
    add(l.group, ready, scheduled, l.running, oldest, l.weight, l.paused)
  end
  keys = keys + 2
  if keys >= $call.looks and i < #names then
    reply[2] = 1
    break
  end
end
return reply
