-- flags: no-writes
-- explain: reads a job, and counts the ready jobs of its topic that come before it, or of its group if it has one.
-- ARGV: now, whether jobs past their time must be pruned first (0 or 1), topic, id, how long waiting is worth one level
-- of priority (0: levels are strict).
-- Reply: false when a prune is needed first. Else now, its entry or false, the number of ready jobs before it (0 unless
-- it is ready), whether there may be more (0 or 1), because a line with many gaps is read in part; the number of lanes
-- that come before its lane (-1: the topic has no other lane, or the job cannot have a turn), and of running jobs of
-- its lane.
--#include clock
--#include ready_list
--#include list_cursor
--#include lanes
--#include order_of_mark
local unpack_ = struct.unpack
local name, id, ageing = ARGV[3], ARGV[4], ARGV[5] + 0
local alarm = ARGV[2] == '1' and call('ZRANGE', P .. 'alarms', 0, 0, 'WITHSCORES')[2]
if alarm and tonumber(alarm) <= now then return false end
local entry = call('HGET', P .. 'jobs:' .. name, id)
if not entry or string.byte(entry) == $running then return { now, entry, 0, 0, -1, 0 } end
local due, seq, phase, priority = unpack_($record[due,arrival,phase,priority], entry)
if phase ~= 0 or due > now then return { now, entry, 0, 0, -1, 0 } end

-- Returns the number of jobs in the line before this due time and arrival, and whether there may be more.
local function count_line(due, seq)
  local line, claims = P .. 'line:' .. name, call('HGET', P .. 'claims', name) or ''
  local low, high = 0, call('LLEN', line)
  while low < high do
    local middle = math.floor((low + high) / 2)
    local its_due, its_seq = unpack_($member[due..arrival], call('LINDEX', line, middle))
    if its_due < due or (its_due == due and its_seq < seq) then low = middle + 1 else high = middle end
  end
  if not string.find(claims, '-', $claims.marks, true) then return low, false end
  local count, from = 0, 0
  -- The search for the position has read some, too.
  while from < low and not looked_enough() and looks + 128 <= $call.looks - 24 do
    local page = call('LRANGE', line, from, math.min(from + 128, low) - 1)
    from, count = from + #page, count + #standing(name, page)
  end
  if from < low and not call('HGET', P .. 'topic:' .. name, 'torn') then
    count = math.max(count, low - (call('HGET', P .. 'topic:' .. name, 'gaps') or 0))
  end
  return count, from < low
end

-- Orders of the job: those of its topic, or of the lane of its group.
local orders, group = name, nil
local inside = string.byte(entry, $record.inside)
if inside >= $inside.group then
  local length = string.byte(entry, $record.tail)
  group = string.sub(entry, $record.tail + 1, $record.tail + length)
  orders = name .. '\0' .. group
end

-- Returns whether a job without a group is ready.
local function is_ungrouped_ready(marks)
  if line_count(name, marks) > 0 then return true end
  for mark in string.gmatch(marks, '[0-9a-j]') do
    if call('ZCOUNT', P .. order_of_mark(mark) .. ':' .. name, '-inf', now_text) > 0 then return true end
  end
end

-- Returns the number of lanes that come before that of the job (-1: none can, or its own is not in the order), and the
-- number of its running jobs.
local function lanes_before()
  local claims = call('HGET', P .. 'claims', name) or ''
  if not string.find(claims, 'k', $claims.marks, true) then return -1, 0 end
  local t = lanes_of(name)
  local weight, paused = lane_setting(name, '')
  local running = call('ZCARD', P .. 'ends:' .. name) - t.running
  local own = lane_score(t.served, running, weight)
  if not group then
    if paused == 1 then return -1, 0 end
    return call('ZCOUNT', t.ready, '-inf', string.format('%d', own)), running
  end
  local l = lane_of(t, group)
  if not l or l.paused == 1 then return -1, 0 end
  local score = lane_score(l.served, l.running, l.weight)
  local count = l.place == READY and call('ZRANK', t.ready, ready_member(l))
    or call('ZCOUNT', t.ready, '-inf', '(' .. string.format('%d', score))
  if paused == 0 and own < score and is_ungrouped_ready(string.sub(claims, $claims.marks)) then count = count + 1 end
  return count, l.running
end

-- Returns the due time before which the jobs of another priority come before this one; 0: none does.
local function bound_of(other)
  local levels = other - priority
  if ageing == 0 then return levels > 0 and now + 1 or 0 end
  -- Of equals the one with the higher priority comes first.
  return math.min(due + levels * ageing + (levels > 0 and 1 or 0), now + 1)
end

local before, more, line_due, line_seq = 0, false, due, seq
for other = 9, 0, -1 do
  local bound = other ~= priority and bound_of(other) or 0
  if bound > 0 then
    local open = '(' .. string.format('%d', bound)
    before = before + call('ZCOUNT', P .. 'wait:' .. other .. ':' .. orders, '-inf', open)
      + call('ZCOUNT', P .. 'back:' .. other .. ':' .. orders, '-inf', open)
  end
  if other == 0 and priority > 0 then line_due, line_seq = bound, 0 end
end
before = before + passed(P .. 'wait:' .. priority .. ':' .. orders, due, seq - 1)
  + passed(P .. 'back:' .. priority .. ':' .. orders, due, seq - 1)
if line_due > 0 and not group then
  local lined
  lined, more = count_line(line_due, line_seq)
  before = before + lined
end
local lanes, running = lanes_before()
return { now, entry, before, more and 1 or 0, lanes, running }
