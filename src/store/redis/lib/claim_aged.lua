-- The part of a claim that takes jobs in the order of ageing: by due time - priority * ageing, of equals the one with
-- the highest priority, then by arrival. Part of `claim_general.lua`, whose names it uses; defines `take_aged`. The due
-- jobs of all orders are merged; from each as many are read as can be leased, and at most a page more.

-- Reads the part of a page of an order that is due, from the member at this index on.
local function page_of(o, from)
  local to = from + o.size - 1
  return due_part(o.is_line and call('LRANGE', o.key, from, to) or call('ZRANGE', o.key, from, to))
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
    o.aged, o.seq = due - o.priority * ageing, seq
  end
end

-- Returns the orders that have due jobs, the highest priority first. `size`: members of a page.
local function orders_with_due(line, size)
  local orders = {}
  local function add(key, priority, is_line)
    local o = { is_line = is_line, key = key, priority = priority, size = size, from = 0, at = 0, gone = 0 }
    o.page = page_of(o, 0)
    advance_order(o)
    if o.member then orders[#orders + 1] = o end
  end
  for priority = 9, 0, -1 do
    local waits = string.find(marks, char(48 + priority), 1, true)
    local backs = string.find(marks, char(97 + priority), 1, true)
    if waits then add(P .. 'wait:' .. priority .. ':' .. name, priority) end
    if backs then add(P .. 'back:' .. priority .. ':' .. name, priority) end
  end
  if line then add(line, 0, true) end
  return orders
end

-- Returns the order whose member comes first, if any.
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

-- Removes the members that were leased or have expired, which are the first ones of their orders.
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

-- Leases ready jobs; returns -1 if no stream can take more, -2 if the call is full. `line`: as `line_of_claim` returns
-- it.
take_aged = function(line)
  while line ~= false do
    local limit = (wanted < jobs_left and wanted or jobs_left) + 1
    local orders = orders_with_due(line, math.min(limit, 64))
    local page, ids, from, n, first = {}, {}, {}, 0, first_order(orders)
    while first and n < limit do
      n = n + 1
      page[n], ids[n], from[n] = first.member, sub(first.member, $member.id), first
      advance_order(first)
      first = first_order(orders)
    end
    if n == 0 then return nil end
    local expired, found = {}, call('HMGET', P .. 'jobs:' .. name, unpack(ids))
    local count, stop, lost = take(page, ids, found, {}, expired)
    local done = count + #expired
    for i = 1, done do from[i].gone = from[i].gone + 1 end
    remove_gone(orders)
    expiries_left = expiries_left - #expired
    if lost then
      local o = from[done + 1]
      strike(stop, not o.is_line and o.key)
    elseif stop then
      return -1
    end
    if lost or expiries_left < 0 then return -2 end
    if n < limit then return nil end
    line = line_of_claim()
  end
  return -2
end
