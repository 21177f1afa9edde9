-- flags: allow-oom
-- settle: end leases as decided. The token alone decides whether a settle counts.
-- ARGV: now; of one plain ack alone topic, id and token. Of anything else: topics with plain acks; per topic:
--       its name, acks, their ids, their tokens. Then the other settles; per settle: topic, id, token, step
--       (`a` ack, `w` wait, `d` die), deadline to guard by or empty, outcome, code of the end, counted (0 or
--       1), error, delay (empty: the due time stays), retention of the dead, result (empty, or `+` and its
--       bytes), follow-ups; per follow-up: topic, id, blob (`enqueue.rs`).
-- Reply: of a plain ack alone that counted when the attempt began. Else in a list: now (0: nothing here depends
--        on it, so it was not asked for), next upkeep (0: none), then for each settle either when the
--        attempt began (a plain ack that counted) or: code (0 settled, 1 repeated, 2 not found, 3 stale),
--        began, state.
-- A lease that is guarded by its deadline was ended by a timer or given back: its worker must stop.
local call, P = redis.call, KEYS[1]
local byte, find_in, unpack_ = string.byte, string.find, struct.unpack
local caller = string.sub(KEYS[2], -4)

-- The commonest case: for one ack alone every table counts.
if #ARGV == 4 then
  local name, id, leases = ARGV[2], ARGV[3], P .. 'leases:' .. ARGV[2]
  local lease = call('HGET', leases, id)
  if lease and find_in(lease, ARGV[4], 1, true) == 1 and byte(lease, 9) == 1
    and find_in(lease, caller, 38, true) == 38 then
    call('HDEL', leases, id)
    call('HDEL', P .. 'jobs:' .. name, id)
    call('ZREM', P .. 'ends:' .. name, id)
    call('HINCRBY', P .. 'topic:' .. name, 'succeeded', '1')
    local made = find_in(id, '~', 1, true)
    if made then
      call('APPEND', P .. 'recent:' .. string.sub(id, made + 8, made + 8), string.sub(id, -13) .. name .. '\n')
    end
    return unpack_('>I7', lease, 10)
  end
end

--#include tell
local topics, a, reply, slow, kept = ARGV[2], 3, { 0, 0 }, nil, nil
if #ARGV == 4 then topics, a = 1, 2 end

