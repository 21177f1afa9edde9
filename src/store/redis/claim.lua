-- flags: allow-oom
-- claim: leases ready jobs to streams, in the order of each topic, within their credit and the limits of one call.
-- Jobs are distributed to streams in turn.
-- ARGV: now, 0 and the tokens (8 bytes per job that may be leased, each beginning with the nonce); per ask: topic;
-- per stream of it: its demand (`layout.rs`), which has its limits and the lease after its times; if the topic has
-- ageing, then a demand of no jobs that ends before the lease and has the ageing in place of the bytes, counted like a
-- stream; unless the call has one ask of one stream: for each ask the number of streams (2 bytes).
-- Reply: now, start of the leases (0: there are none), then per ask: rest (-1 more jobs are ready, -2 not known: ask
-- again, 0 none, else the time when the next is due), number of jobs, whether streams are listed (0 or 1), number of
-- extras; the members (due time, arrival and id), the records, the streams (from 0), the extras (number of the job
-- from 0, payload, checkpoint; false: not apart). All in one list: each nested list costs as much as a call. One job
-- for one stream, without special properties, is returned as one string: now 7, start of its lease 7, rest 7 (-1 as
-- 1), length of the id 1, id, record.
--#include clock
local pack, unpack_, byte, sub = struct.pack, struct.unpack, string.byte, string.sub
local tokens, counts = ARGV[2], nil
local void = sub(tokens, 1, 5)
-- Start of the leases of this call, and of those of the last claim of the shard. Deadlines are counted from `now`.
local started, last_start

-- Returns the start of the leases: now, but later than all others of the shard. Two leases of one job never begin at
-- the same time, even after the clock went back.
local function begin()
  if not started then
    local text = now_text
    started = now
    if last_start and last_start + 0 >= now then
      started = last_start + 1
      text = string.format('%d', started)
    end
    call('HSET', P .. 'claims', '\1', text)
  end
  return started
end

-- Returns whether the first member comes before the second: by due time, then by arrival.
local function before(x, y)
  local due, seq = unpack_($member[due..arrival], x)
  local other_due, other_seq = unpack_($member[due..arrival], y)
  return due < other_due or (due == other_due and seq < other_seq)
end

-- Returns the earlier of two members, each of which may be absent.
local function earlier(x, y)
  if x and not (y and before(y, x)) then return x end
  return y
end

