-- flags: no-writes
-- running: a part of the running leases of a topic, in no order. Whoever wants all of them goes on
-- from where the last part ended; one that runs all the time is in some part, unless it is extended with a note
-- or meets an enqueue just then.
-- ARGV: now, topic, cursor (0: from the beginning), how many at least are looked at.
-- Reply: now, the cursor to go on from (0: that was all), then per lease: id, and of what lies under it the lease
--        and the due time and arrival behind it.
--#include clock
local sub = string.sub
local part = call('ZSCAN', P .. 'ends:' .. ARGV[2], ARGV[3], 'COUNT', ARGV[4])
local reply, ids = { now, part[1] }, {}
for i = 1, #part[2], 2 do
  local member = part[2][i]
  ids[#ids + 1] = sub(member, string.byte(member, $tied_end.zero) == 0 and $tied_end.id or $end.id)
end
-- A small set is answered whole, so the ids are looked up in portions.
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
