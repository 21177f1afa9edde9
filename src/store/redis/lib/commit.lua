-- Body of `commit.lua` and `commit_growing.lua`, which differ in whether they may use memory when Redis is full.
--#include clock
--#include lease_events
--#include ready_list
--#include record
--#include ended_ids
--#include id_history
local REMOVE, WRITE, ARRIVE = 0, 1, 2
-- Kinds of items.
local MOVES, LIMITED = 1, 2
local NEWS = { 'settled', 'expired', 'deleted' }
local reply, a, topics = { now, 0 }, 2, {}

local function topic(name, creates)
  local k = topics[name] or creates and topic_or_create(name) or topic_of(name)
  topics[name] = k
  return k
end

-- Returns whether a topic has no room for one more waiting job and these bytes. Most calls never need it.
local function has_no_room(name, max_waiting, max_bytes, bytes)
  --#include order_of_mark
  --#include waiting_count
  if bytes > 0 and max_bytes < $time.max then
    if (call('HGET', P .. 'topic:' .. name, 'bytes') or 0) + bytes > max_bytes then return true end
  end
  return max_waiting < $time.max and waiting_count(name) >= max_waiting
end

-- Adds to the counted bytes of a topic.
local function add_bytes(k, number)
  if number ~= 0 then call('HINCRBY', k.key, 'bytes', number) end
end

-- Returns the bytes of a job that are in the count of its topic.
local function counted_bytes(j)
  return j.apart >= $apart.counted and j.bytes or 0
end

-- Returns whether a job is still in the state on which the decision was based.
local function is_unchanged(name, id, raw, expected)
  -- A server-made id without a history.
  if expected == '?' then return not raw and not memory(name, id) end
  if not raw or expected == '' then return not raw and expected == '' end
  local lease, record = parts_of(raw)
  if sub(record, $record.version, $record.bytes - 1) ~= sub(expected, 1, 8) then return false end
  if #expected == 8 or not lease then return #expected == 8 and not lease end
  if sub(lease, $lease.token, $lease.ack - 1) ~= sub(expected, 9, 16) then return false end
  return #expected == 16 or sub(lease, $lease.deadline, $lease.extended - 1) == sub(expected, 17)
end

-- Updates a part of a job.
local function change_part(more, id, what, value)
  local kind, how = sub(what, 1, 1), sub(what, 2)
  if how == '+' then
    call('HSET', more, kind .. id, value)
  elseif how == '-' then
    call('HDEL', more, kind .. id)
  elseif how == '^' then
    -- The part is missing only if it was removed by hand: an error here would leave half of an item.
    local next_ = call('HGET', more, 'q' .. id)
    if next_ then call('HSET', more, kind .. id, next_) else call('HDEL', more, kind .. id) end
    call('HDEL', more, 'q' .. id)
  else
    local kept = how == '0' and '' or sub(call('HGET', more, kind .. id) or '', 1, how + 0)
    call('HSET', more, kind .. id, value .. kept)
  end
end

-- Kinds of parts that are stored apart, by the bits of their flags.
local KINDS = { { $apart.payload, 'p' }, { $apart.next, 'q' }, { $apart.attempts, 'h' }, { $apart.result, 'r' },
                { $apart.checkpoint, 'c' } }

