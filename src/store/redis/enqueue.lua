-- flags:
-- enqueue: writes jobs whose ids are free: the fast path, with the same result as the engine.
-- ARGV: now; for one job topic, id and blob (`enqueue.rs`). For several: per section a topic, number of jobs, all
-- ids, all blobs; with several sections, then the positions of all their jobs in the call, two bytes each. An id that
-- comes again in the call is in another section of its topic, right after the first. At most 512 jobs and 1 MiB.
-- If topics have limits, the sections follow an empty text and the limits, per section the number of waiting jobs and
-- that of bytes, 7 bytes each (the greatest time: none).
-- Reply: only now, if all jobs were written and none expires; else a list: now, next upkeep (0: none), then the
-- positions of the jobs that were not written: the id is in use, or comes again in the call, or the job has expired
-- already, or comes after one that has, or after one whose id belongs to a job that may have ended. -1 minus its
-- position, if the topic has no room for the job.
--#include clock
local pack, unpack_, byte, sub = struct.pack, struct.unpack, string.byte, string.sub
local slow, upkeep_at, a, passed, LAST, counted, before = nil, 0, 2, 0, $time.max, nil, nil
-- Jobs with a group, which wait in lanes.
local grouped

-- The common case: one job, without a priority, an expire time and a payload apart. At this size the cost of each
-- table and function counts, so this code has none.
if #ARGV == 4 then
  local name, id, blob = ARGV[2], ARGV[3], ARGV[4]
  local due, due_text, fixed, usual = now, now_text, blob, true
  if byte(blob) >= $unusual then
    local mode, micros, _, length = unpack_($blob[mode..length], blob)
    usual, fixed = mode % 64 <= 2 and #blob == $blob.fixed - 1 + length, sub(blob, $blob.fixed)
    if usual and mode % 4 > 0 then
      due = mode % 2 == 1 and math.min(now + micros, LAST) or math.max(now, micros)
      due_text = string.format('%d', due)
    end
  end
  if usual and byte(fixed, $fixed.priority) == 0 then
    local line, last = P .. 'line:' .. name, nil
    -- Read before anything is written, as a login may lack the right to it.
    if due == now then last = call('LINDEX', line, '-1') end
    local arrived = call('HINCRBY', P .. 'topic:' .. name, 'arrived', '1')
    local head = pack($record[due..created], due, arrived, now)
    if arrived > 1 and call('HSETNX', P .. 'jobs:' .. name, id, head .. fixed) == 1 then
      local member, first = sub(head, 1, $record.created - 1) .. id, nil
      -- A last member that is due later shows that the clock went back; then the job does not join the line.
      if due == now and not (last and unpack_($member[due], last) > now) then
        call('RPUSH', line, member)
        first = not last
      else
        local wait = P .. 'wait:0:' .. name
        call('ZADD', wait, due_text, member)
        first = call('ZRANGE', wait, '0', '0')[1] == member
      end
      -- Subscribers are notified only if the job comes before all others of its order.
      if first then call('PUBLISH', P .. 'w', due_text .. ' ' .. name) end
      return now
    end
    counted = arrived
  end
end

-- Parses a blob with a mode: due time and its text, expire time, the record from the flags on, and the payload if it
-- is stored apart, whether the job has a group, and its bytes if they are counted.
local function read(blob)
  local mode, micros, until_expiry, length = unpack_($blob[mode..length], blob)
  local fixed = sub(blob, $blob.fixed, $blob.fixed - 1 + length)
  local due, due_text, expires, payload = now, now_text, 0, nil
  if mode % 4 > 0 then
    due = mode % 2 == 1 and math.min(now + micros, LAST) or math.max(now, micros)
    due_text = string.format('%d', due)
  end
  if mode % 16 >= 4 then
    expires = mode % 16 >= 8 and math.max(until_expiry, 1) or math.min(now + until_expiry, LAST)
    fixed = sub(fixed, 1, $fixed.expire - 1) .. pack($fixed[expire], expires) .. sub(fixed, $fixed.has_request)
  end
  if #blob > $blob.fixed - 1 + length then payload = sub(blob, $blob.fixed + length) end
  local bytes = mode % 64 >= 32 and unpack_($fixed[bytes], fixed, $fixed.bytes)
  return due, due_text, expires, fixed, payload, mode % 32 >= 16, bytes
