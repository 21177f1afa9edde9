-- flags: allow-oom
-- oldest_waiting: finds the waiting jobs that leave a topic for new ones: those of the lowest priority, of them those with
-- the earliest due time. They leave the line first, as they would leave gaps at its head.
-- ARGV: now, topic, number of new jobs (at most 256), number of waiting jobs that the topic may have, bytes of the new
-- jobs, number of bytes that it may have (the greatest time: no limit), jobs and bytes of other callers.
-- Reply: 0 if there are not enough among the first 512; else 1 and the ids, none also if the line has too many gaps for one
-- call; or 2 and the ids, if the topic is over its limits without them, too.
--#include clock
--#include ready_list
--#include order_of_mark
--#include waiting_count
local PAGE, PAGES, FEW = 64, 8, 16
local name, jobs, max_waiting, bytes, max_bytes = ARGV[2], ARGV[3] + 0, ARGV[4] + 0, ARGV[5] + 0, ARGV[6] + 0
local excess, excess_bytes = 0, 0
if max_waiting < $time.max then excess = math.max(waiting_count(name) + jobs - max_waiting, 0) end
if max_bytes < $time.max then
  excess_bytes = math.max((call('HGET', P .. 'topic:' .. name, 'bytes') or 0) + bytes - max_bytes, 0)
end

-- Returns how much has to leave at least, and how much leaves if it is there: `RoomQuery::goals`.
local function goals(over, new, others)
  if over == 0 then return 0, 0 end
  if over > 2 * new then return new, 2 * new end
  return math.min(over, new), over + others
end
local least, goal = goals(excess, jobs, ARGV[7] + 0)
local least_bytes, goal_bytes = goals(excess_bytes, bytes, ARGV[8] + 0)
goal = math.min(goal, $call.jobs)

-- Members sort by due time, then by arrival; not as texts, whose order depends on the locale of Redis.
local function before(x, y)
  local due, seq = struct.unpack($member[due..arrival], x)
  local its_due, its_seq = struct.unpack($member[due..arrival], y)
  return due < its_due or due == its_due and seq < its_seq
end

-- Moves the head of the line to the order by due time, unless enough jobs there come before it. Returns false if there
-- were too many gaps.
local function leave_line(wanted)
  local line, waits = P .. 'line:' .. name, P .. 'wait:0:' .. name
  local last, head = call('ZRANGE', waits, wanted - 1, wanted - 1)[1], call('LINDEX', line, '0')
  if not head or last and before(last, head) then return true end
  local done, closed = shift(name, wanted)
  local claims = closed and call('HGET', P .. 'claims', name)
  if claims then
    local marks = string.gsub(string.sub(claims, $claims.marks), '%-', '')
    call('HSET', P .. 'claims', name, string.sub(claims, 1, $claims.marks - 1) .. marks)
  end
  return done
end

local function add(levels, priority, members)
  local level = levels[priority] or {}
  for i = 1, #members do level[#level + 1] = members[i] end
  levels[priority] = level
end

-- The orders of all groups are not split by priority: their first jobs are compared, page by page until enough of the
-- lowest priority are found.
local function add_grouped(levels, order, wanted)
  local lowest = 0
  for page = 0, PAGES - 1 do
    local members = call('ZRANGE', order, page * PAGE, page * PAGE + PAGE - 1)
    if not members[1] or lowest >= wanted then return end
    local ids = {}
    for i = 1, #members do ids[i] = string.sub(members[i], $member.id) end
    local records = call('HMGET', P .. 'jobs:' .. name, unpack(ids))
    for i = 1, #members do
      local record = records[i]
      if record and string.byte(record) ~= $running then
        local priority = string.byte(record, $record.priority)
        if priority == 0 then lowest = lowest + 1 end
        add(levels, priority, { members[i] })
      end
    end
  end
end

-- Returns the ids of the first `wanted` jobs in the order in which they leave; nil: there were too many gaps.
local function find(wanted)
  if not leave_line(wanted) then return nil end
  local found, levels = {}, {}
  for kind = 0, 1 do add_grouped(levels, P .. 'grouped:' .. kind .. ':' .. name, wanted) end
  for priority = 0, 9 do
    for _, order in ipairs({ 'wait:', 'back:' }) do
      add(levels, priority, call('ZRANGE', P .. order .. priority .. ':' .. name, '0', wanted - 1))
    end
    local level = levels[priority]
    table.sort(level, before)
    for i = 1, math.min(#level, wanted - #found) do found[#found + 1] = string.sub(level[i], $member.id) end
    if #found == wanted then break end
  end
  return found
end

-- Returns a reply with those of the jobs that leave, and their bytes.
local function choose(found)
  local reply, left = { 1 }, 0
  local records = goal_bytes > 0 and found[1] and call('HMGET', P .. 'jobs:' .. name, unpack(found))
  for i = 1, #found do
    local record, its_bytes = records and records[i], 0
    if record and string.byte(record, $record.apart) >= $apart.counted then
      its_bytes = struct.unpack($record[bytes], record, $record.bytes)
    end
    -- A job that is not counted takes no bytes, so it leaves only to make one job fewer.
    if goal >= #reply or left < goal_bytes and its_bytes > 0 then
      reply[#reply + 1], left = found[i], left + its_bytes
    end
  end
  return reply, left
end

if goal == 0 and goal_bytes == 0 then return { 1 } end
-- How many jobs have the bytes is known once they are read; few do for most.
local reply, left = { 1 }, 0
for _, wanted in ipairs(goal_bytes > 0 and { math.max(FEW, goal), $call.jobs } or { goal }) do
  local found = find(wanted)
  if not found then return { 1 } end
  reply, left = choose(found)
  if left >= goal_bytes or #found < wanted then break end
end
if left < least_bytes then return { 0 } end
local gone = #reply - 1
if (gone < excess or left < excess_bytes) and gone >= least then reply[1] = 2 end
return reply
