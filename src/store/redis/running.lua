-- flags: no-writes
-- running: a part of the running leases of a topic, in no order. Whoever wants all of them goes on
-- from where the last part ended; one that runs all the time is in some part.
-- ARGV: now, topic, cursor (0: from the beginning), how many at least are looked at.
-- Reply: the cursor to go on from (0: that was all), then per lease: id, lease, the record's first 13
--        bytes (due time and arrival).
local P = KEYS[1]
local leases, jobs = P .. 'leases:' .. ARGV[2], P .. 'jobs:' .. ARGV[2]
local part = redis.call('HSCAN', leases, ARGV[3], 'COUNT', ARGV[4])
local reply, ids = { part[1] }, {}
for i = 1, #part[2], 2 do ids[#ids + 1] = part[2][i] end
-- A small hash is answered whole, so the ids are looked up in portions.
for begin = 1, #ids, 512 do
  local records = redis.call('HMGET', jobs, unpack(ids, begin, math.min(begin + 511, #ids)))
  for i = 1, #records do
    local r = #reply
    reply[r + 1], reply[r + 2] = ids[begin + i - 1], part[2][2 * (begin + i - 1)]
    reply[r + 3] = string.sub(records[i], 1, 13)
  end
end
return reply
