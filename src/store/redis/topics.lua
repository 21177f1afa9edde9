-- flags: no-writes
-- topics: reads the topics whose names are at or after a place, in order, with their numbers of records.
-- ARGV: now, place (in the form of ZRANGEBYLEX), limit.
-- Reply: per topic: name, time of its creation, records.
local P = KEYS[1]
local reply = {}
for _, name in ipairs(redis.call('ZRANGEBYLEX', P .. 'topics', ARGV[2], '+', 'LIMIT', 0, ARGV[3])) do
  local r = #reply
  reply[r + 1], reply[r + 2] = name, tonumber(redis.call('HGET', P .. 'topic:' .. name, 'created'))
  reply[r + 3] = redis.call('HLEN', P .. 'jobs:' .. name)
end
return reply
