-- flags: allow-oom
-- reap: reads leases whose deadline has passed. It ends no lease: the engine decides.
-- ARGV: now, limit.
-- Reply: now, the next deadline (0: none), start and end of the last time in which no server served the shard (0:
-- never), then per lease: topic, id, entry of the job.
--#include clock
--#include outage
--#include lease_end
local _, since, till, is_back = away()
if is_back then note_sign(since, till) end
local deadlines, limit, reply = P .. 'deadlines', ARGV[2] + 0, { now, 0, since + 0, till + 0 }

-- Returns the first deadline of a topic, and corrects the stored one; claims and settles may leave one that is too
-- early.
local function refresh(name, stored)
  local first = call('ZRANGE', P .. 'ends:' .. name, '0', '0', 'WITHSCORES')[2]
  if first == stored then return first end
  if first then call('ZADD', deadlines, first, name) else call('ZREM', deadlines, name) end
  local known, bound = call('HGET', P .. 'claims', name), (first or '$time.max') + 0
  if known then
    call('HSET', P .. 'claims', name, struct.pack($claims[bound], bound) .. string.sub(known, $claims.marks))
  end
  return first
end

-- Reads the next lease of a topic.
local function advance(head)
  local found = call('ZRANGE', head.ends, head.passed, head.passed, 'WITHSCORES')
  head.member, head.at = found[1], (found[2] or math.huge) + 0
end

-- Topics whose leases may have ended.
local topics = call('ZRANGEBYSCORE', deadlines, '-inf', now_text, 'WITHSCORES', 'LIMIT', '0', '513')
local heads = {}
for i = 1, math.min(#topics, 1024), 2 do
  if refresh(topics[i], topics[i + 1]) then
    local head = { name = topics[i], ends = P .. 'ends:' .. topics[i], passed = 0 }
    advance(head)
    heads[#heads + 1] = head
  end
end

local function earliest()
  local first = heads[1]
  for i = 2, #heads do
    if heads[i].at < first.at then first = heads[i] end
  end
  return first and first.at < math.huge and first
end

-- Counts the end of a lease in its lane.
local function release(name, group)
  --#include lanes
  lane_release(lanes_of(name), group)
  save_lanes()
end

local next_ = earliest()
while limit > 0 and next_ and next_.at <= now do
  local name, member, r = next_.name, next_.member, #reply
  local id, group = job_of_end(member)
  local raw = call('HGET', P .. 'jobs:' .. name, id)
  local token = raw and string.byte(raw) == $running and string.sub(raw, $entry.token, $entry.ack - 1)
  if token == string.sub(member, 1, $end.id - 1) then
    reply[r + 1], reply[r + 2], reply[r + 3] = name, id, raw
    next_.passed = next_.passed + 1
  else
    -- The job was removed by hand: the end of its lease must not be found again.
    call('ZREM', next_.ends, member)
    if group then release(name, group) end
  end
  advance(next_)
  limit, next_ = limit - 1, earliest()
end

-- A call checks a limited number of topics; the next call checks the others.
local soonest = next_ and next_.at or 0
if #topics > 1024 and (soonest == 0 or soonest > now) then soonest = now end
for _ = 1, 512 do
  local head = call('ZRANGEBYSCORE', deadlines, '(' .. now_text, '+inf', 'WITHSCORES', 'LIMIT', '0', '1')
  if not head[1] or (soonest > 0 and soonest <= head[2] + 0) then break end
  if refresh(head[1], head[2]) == head[2] then soonest = head[2] + 0 end
end
reply[2] = soonest
return reply