end

-- Creates the topic with its first jobs; it has no lease yet that could end.
local function create(name)
  call('HSETNX', P .. 'topic:' .. name, 'created', now_text)
  -- Also if its jobs without a group are paused, a claim has to look at its lanes.
  local setting = call('HGET', P .. 'shares:' .. name, '')
  local marks = setting and string.find(setting, 'paused', 1, true) and '0kl' or '0'
  if call('HSETNX', P .. 'claims', name, pack($claims[bound], $time.max) .. marks) == 1 then
    call('ZADD', P .. 'topics', '0', name)
  end
end

-- Returns the numbers of jobs and of bytes for which the topic of a section has room; nil: there is no limit.
local room_of, section = nil, 0
if ARGV[2] == '' then
  --#include ready_list
  --#include order_of_mark
  --#include waiting_count
  --#include record
  --#include count_stored
  local limits = ARGV[3]
  a = 4
  room_of = function(name)
    section = section + 1
    local jobs, bytes = unpack_('>I7I7', limits, 14 * section - 13)
    if bytes < LAST then count_stored(name) end
    return jobs < LAST and math.max(jobs - waiting_count(name), 0) or nil,
      bytes < LAST and math.max(bytes - (call('HGET', P .. 'topic:' .. name, 'bytes') or 0), 0) or nil
  end
end

-- Returns whether each of these jobs, which are counted, has more bytes than this.
local function fits_none(blobs, n, room)
  for i = 1, n do
    if unpack_($fixed[bytes], ARGV[blobs + i], $blob.fixed - 1 + $fixed.bytes) <= room then return false end
  end
  return true
end