-- The most common case: one job for one stream. At this size the cost of each table counts.
if #tokens == 9 and #ARGV == 4 then
  local name, demand = ARGV[3], ARGV[4]
  local known = call('HMGET', P .. 'claims', name, void, '\1')
  last_start = known[3]
  local claims, line, order = known[1], P .. 'line:' .. name, P .. 'wait:0:' .. name
  -- A single mark: the topic has only the order of priority 0.
  if claims and #claims == $claims.marks and byte(claims, $claims.marks) == 48 and not known[2] then
    local lined, waits = call('LRANGE', line, '0', '1'), call('ZRANGE', order, '0', '1')
    local first, behind, other = lined[1], lined[2], waits[1]
    local in_line = first and not (other and before(other, first))
    if not in_line then first, behind, other = other, waits[2], first end
    if first and unpack_($member[due], first) <= now then
      local id = sub(first, $member.id)
      local record = call('HGET', P .. 'jobs:' .. name, id)
      local apart, inside = byte(record or '', $record.apart, $record.inside)
      local bytes, lease = unpack_($demand[bytes..lease], demand, $demand.bytes)
      if apart and apart <= $apart.kept and inside < $inside.life and #record <= bytes then
        local deadline = now + lease
        local times, ending = pack($lease[started..deadline], begin(), deadline), string.format('%d', deadline)
        if in_line then call('LPOP', line) else call('ZREMRANGEBYRANK', order, '0', '0') end
        local head = pack($entry[running..length], $running, #demand + ($lease.extended - $demand.extended))
        call('HSET', P .. 'jobs:' .. name, id, head .. sub(tokens, 2)
          .. (apart == 0 and '\$ack.removes' or '\$ack.keeps') .. times .. sub(demand, $demand.extended) .. record)
        call('ZADD', P .. 'ends:' .. name, ending, sub(tokens, 2) .. (apart == 0 and '' or '\0') .. id)
        if deadline < unpack_($claims[bound], claims) then
          call('HSET', P .. 'claims', name, pack($claims[bound], deadline) .. '0')
          call('ZADD', P .. 'deadlines', ending, name)
        end
        behind = earlier(behind, other)
        local rest = behind and unpack_($member[due], behind) or 0
        if behind and rest <= now then rest = 1 end
        return pack('>I7I7I7B', now, started, rest, #id) .. id .. record
      end
    end
  end
end

local char, reply, r, t, a, jobs_left = string.char, { now, 0 }, 2, 2, 3, (#tokens - 1) / 8
local bytes_left, asks, general = $call.bytes, 1, nil
if #ARGV ~= 4 then
  counts = ARGV[#ARGV]
  asks = #counts / 2
end

-- Returns the part of a page that is due, and the first member that is not.
local function due_part(page)
  local later
  for n = #page, 1, -1 do
    if unpack_($member[due], page[n]) <= now then break end
    page[n], later = nil, page[n]
  end
  return page, later
end

-- Returns the due part of an order, and the first member that is not due, unless `limit` members came before it.
local function due_of(order, limit)
  -- A short page may include members that are not due yet; a longer page would read many of them in vain.
  local page = call('ZRANGE', order, '0', limit <= 17 and limit - 1 or '0')
  if limit <= 17 or not page[1] or unpack_($member[due], page[1]) > now then return due_part(page) end
  page = call('ZRANGEBYSCORE', order, '-inf', now_text, 'LIMIT', '0', limit)
  return page, #page < limit and call('ZRANGE', order, #page, #page)[1]
end

-- Merges two sorted lists; returns at most `limit` members, and the number of them from the first list.
local function merge(x, y, limit)
  if not y[1] then return x, #x end
  if not x[1] then return y, 0 end
  local all, i, j = {}, 1, 1
  for n = 1, math.min(#x + #y, limit) do
    if x[i] and not (y[j] and before(y[j], x[i])) then
      all[n], i = x[i], i + 1
    else
      all[n], j = y[j], j + 1
    end
  end
  return all, i - 1
end

-- Returns the streams of an ask, the total number of their jobs, and the smallest byte limit of them.
local function seats_of(at, count)
  local seats, wanted, room = {}, 0, $time.max
  for index = 0, count - 1 do
    local blob = ARGV[at + index]
    local jobs, bytes, lease = unpack_($demand[jobs..lease], blob)
    if jobs > 0 then
      seats[#seats + 1] = { index = index, jobs = jobs, lease = lease, blob = blob }
      wanted, room = wanted + jobs, math.min(room, bytes)
    end
  end
  return seats, wanted, room
end

-- Sets the common parts of the leases of a demand: the part before the token, and the part after it, both for jobs that
-- leave nothing, so that an ack may simply remove them, and for others.
local function prepare_leases(demand)
  local deadline = now + demand.lease
  local tail = pack($lease[started..deadline], begin(), deadline) .. sub(demand.blob, $demand.extended)
  demand.head = pack($entry[running..length], $running, #tail + $lease.started - 1)
  demand.plain, demand.kept = '\$ack.removes' .. tail, '\$ack.keeps' .. tail
  demand.deadline, demand.ending = deadline, string.format('%d', deadline)
end

for ask = 1, asks do
  local name, count, usual = ARGV[a], counts and unpack_('>I2', counts, 2 * ask - 1) or 1, general == nil
  -- A cancelled claim is not executed: see `cancel_claim.lua`.
  local known = call('HMGET', P .. 'claims', name, void, '\1')
  local claims = not known[2] and known[1]
  last_start = known[3]
  if not claims then
    reply[r + 1], reply[r + 2], reply[r + 3], reply[r + 4] = 0, 0, 0, 0
    r = r + 4
  elseif usual and sub(claims, $claims.marks) == '0' then
    -- The common case: priority 0 only, and jobs without special properties.
    local line, order, seats, wanted, room = P .. 'line:' .. name, P .. 'wait:0:' .. name, seats_of(a + 1, count)
    local limit = (wanted < jobs_left and wanted or jobs_left) + 1
    local lined, behind = due_part(call('LRANGE', line, '0', limit - 1))
    local waits, other = due_of(order, limit)
    local page, of_line = merge(lined, waits, limit)
    local n = #page
    if n == limit then
      if page[n] == lined[of_line] then of_line = of_line - 1 end
      n, behind = n - 1, page[n]
    else
      behind = earlier(behind, other)
    end
    local rest, size, anything, records = 0, 0, 0, nil
    if behind then
      rest = unpack_($member[due], behind)
      if rest <= now then rest = -1 end
    end
    local ids = {}
    if n > 0 then
      for i = 1, n do ids[i] = sub(page[i], $member.id) end
      records = call('HMGET', P .. 'jobs:' .. name, unpack(ids))
    end
    for i = 1, n do
      local record = records[i]
      if not record then usual = false break end
      local apart, inside = byte(record, $record.apart, $record.inside)
      -- The record is a little longer than its counted bytes.
      size, anything = size + #record, anything + apart
      if apart > $apart.kept or inside % (2 * $inside.life) >= $inside.life then usual = false end
      if inside >= $inside.extension then
        local expires, own_lease = unpack_($record[expire,own_lease], record, $record.expire)
        if expires + own_lease > 0 then usual = false end
      end
    end
    usual = usual and size <= room and size + n <= bytes_left
    if usual then
      local several = count > 1
      reply[r + 1], reply[r + 2], reply[r + 3], reply[r + 4] = rest, n, several and 1 or 0, 0
      if n > 0 then
        local leases, deadlines, l, at, turn, bound, ending = {}, {}, 0, r + 4, 1, $time.max, nil
        for i = 1, n do
          local demand, id, record, token = seats[turn], ids[i], records[i], sub(tokens, t + 8 * i - 8, t + 8 * i - 1)
          if not demand.head then
            prepare_leases(demand)
            if demand.deadline < bound then bound, ending = demand.deadline, demand.ending end
          end
          leases[l + 1], deadlines[l + 1] = id, demand.ending
          if anything == 0 or byte(record, $record.apart) == 0 then
            leases[l + 2], deadlines[l + 2] = demand.head .. token .. demand.plain .. record, token .. id
          else
            leases[l + 2], deadlines[l + 2] = demand.head .. token .. demand.kept .. record, token .. '\0' .. id
          end
          reply[at + i], reply[at + n + i] = page[i], record
          l = l + 2
          -- Jobs are distributed in turn.
          if several then
            reply[at + 2 * n + i], demand.jobs = demand.index, demand.jobs - 1
            if demand.jobs > 0 then turn = turn + 1 else table.remove(seats, turn) end
            if turn > #seats then turn = 1 end
          end
        end
        if of_line > 0 then call('LTRIM', line, of_line, '-1') end
        if of_line < n then call('ZREMRANGEBYRANK', order, '0', n - of_line - 1) end
        call('HSET', P .. 'jobs:' .. name, unpack(leases))
        call('ZADD', P .. 'ends:' .. name, unpack(deadlines))
        if bound < unpack_($claims[bound], claims) then
          call('HSET', P .. 'claims', name, pack($claims[bound], bound) .. sub(claims, $claims.marks))
          call('ZADD', P .. 'deadlines', ending, name)
        end
        t, jobs_left, bytes_left = t + 8 * n, jobs_left - n, bytes_left - size - n
      end
      r = r + 4 + (several and 3 or 2) * n
    end
  else
    usual = false
  end
  if claims and not usual and not general then
    --#include claim_general
  end
  if claims and not usual then general(name, a + 1, count) end
  a = a + 1 + count
end
reply[2] = started or 0
return reply
