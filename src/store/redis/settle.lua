-- flags: allow-oom
-- settle: acknowledges jobs that leave nothing, or a tombstone: the fast path, with the same result as the engine.
-- ARGV: now; for one ack of a lease of the caller's: topic, id, token with id, and for a server-made id its entry
-- among the recent ids (`ended_ids.lua`): second, line. For anything else: number of sections; per section: topic,
-- number of acks, whether the leases are the caller's (0 or 1), ids, tokens with their ids, number of seconds; per
-- second: name, lines.
-- Reply: 1, if all acks counted. Else a list: next upkeep (0: none), then for each ack 1, or 0 if the fast path
-- cannot handle it or the job has no such lease.
local call, P = redis.call, KEYS[1]

-- The most common case: one ack. At this size the cost of each table counts.
if #ARGV == 4 or #ARGV == 6 then
  local name, id = ARGV[2], ARGV[3]
  if call('ZREM', P .. 'ends:' .. name, ARGV[4]) == 1 then
    call('HDEL', P .. 'jobs:' .. name, id)
    call('HINCRBY', P .. 'topic:' .. name, 'succeeded', '1')
    if ARGV[5] and call('APPEND', P .. 'recent:' .. ARGV[5], ARGV[6]) == #ARGV[6] then
      call('ZADD', P .. 'recent', tonumber(ARGV[5], 32), ARGV[5])
    end
    return 1
  end
end

--#include lease_events
local byte, sub, find_in, unpack_ = string.byte, string.sub, string.find, struct.unpack
local a, reply, left, kept, ended = 3, { 0 }, false, nil, nil
-- Functions for lanes, once an ack of a job with a group needs them.
local lanes

-- Returns the member of `ends` of a running job with a group, and the group.
local function lane_end(raw, id, token)
  local record = sub(raw, $entry.token + unpack_($entry[length], raw, $entry.length))
  local group = sub(record, $record.tail + 1, $record.tail + byte(record, $record.tail))
  return token .. '\1' .. id .. '\0' .. group, group
end

-- Counts the end of a lease in its lane.
local function release(name, group)
  if not lanes then
    --#include lanes
    lanes = { of = lanes_of, release = lane_release, save = save_lanes }
  end
  lanes.release(lanes.of(name), group)
end

