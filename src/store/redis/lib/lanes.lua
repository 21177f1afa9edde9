-- Lanes: each group of a topic has its waiting jobs in orders of its own, named like those of a topic `<topic>\0<group>`,
-- and a state under its name in `groups`, as long as jobs of it wait or run. The jobs without a group keep the orders
-- of the topic; their number of leases is what the lanes do not count. A lane is `ready` if its first job was due when
-- it was last looked at, by its score (`domain/turns.rs`), else in `later`, by the due time of that job or an earlier
-- one; the lane of a paused group is in neither. `grouped` has the waiting jobs of all
-- groups, to count and list them. `kl` is among the marks of a topic with lanes, and of one whose jobs without a group
-- are paused. Keys: `keys.rs`. Every script that changes lanes calls `save_lanes` at its end.
local READY, LATER, lane_topics = 1, 2, {}
local lane_pack, lane_unpack, lane_sub, lane_find = struct.pack, struct.unpack, string.sub, string.find

-- Returns weight and pause of a group by the settings of its topic. The empty group: the jobs without one.
local function lane_setting(name, group)
  local setting = call('HGET', P .. 'shares:' .. name, group)
  if not setting then return 1, 0 end
  return tonumber(string.match(setting, '^%d+')) or 1, lane_find(setting, 'paused', 1, true) and 1 or 0
end

-- Returns the lanes of a topic: the number of their turns, the last one of the jobs without a group, and the number of
-- their leases.
local function lanes_of(name)
  local t = lane_topics[name]
  if t then return t end
  t = { name = name, groups = P .. 'groups:' .. name, lanes = P .. 'lanes:' .. name, ready = P .. 'ready:' .. name,
        later = P .. 'later:' .. name, known = {}, picks = 0, served = 0, running = 0 }
  local raw = call('HGET', t.groups, '')
  if raw then t.picks, t.served, t.running = lane_unpack($lanes[picks..running], raw) end
  lane_topics[name] = t
  return t
end

-- Returns the lane of a group. With `first`, the arrival of its first job, it is created if it does not exist: right
-- before the lane that was served last.
local function lane_of(t, group, first)
  local l = t.known[group]
  if l then return l end
  local raw = call('HGET', t.groups, group)
  if raw then
    l = { group = group, marks = lane_sub(raw, $lane.marks) }
    l.running, l.weight, l.paused, l.place, l.served, l.first, l.due = lane_unpack($lane[running..due], raw)
  elseif first then
    l = { group = group, marks = '', running = 0, place = 0, served = 2 * t.picks, first = first, due = 0 }
    l.weight, l.paused = lane_setting(t.name, group)
    call('ZADD', t.lanes, '0', group)
  else
    return nil
  end
  t.known[group] = l
  return l
end

-- Returns the member of a ready lane: the arrival of its first job, and the group.
local function ready_member(l)
  return lane_pack($lane[first], l.first) .. l.group
end

-- Returns the score of a lane: the lowest one has the next turn.
local function lane_score(served, running, weight)
  return served + math.floor(running * $turn.running / weight)
end

local function score_text(l) return string.format('%d', lane_score(l.served, l.running, l.weight)) end

local function unplace_lane(t, l)
  if l.place == READY then call('ZREM', t.ready, ready_member(l)) end
  if l.place == LATER then call('ZREM', t.later, l.group) end
  l.place, l.due = 0, 0
end

-- Puts a lane where it belongs at `at`. `due`: when its first job is due; nil: none waits.
local function place_lane(t, l, due, at)
  if l.paused == 1 or not due then return unplace_lane(t, l) end
  if due <= at then
    if l.place == READY then return end
    unplace_lane(t, l)
    call('ZADD', t.ready, score_text(l), ready_member(l))
    l.place = READY
  elseif l.place ~= LATER or l.due ~= due then
    if l.place == READY then unplace_lane(t, l) end
    call('ZADD', t.later, string.format('%d', due), l.group)
    l.place, l.due = LATER, due
  end
end

-- Returns the order of a lane for a mark: a digit, or from `a` on for jobs that failed; and that of all groups.
local function lane_orders(t, l, letter)
  local code = string.byte(letter)
  local failed = code >= 97
  return P .. (failed and 'back:' or 'wait:') .. (code - (failed and 97 or 48)) .. ':' .. t.name .. '\0' .. l.group,
    P .. 'grouped:' .. (failed and 1 or 0) .. ':' .. t.name
end

-- Returns the first member of an order of a lane, if any; removes the mark of an empty order.
local function first_of_order(t, l, letter)
  if not lane_find(l.marks, letter, 1, true) then return nil end
  local first = call('ZRANGE', lane_orders(t, l, letter), '0', '0')[1]
  if not first then l.marks = string.gsub(l.marks, letter, '') end
  return first
