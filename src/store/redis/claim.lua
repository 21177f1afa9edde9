-- flags: allow-oom
-- claim: lease ready jobs to those who ask, in the order of each topic, within their credit and the
-- bounds of one call. Jobs go round from taker to taker.
-- ARGV: now, nonce (4 bytes), lower halves of tokens (4 bytes per job that can be leased), bounds (jobs 4
--       and bytes 4 that the call may lease, asks 2, for each how many takers 2); per ask: topic; per taker
--       of it: jobs 4, lease 7, bytes 7, oversize 1, seat 15 (owner 4, stream 4, grace 7), worker.
-- Reply: now, then per ask: what is left (-1 more, 0 nothing, else when the next is due), jobs, whether
--        takers are listed (0 or 1), extras; the members (arrival and id), the records, the takers
--        (from 0), the extras (number of the job from 0, last error or false, payload or false).
--        In one list: each list within a list costs as much as a call.
--#include clock
local pack, unpack_, byte, sub, char = struct.pack, struct.unpack, string.byte, string.sub, string.char
local nonce, halves, reply, r, half, a = ARGV[2], ARGV[3], { now }, 1, 1, 5
local jobs_left, bytes_left, asks = unpack_('>I4I4I2', ARGV[4])
local bytes_whole, deadlines, d, general = bytes_left, {}, 0, nil
-- Its caller has given it up already: see unclaim.
local void = call('EXISTS', P .. 'void:' .. nonce) == 1

