-- flags: allow-oom
-- write_policies: stores policies of topics, each if the shard has the expected version, with their effects.
-- ARGV: now, then per policy: name, whether it is a topic (1) or a pattern (0), expected version (0: none), version,
-- effect (`d` delivers, `p` pauses, `f` forgets the topic if it has no job), for `p` the time until which (0: no end),
-- body.
-- Reply: now, then per policy: whether it was written (0 or 1), version that the shard has.
--#include clock
--#include topic_end
local reply, changed = { now }, false
local policies, order, claims = P .. 'policies', P .. 'policies.order', P .. 'claims'
local last = call('ZRANGE', order, '-1', '-1', 'WITHSCORES')[2] or 0

-- Writes the mark of a paused topic among its marks, or removes it.
local function pause(name, till)
  local topic, known = P .. 'topic:' .. name, call('HGET', claims, name)
  if not known then
    -- Also if its jobs without a group are paused, a claim has to look at its lanes.
    local _, is_paused = lane_setting(name, '')
    known = struct.pack($claims[bound], $time.max) .. (is_paused == 1 and '0kl' or '0')
    call('HSETNX', topic, 'created', now_text)
    call('ZADD', P .. 'topics', '0', name)
    call('HSET', claims, name, known)
  end
  local marks = string.sub(known, $claims.marks)
  local was = string.find(marks, 'P', 1, true)
  if till then call('HSET', topic, 'paused', till) elseif was then call('HDEL', topic, 'paused') end
  if (till and true or false) ~= (was and true or false) then
    marks = till and marks .. 'P' or string.gsub(marks, 'P', '')
    call('HSET', claims, name, string.sub(known, 1, $claims.marks - 1) .. marks)
    if not till then call('PUBLISH', P .. 'w', now_text .. ' ' .. name) end
  elseif till and till ~= '0' then
    -- A claim sleeps until the end that it has found.
    call('PUBLISH', P .. 'w', till .. ' ' .. name)
  end
end

for a = 2, #ARGV, 7 do
  local name, effect = ARGV[a], ARGV[a + 4]
  local stored = call('HGET', policies, name)
  local version = stored and string.match(stored, '^%d+') or '0'
  local holds = version == ARGV[a + 2]
  if holds then
    version, last, changed = ARGV[a + 3], last + 1, true
    local sequence = string.format('%d', last)
    call('HSET', policies, name, version .. ' ' .. sequence .. ' ' .. (effect == 'f' and '0' or '1') .. ' ' .. ARGV[a + 6])
    call('ZADD', order, sequence, name)
    if ARGV[a + 1] == '1' then
      if effect == 'f' and not call('HGET', claims, name) then
        -- There is no such topic.
      else
        pause(name, effect == 'p' and ARGV[a + 5] or nil)
        local is_empty = effect == 'f' and call('HLEN', P .. 'jobs:' .. name) == 0
        if is_empty and delete_lanes(name) then delete_topic(name) end
      end
    end
  end
  reply[#reply + 1], reply[#reply + 2] = holds and 1 or 0, version + 0
end
if changed then call('PUBLISH', P .. 'w', 'policies') end
return reply
