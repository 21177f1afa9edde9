-- flags: no-writes
-- oldest_waiting: finds the waiting jobs that have to leave a topic so that more fit: those of the lowest priority, of
-- them those with the earliest due time.
-- ARGV: now, topic, number of jobs to make room for (at most 512), number of waiting jobs that the topic may have.
-- Reply: ids.
--#include clock
--#include ready_list
--#include order_of_mark
--#include waiting_count
local name, jobs, most = ARGV[2], ARGV[3] + 0, ARGV[4] + 0
local wanted = math.min(waiting_count(name) + jobs - most, jobs)
if wanted <= 0 then return {} end
local found, by_priority = {}, {}

local function add(priority, members)
  local level = by_priority[priority] or {}
  for i = 1, #members do level[#level + 1] = members[i] end
  by_priority[priority] = level
end

-- The orders of all groups are not split by priority: only their first jobs are compared.
for kind = 0, 1 do
  local members = call('ZRANGE', P .. 'grouped:' .. kind .. ':' .. name, '0', '$call.jobs')
  local ids = {}
  for i = 1, #members do ids[i] = string.sub(members[i], $member.id) end
  local records = members[1] and call('HMGET', P .. 'jobs:' .. name, unpack(ids)) or {}
  for i = 1, #members do
    local record = records[i]
    if record and string.byte(record) ~= $running then add(string.byte(record, $record.priority), { members[i] }) end
  end
end

local function from_line()
  local from, left = 0, wanted
  while left > 0 and not looked_enough() do
    local page = call('LRANGE', P .. 'line:' .. name, from, from + 511)
    if not page[1] then return end
    local members = standing(name, page)
    add(0, members)
    from, left = from + #page, left - #members
  end
end

for priority = 0, 9 do
  if priority == 0 then from_line() end
  for _, order in ipairs({ 'wait:', 'back:' }) do
    add(priority, call('ZRANGE', P .. order .. priority .. ':' .. name, '0', wanted - 1))
  end
  -- Members sort by due time, then by arrival.
  local level = by_priority[priority]
  table.sort(level)
  for i = 1, math.min(#level, wanted - #found) do found[#found + 1] = string.sub(level[i], $member.id) end
  if #found == wanted then break end
end
return found
