-- Clock of the store: Redis TIME in microseconds, unless a test drives it. Nearly every script begins with it.
-- KEYS[1] is the prefix of all keys, `ringq:{<shard>}:` (KEYS[2], if present, is used by `lease_events.lua`). ARGV[1] is
-- empty, or the time of a test's clock, or `<` and the latest time at which the call may be executed
-- (`write_window.rs`): after that it writes nothing and returns the error LATE with the time. Numbers are passed to
-- Redis as text where the text is available: formatting one costs as much as a call.
local call, P, now_text, latest = redis.call, KEYS[1], ARGV[1], nil
if string.byte(now_text) == 60 then now_text, latest = '', string.sub(now_text, 2) + 0 end
if now_text == '' then
  local time = call('TIME')
  now_text = time[2]
  if #now_text < 6 then now_text = string.sub('000000', #now_text + 1) .. now_text end
  now_text = time[1] .. now_text
end
local now = now_text + 0
if latest and now > latest then
  return redis.error_reply('LATE ' .. now_text .. ' the call arrived after its deadline, nothing was written')
end
