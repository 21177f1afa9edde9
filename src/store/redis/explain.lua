-- flags: no-writes
-- explain: reads a job, and counts the ready jobs of its topic that come before it, or of its group if it has one.
-- ARGV: now, whether jobs past their time must be pruned first (0 or 1), topic, id.
-- Reply: false when a prune is needed first. Else now, its entry or false, the number of ready jobs before it (0 unless
-- it is ready), and whether there may be more (0 or 1), because a line with many gaps is read in part.
--#include clock
--#include ready_list
--#include list_cursor
local unpack_ = struct.unpack
local name, id = ARGV[3], ARGV[4]
local alarm = ARGV[2] == '1' and call('ZRANGE', P .. 'alarms', 0, 0, 'WITHSCORES')[2]
if alarm and tonumber(alarm) <= now then return false end
local entry = call('HGET', P .. 'jobs:' .. name, id)
if not entry or string.byte(entry) == $running then return { now, entry, 0, 0 } end
local due, seq, phase, priority = unpack_($record[due,arrival,phase,priority], entry)
if phase ~= 0 or due > now then return { now, entry, 0, 0 } end

-- Number of jobs in the line before this one, and whether there may be more.
local function count_line()
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

local before, more = 0, false
for other = 9, priority + 1, -1 do
  before = before + call('ZCOUNT', P .. 'wait:' .. other .. ':' .. orders, '-inf', now_text)
    + call('ZCOUNT', P .. 'back:' .. other .. ':' .. orders, '-inf', now_text)
end
before = before + passed(P .. 'wait:' .. priority .. ':' .. orders, due, seq - 1)
  + passed(P .. 'back:' .. priority .. ':' .. orders, due, seq - 1)
if priority == 0 and not is_grouped then
  local lined
  lined, more = count_line()
  before = before + lined
end
return { now, entry, before, more and 1 or 0 }
