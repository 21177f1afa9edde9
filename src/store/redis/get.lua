-- flags: no-writes
-- get: reads jobs as they are stored; the caller applies the effects of time.
-- ARGV: now, full (0 or 1); per job: topic, id.
-- Reply: now, then per job either false or: its entry, attempts or false, result or false, payload (if it is stored
-- apart) or false, checkpoint or false. The reply ends early once it is large: the caller requests the rest again.
--#include clock
-- Flags of the parts that only a full reply has.
local BLOBS = $apart.payload + $apart.attempts + $apart.result + $apart.checkpoint
local full, bytes, reply = ARGV[2] == '1', 0, { now }
for a = 3, #ARGV, 2 do
  local name, id = ARGV[a], ARGV[a + 1]
  local entry = call('HGET', P .. 'jobs:' .. name, id)
  local job = false
  if entry then
    job, bytes = { entry, false, false, false, false }, bytes + #entry
    -- The lease of a running job is in front.
    local runs = string.byte(entry) == $running
    local lease_bytes = runs and $entry.token - 1 + struct.unpack($entry[length], entry, $entry.length) or 0
    if full and bit.band(string.byte(entry, lease_bytes + $record.apart), BLOBS) ~= 0 then
      local blobs = call('HMGET', P .. 'more:' .. name, 'h' .. id, 'r' .. id, 'p' .. id, 'c' .. id)
      for i = 1, 4 do
        job[i + 1], bytes = blobs[i], bytes + #(blobs[i] or '')
      end
    end
  end
  reply[#reply + 1] = job
  if bytes > $call.bytes then break end
end
return reply
