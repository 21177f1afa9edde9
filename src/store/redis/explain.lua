-- flags: no-writes
-- explain: reads a job, and counts the ready jobs of its topic that come before it, or of its group if it has one.
-- ARGV: now, whether jobs past their time must be pruned first (0 or 1), topic, id, how long waiting is worth one level
-- of priority (0: levels are strict).
-- Reply: false when a prune is needed first. Else now, its entry or false, the number of ready jobs before it (0 unless
-- it is ready), and whether there may be more (0 or 1), because a line with many gaps is read in part.
--#include clock
--#include ready_list
--#include list_cursor
local unpack_ = struct.unpack
local name, id, ageing = ARGV[3], ARGV[4], ARGV[5] + 0
local alarm = ARGV[2] == '1' and call('ZRANGE', P .. 'alarms', 0, 0, 'WITHSCORES')[2]
if alarm and tonumber(alarm) <= now then return false end
local entry = call('HGET', P .. 'jobs:' .. name, id)
if not entry or string.byte(entry) == $running then return { now, entry, 0, 0 } end
local due, seq, phase, priority = unpack_($record[due,arrival,phase,priority], entry)
if phase ~= 0 or due > now then return { now, entry, 0, 0 } end

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
local orders, is_grouped = name, false
local inside = string.byte(entry, $record.inside)
if inside >= $inside.group then
  local length = string.byte(entry, $record.tail)
  orders, is_grouped = name .. '\0' .. string.sub(entry, $record.tail + 1, $record.tail + length), true
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
if line_due > 0 and not is_grouped then
  local lined
  lined, more = count_line(line_due, line_seq)
  before = before + lined
end
return { now, entry, before, more and 1 or 0 }
