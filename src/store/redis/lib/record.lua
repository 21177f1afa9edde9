-- Entry of a job: the fields of its record that scripts read, and the orders and indexes that contain it. Positions:
-- `layout.rs`; meanings: `entry.rs`; keys: `keys.rs`. Needs `ready_list.lua`.
local spack, sunpack, sub, band = struct.pack, struct.unpack, string.sub, bit.band
-- Mark of a line with gaps, number of gaps that are few, number of members that leave it for each further gap, and
-- limit of these for one script.
local GAPS, GAPS_MIN, GAPS_STEP, GAPS_LOOKS = '-', 512, 16, 512
-- Earliest time at which upkeep is due because of this call; 0: none.
local upkeep = 0

local function text(number)
  return string.format('%d', number)
end

local function plus(time, micros)
  return math.min(time + micros, $time.max)
end

local function alarm_at(at)
  if upkeep == 0 or at < upkeep then upkeep = at end
end

-- Returns the keys of a topic, and its state for claims: marks of the orders that may have jobs, and a time before
-- which none of its leases ends. nil: the topic does not exist.
local function topic_of(name)
  local known = call('HGET', P .. 'claims', name)
  if not known then return nil end
  return { name = name, key = P .. 'topic:' .. name, jobs = P .. 'jobs:' .. name,
           more = P .. 'more:' .. name, ends = P .. 'ends:' .. name,
           bound = sub(known, 1, $claims.marks - 1), marks = sub(known, $claims.marks) }
end

local function note_claims(k)
  call('HSET', P .. 'claims', k.name, k.bound .. k.marks)
end

local function topic_or_create(name)
  local k = topic_of(name)
  if k then return k end
  call('HSET', P .. 'topic:' .. name, 'created', now_text)
  -- The topic has no lease that could end. If its jobs without a group are paused, a claim has to look at its lanes.
  local setting = call('HGET', P .. 'shares:' .. name, '')
  local is_paused = setting and string.find(setting, 'paused', 1, true)
  call('HSET', P .. 'claims', name, spack($claims[bound], $time.max) .. (is_paused and '0kl' or '0'))
  call('ZADD', P .. 'topics', '0', name)
  return topic_of(name)
end

-- Parses the head of a record into a table, with the whole record.
local function head_of(k, id, record)
  local j = { k = k, id = id, record = record, expire = 0 }
  local inside
  j.due, j.arrival, j.created, j.apart, inside, j.version, j.bytes, j.phase, j.priority = sunpack($record[due..priority], record)
  if inside >= $inside.extension then
    j.expire = sunpack($record[expire], record, j.phase == 0 and $record.expire or $ended.expire)
    if inside >= $inside.group then
      local at = j.phase == 0 and $record.tail or $ended.tail
      j.group = sub(record, at + 1, at + string.byte(record, at))
    end
  end
  return j
end

local function lease_of(raw)
  local l = { raw = raw }
  l.token, l.ack, l.started, l.deadline, l.extended, l.owner, l.stream, l.grace, l.duration =
    sunpack($lease[token..duration], raw)
  l.worker = sub(raw, $lease.worker)
  return l
end

