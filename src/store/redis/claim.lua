-- flags: allow-oom
-- claim: lease ready jobs to those who ask, in the order of each topic, within their credit and the
-- bounds of one call. Jobs go round from taker to taker.
-- ARGV: now, nonce and owner (4 bytes each), lower halves of tokens (4 bytes per job that can be
--       leased), jobs and bytes that the call may lease, asks; per ask: topic, takers; per taker:
--       stream (4 bytes), grace (7 bytes, 0: none), lease in microseconds, worker, jobs, bytes,
--       oversize (0 or 1).
-- Reply: now, then per ask: what is left (-1 more, 0 nothing, else when the next is due), members
--        (arrival and id), records, the taker of each (counted from 0; empty if there is one), extras
--        (number of the job from 0, last error or false, payload or false).
--#include clock
local pack, unpack_, byte, sub, char = struct.pack, struct.unpack, string.byte, string.sub, string.char
local nonce, owner, halves = ARGV[2], ARGV[3], ARGV[4]
local jobs_left, bytes_left = tonumber(ARGV[5]), tonumber(ARGV[6])
local bytes_whole, given, a = bytes_left, 0, 8
local now_text, reply = string.format('%.0f', now), { now }
local deadlines, alarms, expiries_left = {}, {}, 512
-- Of the ask that is being answered.
local name, ranks, turn, wanted, leases, members, records, who, extras

-- What the lease of a job looks like behind its token; and its deadline as text.
local function suffix(taker, plain, duration, first)
  local deadline = math.min(now + duration, 9007199254740991)
  return char(plain) .. pack('>I7I7I7I7', now, deadline, duration, first) .. owner .. taker.stream
    .. taker.grace .. '\0\0\0\0\0\0\0' .. taker.worker, string.format('%.0f', deadline)
end

