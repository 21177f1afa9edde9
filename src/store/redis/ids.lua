-- flags: no-writes
-- ids: reads a part of the ids of a topic, in no order; an id that exists all the time is in some part, or in
-- several.
-- ARGV: now, topic, cursor (0: from the beginning), minimum number of ids to read.
-- Reply: the next cursor (0: no more), then the ids.
local part = redis.call('HSCAN', KEYS[1] .. 'jobs:' .. ARGV[2], ARGV[3], 'COUNT', ARGV[4])
local reply = { part[1] }
for i = 1, #part[2], 2 do reply[#reply + 1] = part[2][i] end
return reply