local function format_lease(l)
  local raw = spack($lease[token..duration], l.token, l.ack, l.started, l.deadline, l.extended, l.owner, l.stream,
    l.grace, l.duration) .. l.worker
  return spack($entry[running..length], $running, #raw) .. raw
end

-- Splits an entry into the lease, if the job runs, and the record.
local function parts_of(raw)
  if string.byte(raw) ~= $running then return nil, raw end
  local at = $entry.token + sunpack($entry[length], raw, $entry.length)
  return sub(raw, $entry.token, at - 1), sub(raw, at)
end

-- Parses the job of an entry, with its lease if it runs.
local function job_of(k, id, raw)
  local lease, record = parts_of(raw)
  local j = head_of(k, id, record)
  if lease then j.lease = lease_of(lease) end
  return j
end

-- Gives the record a new version, so that decisions about the one that was read are not written.
local function renew(j)
  j.record = sub(j.record, 1, $record.version - 1) .. spack('>I8', now) .. sub(j.record, $record.bytes)
end

-- Marks a job as one whose bytes are counted, or not.
local function set_counted(j, is_counted)
  j.apart = j.apart % $apart.counted + (is_counted and $apart.counted or 0)
  j.record = sub(j.record, 1, $record.apart - 1) .. string.char(j.apart) .. sub(j.record, $record.inside)
end

local function load(k, id)
  local raw = call('HGET', k.jobs, id)
  return raw and job_of(k, id, raw) or nil
end

local function save(j)
  call('HSET', j.k.jobs, j.id, (j.lease and format_lease(j.lease) or '') .. j.record)
end

-- === orders and indexes of a job ===

local function global_member(j) return j.k.name .. '\0' .. j.id end

local function member(j) return spack($member[due..arrival], j.due, j.arrival) .. j.id end

local function has_failed(j) return band(j.apart, $apart.failed) ~= 0 end

-- Jobs that never failed and those that failed are in separate orders, so that each can be counted and listed.
local function order_of(j)
  return P .. (has_failed(j) and 'back:' or 'wait:') .. j.priority .. ':' .. j.k.name
end

-- Adds the mark of an order to the topic's `marks`: a digit, or from `a` on for jobs that failed.
local function mark(k, priority, failed)
  local letter = string.char((failed and 97 or 48) + priority)
  if not string.find(k.marks, letter, 1, true) then
    k.marks = k.marks .. letter
    note_claims(k)
  end
end

-- Functions for lanes, once a job with a group needs them.
local lanes
local function with_lanes()
  if not lanes then
    --#include lanes
    lanes = { of = lanes_of, lane = lane_of, join = lane_join, leave = lane_leave, release = lane_release,
              save = save_lanes }
  end
  return lanes
end

local function store_lanes()
  if lanes then lanes.save() end
end

-- Returns the mark of the order of a waiting job.
local function letter_of(j) return string.char((has_failed(j) and 97 or 48) + j.priority) end

local function wake(k, due)
  call('PUBLISH', P .. 'w', text(due) .. ' ' .. k.name)
end

-- Returns the member of a running job among the ends of leases: a plain ack finds it by its token; it does not find
-- the member of a job that needs a check, or that has a group.
local function end_of(j)
  if j.group then return j.lease.token .. '\1' .. j.id .. '\0' .. j.group end
  return j.lease.token .. (j.lease.ack == $ack.removes and '' or '\0') .. j.id
end

-- Sets the deadline of the job's lease, which may be the first of the topic.
local function ends_at(j, deadline)
  local k = j.k
  j.lease.deadline = deadline
  call('ZADD', k.ends, text(deadline), end_of(j))
  if deadline < sunpack($claims[bound], k.bound) then
    k.bound = spack($claims[bound], deadline)
    note_claims(k)
    call('ZADD', P .. 'deadlines', text(deadline), k.name)
  end
end

-- Marks the lease of a running job so that an ack has to check the job. The caller saves it.
local function entangle(j)
  if j.lease.ack == $ack.removes then
    call('ZREM', j.k.ends, end_of(j))
    j.lease.ack = $ack.looks
    call('ZADD', j.k.ends, text(j.lease.deadline), end_of(j))
  end
  j.lease.ack = $ack.looks
end

-- Adds a waiting job to its order; subscribers are notified if it is now the first there.
local function join(j)
  local key, m = order_of(j), member(j)
  if j.group then
    local l = with_lanes()
    local t = l.of(j.k.name)
    l.join(t, l.lane(t, j.group, j.arrival), letter_of(j), j.due, m, now)
  else
    call('ZADD', key, text(j.due), m)
    mark(j.k, j.priority, has_failed(j))
  end
  if j.expire ~= 0 then
    call('ZADD', P .. 'alarms', text(j.expire), global_member(j))
    alarm_at(j.expire)
  end
  if not j.group and call('ZRANGE', key, '0', '0')[1] == m then wake(j.k, j.due) end
end

-- Adds or removes the mark for gaps. `closed`: the line has no gap.
local function note_gaps(k, closed)
  local marked = string.find(k.marks, GAPS, 1, true) ~= nil
  if closed ~= marked then return end
  k.marks = closed and string.gsub(k.marks, '%' .. GAPS, '') or k.marks .. GAPS
  note_claims(k)
end

-- Leaves a gap in place of a job in the line. Once half of a line is gaps, and these are not few, each further gap
-- removes some members from its head, so that gaps of cancelled jobs do not grow far beyond the waiting ones.
local function leave_line(j)
  if j.priority > 0 or has_failed(j) or j.expire ~= 0 then return end
  local k, closed = j.k, false
  local gaps = string.find(k.marks, GAPS, 1, true) and tonumber(call('HGET', k.key, 'gaps')) or 0
  if gaps >= GAPS_MIN and 2 * gaps > call('LLEN', P .. 'line:' .. k.name) then
    closed = select(2, shift(k.name, GAPS_STEP, GAPS_LOOKS))
    -- The job may have been among the moved members.
    if call('ZREM', order_of(j), member(j)) == 1 then return note_gaps(k, closed) end
  end
  count_gaps(k.name, 1)
  note_gaps(k, false)
end

-- Removes a job from its order or index. The caller saves or deletes it.
local function leave(j)
  if j.lease then
    call('ZREM', j.k.ends, end_of(j))
    j.lease = nil
    if j.group then
      local l = with_lanes()
      l.release(l.of(j.k.name), j.group)
    end
  elseif j.phase == 0 then
    if j.group then
      local l = with_lanes()
      local t = l.of(j.k.name)
      l.leave(t, l.lane(t, j.group), letter_of(j), member(j))
    elseif call('ZREM', order_of(j), member(j)) == 0 then
      leave_line(j)
    end
    if j.expire ~= 0 then call('ZREM', P .. 'alarms', global_member(j)) end
  else
    call('ZREM', P .. 'done:' .. j.phase .. ':' .. j.k.name, member(j))
    call('ZREM', P .. 'alarms', global_member(j))
  end
end
