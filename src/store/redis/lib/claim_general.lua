-- The general path of a claim: jobs with a priority, failed attempts, an expire time, a lease duration of their own
-- or a payload apart, jobs after gaps, or more jobs than fit. Part of `claim.lua`: it uses names that are declared
-- there, and defines `general`.
--#include ready_list
local alarms, expiries_left, turn, wanted, leases, ends, members, records, who, extras = {}, $call.jobs
-- Lower bound of the ends of the topic's leases, and marks of the orders that may have its jobs.
local bound, marks
-- Group of the lane from which jobs are taken; nil: from the orders of the topic.
local group
-- How long waiting is worth one level of priority; nil: levels are strict. With the first ask that has it,
-- `claim_aged.lua` defines the function.
local ageing, take_aged
-- Returns the part of a lease after its token, and its deadline as text.
local function suffix(taker, ack, duration)
  local deadline = math.min(now + duration, $time.max)
  bound = math.min(bound, deadline)
  local tail = taker.demand
  if duration ~= taker.lease then
    tail = sub(tail, 1, $held.duration - 1) .. pack($held[duration], duration) .. sub(tail, $held.worker)
  end
  return char(ack) .. pack($lease[started..deadline], begin(), deadline) .. tail, string.format('%d', deadline)
end

-- Returns the stream that takes a job of this size; nil when the call is full.
local function next_taker(bytes)
  if jobs_left == 0 or (bytes > bytes_left and bytes_left < $call.bytes) then return nil end
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

-- Returns the lease suffix of a job with a history, with parts, or with a lease duration of its own.
local function special(taker, id, apart, lived, own_lease)
  if apart % (2 * $apart.payload) >= $apart.payload or apart % (2 * $apart.checkpoint) >= $apart.checkpoint then
    local e, parts = #extras, call('HMGET', P .. 'more:' .. name, 'p' .. id, 'c' .. id)
    extras[e + 1], extras[e + 2], extras[e + 3] = #members, parts[1], parts[2]
  end
  local ack = $ack.looks
  if apart == 0 then ack = $ack.removes elseif apart == $apart.kept and not lived then ack = $ack.keeps end
  -- The lane counts the lease.
  if group and ack ~= $ack.looks then ack = ack + ($ack.lane_removes - $ack.removes) end
  return suffix(taker, ack, own_lease > 0 and own_lease - 1 or taker.lease)
end

-- Removes a member whose job was removed by hand, so that it is not found again. In the line it counts as a gap from
-- now on.
local function strike(member, waits, backs)
  expiries_left = expiries_left - 1
  if waits and call('ZREM', waits, member) == 1 or backs and call('ZREM', backs, member) == 1 then return end
  call('HSET', P .. 'topic:' .. name, 'torn', '1')
  marks = marks .. (string.find(marks, '-', 1, true) and '' or '-')
  call('HSET', P .. 'claims', name, pack($claims[bound], bound) .. marks)
end