while a < #ARGV do
  local name, n, ids = ARGV[a], 1, a
  if #ARGV > 4 then n, ids = ARGV[a + 1] + 0, a + 1 end
  local room, bytes_room
  if room_of then room, bytes_room = room_of(name) end
  local blobs = ids + n
  -- Validate: the engine handles ids that are in use, and ids that come again. An id that the server has just made is
  -- looked up as well: nothing is overwritten unchecked.
  local found = call('HMGET', P .. 'jobs:' .. name, unpack(ARGV, ids + 1, ids + n))
  -- Mutate.
  -- A topic that has no room for any of the jobs is not created.
  local is_full, arrived = room == 0 or bytes_room and fits_none(blobs, n, bytes_room), nil
  if not is_full then
    arrived = (counted or call('HINCRBY', P .. 'topic:' .. name, 'arrived', n == 1 and '1' or ARGV[a + 1])) - n
    if arrived == 0 then create(name) end
  end
  local created, left, bytes_added = pack($record[created], now), 0, 0
  local records, r, bodies, alarms, known = {}, 0, nil, nil, nil
  -- Line, for jobs without a priority that are due now: its last member, and whether they can go after it.
  local line, row, w, last, fits = P .. 'line:' .. name, {}, 0, nil, nil
  -- Order for the other jobs: usually of one priority; with several, `others` has the orders of the others.
  local priority, adds, size, first, first_due, first_text, others
  -- True if an earlier job may be written by the engine, in place of an ended or expired one: all arrive in their
  -- order.
  local behind = false
  for i = 1, n do
    local id, blob = ARGV[ids + i], ARGV[blobs + i]
    local due, due_text, fixed, expires, payload, has_group, bytes = now, now_text, blob, 0, nil, nil, nil
    if byte(blob) >= $unusual then
      due, due_text, expires, fixed, payload, has_group, bytes = read(blob)
    end
    local taken, expired = found[i], expires ~= 0 and expires <= now
    if taken or behind or name == before or expired then
      if taken and byte(taken) ~= $running then
        local may_expire = byte(taken, $record.inside) >= $inside.extension
        behind = behind or may_expire or byte(taken, $record.phase) >= $phase.succeeded
      end
      behind = behind or expired
      slow = slow or {}
      slow[#slow + 1] = passed + i
      left = left + 1
    elseif room == 0 or bytes and bytes_room and bytes > bytes_room then
      slow = slow or {}
      slow[#slow + 1] = -(passed + i)
      left = left + 1
    else
      if room then room = room - 1 end
      if bytes then
        bytes_added = bytes_added + bytes
        if bytes_room then bytes_room = bytes_room - bytes end
      end
      local place, its_priority = pack($member[due..arrival], due, arrived + i), byte(fixed, $fixed.priority)
      local member = place .. id
      records[r + 1], records[r + 2] = id, place .. created .. fixed
      r = r + 2
      if has_group then
        grouped = grouped or {}
        local group = sub(fixed, $fixed.tail + 1, $fixed.tail + byte(fixed, $fixed.tail))
        grouped[#grouped + 1] = { name, group, arrived + i, string.char(48 + its_priority), due, member }
      end
      local lined = due == now and its_priority == 0 and expires == 0 and not has_group
      if lined and fits == nil then
        last = call('LINDEX', line, '-1')
        -- A last member that is due later shows that the clock went back; then the job does not join the line.
        fits = not last or unpack_($member[due], last) <= now
      end
      if lined and fits then
        w = w + 1
        row[w] = member
      elseif not has_group then
        if its_priority ~= priority then
          others = priority and (others or {})
          if priority then others[priority] = { adds, size, first, first_due, first_text } end
          priority, adds, size, first, first_due, first_text = its_priority, {}, 0, member, due, due_text
          local begun = others and others[priority]
          if begun then adds, size, first, first_due, first_text = unpack(begun) end
        end
        if due < first_due then first, first_due, first_text = member, due, due_text end
        adds[size + 1], adds[size + 2] = due_text, member
        size = size + 2
      end
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
  -- The arrival number was used, but the script did not enqueue the job.
  if left > 0 and not is_full then call('HINCRBY', P .. 'topic:' .. name, 'ignored', left) end
  if r > 0 then
    call('HSET', P .. 'jobs:' .. name, unpack(records))
    if bodies then call('HSET', P .. 'more:' .. name, unpack(bodies)) end
    if alarms then call('ZADD', P .. 'alarms', unpack(alarms)) end
    if bytes_added > 0 then call('HINCRBY', P .. 'topic:' .. name, 'bytes', bytes_added) end
    if w > 0 then
      call('RPUSH', line, unpack(row))
      -- Subscribers are notified only if a job comes before all others of its order.
      if not last then call('PUBLISH', P .. 'w', now_text .. ' ' .. name) end
    end
    while priority do
      local wait = P .. 'wait:' .. priority .. ':' .. name
      call('ZADD', wait, unpack(adds))
      if priority > 0 then
        local mark = string.char(48 + priority)
        known = known or call('HGET', P .. 'claims', name)
        if not string.find(known, mark, $claims.marks, true) then
          known = known .. mark
          call('HSET', P .. 'claims', name, known)
        end
      end
      if call('ZRANGE', wait, '0', '0')[1] == first then
        call('PUBLISH', P .. 'w', first_text .. ' ' .. name)
      end
      if others then others[priority] = nil end
      priority = others and next(others)
      if priority then adds, size, first, first_due, first_text = unpack(others[priority]) end
    end
  end
  a, passed, before = blobs + n + 1, passed + n, name
end

if grouped then
  --#include lanes
  for i = 1, #grouped do
    local name, group, arrival, letter, due, member = unpack(grouped[i])
    local t = lanes_of(name)
    lane_join(t, lane_of(t, group, arrival), letter, due, member, now)
  end
  save_lanes()
end

if not slow and upkeep_at == 0 then return now end
local reply, places = { now, upkeep_at }, ARGV[a]
for i = 1, slow and #slow or 0 do
  -- For a single section the positions are those inside of it.
  local at = math.abs(slow[i])
  local place = places and unpack_('>I2', places, 2 * at - 1) or at - 1
  reply[i + 2] = slow[i] > 0 and place or -1 - place
end
return reply
