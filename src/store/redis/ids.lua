-- flags: no-writes
-- ids: a part of the ids of a topic, in no order; one that is there all the time is in some part, or in
-- several.
-- ARGV: now, topic, cursor (0: from the beginning), how many at least are looked at.
-- Reply: the cursor to go on from (0: that was all), then the ids.
local part = redis.call('HSCAN', KEYS[1] .. 'jobs:' .. ARGV[2], ARGV[3], 'COUNT', ARGV[4])
local reply = { part[1] }
for i = 1, #part[2], 2 do reply[#reply + 1] = part[2][i] end
return reply