end

-- Returns the next job of a lane at `at`: its member, the mark of its order and its due time; or if none is due, nil,
-- nil and the due time of the earliest (nil: none waits). `ageing`: how long waiting is worth one level of priority;
-- nil: levels are strict, which is enough to know whether a job is due.
local function lane_head(t, l, at, ageing)
  local earliest, first, its_letter, first_due, least
  -- Most lanes have only this mark.
  if l.marks == '0' then
    local member = first_of_order(t, l, '0')
    if not member then return nil end
    local due = lane_unpack($member[due], member)
    if due <= at then return member, '0', due end
    return nil, nil, due
  end
  for priority = 9, 0, -1 do
    local letter, failed_letter = string.char(48 + priority), string.char(97 + priority)
    local member, failed = first_of_order(t, l, letter), first_of_order(t, l, failed_letter)
    if failed then
      local due, seq = lane_unpack($member[due..arrival], failed)
      local other_due, other_seq = math.huge, 0
      if member then other_due, other_seq = lane_unpack($member[due..arrival], member) end
      if due < other_due or due == other_due and seq < other_seq then member, letter = failed, failed_letter end
    end
    if member then
      local due = lane_unpack($member[due], member)
      if due > at then
        if not earliest or due < earliest then earliest = due end
      elseif not ageing then
        return member, letter, due
      elseif not first or due - priority * ageing < least then
        first, its_letter, first_due, least = member, letter, due, due - priority * ageing
      end
    end
  end
  return first, its_letter, first and first_due or earliest
end

-- Adds a waiting job to its lane. Subscribers are notified if no lane was ready, or none had a job that is due so soon.
local function lane_join(t, l, letter, due, member, at)
  local order, all = lane_orders(t, l, letter)
  local text = string.format('%d', due)
  call('ZADD', order, text, member)
  call('ZADD', all, text, member)
  if not lane_find(l.marks, letter, 1, true) then l.marks = l.marks .. letter end
  if l.paused == 1 or l.place == READY or l.place == LATER and l.due <= due then return end
  place_lane(t, l, due, at)
  local is_first = l.place == READY and call('ZCARD', t.ready) == 1
    or l.place == LATER and call('ZRANGE', t.later, '0', '0')[1] == l.group
  if is_first then call('PUBLISH', P .. 'w', text .. ' ' .. t.name) end
end

-- Removes a waiting job from its lane. `l` is nil if the lane does not exist any more.
local function lane_leave(t, l, letter, member)
  local order, all = lane_orders(t, l or { group = '' }, letter)
  call('ZREM', all, member)
  if not l or call('ZREM', order, member) == 0 then return end
  first_of_order(t, l, letter)
  if l.marks == '' then unplace_lane(t, l) end
end

-- Counts the end of a lease.
local function lane_release(t, group)
  local l = lane_of(t, group)
  if not l then return end
  l.running, t.running = math.max(l.running - 1, 0), math.max(t.running - 1, 0)
  if l.place == READY then call('ZADD', t.ready, score_text(l), ready_member(l)) end
end

-- Adds or removes the marks of a topic with lanes.
local function mark_lanes(t, on)
  local known = call('HGET', P .. 'claims', t.name)
  local marked = known and lane_find(known, 'k', $claims.marks, true)
  if not known or (marked and true or false) == on then return end
  local marks = on and lane_sub(known, $claims.marks) .. 'kl' or string.gsub(lane_sub(known, $claims.marks), '[kl]', '')
  call('HSET', P .. 'claims', t.name, lane_sub(known, 1, $claims.marks - 1) .. marks)
end

-- Stores what has changed. A lane without waiting jobs and leases is forgotten.
local function save_lanes()
  for _, t in pairs(lane_topics) do
    for group, l in pairs(t.known) do
      if l.marks == '' and l.running == 0 then
        call('HDEL', t.groups, group)
        call('ZREM', t.lanes, group)
      else
        call('HSET', t.groups, group, lane_pack($lane[running..due], l.running, l.weight, l.paused, l.place, l.served,
          l.first, l.due) .. l.marks)
      end
    end
    local any = call('ZCARD', t.lanes) > 0
    if any then
      call('HSET', t.groups, '', lane_pack($lanes[picks..running], t.picks, t.served, t.running))
    else
      call('UNLINK', t.groups)
    end
    local _, paused = lane_setting(t.name, '')
    mark_lanes(t, any or paused == 1)
  end
  lane_topics = {}
end
