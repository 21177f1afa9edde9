-- flags: allow-oom
-- prune: expire what waited too long, forget what was kept long enough.
-- ARGV: now, limit.
-- Reply: now, how many, when there is more to do (0: nothing left).
--#include clock
--#include line
--#include record
--#include recall
--#include lifecycle
local key = P .. 'alarms'
local due = call('ZRANGEBYSCORE', key, '-inf', text(now), 'LIMIT', 0, tonumber(ARGV[2]))
local k
for i = 1, #due do
  local split = string.find(due[i], '\0', 1, true)
  local name = sub(due[i], 1, split - 1)
  if not k or k.name ~= name then k = topic_of(name) end
  if k then find(k, sub(due[i], split + 1)) end
  local at = call('ZSCORE', key, due[i])
  if at and tonumber(at) <= now then
    -- Its job has been removed by hand: nobody must come here for it again and again.
    call('ZREM', key, due[i])
  end
end
local next_ = call('ZRANGE', key, 0, 0, 'WITHSCORES')[2]
return { now, #due, next_ and tonumber(next_) or 0 }