local function kinds_of(j)
  local kinds = {}
  for i = 1, #KINDS do
    if band(j.apart, KINDS[i][1]) ~= 0 then kinds[#kinds + 1] = KINDS[i][2] .. j.id end
  end
  return kinds
end

-- Removes a job with all its parts. `to`: the topic that takes over the parts.
local function remove(j, to)
  leave(j)
  call('HDEL', j.k.jobs, j.id)
  if j.apart <= $apart.kept then return end
  add_bytes(j.k, -counted_bytes(j))
  local kinds = kinds_of(j)
  for i = 1, to and #kinds or 0 do
    -- A redriven job has no result.
    local part = string.byte(kinds[i]) ~= 114 and call('HGET', j.k.more, kinds[i])
    if part then call('HSET', to.more, kinds[i], part) end
  end
  if kinds[1] then call('HDEL', j.k.more, unpack(kinds)) end
end

-- Builds the record of a plan: its times are counted from now where its mode has their bits.
local function record_of(k, id, plan, rest, arrival)
  local mode, due, created, expire, finished, forgotten = sunpack($plan[mode..forgotten], plan, $plan.mode)
  if band(mode, 1) ~= 0 then due = plus(now, due) end
  if band(mode, 2) ~= 0 then created = plus(now, created) end
  if band(mode, 4) ~= 0 then expire = plus(now, expire) end
  if band(mode, 8) ~= 0 then finished = plus(now, finished) end
  if band(mode, 16) ~= 0 then forgotten = plus(now, forgotten) end
  local fixed, extension = sub(plan, $plan.fixed, $plan.extension - 1), sub(plan, $plan.extension)
  local record = spack($record[due..created], due, arrival, created) .. fixed
  if string.byte(fixed, $fixed.phase) ~= 0 then record = record .. spack($ended[finished..forgotten], finished, forgotten) end
  if extension ~= '' then record = record .. spack($record[expire], expire) .. extension end
  local j = head_of(k, id, record .. rest)
  j.forgotten, j.runs = forgotten, band(mode, 32) ~= 0
  -- For a job that continues to run these are the deadline of its lease and the time of its extension (0: unchanged).
  if j.runs and finished ~= 0 then j.deadline, j.extended = finished, forgotten end
  return j
end

local function stand(j)
  if j.phase == 0 then return join(j) end
  call('ZADD', P .. 'done:' .. j.phase .. ':' .. j.k.name, text(j.due), member(j))
  call('ZADD', P .. 'alarms', text(j.forgotten), global_member(j))
  alarm_at(j.forgotten)
end

-- Updates a job that continues to run, under the same lease.
local function keep_running(before, j)
  j.lease = before.lease
  entangle(j)
  if j.deadline then
    j.lease.extended = j.extended
    ends_at(j, j.deadline)
    add_lease_event(j.lease.raw, 'extended@' .. text(j.deadline))
  end
  save(j)
end

local function count(k, field, number)
  if number > 0 then call('HINCRBY', k.key, field, number) end
end

-- Executes the write at `w`; `raw`: entry of its id; `mover`: the job in its source topic, if it moves here.
local function write(w, raw, mover)
  local name, id, plan, rest = ARGV[w], ARGV[w + 1], ARGV[w + 3], ARGV[w + 4]
  local what, enqueued, succeeded, dead, ended, news = sunpack($plan[what..news], plan)
  local k = topic(name, what == ARRIVE or enqueued > 0)
  local before = raw and job_of(k, id, raw)
  if news > 0 then add_lease_event(before.lease.raw, NEWS[news]) end
  count(k, 'succeeded', succeeded)
  count(k, 'dead', dead)
  if ended > 0 then note_ended(name, id, ended) end
  if what == REMOVE then
    -- The following write, in the target topic, removes the job from its source.
    if enqueued > 0 then call('HINCRBY', k.key, 'arrived', enqueued) end
    if before and not mover then remove(before) end
    return
  end
  local arrival = before and before.arrival
  if what == ARRIVE then
    arrival = call('HINCRBY', k.key, 'arrived', math.max(enqueued, 1))
    if enqueued == 0 then call('HINCRBY', k.key, 'ignored', '1') end
    if before then remove(before) end
    if mover then remove(mover, k) end
  else
    count(k, 'arrived', enqueued)
  end
  for part = w + 6, w + 4 + 2 * ARGV[w + 5], 2 do change_part(k.more, id, ARGV[part], ARGV[part + 1]) end
  local j = record_of(k, id, plan, rest, arrival)
  -- A job that moves is counted where the others of its new topic are.
  if mover then set_counted(j, call('HGET', k.key, 'bytes') ~= false) end
  add_bytes(k, counted_bytes(j) - (before and what == WRITE and counted_bytes(before) or 0))
  if j.runs then return keep_running(before, j) end
  if before and what == WRITE then leave(before) end
  save(j)
  stand(j)
end

while a <= #ARGV do
  local writes, from, till, kind = sunpack($item[writes..kind], ARGV[a])
  local limited, max_waiting, max_bytes, bytes
  a = a + 1
  if kind == LIMITED then
    limited, max_waiting, max_bytes, bytes = ARGV[a], ARGV[a + 1] + 0, ARGV[a + 2] + 0, ARGV[a + 3] + 0
    a = a + 4
  end
  local first, found, holds = a, {}, now >= from and now < till
  for i = 1, writes do
    found[i] = call('HGET', P .. 'jobs:' .. ARGV[a], ARGV[a + 1])
    holds = holds and is_unchanged(ARGV[a], ARGV[a + 1], found[i], ARGV[a + 2])
    a = a + 6 + 2 * ARGV[a + 5]
  end
  local is_full = holds and limited and has_no_room(limited, max_waiting, max_bytes, bytes)
  if holds and not is_full then
    local w = first
    for i = 1, writes do
      -- A job that moves is two writes: its removal, and its arrival in another topic.
      local mover
      if kind == MOVES then mover = job_of(topic(ARGV[first]), ARGV[first + 1], found[1]) end
      write(w, found[i], mover)
      w = w + 6 + 2 * ARGV[w + 5]
    end
  end
  reply[#reply + 1] = is_full and 2 or holds and 1 or 0
end
reply[2] = upkeep
store_lanes()
publish_lease_events()
return reply
