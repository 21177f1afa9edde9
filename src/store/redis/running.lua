-- flags: no-writes
-- running: reads a part of the running leases of a topic, in no order. A caller that needs all of them continues at
-- the returned cursor; a lease that runs all the time is in some part, unless it is extended with a note or its job
-- is enqueued again meanwhile.
-- ARGV: now, topic, cursor (0: from the beginning), minimum number of leases to read.
-- Reply: now, the next cursor (0: no more), then per lease: id, and of its entry the lease and the due time and
-- arrival after it.
--#include clock
--#include lease_end
local sub = string.sub
local part = call('ZSCAN', P .. 'ends:' .. ARGV[2], ARGV[3], 'COUNT', ARGV[4])
local reply, ids = { now, part[1] }, {}
for i = 1, #part[2], 2 do
  ids[#ids + 1] = job_of_end(part[2][i])
end
-- ZSCAN returns a small set as a whole, so the ids are looked up in portions.
for begin = 1, #ids, 512 do
  local found = call('HMGET', P .. 'jobs:' .. ARGV[2], unpack(ids, begin, math.min(begin + 511, #ids)))
  for i = 1, #found do
    local raw, r = found[i], #reply
    if raw and string.byte(raw) == $running then
      local lease = $entry.token - 1 + struct.unpack($entry[length], raw, $entry.length)
      reply[r + 1], reply[r + 2] = ids[begin + i - 1], sub(raw, 1, lease + $record.created - 1)
    end
  end
end
return reply
