-- The part of a claim that takes jobs from lanes. Part of `claim_general.lua`, whose names it uses; defines
-- `take_lanes`.
--#include lanes

-- Leases jobs without a group, at most this number; returns the rest of them.
local function take_ungrouped(most)
  local kept = jobs_left
  jobs_left = math.min(most, kept)
  local before = jobs_left
  local rest = take_all()
  jobs_left = kept - (before - jobs_left)
  return rest
end

-- Removes the first member of a lane from its orders, and puts the lane where its next job belongs.
local function advance(t, l, member, letter)
  lane_leave(t, l, letter, member)
  local _, _, due = lane_head(t, l, now)
  place_lane(t, l, due, now)
end

-- Gives a lane a turn; returns the rest if the claim ends there.
local function serve(t, l)
  local member, letter, due = lane_head(t, l, now, ageing)
  if not member then
    -- Its first job has left.
    place_lane(t, l, due, now)
    expiries_left = expiries_left - 1
    return expiries_left < 0 and -2 or nil
  end
  local id, expired = sub(member, $member.id), {}
  local record = call('HGET', P .. 'jobs:' .. name, id)
  group = l.group
  local count, stop, lost = take({ member }, { id }, { record }, expired)
  group = nil
  if stop and not lost then return -1 end
  if count == 1 then
    unplace_lane(t, l)
    t.picks, t.running, l.running = t.picks + 1, t.running + 1, l.running + 1
    l.served = 2 * t.picks + 1
  else
    -- The job was removed by hand; or it has expired, which a prune writes.
    expiries_left = expiries_left - 1
  end
  advance(t, l, member, letter)
  if expiries_left < 0 then return -2 end
end

-- Returns when the next job of a lane is due (0: none); -2: not known. A lane may stand for a job that has left.
local function next_of_lanes(t)
  while true do
    local first = call('ZRANGE', t.later, '0', '0', 'WITHSCORES')
    if not first[1] then return 0 end
    local l = lane_of(t, first[1])
    local member, _, due = nil, nil, nil
    if l then member, _, due = lane_head(t, l, now) end
    if member then return -2 end
    if due == first[2] + 0 then return due end
    if l then place_lane(t, l, due, now) else call('ZREM', t.later, first[1]) end
    expiries_left = expiries_left - 1
    if expiries_left < 0 then return -2 end
  end
end

-- Leases jobs turn by turn: each is that of the lane with the lowest score. Returns the rest.
local function take_lanes()
  local t = lanes_of(name)
  local woken = call('ZRANGEBYSCORE', t.later, '-inf', now_text, 'LIMIT', '0', '$call.jobs')
  for i = 1, #woken do
    local l = lane_of(t, woken[i])
    if l then
      local _, _, due = lane_head(t, l, now)
      place_lane(t, l, due, now)
    else
      call('ZREM', t.later, woken[i])
    end
  end
  local weight, paused = lane_setting(name, '')
  -- A read that takes no job shows whether one is ready.
  local rest = paused == 1 and 0 or take_ungrouped(0)
  local running = call('ZCARD', P .. 'ends:' .. name) - t.running
  while rest ~= -2 do
    local ready = call('ZRANGE', t.ready, '0', '0', 'WITHSCORES')
    local member, own = ready[1], lane_score(t.served, running, weight)
    if not member and rest ~= -1 then
      local due = next_of_lanes(t)
      if due <= 0 or rest > 0 and rest < due then return due == 0 and rest or due < 0 and due or rest end
      return due
    end
    local plain = rest == -1
    if plain and member then plain = own < ready[2] + 0 end
    if plain then
      local before = #members
      rest = take_ungrouped(member and 1 or jobs_left)
      local taken = #members - before
      running = running + taken
      if taken > 0 then
        t.picks = t.picks + 1
        t.served = 2 * t.picks + 1
      end
      -- No stream can take the job, or the call is full.
      if rest == -1 and (taken == 0 or not member) then return -1 end
    else
      local l = lane_of(t, sub(member, $ready.group))
      local ended
      if l then ended = serve(t, l) else call('ZREM', t.ready, member) end
      if ended then return ended end
    end
  end
  return rest
end
