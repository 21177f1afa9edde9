-- The store's clock: Redis TIME in microseconds, unless a test drives it. Every script begins with it.
-- KEYS[1] is the prefix of all keys, `ringq:{<shard>}:`; ARGV[1] is the time, or empty.
local call, P = redis.call, KEYS[1]
local now = ARGV[1]
if now == '' then
  local time = call('TIME')
  now = time[1] * 1000000 + time[2]
else
  now = tonumber(now)
end
