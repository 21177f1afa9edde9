-- The store's clock: Redis TIME in microseconds, unless a test drives it. Nearly every script begins with
-- it. KEYS[1] is the prefix of all keys, `ringq:{<shard>}:` (KEYS[2], where there is one, belongs to
-- tell.lua); ARGV[1] is the time, or empty. Here and elsewhere
-- numbers go to Redis as text that is at hand where there is some: printing one costs as much as a call.
local call, P = redis.call, KEYS[1]
local now_text = ARGV[1]
if now_text == '' then
  local time = call('TIME')
  now_text = time[2]
  if #now_text < 6 then now_text = string.sub('000000', #now_text + 1) .. now_text end
  now_text = time[1] .. now_text
end
local now = now_text + 0
