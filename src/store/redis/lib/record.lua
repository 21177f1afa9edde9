-- A job's record: read, written, and put where its state says. Places are named in `layout.rs`, what they mean is told
-- in `record.rs`, the keys in `keys.rs`. Slow but complete: scripts do their common case without it. Needs `line.lua`.
local spack, sunpack, sub, band = struct.pack, struct.unpack, string.sub, bit.band
local NO_REQUEST = string.rep('\0', 8)
-- Phases of a job that is finished; one that waits or runs is in phase 0.
local SUCCEEDED, DEAD, CANCELLED, EXPIRED = $phase.succeeded, $phase.dead, $phase.cancelled, $phase.expired
-- States, as replies have them; for those of finished jobs see `state_in`.
local SCHEDULED, READY, RUNNING, BACKOFF = 0, 1, 2, 3
-- Of a former lease the token and how it ended; as many of them as are remembered.
local PAST_BYTES, PAST_BYTES_MAX = 9, 9 * ($limit.attempts + 1)
-- The mark of a line with gaps, how many are a few, how many members leave it for each gap that is too many, and how
-- many for all gaps of one script.
local GAPS, GAPS_MIN, GAPS_STEP, GAPS_LOOKS = '-', 512, 16, 512
-- The earliest time at which something happens by itself because of this call; 0: none.
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

-- The keys of a topic, and what claims have to know of it: the marks of the orders that it may have jobs in, and a time
-- before which none of its leases ends. nil: there is no such topic.
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
  -- No lease that could end.
  call('HSET', P .. 'claims', name, spack($claims[bound], $time.max) .. '0')
  call('ZADD', P .. 'topics', '0', name)
  return topic_of(name)
end

-- A record as a table. `tail` is what no script looks into: headers, retry policy and payload.
local function parse(k, id, raw)
  local j = { k = k, id = id, expire = 0, has_request = 0, request = NO_REQUEST, own_lease = 0, retention = 0 }
  local apart, inside
  j.due, j.arrival, j.created, apart, inside, j.bytes, j.phase, j.priority, j.generation, j.failures,
    j.deliveries, j.keep = sunpack($record[due..keep], raw)
  local at = $record.expire
  if band(inside, $inside.extension) ~= 0 then
    j.expire, j.has_request, j.request, j.own_lease, j.retention =
      sunpack($record[expire..retention], raw, at)
    at = $record.tail
  end
  j.has_story, j.large = band(apart, $apart.story) ~= 0, band(apart, $apart.payload) ~= 0
  j.next = band(apart, $apart.next) ~= 0
  j.has_history, j.has_result = band(apart, $apart.history) ~= 0, band(apart, $apart.result) ~= 0
  j.holds, j.tail = band(inside, $inside.body + $inside.terms), sub(raw, at)
  return j
end

local function format(j)
  local apart = (j.keep ~= 0 and $apart.kept or 0) + (j.has_story and $apart.story or 0)
    + (j.large and $apart.payload or 0) + (j.next and $apart.next or 0)
    + (j.has_history and $apart.history or 0) + (j.has_result and $apart.result or 0)
  local extended = j.expire ~= 0 or j.has_request ~= 0 or j.own_lease ~= 0 or j.retention ~= 0
  local inside = j.holds + (extended and $inside.extension or 0)
  local head = spack($record[due..keep], j.due, j.arrival, j.created, apart, inside, j.bytes,
    j.phase, j.priority, j.generation, j.failures, j.deliveries, j.keep)
  if extended then
    head = head .. spack($record[expire..retention], j.expire, j.has_request, j.request, j.own_lease, j.retention)
  end
  return head .. j.tail
end

-- What became of the job so far; empty for one that was never leased.
local function story(j)
  if j.s then return j.s end
  j.s = { first = 0, finished = 0, forgotten = 0, worker = '', error = '', progress = '', past = '' }
  local raw = j.has_story and call('HGET', j.k.more, 's' .. j.id)
  if raw then
    local s = j.s
    s.first, s.finished, s.forgotten, s.worker, s.error, s.progress, s.past =
      sunpack($story[first_start..past], raw)
  end
  return j.s
end

