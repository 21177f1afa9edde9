-- flags: allow-oom
-- reap: read leases whose deadline has passed. It ends nothing: that is decided outside.
-- ARGV: now, limit.
-- Reply: now, when the next deadline passes (0: there is none), then per lease: topic, id, lease, record.
--#include clock
local deadlines, limit, reply = P .. 'deadlines', ARGV[2] + 0, { now, 0 }

-- When the first lease of a topic ends, which claims leave behind as a time that may be too early; nil: none.
local function refresh(name, noted)
  local first = call('ZRANGE', P .. 'ends:' .. name, '0', '0', 'WITHSCORES')[2]
  if first == noted then return first end
  local known, bound = call('HGET', P .. 'claims', name), first or '9007199254740991'
  if first then call('ZADD', deadlines, first, name) else call('ZREM', deadlines, name) end
  if known then
    call('HSET', P .. 'claims', name, struct.pack('>I7', bound + 0) .. string.sub(known, 8))
  end
  return first
end

local topics = call('ZRANGEBYSCORE', deadlines, '-inf', now_text, 'WITHSCORES', 'LIMIT', '0', ARGV[2])
-- With as many topics as were asked for there may be more.
local soonest = #topics == 2 * limit and now or nil
for i = 1, #topics, 2 do
  local name, ends = topics[i], P .. 'ends:' .. topics[i]
  local first = refresh(name, topics[i + 1])
  if first and first + 0 <= now then
    local due = call('ZRANGEBYSCORE', ends, '-inf', now_text, 'LIMIT', '0', limit)
    for j = 1, #due do
      local id, r = due[j], #reply
      local lease, record = call('HGET', P .. 'leases:' .. name, id), call('HGET', P .. 'jobs:' .. name, id)
      if lease and record then
        reply[r + 1], reply[r + 2], reply[r + 3], reply[r + 4] = name, id, lease, record
      else
        -- Somebody has removed them by hand: nobody must come here for it again and again.
        call('ZREM', ends, id)
      end
    end
    limit, first = limit - #due, call('ZRANGE', ends, #due, #due, 'WITHSCORES')[2]
  end
  if first and (not soonest or first + 0 < soonest) then soonest = first + 0 end
end
for _ = 1, 512 do
  local head = call('ZRANGEBYSCORE', deadlines, '(' .. now_text, '+inf', 'WITHSCORES', 'LIMIT', '0', '1')
  if not head[1] or (soonest and soonest <= head[2] + 0) then break end
  if refresh(head[1], head[2]) == head[2] then soonest = head[2] + 0 end
end
reply[2] = soonest or 0
return reply