-- An ack without anything, as the slow way reads it.
local function ack_slowly(r, name, id, token)
  slow = slow or {}
  slow[#slow + 1] = { r, name, id, token, 'a', '', 1, 1, 0, '', '', 0, '', 0 }
end

-- A plain ack: the lease says that nothing hangs on its job, and that nothing stays of it (1) or something
-- does (2). An id that comes twice in a call is never plain.
for _ = 1, topics do
  local name, n, ids, r = ARGV[a], 1, a, #reply
  if a > 2 then n, ids = ARGV[a + 1] + 0, a + 1 end
  local tokens, leases_key, gone, count, made = ids + n, P .. 'leases:' .. name, nil, 0, nil
  local line = name .. '\n'
  local leases = call('HMGET', leases_key, unpack(ARGV, ids + 1, tokens))
  for i = 1, n do
    local lease, token = leases[i], ARGV[tokens + i]
    local kind = lease and find_in(lease, token, 1, true) == 1 and byte(lease, 9) or 0
    if kind == 1 then
      count = count + 1
      local id = ARGV[ids + i]
      local tilde = find_in(id, '~', 1, true)
      if tilde then
        local second = string.sub(id, tilde + 8, tilde + 8)
        made = made or {}
        local ends = made[second]
        if not ends then
          ends = {}
          made[second] = ends
        end
        ends[#ends + 1] = string.sub(id, -13) .. line
      end
      if find_in(lease, me, 38, true) ~= 38 then tell(lease, 'settled') end
      if gone then gone[count] = ARGV[ids + i] end
      reply[r + i] = unpack_('>I7', lease, 10)
    else
      gone = gone or { unpack(ARGV, ids + 1, ids + count) }
      reply[r + i] = false
      if kind == 2 then
        kept = kept or {}
        kept[#kept + 1] = { r + i, name, ARGV[ids + i], token, lease }
      else
        ack_slowly(r + i, name, ARGV[ids + i], token)
      end
    end
  end
  if not gone then
    call('HDEL', leases_key, unpack(ARGV, ids + 1, tokens))
    call('HDEL', P .. 'jobs:' .. name, unpack(ARGV, ids + 1, tokens))
    call('ZREM', P .. 'ends:' .. name, unpack(ARGV, ids + 1, tokens))
    call('HINCRBY', P .. 'topic:' .. name, 'succeeded', n)
  elseif count > 0 then
    call('HDEL', leases_key, unpack(gone))
    call('HDEL', P .. 'jobs:' .. name, unpack(gone))
    call('ZREM', P .. 'ends:' .. name, unpack(gone))
    call('HINCRBY', P .. 'topic:' .. name, 'succeeded', count)
  end
  -- What a server has named leaves no tombstone, but is recalled for a while, see `again.lua`.
  if made then
    for second, ends in pairs(made) do call('APPEND', P .. 'recent:' .. second, table.concat(ends)) end
  end
  a = tokens + n + 1
end
if not slow and not kept and a > #ARGV then
  tell_all()
  return reply
end

--#include clock
reply[1], slow = now, slow or {}
local soonest = 0

-- Makes tombstones of jobs of one topic that had one lease, this one, and leave nothing else.
local function bury(name, acks)
  local jobs, sub, ids, n = P .. 'jobs:' .. name, string.sub, {}, 0
  for i = 1, #acks do ids[i] = acks[i][3] end
  local found, global = call('HMGET', jobs, unpack(ids)), name .. '\0'
  local records, stories, done, alarms, leased, last, times, till = {}, {}, {}, {}, {}, nil, nil, nil
  for i = 1, #ids do
    local record, ack = found[i], acks[i]
    local token, lease = ack[4], ack[5]
    local keep, due = unpack_('>i8', record, 41), unpack_('>I7', record)
    if keep > 0 then
      ack_slowly(ack[1], name, ids[i], token)
    else
      if keep ~= last then
        last, till = keep, math.min(now - keep, 9007199254740991)
        times, till = struct.pack('>I7I7', now, till), string.format('%d', till)
        if soonest == 0 or till + 0 < soonest then soonest = till + 0 end
      end
      local id, extended = ids[i], byte(record, 22) >= 4
      -- What is left of the record: no headers, no payload, one delivery, succeeded.
      records[n + 1], records[n + 2] = id, sub(record, 1, 20) .. (extended and '\3\4' or '\3\0')
        .. sub(record, 23, 26) .. '\2' .. sub(record, 28, 36) .. '\0\0\0\1'
        .. sub(record, 41, extended and 78 or 48)
      local worker = sub(lease, 60)
      stories[n + 1], stories[n + 2] = 's' .. id, sub(lease, 10, 16) .. times .. string.char(#worker)
        .. worker .. '\0\0\0\0\0\0\0\0\9' .. token .. '\1'
      done[n + 1], done[n + 2] = string.format('%d', due), sub(record, 1, 13) .. id
      alarms[n + 1], alarms[n + 2] = till, global .. id
      leased[#leased + 1], n = id, n + 2
      tell(lease, 'settled')
      reply[ack[1]] = unpack_('>I7', lease, 10)
    end
  end
  if n == 0 then return end
  call('HSET', jobs, unpack(records))
  call('HSET', P .. 'more:' .. name, unpack(stories))
  call('ZADD', P .. 'done:2:' .. name, unpack(done))
  call('ZADD', P .. 'alarms', unpack(alarms))
  call('HDEL', P .. 'leases:' .. name, unpack(leased))
  call('ZREM', P .. 'ends:' .. name, unpack(leased))
  call('HINCRBY', P .. 'topic:' .. name, 'succeeded', #leased)
end

if kept then
  -- Those of a topic follow each other.
  local acks = {}
  for i = 1, #kept do
    acks[#acks + 1] = kept[i]
    local next_ = kept[i + 1]
    if not next_ or next_[2] ~= kept[i][2] then
      bury(kept[i][2], acks)
      acks = {}
    end
  end
end

while a <= #ARGV do
  local r = #reply + 1
  local item = { r }
  for i = 0, 12 do item[i + 2] = ARGV[a + i] end
  item.at = a + 13
  a = a + 13 + 3 * tonumber(item[14])
  reply[r] = false
  slow[#slow + 1] = item
end

if #slow > 0 then
  --#include record
  --#include lifecycle
  --#include actions
  --#include arrive

  -- The job that this token leases; or nothing, and what is there instead.
  local function leased(k, id, token)
    local j = find(k, id)
    if not j or j.phase == 4 then return nil, 2 end
    if j.lease and j.lease.token == token then return j end
    return nil, 3, j
  end

  -- A settle that was applied before is success, as far back as the job remembers.
  local function repeated(j, token, code)
    local past = story(j).past
    for at = 1, j.lease and 90 or 99, 9 do
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
      j.deliv = j.deliv + 1
      s.past = sub(lease.token .. string.char(ended.code) .. s.past, 1, 99)
    elseif j.keep > 0 then
      remember(j, lease, ended)
    end
    finish(j, 2, now, result)
  end

  local function die(j, ended, retention)
    local lease = j.lease
    leave(j)
    if j.next then return hand_on(j, lease, ended.code) end
    call('HINCRBY', j.k.key, 'dead', '1')
    remember(j, lease, ended)
    conclude(j, 3, now, plus(now, retention))
  end

  local function again(j, ended, delay)
    local lease = j.lease
    leave(j)
    if j.next then return hand_on(j, lease, ended.code) end
    remember(j, lease, ended)
    if delay ~= '' then j.due = plus(now, tonumber(delay)) end
    wait(j)
  end

  local function settle(item)
    local k = topic_of(item[2])
    if not k then return { 2, 0, 0 } end
    local ended = { outcome = tonumber(item[7]), code = tonumber(item[8]),
                    counted = tonumber(item[9]), error = item[10] }
    local j, refused, other = leased(k, item[3], item[4])
    if not j then
      if other and repeated(other, item[4], ended.code) then return { 1, 0, state(other) } end
      return { refused, 0, 0 }
    end
    if item[6] ~= '' and tonumber(item[6]) ~= j.lease.deadline then return { 3, 0, 0 } end
    tell(j.lease.raw, item[6] ~= '' and 'expired' or 'settled')
    local step, began, gone = item[5], j.lease.started, 7
    if step == 'a' then
      ack(j, ended, item[13] ~= '' and sub(item[13], 2))
      gone = 4
    elseif step == 'w' then
      again(j, ended, item[11])
    else
      die(j, ended, tonumber(item[12]))
    end
    local at = j.gone and gone or state(j)
    for f = 0, tonumber(item[14]) - 1 do
      local place = item.at + 3 * f
      local to = topic_or_create(ARGV[place])
      arrive(to, ARGV[place + 1], ARGV[place + 2], call('HINCRBY', to.key, 'arrived', '1'))
    end
    return { 0, began, at }
  end

  for _, item in ipairs(slow) do reply[item[1]] = settle(item) end
  if upkeep ~= 0 and (soonest == 0 or upkeep < soonest) then soonest = upkeep end
end
reply[2] = soonest
tell_all()
return reply
