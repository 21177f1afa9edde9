-- flags: allow-oom
-- prune: reads jobs that expire or whose retention ends. It changes no job: the engine decides.
-- ARGV: now, limit.
-- Reply: now, time of the next upkeep after these (0: none), then per job: topic, id, its entry.
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
    -- The job was removed by hand: the alarm must not be found again.
    call('ZREM', key, due[i])
  end
end
local behind = call('ZRANGE', key, (#reply - 2) / 3, (#reply - 2) / 3, 'WITHSCORES')[2]
reply[2] = tonumber(behind or 0)
return reply
