-- flags: allow-oom
-- prune: read jobs that expire or were kept for long enough. It ends nothing: that is decided outside.
-- ARGV: now, limit.
-- Reply: now, when there is something to do next behind these (0: nothing left), then per job: topic, id, its entry.
--#include clock
local key, reply = P .. 'alarms', { now, 0 }
local due = call('ZRANGEBYSCORE', key, '-inf', now_text, 'LIMIT', '0', ARGV[2])
for i = 1, #due do
  local split = string.find(due[i], '\0', 1, true)
  local name, id = string.sub(due[i], 1, split - 1), string.sub(due[i], split + 1)
  local entry = call('HGET', P .. 'jobs:' .. name, id)
  if entry and string.byte(entry) ~= $running then
    local r = #reply
    reply[r + 1], reply[r + 2], reply[r + 3] = name, id, entry
  else
    -- Its job has been removed by hand: no look must come here for it again and again.
    call('ZREM', key, due[i])
  end
end
local behind = call('ZRANGE', key, (#reply - 2) / 3, (#reply - 2) / 3, 'WITHSCORES')[2]
reply[2] = tonumber(behind or 0)
return reply