-- Removes jobs of a topic that leave nothing, and the ends of their leases.
local function remove(name, ids, ends)
  call('ZREM', P .. 'ends:' .. name, unpack(ends))
  call('HDEL', P .. 'jobs:' .. name, unpack(ids))
  call('HINCRBY', P .. 'topic:' .. name, 'succeeded', #ids)
end

-- Checks plain acks one by one, when some need a notification or the engine: each lease has a mark whether its ack
-- may remove the job, or leaves a tombstone. `found`: entries of the ids.
local function check_acks(name, ids, ends, found, r)
  local gone, gone_ends = {}, {}
  for i = 1, #ids do
    local raw, id, token, ack = found[i], ids[i], sub(ends[i], 1, $end.id - 1), $ack.looks
    local runs = raw and byte(raw) == $running
    if runs and find_in(raw, token, $entry.token, true) == $entry.token then ack = byte(raw, $entry.ack) end
    reply[r + i] = 1
    if ack == $ack.removes then
      gone[#gone + 1], gone_ends[#gone + 1] = id, ends[i]
      add_lease_event(sub(raw, $entry.token, $entry.grace - 1), 'settled')
    elseif ack == $ack.keeps then
      kept = kept or {}
      kept[#kept + 1] = { place = r + i, topic = name, id = id, token = token, raw = raw }
    elseif ack == $ack.lane_removes then
      local group
      gone[#gone + 1] = id
      gone_ends[#gone_ends + 1], group = lane_end(raw, id, token)
      release(name, group)
      add_lease_event(sub(raw, $entry.token, $entry.grace - 1), 'settled')
    elseif ack == $ack.lane_keeps then
      kept = kept or {}
      local ending, group = lane_end(raw, id, token)
      kept[#kept + 1] = { place = r + i, topic = name, id = id, token = token, raw = raw, ending = ending, group = group }
    else
      reply[r + i], left = 0, true
    end
  end
  if gone[1] then
    remove(name, gone, gone_ends)
    ended = ended or {}
    ended[#ended + 1] = { name, gone }
  end
end

-- Settles the plain acks of a section, from `first` on; returns whether all were settled at once. An id that comes
-- twice in a call is never plain.
local function settle_plain(name, count, ours, first)
  local n, r = count + 0, #reply
  local middle, last = first + n, first + 2 * n - 1
  if ours and call('ZREM', P .. 'ends:' .. name, unpack(ARGV, middle, last)) == n then
    call('HDEL', P .. 'jobs:' .. name, unpack(ARGV, first, middle - 1))
    call('HINCRBY', P .. 'topic:' .. name, 'succeeded', count)
    for i = 1, n do reply[r + i] = 1 end
    return true
  end
  local ids = { unpack(ARGV, first, middle - 1) }
  check_acks(name, ids, { unpack(ARGV, middle, last) }, call('HMGET', P .. 'jobs:' .. name, unpack(ids)), r)
  return false
end

if #ARGV <= 6 then
  settle_plain(ARGV[2], 1, true, 3)
  a = #ARGV + 1
else
  for _ = 1, ARGV[2] do
    local done = settle_plain(ARGV[a], ARGV[a + 1], ARGV[a + 2] == '1', a + 3)
    local seconds = a + 3 + 2 * ARGV[a + 1]
    a = seconds + 1 + 2 * ARGV[seconds]
    for s = seconds + 1, a - 1, 2 do
      if done and call('APPEND', P .. 'recent:' .. ARGV[s], ARGV[s + 1]) == #ARGV[s + 1] then
        call('ZADD', P .. 'recent', tonumber(ARGV[s], 32), ARGV[s])
      end
    end
  end
end
if not left and not kept and not ended then
  publish_lease_events()
  return 1
end

--#include clock
--#include ended_ids
local soonest = 0

for _, section in ipairs(ended or {}) do
  for _, id in ipairs(section[2]) do note_ended(section[1], id, $phase.succeeded) end
end

-- Returns the message after its length (`stored.proto`).
local function with_length(bytes)
  local length = #bytes
  if length < 128 then return string.char(length) .. bytes end
  return string.char(length % 128 + 128, math.floor(length / 128)) .. bytes
end

-- Writes tombstones of jobs of one topic that had only this one lease and leave nothing else.
local function write_tombstones(name, acks)
  local global, n = name .. '\0', 0
  local records, done, alarms, ends, last, times, till = {}, {}, {}, {}, nil, nil, nil
  for i = 1, #acks do
    local id, token, raw = acks[i].id, acks[i].token, acks[i].raw
    local at = $entry.token + unpack_($entry[length], raw, $entry.length)
    local lease, record = sub(raw, $entry.token, at - 1), sub(raw, at)
    local keep, due = unpack_($record[keep], record, $record.keep), unpack_($record[due], record)
    if keep > 0 then
      reply[acks[i].place], left = 0, true
    else
      if keep ~= last then
        last, till = keep, math.min(now - keep, $time.max)
        times, till = struct.pack($ended[finished..forgotten], now, till), string.format('%d', till)
        if soonest == 0 or till + 0 < soonest then soonest = till + 0 end
      end
      local extended = byte(record, $record.inside) >= $inside.extension
      local worker = sub(lease, $lease.worker)
      -- A single delivery, its last worker, and the outcome of its lease.
      local life = '\$life.deliveries\1' .. (worker == '' and '' or '\$life.worker' .. with_length(worker))
        .. '\$life.ends\9' .. token .. '\$outcome.succeeded'
      -- Rest of the record: no headers, no payload. Its token has not been a version yet.
      records[n + 1], records[n + 2] = id, sub(record, 1, $record.apart - 1)
        .. string.char($apart.kept, $inside.life + (extended and $inside.extension or 0)) .. token
        .. sub(record, $record.bytes, $record.phase - 1) .. '\$phase.succeeded'
        .. sub(record, $record.priority, $record.expire - 1) .. times
        .. (extended and sub(record, $record.expire, $record.tail - 1) or '') .. struct.pack('>I4', #life) .. life
      done[n + 1], done[n + 2] = string.format('%d', due), sub(record, 1, $record.created - 1) .. id
      alarms[n + 1], alarms[n + 2] = till, global .. id
      ends[#ends + 1], n = acks[i].ending or token .. '\0' .. id, n + 2
      if acks[i].group then release(name, acks[i].group) end
      add_lease_event(lease, 'settled')
    end
  end
  if n == 0 then return end
  call('HSET', P .. 'jobs:' .. name, unpack(records))
  call('ZADD', P .. 'done:$phase.succeeded:' .. name, unpack(done))
  call('ZADD', P .. 'alarms', unpack(alarms))
  call('ZREM', P .. 'ends:' .. name, unpack(ends))
  call('HINCRBY', P .. 'topic:' .. name, 'succeeded', #ends)
end

if kept then
  -- Acks of one topic follow each other.
  local acks = {}
  for i = 1, #kept do
    acks[#acks + 1] = kept[i]
    local next_ = kept[i + 1]
    if not next_ or next_.topic ~= kept[i].topic then
      write_tombstones(kept[i].topic, acks)
      acks = {}
    end
  end
end

reply[1] = soonest
if lanes then lanes.save() end
publish_lease_events()
return reply
