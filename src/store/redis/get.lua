-- flags: no-writes
-- get: read jobs as they lie there; what the clock makes of them is told by the reader.
-- ARGV: now, full (0 or 1); per job: topic, id.
-- Reply: now, then per job either false or: what lies under its id, story or false, history or false, result or
--        false, payload (if it lies apart) or false. It ends early once it has become large: the rest is
--        to be asked for again.
--#include clock
-- Flags of what only a full answer has.
local BLOBS = $apart.payload + $apart.history + $apart.result
local full, bytes, reply = ARGV[2] == '1', 0, { now }
for a = 3, #ARGV, 2 do
  local name, id = ARGV[a], ARGV[a + 1]
  local record = call('HGET', P .. 'jobs:' .. name, id)
  local job = false
  if record then
    -- The lease of a running job lies in front.
    local runs = string.byte(record) == $running
    local lease_bytes = runs and $entry.token - 1 + struct.unpack($entry[length], record, $entry.length) or 0
    local apart, more = string.byte(record, lease_bytes + $record.apart), P .. 'more:' .. name
    job = { record, false, false, false, false }
    if bit.band(apart, $apart.story) ~= 0 then job[2] = call('HGET', more, 's' .. id) end
    if full and bit.band(apart, BLOBS) ~= 0 then
      local blobs = call('HMGET', more, 'h' .. id, 'r' .. id, 'p' .. id)
      job[3], job[4], job[5] = blobs[1], blobs[2], blobs[3]
      bytes = bytes + #(job[3] or '') + #(job[4] or '') + #(job[5] or '')
    end
    bytes = bytes + #record
  end
  reply[#reply + 1] = job
  if bytes > $call.bytes then break end
end
return reply