-- Who takes a job of so many bytes; nobody when the call is full.
local function next_taker(bytes)
  if jobs_left == 0 or (bytes > bytes_left and bytes_left < bytes_whole) then return nil end
  for place = 1, #turn do
    local taker = turn[place]
    if bytes <= taker.bytes or taker.oversize then
      jobs_left, wanted = jobs_left - 1, wanted - 1
      bytes_left = math.max(bytes_left - math.max(bytes, 1), 0)
      taker.jobs, taker.bytes = taker.jobs - 1, math.max(taker.bytes - bytes, 0)
      taker.oversize = false
      if #turn > 1 or taker.jobs == 0 then
        table.remove(turn, place)
        if taker.jobs > 0 then turn[#turn + 1] = taker end
      end
      return taker
    end
  end
end

-- The lease of a job with a past, a payload apart, or a lease duration of its own.
local function special(taker, id, f1, own)
  local first, more = now, P .. 'more:' .. name
  local failure, payload = false, false
  if f1 % 4 >= 2 then
    local began, _
    began, _, _, _, failure = unpack_('>I7I7I7Bc0I4c0', call('HGET', more, 's' .. id))
    if began ~= 0 then first = began end
  end
  if f1 % 8 >= 4 then payload = call('HGET', more, 'p' .. id) end
  if failure or payload then
    local e = #extras
    extras[e + 1], extras[e + 2], extras[e + 3] = #members, failure, payload
  end
  return suffix(taker, f1 == 0 and 1 or 0, own > 0 and own - 1 or taker.lease, first)
end

-- Takes from a page of ready jobs into `out`; whether it stopped because nobody can take the next one.
-- What has expired is left for `expired`.
local function take(page, found, out, expired)
  local global = name .. '\0'
  for i = 1, #page do
    local record, id, own, expires = found[i], sub(page[i], 7), 0, 0
    local f1, f2, bytes = unpack_('>BBI4', record, 21)
    if f2 >= 4 then expires, own = unpack_('>I7xxxxxxxxxI7', record, 49) end
    if expires ~= 0 and expires <= now then
      expired[#expired + 1] = id
    else
      local taker = next_taker(bytes)
      if not taker then return true end
      local tail, deadline = taker.tail, taker.deadline
      if f1 ~= 0 or own ~= 0 then
        tail, deadline = special(taker, id, f1, own)
      elseif not tail then
        -- Nothing but the job's own fields hangs on it: its ack may simply remove them.
        taker.tail, taker.deadline = suffix(taker, 1, taker.lease, now)
        tail, deadline = taker.tail, taker.deadline
      end
      local l, d, n = #leases, #deadlines, #members + 1
      leases[l + 1] = id
      leases[l + 2] = nonce .. sub(halves, 4 * given + 1, 4 * given + 4) .. tail
      deadlines[d + 1], deadlines[d + 2] = deadline, global .. id
      if expires ~= 0 then alarms[#alarms + 1] = global .. id end
      given = given + 1
      members[n], records[n], who[n] = page[i], record, taker.index
      out[#out + 1] = page[i]
    end
  end
  return false
end

-- Two orders of one priority are one to the outside: by due time, then by arrival.
local function merge(page, found, limit)
  local by_member, sorted = {}, {}
  for i = 1, #page do
    by_member[page[i]] = found[i]
    sorted[i] = sub(found[i], 7, 13) .. page[i]
  end
  table.sort(sorted)
  local merged, records_of = {}, {}
  for i = 1, math.min(#sorted, limit) do
    merged[i] = sub(sorted[i], 8)
    records_of[i] = by_member[merged[i]]
  end
  return merged, records_of
end

local function expire_all(ids)
  --#include record
  --#include lifecycle
  local k = topic_of(name)
  for _, id in ipairs(ids) do find(k, id) end
  expiries_left = expiries_left - #ids
end

-- Takes what is ready at one priority; whether it stopped because nobody can take more. `waits`, `backs`:
-- the order of jobs that never failed, and of those that did; either may be absent.
local function take_rank(waits, backs)
  while true do
    local limit = math.min(wanted, jobs_left) + 1
    local page = waits and call('ZRANGEBYSCORE', waits, '-inf', now_text, 'LIMIT', 0, limit) or {}
    local failed = backs and call('ZRANGEBYSCORE', backs, '-inf', now_text, 'LIMIT', 0, limit) or {}
    local read = math.max(#page, #failed)
    if read == 0 then return false end
    for _, member in ipairs(failed) do page[#page + 1] = member end
    local ids = {}
    for i = 1, #page do ids[i] = sub(page[i], 7) end
    local found = call('HMGET', P .. 'jobs:' .. name, unpack(ids))
    if #failed > 0 then page, found = merge(page, found, limit) end
    local out, expired = {}, {}
    local full = take(page, found, out, expired)
    if #out > 0 then
      if #failed == 0 and #expired == 0 then
        call('ZREMRANGEBYRANK', waits, 0, #out - 1)
      else
        if waits then call('ZREM', waits, unpack(out)) end
        if backs then call('ZREM', backs, unpack(out)) end
      end
    end
    if #expired > 0 then expire_all(expired) end
    if full or expiries_left < 0 then return true end
    if read < limit and #failed == 0 then return false end
  end
end

-- When the next job of an order is due, given that none is ready (-1: there is more to look at); a mark
-- that stands for nothing goes.
local function next_due(order, letter, rest)
  local first = call('ZRANGE', order, 0, 0, 'WITHSCORES')
  while first[1] do
    local id, due = sub(first[1], 7), tonumber(first[2])
    local record = call('HGET', P .. 'jobs:' .. name, id)
    local expires = byte(record, 22) >= 4 and unpack_('>I7', record, 49) or 0
    if expires == 0 or expires > now then return rest == 0 and due or math.min(rest, due) end
    -- It will never be due.
    expire_all({ id })
    if expiries_left < 0 then return -1 end
    first = call('ZRANGE', order, 0, 0, 'WITHSCORES')
  end
  if letter ~= '0' then
    ranks = string.gsub(ranks, letter, '')
    call('HSET', P .. 'topic:' .. name, 'ranks', ranks)
  end
  return rest
end

-- Takes from priority after priority; what is left.
local function take_all()
  local all, rest = ranks, 0
  for prio = 9, 0, -1 do
    local wait, back = char(48 + prio), char(97 + prio)
    local waits = string.find(all, wait, 1, true) and P .. 'wait:' .. prio .. ':' .. name
    local backs = string.find(all, back, 1, true) and P .. 'back:' .. prio .. ':' .. name
    if waits or backs then
      if take_rank(waits, backs) then return -1 end
      if waits then rest = next_due(waits, wait, rest) end
      if backs and rest >= 0 then rest = next_due(backs, back, rest) end
      if rest < 0 then return rest end
    end
  end
  return rest
end

for _ = 1, tonumber(ARGV[7]) do
  name = ARGV[a]
  local count = tonumber(ARGV[a + 1])
  a, turn, wanted = a + 2, {}, 0
  for index = 0, count - 1 do
    local jobs = tonumber(ARGV[a + 4])
    if jobs > 0 then
      turn[#turn + 1] = { index = index, stream = ARGV[a], grace = ARGV[a + 1],
                          lease = tonumber(ARGV[a + 2]), worker = ARGV[a + 3], jobs = jobs,
                          bytes = tonumber(ARGV[a + 5]), oversize = ARGV[a + 6] == '1' }
    end
    wanted, a = wanted + jobs, a + 7
  end
  leases, members, records, who, extras = {}, {}, {}, {}, {}
  ranks = call('HGET', P .. 'topic:' .. name, 'ranks') or ''
  local rest = take_all()
  if #leases > 0 then call('HSET', P .. 'leases:' .. name, unpack(leases)) end
  if count == 1 then who = {} end
  local r = #reply
  reply[r + 1], reply[r + 2], reply[r + 3], reply[r + 4], reply[r + 5] =
    rest, members, records, who, extras
end
if #deadlines > 0 then call('ZADD', P .. 'deadlines', unpack(deadlines)) end
if #alarms > 0 then call('ZREM', P .. 'alarms', unpack(alarms)) end
return reply
