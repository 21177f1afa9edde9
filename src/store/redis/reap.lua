-- flags: allow-oom
-- reap: read leases whose deadline has passed. It ends nothing: that is decided outside.
-- ARGV: now, limit.
-- Reply: now, when the next deadline passes (0: there is none), then per lease: topic, id, lease, record.
--#include clock
local key, limit = P .. 'deadlines', tonumber(ARGV[2])
local due = call('ZRANGEBYSCORE', key, '-inf', now_text, 'LIMIT', 0, limit)
local after = call('ZRANGE', key, #due, #due, 'WITHSCORES')[2]
local reply = { now, after and tonumber(after) or 0 }
for i = 1, #due do
  local split = string.find(due[i], '\0', 1, true)
  local name, id = string.sub(due[i], 1, split - 1), string.sub(due[i], split + 1)
  local lease, record = call('HGET', P .. 'leases:' .. name, id), call('HGET', P .. 'jobs:' .. name, id)
  if lease and record then
    local r = #reply
    reply[r + 1], reply[r + 2], reply[r + 3], reply[r + 4] = name, id, lease, record
  else
    -- Somebody has removed them by hand: nobody must come here for it again and again.
    call('ZREM', key, due[i])
  end
end
return reply
