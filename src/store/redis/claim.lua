-- flags: allow-oom
-- claim: lease ready jobs to those who ask, in the order of each topic, within their credit and the
-- bounds of one call. Jobs go round from taker to taker.
-- ARGV: now, 0 and the tokens (8 bytes per job that may be leased, each beginning with the nonce); per
--       ask: topic; per taker of it: jobs 4, bytes 7, lease 7, oversize 1, then a lease of it from the first
--       start on (`record.rs`); unless that is one ask of one taker: for each ask how many takers 2.
-- Reply: now, then per ask: what is left (-1 more, -2 not known: ask again, 0 nothing, else when the next is due), jobs, whether
--        takers are listed (0 or 1), extras; the members (due time, arrival and id), the records, the
--        takers (from 0), the extras (number of the job from 0, last error or false, payload or false).
--        In one list: each list within a list costs as much as a call. One job for one taker, with nothing special
--        about it, comes as one string: now 7, what is left 7 (-1 as 1), length of the id 1, id, record.
--#include clock
local pack, unpack_, byte, sub = struct.pack, struct.unpack, string.byte, string.sub
local tokens, counts = ARGV[2], nil
local void = sub(tokens, 1, 5)

-- Flags of records (`record.lua`) are numbers here, as every name would cost. Of the first byte f1: 0 nothing
-- hangs on the job, 1 it is kept, 2 it has a story, 4 its payload lies apart; of the second one f2: from 4 on it
-- may have an expire time or a lease duration of its own. 255 is the mark of a job that runs.

-- Which of two members comes first: by due time, then by arrival.
local function before(x, y)
  local due, seq = unpack_('>I7I6', x)
  local other_due, other_seq = unpack_('>I7I6', y)
  return due < other_due or (due == other_due and seq < other_seq)
end

-- The first of two, either of which may be absent.
local function earlier(x, y)
  if x and not (y and before(y, x)) then return x end
  return y
end

