-- The general path of a claim: jobs with a priority, failed attempts, an expire time, a lease duration of their own
-- or a payload apart, jobs after gaps, or more jobs than fit. Part of `claim.lua`: it uses names that are declared
-- there, and defines `general`.
--#include ready_list
local alarms, expiries_left, turn, wanted, leases, ends, members, records, who, extras = {}, $call.jobs
-- Lower bound of the ends of the topic's leases, and marks of the orders that may have its jobs.
local bound, marks
-- Group of the lane from which jobs are taken; nil: from the orders of the topic.
local group
-- How long waiting is worth one level of priority; nil: levels are strict.
local ageing
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
local function strike(member, order)
  expiries_left = expiries_left - 1
  if order and call('ZREM', order, member) == 1 then return end
  call('HSET', P .. 'topic:' .. name, 'torn', '1')
  marks = marks .. (string.find(marks, '-', 1, true) and '' or '-')
  call('HSET', P .. 'claims', name, pack($claims[bound], bound) .. marks)
end

-- Leases jobs of a page of ready jobs; returns their number, the member at which it stopped because no stream can
-- take it, and whether that member has no job. Expired members are added to `expired`.
local function take(page, ids, found, expired)
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
      members[n], records[n], who[n] = page[i], record, taker.index
    end
  end
  return count
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
    if record then
      expiries_left = expiries_left - call('ZREM', order, first)
    else
      strike(first, order)
    end
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

-- Reads the part of a page of an order that is due, from the member at this index on.
local function page_of(o, from)
  if o.is_line then return due_part(call('LRANGE', o.key, from, from + o.size - 1)) end
  return call('ZRANGEBYSCORE', o.key, '-inf', now_text, 'LIMIT', from, o.size)
end

-- Moves to the next due member of an order; `member` is nil after the last one.
local function advance_order(o)
  o.at = o.at + 1
  if o.at > o.size and #o.page == o.size then
    o.from, o.at = o.from + o.size, 1
    o.page = page_of(o, o.from)
  end
  o.member = o.page[o.at]
  if o.member then
    local due, seq = unpack_($member[due..arrival], o.member)
    o.aged, o.seq = due - o.priority * (ageing or 0), seq
  end
end

-- Begins to read orders; returns those that have due jobs. `size`: members of a page.
local function begin_orders(orders, size)
  local begun = {}
  for i = 1, #orders do
    local o = orders[i]
    o.size, o.from, o.at, o.gone = size, 0, 0, 0
    o.page = page_of(o, 0)
    advance_order(o)
    if o.member then begun[#begun + 1] = o end
  end
  return begun
end

-- Returns the order whose member comes first, if any: by due time - priority * ageing, of equals the one with the
-- highest priority, then by arrival.
local function first_order(orders)
  local first
  for i = 1, #orders do
    local o = orders[i]
    if o.member and (not first or o.aged < first.aged
        or o.aged == first.aged and o.priority == first.priority and o.seq < first.seq) then
      first = o
    end
  end
  return first
end

-- Removes the members that were leased or have expired, which are the first ones of their orders. A prune, which finds
-- the expired ones among the alarms, writes that they have expired.
local function remove_gone(orders)
  for i = 1, #orders do
    local o = orders[i]
    if o.gone > 0 and o.is_line then
      call('LTRIM', o.key, o.gone, '-1')
    elseif o.gone > 0 then
      call('ZREMRANGEBYRANK', o.key, '0', o.gone - 1)
    end
  end
end

-- Leases ready jobs of these orders, the highest priority first, merged; returns -1 if no stream can take more, -2 if
-- the call is full, nil if no job is left. With the orders of priority 0 comes the line.
local function take_merged(orders)
  local last = orders[#orders]
  while true do
    local all, line = orders, last.priority == 0 and line_of_claim()
    if last.priority == 0 and line == false then return -2 end
    if line then
      all = { unpack(orders) }
      all[#all + 1] = { key = line, priority = 0, is_line = true }
    end
    local limit = (wanted < jobs_left and wanted or jobs_left) + 1
    -- Of many orders that are merged, most members stay: they are read in smaller pages.
    local begun = begin_orders(all, #orders <= 2 and limit or math.min(limit, 64))
    local page, ids, from, n, first = {}, {}, {}, 0, first_order(begun)
    while first and n < limit do
      n = n + 1
      page[n], ids[n], from[n] = first.member, sub(first.member, $member.id), first
      advance_order(first)
      first = first_order(begun)
    end
    if n == 0 then return nil end
    local expired, found = {}, call('HMGET', P .. 'jobs:' .. name, unpack(ids))
    local count, stop, lost = take(page, ids, found, expired)
    local done = count + #expired
    for i = 1, done do from[i].gone = from[i].gone + 1 end
    remove_gone(begun)
    expiries_left = expiries_left - #expired
    if lost then
      local o = from[done + 1]
      strike(stop, not o.is_line and o.key)
    elseif stop then
      return -1
    end
    if lost or expiries_left < 0 then return -2 end
    if n < limit then return nil end
  end
end

-- Returns the due time of the first member of the line (0: none) after no job could be leased from it; -2: the member
-- is due, but stood after expired ones.
local function due_in_line()
  local first = call('LINDEX', P .. 'line:' .. name, '0')
  local due = first and unpack_($member[due], first) or 0
  return due > 0 and due <= now and -2 or due
end

-- The gate of a topic. Returns the time until which it delivers nothing, because it is paused (0: no end); nil: it is
-- open, or open again. The gate of a group is its place among the lanes.
local function closed_until()
  local till = call('HGET', P .. 'topic:' .. name, 'paused') or '1'
  if till == '0' or till + 0 > now then return till + 0 end
  call('HDEL', P .. 'topic:' .. name, 'paused')
  marks = string.gsub(marks, 'P', '')
  call('HSET', P .. 'claims', name, pack($claims[bound], bound) .. marks)
end

-- Returns the orders of one priority that may have jobs.
local function orders_of(priority)
  local orders, wait, back = {}, char(48 + priority), char(97 + priority)
  if string.find(marks, wait, 1, true) then
    orders[1] = { key = P .. 'wait:' .. priority .. ':' .. name, letter = wait, priority = priority }
  end
  if string.find(marks, back, 1, true) then
    orders[#orders + 1] = { key = P .. 'back:' .. priority .. ':' .. name, letter = back, priority = priority }
  end
  return orders
end

-- Leases jobs in the order of the topic; returns the rest. With ageing all levels are merged.
local function take_all()
  local levels, rest = {}, 0
  for priority = 9, 0, -1 do
    local level, merged = orders_of(priority), ageing and levels[1]
    for i = 1, merged and #level or 0 do merged[#merged + 1] = level[i] end
    if level[1] and not merged then levels[#levels + 1] = level end
  end
  for _, level in ipairs(levels) do
    local ended = take_merged(level)
    if ended then return ended end
    for _, o in ipairs(level) do
      rest = next_due(o.key, o.letter, rest)
      if rest < 0 then return rest end
    end
  end
  local due = due_in_line()
  return due < 0 and due or due > 0 and (rest == 0 or due < rest) and due or rest
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
  leases, ends, members, records, who, extras, alarms = {}, {}, {}, {}, {}, {}, {}
  local rest, save = string.find(marks, 'P', 1, true) and closed_until(), nil
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