for ask = 1, asks do
  local name, count = ARGV[a], unpack_('>I2', ARGV[4], 9 + 2 * ask)
  local ranks, usual = not void and call('HGET', P .. 'topic:' .. name, 'ranks'), general == nil
  if not ranks then
    reply[r + 1], reply[r + 2], reply[r + 3], reply[r + 4] = 0, 0, 0, 0
    r = r + 4
  elseif usual and ranks == '0' and count == 1 then
    -- The common case: one taker, one order, and nothing special about any job.
    local jobs, lease, bytes, _, seat = unpack_('>I4I7I7Bc15', ARGV[a + 1])
    local limit, order = (jobs < jobs_left and jobs or jobs_left) + 1, P .. 'wait:0:' .. name
    local page = call('ZRANGEBYSCORE', order, '-inf', now_text, 'LIMIT', '0', limit)
    local seen, ids, found, size, kept_any = #page, nil, nil, 0, 0
    -- The last one that fills the page is only looked at.
    local full = seen == limit
    local n = full and seen - 1 or seen
    if seen > 0 then
      ids = {}
      for i = 1, seen do ids[i] = sub(page[i], 7) end
      found = call('HMGET', P .. 'jobs:' .. name, unpack(ids))
      for i = 1, seen do
        local f1, f2, more = unpack_('>BBI4', found[i], 21)
        if i <= n then
          size, kept_any = size + more, kept_any + f1
          if f1 > 1 then usual = false end
        end
        if f2 >= 4 then
          local expires, own = unpack_('>I7xxxxxxxxxI7', found[i], 49)
          if expires + own > 0 then usual = false end
        end
      end
      usual = usual and size <= bytes and size + n <= bytes_left
    end
    local rest = full and -1 or 0
    if usual and not full then
      -- What comes behind them says when to ask again; one that will never be due is not usual.
      local first = call('ZRANGE', order, n, n)[1]
      if first then
        local record = call('HGET', P .. 'jobs:' .. name, sub(first, 7))
        local expires = byte(record, 22) >= 4 and unpack_('>I7', record, 49) or 0
        rest, usual = unpack_('>I7', record, 7), expires == 0 or expires > now
      end
    end
    if usual then
      reply[r + 1], reply[r + 2], reply[r + 3], reply[r + 4] = rest, n, 0, 0
      if n > 0 then
        local deadline = now + lease
        local due, leases, l = string.format('%d', deadline), {}, 0
        -- Whether nothing stays of the job (1), so that its ack may simply remove it, or something does (2)
        -- comes in between.
        local tail = pack('>I7I7I7I7', now, deadline, lease, now) .. seat .. '\0\0\0\0\0\0\0'
          .. sub(ARGV[a + 1], 35)
        local plain, kept, global = '\1' .. tail, '\2' .. tail, name .. '\0'
        for i = 1, n do
          local id, record = ids[i], found[i]
          leases[l + 1] = id
          leases[l + 2] = nonce .. sub(halves, half, half + 3)
            .. ((kept_any == 0 or byte(record, 21) == 0) and plain or kept)
          deadlines[d + 1], deadlines[d + 2] = due, global .. id
          reply[r + 4 + i], reply[r + 4 + n + i] = page[i], record
          half, l, d = half + 4, l + 2, d + 2
        end
        jobs_left, bytes_left = jobs_left - n, bytes_left - size - n
        call('ZREMRANGEBYRANK', order, '0', n - 1)
        call('HSET', P .. 'leases:' .. name, unpack(leases))
      end
      r = r + 4 + 2 * n
    end
  else
    usual = false
  end
  if ranks and not usual and not general then
    local alarms, expiries_left, turn, wanted, leases, members, records, who, extras = {}, 512
    -- What the lease of a job looks like behind its token; and its deadline as text.
    local function suffix(taker, plain, duration, first)
      local deadline = math.min(now + duration, 9007199254740991)
      return char(plain) .. pack('>I7I7I7I7', now, deadline, duration, first) .. taker.seat
        .. '\0\0\0\0\0\0\0' .. taker.worker, string.format('%d', deadline)
    end

    -- Who takes a job of so many bytes; nobody when the call is full.
    local function next_taker(bytes)
      if jobs_left == 0 or (bytes > bytes_left and bytes_left < bytes_whole) then return nil end
      for place = 1, #turn do
        local taker = turn[place]
        if bytes <= taker.bytes or taker.oversize then
          jobs_left, wanted = jobs_left - 1, wanted - 1
          bytes_left = bytes_left - (bytes > 0 and bytes or 1)
          if bytes_left < 0 then bytes_left = 0 end
          taker.jobs, taker.bytes, taker.oversize = taker.jobs - 1, taker.bytes - bytes, false
          if taker.bytes < 0 then taker.bytes = 0 end
          if taker.jobs == 0 or turn[2] then
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
      return suffix(taker, f1 < 2 and f1 + 1 or 0, own > 0 and own - 1 or taker.lease, first)
    end

    -- Takes from a page of ready jobs; how many, and whether it stopped because nobody can take the next one.
    -- What has expired is left for `expired`, and `out` has the others then.
    local function take(page, ids, found, out, expired)
      local global, n, l, count = name .. '\0', #members, #leases, 0
      for i = 1, #page do
        local record, id, own, expires = found[i], ids[i], 0, 0
        local f1, f2, bytes = unpack_('>BBI4', record, 21)
        if f2 >= 4 then expires, own = unpack_('>I7xxxxxxxxxI7', record, 49) end
        if expires ~= 0 and expires <= now then
          expired[#expired + 1] = id
        else
          local taker = next_taker(bytes)
          if not taker then return count, true end
          local tail, deadline = taker.tail, taker.deadline
          if f1 ~= 0 or own ~= 0 then
            tail, deadline = special(taker, id, f1, own)
          elseif not tail then
            -- Nothing but the job's own fields hangs on it: its ack may simply remove them.
            taker.tail, taker.deadline = suffix(taker, 1, taker.lease, now)
            tail, deadline = taker.tail, taker.deadline
          end
          leases[l + 1], leases[l + 2] = id, nonce .. sub(halves, half, half + 3) .. tail
          deadlines[d + 1], deadlines[d + 2] = deadline, global .. id
          if expires ~= 0 then alarms[#alarms + 1] = global .. id end
          half, l, d, n, count = half + 4, l + 2, d + 2, n + 1, count + 1
          members[n], records[n], who[n], out[count] = page[i], record, taker.index, page[i]
        end
      end
      return count, false
    end

    -- Two orders of one priority are one to the outside: by due time, then by arrival.
    local function merge(page, found, limit)
      local by_member, sorted = {}, {}
      for i = 1, #page do
        by_member[page[i]] = found[i]
        sorted[i] = sub(found[i], 7, 13) .. page[i]
      end
      table.sort(sorted)
      local merged, ids, records_of = {}, {}, {}
      for i = 1, math.min(#sorted, limit) do
        merged[i], ids[i] = sub(sorted[i], 8), sub(sorted[i], 14)
        records_of[i] = by_member[merged[i]]
      end
      return merged, ids, records_of
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
        local limit = (wanted < jobs_left and wanted or jobs_left) + 1
        local page = waits and call('ZRANGEBYSCORE', waits, '-inf', now_text, 'LIMIT', '0', limit) or {}
        local read, failed = #page, 0
        if backs then
          local more = call('ZRANGEBYSCORE', backs, '-inf', now_text, 'LIMIT', '0', limit)
          failed = #more
          for i = 1, failed do page[read + i] = more[i] end
        end
        if not page[1] then return false end
        local ids = {}
        for i = 1, #page do ids[i] = sub(page[i], 7) end
        local found = call('HMGET', P .. 'jobs:' .. name, unpack(ids))
        if failed > 0 then page, ids, found = merge(page, found, limit) end
        local out, expired = {}, {}
        local count, full = take(page, ids, found, out, expired)
        if count > 0 then
          if failed == 0 and not expired[1] then
            call('ZREMRANGEBYRANK', waits, '0', count - 1)
          else
            if waits then call('ZREM', waits, unpack(out)) end
            if backs then call('ZREM', backs, unpack(out)) end
          end
        end
        if expired[1] then expire_all(expired) end
        if full or expiries_left < 0 then return true end
        if read < limit and failed == 0 then return false end
      end
    end

    -- When the next job of an order is due, given that none is ready (-1: there is more to look at); a mark
    -- that stands for nothing goes.
    local function next_due(order, letter, rest)
      local first = call('ZRANGE', order, '0', '0')[1]
      while first do
        local id = sub(first, 7)
        local record = call('HGET', P .. 'jobs:' .. name, id)
        local expires = byte(record, 22) >= 4 and unpack_('>I7', record, 49) or 0
        if expires == 0 or expires > now then
          local due = unpack_('>I7', record, 7)
          return (rest == 0 or due < rest) and due or rest
        end
        -- It will never be due.
        expire_all({ id })
        if expiries_left < 0 then return -1 end
        first = call('ZRANGE', order, '0', '0')[1]
      end
      if letter ~= '0' then
        ranks = string.gsub(ranks, letter, '')
        call('HSET', P .. 'topic:' .. name, 'ranks', ranks)
      end
      return rest
    end

    -- Takes from priority after priority; what is left.
    local function take_all()
      if ranks == '0' then
        -- As most topics are.
        local waits = P .. 'wait:0:' .. name
        return take_rank(waits) and -1 or next_due(waits, '0', 0)
      end
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

    -- Answers an ask, whatever its jobs are like.
    general = function(topic, at, takers)
      name, turn, wanted, ranks = topic, {}, 0, call('HGET', P .. 'topic:' .. topic, 'ranks')
      for index = 0, takers - 1 do
        local blob = ARGV[at + index]
        local jobs, lease, bytes, oversize, seat = unpack_('>I4I7I7Bc15', blob)
        if jobs > 0 then
          turn[#turn + 1] = { index = index, seat = seat, lease = lease, worker = sub(blob, 35),
                              jobs = jobs, bytes = bytes, oversize = oversize == 1 }
        end
        wanted = wanted + jobs
      end
      leases, members, records, who, extras, alarms = {}, {}, {}, {}, {}, {}
      local rest = take_all()
      if leases[1] then call('HSET', P .. 'leases:' .. name, unpack(leases)) end
      if alarms[1] then call('ZREM', P .. 'alarms', unpack(alarms)) end
      local lists = takers > 1 and { members, records, who, extras } or { members, records, extras }
      reply[r + 1], reply[r + 2], reply[r + 3], reply[r + 4] =
        rest, #members, takers > 1 and 1 or 0, #extras / 3
      r = r + 4
      for _, list in ipairs(lists) do
        for i = 1, #list do reply[r + i] = list[i] end
        r = r + #list
      end
    end
  end
  if ranks and not usual then general(name, a + 1, count) end
  a = a + 1 + count
end
if d > 0 then call('ZADD', P .. 'deadlines', unpack(deadlines)) end
return reply
