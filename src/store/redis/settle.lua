-- flags: allow-oom
-- settle: end leases as decided. The token alone decides whether a settle counts.
-- ARGV: now; of one plain ack alone, of a lease of the caller's: topic, id, token with id, and by what the id
--       is recalled if a server has made it (`recall.lua`): second, line. Of anything else: sections of plain
--       acks; per section: topic, acks, whether the leases are the caller's (0 or 1), ids, tokens with their
--       ids, under how many seconds they are recalled; per second: it, lines. Then the other settles; per
--       settle: topic, id, token, step (`a` ack, `w` wait, `d` die), deadline to guard by or empty, outcome,
--       code of the end, counted (0 or 1), error, delay (empty: the due time stays), retention of the dead,
--       result (empty, or `+` and its bytes), follow-ups; per follow-up: topic, id, blob (`enqueue.rs`).
-- Reply: 1, if all were plain acks that counted. Else in a list: next upkeep (0: none), then for each settle
--        either 1 (such an ack) or: code (0 settled, 1 repeated, 2 not found, 3 stale), state.
-- A lease that is guarded by its deadline was ended by a timer or given back: its worker must stop.
local call, P = redis.call, KEYS[1]

-- The commonest case: for one ack alone every table counts.
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

--#include tell
local byte, sub, find_in, unpack_ = string.byte, string.sub, string.find, struct.unpack
local a, reply, slow, kept, ended = 3, { 0 }, nil, nil, nil

-- An ack without anything, as the slow way reads it.
local function ack_slowly(r, name, id, token)
  slow = slow or {}
  slow[#slow + 1] = { place = r, topic = name, id = id, token = token, step = 'a', guard = '',
                      outcome = $outcome.succeeded, code = $outcome.succeeded, counted = 0, error = '', result = '',
                      follow_ups = 0 }
end