-- Leases jobs of a page of ready jobs; returns their number, the member at which it stopped because no stream can
-- take it, and whether that member has no job. Expired members are added to `expired`, and the leased ones to `out`.
local function take(page, ids, found, out, expired)
  local global, n, l, count = name .. '\0', #members, #leases, 0
  for i = 1, #ids do
    local record, id, own_lease, expires = found[i], ids[i], 0, 0
    if not record then return count, page[i], true end
    local apart, inside, bytes = unpack_($record[apart,inside,bytes], record, $record.apart)
    if inside >= $inside.extension then
      expires, own_lease = unpack_($record[expire,own_lease], record, $record.expire)
    end
    if expires ~= 0 and expires <= now then
      expired[#expired + 1] = page[i]
    else
      local taker = next_taker(bytes)
      if not taker then return count, page[i] end
      local tail, deadline = taker.tail, taker.deadline
      local lived = inside % (2 * $inside.life) >= $inside.life
      if apart ~= 0 or own_lease ~= 0 or group then
        tail, deadline = special(taker, id, apart, lived, own_lease)
      elseif not tail then
        -- Nothing depends on the job but its own fields: its ack may simply remove them.
        taker.tail, taker.deadline = suffix(taker, $ack.removes, taker.lease)
        tail, deadline = taker.tail, taker.deadline
      end
      local token = sub(tokens, t, t + 7)
      leases[l + 1], leases[l + 2] = id, taker.head .. token .. tail .. record
      ends[l + 1], ends[l + 2] = deadline, token .. (byte(tail) == $ack.removes and '' or '\0') .. id
      if group then ends[l + 2] = token .. '\1' .. id .. '\0' .. group end
      if expires ~= 0 then alarms[#alarms + 1] = global .. id end
      t, l, n, count = t + 8, l + 2, n + 1, count + 1
      members[n], records[n], who[n], out[count] = page[i], record, taker.index, page[i]
    end
  end
  return count
end

-- Removes expired members from their orders; a prune, which finds them among the alarms, writes that they have
-- expired.
local function expire_all(waits, backs, expired)
  if waits then call('ZREM', waits, unpack(expired)) end
  if backs then call('ZREM', backs, unpack(expired)) end
  expiries_left = expiries_left - #expired
end

-- Leases ready jobs of one priority; returns -1 if no stream can take more, -2 if the call is full. `line`, `waits`,
-- `backs`: jobs that were due when they came, others that never failed, and those that failed; each may be absent.
-- They are merged by due time, then by arrival, as members begin.
local function take_priority(line, waits, backs)
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
    for i = 1, #page do ids[i] = sub(page[i], $member.id) end
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
    if expired[1] then expire_all(waits, backs, expired) end
    if lost then strike(stop, waits, backs) elseif stop then return -1 end
    if lost or expiries_left < 0 then return -2 end
    if #page < limit then return nil end
  end
end

-- Returns the due time of the next job of an order in which none is ready (-2: the call is full); removes the mark of
-- an empty order.
local function next_due(order, letter, rest)
  local first = call('ZRANGE', order, '0', '0')[1]
  while first do
    local id = sub(first, $member.id)
    local record = call('HGET', P .. 'jobs:' .. name, id)
    local extended = record and byte(record, $record.inside) >= $inside.extension
    local expires = extended and unpack_($record[expire], record, $record.expire) or 0
    if record and (expires == 0 or expires > now) then
      local due = unpack_($record[due], record)
      return (rest == 0 or due < rest) and due or rest
    end
    -- The member will never be due.
    if record then expire_all(order, nil, { first }) else strike(first, order) end
    if expiries_left < 0 then return -2 end
    first = call('ZRANGE', order, '0', '0')[1]
  end
  if letter ~= '0' then
    marks = string.gsub(marks, letter, '')
    call('HSET', P .. 'claims', name, pack($claims[bound], bound) .. marks)
  end
  return rest
end

-- Returns the line, if it has no gaps. With gaps, jobs are leased from the order alone (nil), and as many members of
-- the line as can be leased are moved there first; false: too many gaps for one call.
local function line_of_claim()
  local line, limit = P .. 'line:' .. name, (wanted < jobs_left and wanted or jobs_left) + 1
  if not string.find(marks, '-', 1, true) then return line end
  local last, head = call('ZRANGE', P .. 'wait:0:' .. name, limit - 1, limit - 1)[1], call('LINDEX', line, '0')
  if last and head and before(last, head) then return nil end
  local done, closed = shift(name, limit)
  if closed then
    marks = string.gsub(marks, '%-', '')
    call('HSET', P .. 'claims', name, pack($claims[bound], bound) .. marks)
  end
  if done then return nil end
  return false
end

-- Returns the due time of the first member of the line (0: none) after no job could be leased from it; -2: the member
-- is due, but stood after expired ones.
local function due_in_line()
  local first = call('LINDEX', P .. 'line:' .. name, '0')
  local due = first and unpack_($member[due], first) or 0
  return due > 0 and due <= now and -2 or due
end

-- Returns the time until which the topic is paused (0: no end); nil if it is not, or not any more.
local function paused_until()
  local till = call('HGET', P .. 'topic:' .. name, 'paused') or '1'
  if till == '0' or till + 0 > now then return till + 0 end
  call('HDEL', P .. 'topic:' .. name, 'paused')
  marks = string.gsub(marks, 'P', '')
  call('HSET', P .. 'claims', name, pack($claims[bound], bound) .. marks)
end

-- Leases jobs in the order of the topic; returns the rest.
local function take_all()
  local line = line_of_claim()
  if line == false then return -2 end
  if marks == '0' then
    -- Most topics have only this mark.
    local waits = P .. 'wait:0:' .. name
    return take_priority(line, waits) or next_due(waits, '0', due_in_line())
  end
  if ageing then
    local ended = take_aged(line)
    if ended then return ended end
  end
  local all, rest = marks, 0
  for priority = 9, 0, -1 do
    local wait, back = char(48 + priority), char(97 + priority)
    local waits = string.find(all, wait, 1, true) and P .. 'wait:' .. priority .. ':' .. name
    local backs = string.find(all, back, 1, true) and P .. 'back:' .. priority .. ':' .. name
    if waits or backs then
      local lined = priority == 0 and line or nil
      local ended = not ageing and take_priority(lined, waits, backs)
      if ended then return ended end
      if priority == 0 then
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

-- Answers an ask with any kind of jobs.
general = function(topic, at, takers)
  local known = call('HGET', P .. 'claims', topic)
  local bound_before = unpack_($claims[bound], known)
  name, turn, wanted, bound, marks, ageing = topic, {}, 0, bound_before, sub(known, $claims.marks), nil
  for index = 0, takers - 1 do
    local blob = ARGV[at + index]
    local jobs, bytes, lease, oversize = unpack_($demand[jobs..oversize], blob)
    if jobs > 0 then
      local demand = sub(blob, $demand.extended)
      -- After the length follow token, mark, start and deadline.
      turn[#turn + 1] = { index = index, demand = demand, lease = lease,
                          head = pack($entry[running..length], $running, #demand + $lease.extended - 1),
                          jobs = jobs, bytes = bytes, oversize = oversize == 1 }
    elseif #blob < $demand.extended then
      ageing = bytes
    end
    wanted = wanted + jobs
  end
  if ageing and not take_aged then
    --#include claim_aged
  end
  leases, ends, members, records, who, extras, alarms = {}, {}, {}, {}, {}, {}, {}
  local rest, save = string.find(marks, 'P', 1, true) and paused_until(), nil
  if rest then
    -- Nothing is delivered until then.
  elseif string.find(marks, 'k', 1, true) then
    --#include claim_lanes
    rest, save = take_lanes(), save_lanes
  else
    rest = take_all()
  end
  if leases[1] then
    call('HSET', P .. 'jobs:' .. name, unpack(leases))
    call('ZADD', P .. 'ends:' .. name, unpack(ends))
  end
  if bound < bound_before then
    call('HSET', P .. 'claims', name, pack($claims[bound], bound) .. marks)
    call('ZADD', P .. 'deadlines', string.format('%d', bound), name)
  end
  if save then save() end
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