-- The commonest case: one job for one taker. For one alone every table counts.
if #tokens == 9 and #ARGV == 4 then
  local name, seat = ARGV[3], ARGV[4]
  local known = call('HMGET', P .. 'claims', name, void)
  local ranks, line, order = known[1], P .. 'line:' .. name, P .. 'wait:0:' .. name
  if ranks and #ranks == 8 and byte(ranks, 8) == 48 and not known[2] then
    local lined, waits = call('LRANGE', line, '0', '1'), call('ZRANGE', order, '0', '1')
    local first, behind, other = lined[1], lined[2], waits[1]
    local in_line = first and not (other and before(other, first))
    if not in_line then first, behind, other = other, waits[2], first end
    if first and unpack_('>I7', first) <= now then
      local id = sub(first, 14)
      local record = call('HGET', P .. 'jobs:' .. name, id)
      local f1, f2 = byte(record or '', 21, 22)
      local bytes, lease = unpack_('>I7I7', seat, 5)
      if f1 and f1 < 2 and f2 < 4 and #record <= bytes then
        local deadline = now + lease
        local times, ending = pack('>I7I7', now, deadline), string.format('%d', deadline)
        if in_line then call('LPOP', line) else call('ZREMRANGEBYRANK', order, '0', '0') end
        call('HSET', P .. 'jobs:' .. name, id, pack('>BI2', 255, #seat + 4) .. sub(tokens, 2)
          .. (f1 == 0 and '\1' or '\2') .. times .. sub(seat, 20) .. record)
        call('ZADD', P .. 'ends:' .. name, ending, sub(tokens, 2) .. (f1 == 0 and '' or '\0') .. id)
        if deadline < unpack_('>I7', ranks) then
          call('HSET', P .. 'claims', name, sub(times, 8) .. '0')
          call('ZADD', P .. 'deadlines', ending, name)
        end
        behind = earlier(behind, other)
        local rest = behind and unpack_('>I7', behind) or 0
        if behind and rest <= now then rest = 1 end
        return pack('>I7I7B', now, rest, #id) .. id .. record
      end
    end
  end
end

local char, reply, r, t, a, jobs_left = string.char, { now }, 1, 2, 3, (#tokens - 1) / 8
local bytes_left, asks, general = 1048576, 1, nil
if #ARGV ~= 4 then
  counts = ARGV[#ARGV]
  asks = #counts / 2
end

-- The part of a page that is due, and the first member that is not.
local function due_part(page)
  local later
  for n = #page, 1, -1 do
    if unpack_('>I7', page[n]) <= now then break end
    page[n], later = nil, page[n]
  end
  return page, later
end

-- As much of an order as is due, and the first member that is not, unless there were `limit` before it.
local function due_of(order, limit)
  -- Of a few, those that are not due yet come along; a longer page would read many of them in vain.
  local page = call('ZRANGE', order, '0', limit <= 17 and limit - 1 or '0')
  if limit <= 17 or not page[1] or unpack_('>I7', page[1]) > now then return due_part(page) end
  page = call('ZRANGEBYSCORE', order, '-inf', now_text, 'LIMIT', '0', limit)
  return page, #page < limit and call('ZRANGE', order, #page, #page)[1]
end

-- The first members of two rows, and how many of them are of the first row.
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

-- Who takes jobs of an ask, how many jobs together, and for how many bytes each of them has room at least.
local function seats_of(at, count)
  local seats, wanted, room = {}, 0, 9007199254740991
  for index = 0, count - 1 do
    local blob = ARGV[at + index]
    local jobs, bytes, lease = unpack_('>I4I7I7', blob)
    if jobs > 0 then
      seats[#seats + 1] = { index = index, jobs = jobs, lease = lease, blob = blob }
      wanted, room = wanted + jobs, math.min(room, bytes)
    end
  end
  return seats, wanted, room
end

-- What the leases of a seat have in common: what is before the token, and what is behind it where nothing stays of
-- the job (1), so that its ack may simply remove it, or something does (2).
local function furnish(seat)
  local deadline = now + seat.lease
  local tail = pack('>I7I7', now, deadline) .. sub(seat.blob, 20)
  seat.head, seat.plain, seat.kept = pack('>BI2', 255, #tail + 9), '\1' .. tail, '\2' .. tail
  seat.deadline, seat.ending = deadline, string.format('%d', deadline)
end

for ask = 1, asks do
  local name, count, usual = ARGV[a], counts and unpack_('>I2', counts, 2 * ask - 1) or 1, general == nil
  -- Not if its caller has given the call up already: see unclaim.
  local known = call('HMGET', P .. 'claims', name, void)
  local ranks = not known[2] and known[1]
  if not ranks then
    reply[r + 1], reply[r + 2], reply[r + 3], reply[r + 4] = 0, 0, 0, 0
    r = r + 4
  elseif usual and sub(ranks, 8) == '0' then
    -- The common case: no priority, and nothing special about any job.
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
    local rest, size, kinds, records = 0, 0, 0, nil
    if behind then
      rest = unpack_('>I7', behind)
      if rest <= now then rest = -1 end
    end
    local ids = {}
    if n > 0 then
      for i = 1, n do ids[i] = sub(page[i], 14) end
      records = call('HMGET', P .. 'jobs:' .. name, unpack(ids))
    end
    for i = 1, n do
      local record = records[i]
      if not record then usual = false break end
      local f1, f2 = byte(record, 21, 22)
      -- A record is a little longer than what counts of it.
      size, kinds = size + #record, kinds + f1
      if f1 > 1 then usual = false end
      if f2 >= 4 then
        local expires, own = unpack_('>I7xxxxxxxxxI7', record, 49)
        if expires + own > 0 then usual = false end
      end
    end
    usual = usual and size <= room and size + n <= bytes_left
    if usual then
      local several = count > 1
      reply[r + 1], reply[r + 2], reply[r + 3], reply[r + 4] = rest, n, several and 1 or 0, 0
      if n > 0 then
        local leases, deadlines, l, at, turn, bound, ending = {}, {}, 0, r + 4, 1, 9007199254740991, nil
        for i = 1, n do
          local seat, id, record, token = seats[turn], ids[i], records[i], sub(tokens, t + 8 * i - 8, t + 8 * i - 1)
          if not seat.head then
            furnish(seat)
            if seat.deadline < bound then bound, ending = seat.deadline, seat.ending end
          end
          leases[l + 1], deadlines[l + 1] = id, seat.ending
          if kinds == 0 or byte(record, 21) == 0 then
            leases[l + 2], deadlines[l + 2] = seat.head .. token .. seat.plain .. record, token .. id
          else
            leases[l + 2], deadlines[l + 2] = seat.head .. token .. seat.kept .. record, token .. '\0' .. id
          end
          reply[at + i], reply[at + n + i] = page[i], record
          l = l + 2
          -- Jobs go round.
          if several then
            reply[at + 2 * n + i], seat.jobs = seat.index, seat.jobs - 1
            if seat.jobs > 0 then turn = turn + 1 else table.remove(seats, turn) end
            if turn > #seats then turn = 1 end
          end
        end
        if of_line > 0 then call('LTRIM', line, of_line, '-1') end
        if of_line < n then call('ZREMRANGEBYRANK', order, '0', n - of_line - 1) end
        call('HSET', P .. 'jobs:' .. name, unpack(leases))
        call('ZADD', P .. 'ends:' .. name, unpack(deadlines))
        if bound < unpack_('>I7', ranks) then
          call('HSET', P .. 'claims', name, pack('>I7', bound) .. sub(ranks, 8))
          call('ZADD', P .. 'deadlines', ending, name)
        end
        t, jobs_left, bytes_left = t + 8 * n, jobs_left - n, bytes_left - size - n
      end
      r = r + 4 + (several and 3 or 2) * n
    end
  else
    usual = false
  end
  if ranks and not usual and not general then
    --#include line
    local alarms, expiries_left, turn, wanted, leases, ends, members, records, who, extras = {}, 512
    -- A time before which no lease of the topic ends.
    local bound
    -- What the lease of a job looks like behind its token; and its deadline as text.
    local function suffix(taker, plain, duration, first)
      local deadline = math.min(now + duration, 9007199254740991)
      bound = math.min(bound, deadline)
      local tail = taker.seat
      if first ~= now or duration ~= taker.lease then
        tail = pack('>I7', first) .. sub(tail, 8, 29) .. pack('>I7', duration) .. sub(tail, 37)
      end
      return char(plain) .. pack('>I7I7', now, deadline) .. tail, string.format('%d', deadline)
    end

    -- Who takes a job of so many bytes; nobody when the call is full.
    local function next_taker(bytes)
      if jobs_left == 0 or (bytes > bytes_left and bytes_left < 1048576) then return nil end
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

    -- A member whose job somebody has removed by hand: nobody must come here for it again and again. In the line
    -- it is a gap from now on.
    local function strike(member, waits, backs)
      expiries_left = expiries_left - 1
      if waits and call('ZREM', waits, member) == 1 or backs and call('ZREM', backs, member) == 1 then return end
      call('HSET', P .. 'topic:' .. name, 'torn', '1')
      ranks = ranks .. (string.find(ranks, '-', 1, true) and '' or '-')
      call('HSET', P .. 'claims', name, pack('>I7', bound) .. ranks)
    end

    -- Takes from a page of ready jobs; how many, the member it stopped at because nobody can take that one, and
    -- whether that has no job. What has expired is left for `expired`, and `out` has the others then.
    local function take(page, ids, found, out, expired)
      local global, n, l, count = name .. '\0', #members, #leases, 0
      for i = 1, #ids do
        local record, id, own, expires = found[i], ids[i], 0, 0
        if not record then return count, page[i], true end
        local f1, f2, bytes = unpack_('>BBI4', record, 21)
        if f2 >= 4 then expires, own = unpack_('>I7xxxxxxxxxI7', record, 49) end
        if expires ~= 0 and expires <= now then
          expired[#expired + 1] = id
        else
          local taker = next_taker(bytes)
          if not taker then return count, page[i] end
          local tail, deadline = taker.tail, taker.deadline
          if f1 ~= 0 or own ~= 0 then
            tail, deadline = special(taker, id, f1, own)
          elseif not tail then
            -- Nothing but the job's own fields hangs on it: its ack may simply remove them.
            taker.tail, taker.deadline = suffix(taker, 1, taker.lease, now)
            tail, deadline = taker.tail, taker.deadline
          end
          local token = sub(tokens, t, t + 7)
          leases[l + 1], leases[l + 2] = id, taker.head .. token .. tail .. record
          ends[l + 1], ends[l + 2] = deadline, token .. (byte(tail) == 1 and '' or '\0') .. id
          if expires ~= 0 then alarms[#alarms + 1] = global .. id end
          t, l, n, count = t + 8, l + 2, n + 1, count + 1
          members[n], records[n], who[n], out[count] = page[i], record, taker.index, page[i]
        end
      end
      return count
    end

    local function expire_all(ids)
      --#include record
      --#include recall
      --#include lifecycle
      local k = topic_of(name)
      for _, id in ipairs(ids) do find(k, id) end
      expiries_left = expiries_left - #ids
    end

    -- Takes what is ready at one priority; -1 if nobody can take more, -2 if the call is full. `line`, `waits`,
    -- `backs`: jobs that were due when they came, others that never failed, and those that did; each may be
    -- absent. They are one to the outside: by due time, then by arrival, as members begin.
    local function take_rank(line, waits, backs)
      while true do
        local limit = (wanted < jobs_left and wanted or jobs_left) + 1
        local lined = line and due_part(call('LRANGE', line, '0', limit - 1)) or {}
        local others = waits and call('ZRANGEBYSCORE', waits, '-inf', now_text, 'LIMIT', '0', limit) or {}
        local page = merge(lined, others, limit)
        if backs then
          page = merge(page, call('ZRANGEBYSCORE', backs, '-inf', now_text, 'LIMIT', '0', limit), limit)
        end
        if not page[1] then return nil end
        local ids = {}
        for i = 1, #page do ids[i] = sub(page[i], 14) end
        local found = call('HMGET', P .. 'jobs:' .. name, unpack(ids))
        local out, expired = {}, {}
        local count, stop, lost = take(page, ids, found, out, expired)
        if page == lined and count > 0 then
          call('LTRIM', line, count, '-1')
        elseif page == others and count > 0 and not expired[1] then
          call('ZREMRANGEBYRANK', waits, '0', count - 1)
        elseif count > 0 then
          local of_line = count
          if waits then of_line = of_line - call('ZREM', waits, unpack(out)) end
          if backs then of_line = of_line - call('ZREM', backs, unpack(out)) end
          if of_line > 0 then call('LTRIM', line, of_line, '-1') end
        end
        if expired[1] then expire_all(expired) end
        if lost then strike(stop, waits, backs) elseif stop then return -1 end
        if lost or expiries_left < 0 then return -2 end
        if #page < limit then return nil end
      end
    end

    -- When the next job of an order is due, given that none is ready (-2: the call is full); a mark
    -- that stands for nothing goes.
    local function next_due(order, letter, rest)
      local first = call('ZRANGE', order, '0', '0')[1]
      while first do
        local id = sub(first, 14)
        local record = call('HGET', P .. 'jobs:' .. name, id)
        local expires = record and byte(record, 22) >= 4 and unpack_('>I7', record, 49) or 0
        if record and (expires == 0 or expires > now) then
          local due = unpack_('>I7', record)
          return (rest == 0 or due < rest) and due or rest
        end
        -- It will never be due.
        if record then expire_all({ id }) else strike(first, order) end
        if expiries_left < 0 then return -2 end
        first = call('ZRANGE', order, '0', '0')[1]
      end
      if letter ~= '0' then
        ranks = string.gsub(ranks, letter, '')
        call('HSET', P .. 'claims', name, pack('>I7', bound) .. ranks)
      end
      return rest
    end

    -- The line, if it has no gaps. If it has, jobs are taken from the order alone (nil), where as many members of
    -- the line as can be taken are moved first; false: too many gaps for one call.
    local function line_of_claim()
      local line, limit = P .. 'line:' .. name, (wanted < jobs_left and wanted or jobs_left) + 1
      if not string.find(ranks, '-', 1, true) then return line end
      local last, head = call('ZRANGE', P .. 'wait:0:' .. name, limit - 1, limit - 1)[1], call('LINDEX', line, '0')
      if last and head and before(last, head) then return nil end
      local done, closed = shift(name, limit)
      if closed then
        ranks = string.gsub(ranks, '%-', '')
        call('HSET', P .. 'claims', name, pack('>I7', bound) .. ranks)
      end
      if done then return nil end
      return false
    end

    -- When the first of the line is due (0: there is none), given that no job could be taken from it; -2: it is due,
    -- but stood behind others that had expired.
    local function due_in_line()
      local first = call('LINDEX', P .. 'line:' .. name, '0')
      local due = first and unpack_('>I7', first) or 0
      return due > 0 and due <= now and -2 or due
    end

    -- Takes from priority after priority; what is left.
    local function take_all()
      local line = line_of_claim()
      if line == false then return -2 end
      if ranks == '0' then
        -- As most topics are.
        local waits = P .. 'wait:0:' .. name
        return take_rank(line, waits) or next_due(waits, '0', due_in_line())
      end
      local all, rest = ranks, 0
      for prio = 9, 0, -1 do
        local wait, back = char(48 + prio), char(97 + prio)
        local waits = string.find(all, wait, 1, true) and P .. 'wait:' .. prio .. ':' .. name
        local backs = string.find(all, back, 1, true) and P .. 'back:' .. prio .. ':' .. name
        if waits or backs then
          local lined = prio == 0 and line or nil
          local ended = take_rank(lined, waits, backs)
          if ended then return ended end
          if prio == 0 then
            local due = due_in_line()
            if due < 0 then return due end
            if due > 0 and (rest == 0 or due < rest) then rest = due end
          end
          if waits then rest = next_due(waits, wait, rest) end
          if backs and rest >= 0 then rest = next_due(backs, back, rest) end
          if rest < 0 then return rest end
        end
      end
      return rest
    end

    -- Answers an ask, whatever its jobs are like.
    general = function(topic, at, takers)
      local known = call('HGET', P .. 'claims', topic)
      local bound_before = unpack_('>I7', known)
      name, turn, wanted, bound, ranks = topic, {}, 0, bound_before, sub(known, 8)
      for index = 0, takers - 1 do
        local blob = ARGV[at + index]
        local jobs, bytes, lease, oversize = unpack_('>I4I7I7B', blob)
        if jobs > 0 then
          local seat = sub(blob, 20)
          -- Behind the length come token, mark, start and deadline.
          turn[#turn + 1] = { index = index, seat = seat, head = pack('>BI2', 255, #seat + 23), lease = lease,
                              jobs = jobs, bytes = bytes, oversize = oversize == 1 }
        end
        wanted = wanted + jobs
      end
      leases, ends, members, records, who, extras, alarms = {}, {}, {}, {}, {}, {}, {}
      local rest = take_all()
      if leases[1] then
        call('HSET', P .. 'jobs:' .. name, unpack(leases))
        call('ZADD', P .. 'ends:' .. name, unpack(ends))
      end
      if bound < bound_before then
        call('HSET', P .. 'claims', name, pack('>I7', bound) .. ranks)
        call('ZADD', P .. 'deadlines', string.format('%d', bound), name)
      end
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
return reply