-- Removes jobs of a topic of which nothing stays, and the ends of their leases.
local function remove(name, ids, ends)
  call('ZREM', P .. 'ends:' .. name, unpack(ends))
  call('HDEL', P .. 'jobs:' .. name, unpack(ids))
  call('HINCRBY', P .. 'topic:' .. name, 'succeeded', #ids)
end

-- Plain acks of which some are to be told to others, or are not as plain as that: each lease says whether nothing
-- hangs on its job, and nothing stays of it or something does. `found`: what lies under the ids.
local function look(name, ids, ends, found, r)
  local gone, gone_ends = {}, {}
  for i = 1, #ids do
    local raw, id, token, ack = found[i], ids[i], sub(ends[i], 1, $end.id - 1), $ack.looks
    local runs = raw and byte(raw) == $running
    if runs and find_in(raw, token, $entry.token, true) == $entry.token then ack = byte(raw, $entry.ack) end
    reply[r + i] = 1
    if ack == $ack.removes then
      gone[#gone + 1], gone_ends[#gone + 1] = id, ends[i]
      tell(sub(raw, $entry.token, $entry.grace - 1), 'settled')
    elseif ack == $ack.keeps then
      kept = kept or {}
      kept[#kept + 1] = { place = r + i, topic = name, id = id, token = token, raw = raw }
    else
      ack_slowly(r + i, name, id, token)
    end
  end
  if gone[1] then
    remove(name, gone, gone_ends)
    ended = ended or {}
    ended[#ended + 1] = { name, gone }
  end
end

-- The plain acks of a section, from `first` on; whether they were nothing else. An id that comes twice in a call
-- is never plain.
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
  look(name, ids, { unpack(ARGV, middle, last) }, call('HMGET', P .. 'jobs:' .. name, unpack(ids)), r)
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
if not slow and not kept and not ended and a > #ARGV then
  tell_all()
  return 1
end

--#include clock
--#include recall
slow = slow or {}
local soonest = 0

for _, section in ipairs(ended or {}) do
  for _, id in ipairs(section[2]) do note_ended(section[1], id, $phase.succeeded) end
end

-- Makes tombstones of jobs of one topic that had one lease, this one, and leave nothing else.
local function bury(name, acks)
  local global, n = name .. '\0', 0
  local records, stories, done, alarms, ends, last, times, till = {}, {}, {}, {}, {}, nil, nil, nil
  for i = 1, #acks do
    local id, token, raw = acks[i].id, acks[i].token, acks[i].raw
    local at = $entry.token + unpack_($entry[length], raw, $entry.length)
    local lease, record = sub(raw, $entry.token, at - 1), sub(raw, at)
    local keep, due = unpack_($record[keep], record, $record.keep), unpack_($record[due], record)
    if keep > 0 then
      ack_slowly(acks[i].place, name, id, token)
    else
      if keep ~= last then
        last, till = keep, math.min(now - keep, $time.max)
        times, till = struct.pack($story[finished..forgotten], now, till), string.format('%d', till)
        if soonest == 0 or till + 0 < soonest then soonest = till + 0 end
      end
      local extended = byte(record, $record.inside) >= $inside.extension
      local flags = string.char($apart.kept + $apart.story, extended and $inside.extension or 0)
      -- What is left of the record: no headers, no payload, one delivery.
      records[n + 1], records[n + 2] = id, sub(record, 1, $record.apart - 1) .. flags
        .. sub(record, $record.bytes, $record.phase - 1) .. '\$phase.succeeded'
        .. sub(record, $record.priority, $record.deliveries - 1) .. struct.pack($record[deliveries], 1)
        .. sub(record, $record.keep, (extended and $record.tail or $record.expire) - 1)
      local worker = sub(lease, $lease.worker)
      -- Its past is this lease, which was acknowledged.
      local past = token .. '\$outcome.succeeded'
      stories[n + 1], stories[n + 2] = 's' .. id, sub(lease, $lease.started, $lease.deadline - 1) .. times
        .. struct.pack($story[worker..past], #worker, worker, 0, '', 0, '', #past, past)
      done[n + 1], done[n + 2] = string.format('%d', due), sub(record, 1, $record.created - 1) .. id
      alarms[n + 1], alarms[n + 2] = till, global .. id
      ends[#ends + 1], n = token .. '\0' .. id, n + 2
      tell(lease, 'settled')
    end
  end
  if n == 0 then return end
  call('HSET', P .. 'jobs:' .. name, unpack(records))
  call('HSET', P .. 'more:' .. name, unpack(stories))
  call('ZADD', P .. 'done:$phase.succeeded:' .. name, unpack(done))
  call('ZADD', P .. 'alarms', unpack(alarms))
  call('ZREM', P .. 'ends:' .. name, unpack(ends))
  call('HINCRBY', P .. 'topic:' .. name, 'succeeded', #ends)
end

if kept then
  -- Those of a topic follow each other.
  local acks = {}
  for i = 1, #kept do
    acks[#acks + 1] = kept[i]
    local next_ = kept[i + 1]
    if not next_ or next_.topic ~= kept[i].topic then
      bury(kept[i].topic, acks)
      acks = {}
    end
  end
end

while a <= #ARGV do
  local r = #reply + 1
  local topic, id, token, step, guard, outcome, code, counted, error, delay, retention, result, follow_ups =
    unpack(ARGV, a, a + 12)
  slow[#slow + 1] = { place = r, topic = topic, id = id, token = token, step = step, guard = guard,
                      outcome = tonumber(outcome), code = tonumber(code), counted = tonumber(counted), error = error,
                      delay = delay, retention = tonumber(retention), result = result,
                      follow_ups = tonumber(follow_ups), at = a + 13 }
  a = a + 13 + 3 * follow_ups
  reply[r] = false
end

if #slow > 0 then
  --#include line
  --#include record
  --#include lifecycle
  --#include actions
  --#include arrive
  -- What became of a settle, as the reply has it.
  local DONE, REPEATED, NOT_FOUND, STALE = 0, 1, 2, 3

  -- The job that this token leases; or nothing, and what is there instead.
  local function leased(k, id, token)
    local j = find(k, id)
    if not j or j.phase == CANCELLED then return nil, NOT_FOUND end
    if j.lease and j.lease.token == token then return j end
    return nil, STALE, j
  end

  -- A settle that was applied before is success, as far back as the job remembers.
  local function repeated(j, token, code)
    local past = story(j).past
    local last = j.lease and PAST_BYTES_MAX - PAST_BYTES or PAST_BYTES_MAX
    for at = 1, last, PAST_BYTES do
      if sub(past, at, at + 7) == token and byte(past, at + 8) == code then return true end
    end
    return false
  end

  local function ack(j, ended, result)
    local lease = j.lease
    call('HINCRBY', j.k.key, 'succeeded', '1')
    leave(j)
    if j.next then return hand_on(j, lease, ended.code) end
    if j.keep < 0 then
      -- A tombstone keeps nothing but how it ended.
      local s = story(j)
      j.deliveries = j.deliveries + 1
      s.past = sub(lease.token .. string.char(ended.code) .. s.past, 1, PAST_BYTES_MAX)
    elseif j.keep > 0 then
      remember(j, lease, ended)
    end
    finish(j, SUCCEEDED, now, result)
  end

  local function die(j, ended, retention)
    local lease = j.lease
    leave(j)
    if j.next then return hand_on(j, lease, ended.code) end
    call('HINCRBY', j.k.key, 'dead', '1')
    remember(j, lease, ended)
    conclude(j, DEAD, now, plus(now, retention))
  end

  local function wait_again(j, ended, delay)
    local lease = j.lease
    leave(j)
    if j.next then return hand_on(j, lease, ended.code) end
    remember(j, lease, ended)
    if delay ~= '' then j.due = plus(now, tonumber(delay)) end
    wait(j)
  end

  local function settle(item)
    local k = topic_of(item.topic)
    if not k then return { NOT_FOUND, 0 } end
    local j, refused, other = leased(k, item.id, item.token)
    if not j then
      if other and repeated(other, item.token, item.code) then return { REPEATED, state(other) } end
      return { refused, 0 }
    end
    local guarded = item.guard ~= ''
    if guarded and tonumber(item.guard) ~= j.lease.deadline then return { STALE, 0 } end
    tell(j.lease.raw, guarded and 'expired' or 'settled')
    local gone = state_in(EXPIRED)
    if item.step == 'a' then
      ack(j, item, item.result ~= '' and sub(item.result, 2))
      gone = state_in(SUCCEEDED)
    elseif item.step == 'w' then
      wait_again(j, item, item.delay)
    else
      die(j, item, item.retention)
    end
    local at = j.gone and gone or state(j)
    for f = 0, item.follow_ups - 1 do
      local place = item.at + 3 * f
      local to = topic_or_create(ARGV[place])
      arrive(to, ARGV[place + 1], ARGV[place + 2], call('HINCRBY', to.key, 'arrived', '1'))
    end
    return { DONE, at }
  end

  for _, item in ipairs(slow) do reply[item.place] = settle(item) end
  if upkeep ~= 0 and (soonest == 0 or upkeep < soonest) then soonest = upkeep end
end
reply[1] = soonest
tell_all()
return reply
