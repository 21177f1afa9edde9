-- flags: allow-oom
-- heal: the clock went back. Jobs of one order that were enqueued without a delay do not wait for it to
-- catch up: they are due now.
-- ARGV: now, topic, priority, how many not due jobs to pass over, how many to look at.
-- Reply: how many were looked at, how many of them are due now.
--#include clock
--#include record
local k, healed = topic_of(ARGV[2]), 0
local order = P .. 'wait:' .. ARGV[3] .. ':' .. ARGV[2]
local page = call('ZRANGEBYSCORE', order, '(' .. text(now), '+inf', 'LIMIT', ARGV[4], ARGV[5])
for _, m in ipairs(page) do
  local j = load(k, sub(m, 14))
  if j.due == j.created then
    leave(j)
    j.due = now
    save(j)
    join(j)
    healed = healed + 1
  end
end
return { #page, healed }