local function save_story(j)
  local s = j.s
  if not s then return end
  local empty = s.first + s.finished + s.forgotten == 0
    and s.worker .. s.error .. s.progress .. s.past == ''
  if empty then
    if j.has_story then call('HDEL', j.k.more, 's' .. j.id) end
  else
    call('HSET', j.k.more, 's' .. j.id, spack($story[first_start..past], s.first, s.finished, s.forgotten,
      #s.worker, s.worker, #s.error, s.error, #s.progress, s.progress, #s.past, s.past))
  end
  j.has_story = not empty
end

local function lease_of(raw)
  local l = { raw = raw }
  l.token, l.ack, l.started, l.deadline, l.first, l.extended, l.owner, l.stream, l.grace,
    l.duration = sunpack($lease[token..duration], raw)
  if l.first == 0 then l.first = l.started end
  l.worker = sub(raw, $lease.worker)
  return l
end

local function format_lease(l)
  local raw = spack($lease[token..duration], l.token, l.ack, l.started, l.deadline, l.first, l.extended,
    l.owner, l.stream, l.grace, l.duration) .. l.worker
  return spack($entry[running..length], $running, #raw) .. raw
end

local function save(j)
  save_story(j)
  call('HSET', j.k.jobs, j.id, (j.lease and format_lease(j.lease) or '') .. format(j))
end

-- Of what lies under an id the lease, if the job runs, and the record.
local function parts_of(raw)
  if string.byte(raw) ~= $running then return nil, raw end
  local at = $entry.token + sunpack($entry[length], raw, $entry.length)
  return sub(raw, $entry.token, at - 1), sub(raw, at)
end

-- The job as it lies there, with its lease if it runs.
local function load(k, id)
  local raw = call('HGET', k.jobs, id)
  if not raw then return nil end
  local lease, record = parts_of(raw)
  local j = parse(k, id, record)
  if lease then j.lease = lease_of(lease) end
  return j
end

-- The state of a job in this phase, which is finished: 4 succeeded, 5 dead, 6 cancelled, 7 expired.
local function state_in(phase) return phase + 2 end

local function state(j)
  if j.lease then return RUNNING end
  if j.phase ~= 0 then return state_in(j.phase) end
  if j.due <= now then return READY end
  return j.failures == 0 and SCHEDULED or BACKOFF
end

-- === where a job lies ===

local function global_member(j) return j.k.name .. '\0' .. j.id end

local function member(j) return spack($member[due..arrival], j.due, j.arrival) .. j.id end

-- Jobs that never failed and those that did lie apart, so that either can be counted and listed.
local function order_of(j)
  return P .. (j.failures > 0 and 'back:' or 'wait:') .. j.priority .. ':' .. j.k.name
end

-- The mark of an order in the topic's `marks`: a digit, or from `a` on for jobs that failed.
local function mark(k, priority, failed)
  local letter = string.char((failed and 97 or 48) + priority)
  if not string.find(k.marks, letter, 1, true) then
    k.marks = k.marks .. letter
    note_claims(k)
  end
end

local function wake(k, due)
  call('PUBLISH', P .. 'w', text(due) .. ' ' .. k.name)
end

-- How a running job is called among the ends of leases: a plain ack finds it there by its token, and what is
-- not plain it does not find.
local function end_of(j)
  return j.lease.token .. (j.lease.ack == $ack.removes and '' or '\0') .. j.id
end

-- The lease of the job ends then, maybe before all others of the topic.
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

-- From now on an ack of the running job has to look at what hangs on it. The caller saves it.
local function entangle(j)
  if j.lease.ack == $ack.removes then
    call('ZREM', j.k.ends, end_of(j))
    j.lease.ack = $ack.looks
    call('ZADD', j.k.ends, text(j.lease.deadline), end_of(j))
  end
  j.lease.ack = $ack.looks
end

-- The job waits; whoever sleeps is told if it is now the first of its order.
local function join(j)
  local key, m = order_of(j), member(j)
  call('ZADD', key, text(j.due), m)
  mark(j.k, j.priority, j.failures > 0)
  if j.expire ~= 0 then
    call('ZADD', P .. 'alarms', text(j.expire), global_member(j))
    alarm_at(j.expire)
  end
  if call('ZRANGE', key, '0', '0')[1] == m then wake(j.k, j.due) end
end

-- Whether the line has no gap.
local function note_gaps(k, closed)
  local marked = string.find(k.marks, GAPS, 1, true) ~= nil
  if closed ~= marked then return end
  k.marks = closed and string.gsub(k.marks, '%' .. GAPS, '') or k.marks .. GAPS
  note_claims(k)
end

-- A job that stands in the line leaves a gap there. Once half of a line is gaps, and these are not a few, each
-- further one takes some members off its head: what was cancelled does not outlast what waits by much.
local function leave_line(j)
  if j.priority > 0 or j.failures > 0 or j.expire ~= 0 then return end
  local k, closed = j.k, false
  local gaps = string.find(k.marks, GAPS, 1, true) and tonumber(call('HGET', k.key, 'gaps')) or 0
  if gaps >= GAPS_MIN and 2 * gaps > call('LLEN', P .. 'line:' .. k.name) then
    closed = select(2, shift(k.name, GAPS_STEP, GAPS_LOOKS))
    -- It may have been one of those.
    if call('ZREM', order_of(j), member(j)) == 1 then return note_gaps(k, closed) end
  end
  count_gaps(k.name, 1)
  note_gaps(k, false)
end

-- The job is taken from wherever its state has put it. The caller saves or forgets it.
local function leave(j)
  if j.lease then
    local s = story(j)
    s.worker, s.first = j.lease.worker, j.lease.first
    call('ZREM', j.k.ends, end_of(j))
    j.lease = nil
  elseif j.phase == 0 then
    if call('ZREM', order_of(j), member(j)) == 0 then leave_line(j) end
    if j.expire ~= 0 then call('ZREM', P .. 'alarms', global_member(j)) end
  else
    call('ZREM', P .. 'done:' .. j.phase .. ':' .. j.k.name, member(j))
    call('ZREM', P .. 'alarms', global_member(j))
  end
end
