-- flags: no-writes
-- get: read jobs as they lie there; what the clock makes of them is told by the reader.
-- ARGV: now, full (0 or 1); per job: topic, id.
-- Reply: now, then per job either false or: what lies under its id, story or false, history or false, result or
--        false, payload (if it lies apart) or false. It ends early once it has become large: the rest is
--        to be asked for again.
--#include clock
-- Flags of a record: it has a story; a large payload (4), a history (16) or a result (32).
local STORY, BLOBS = 2, 52
local full, bytes, reply = ARGV[2] == '1', 0, { now }
for a = 3, #ARGV, 2 do
  local name, id = ARGV[a], ARGV[a + 1]
  local record = call('HGET', P .. 'jobs:' .. name, id)
  local job = false
  if record then
    -- The lease of a running job lies in front.
    local at = string.byte(record) == 255 and 3 + struct.unpack('>I2', record, 2) or 0
    local f1, more = string.byte(record, at + 21), P .. 'more:' .. name
    job = { record, false, false, false, false }
    if bit.band(f1, STORY) ~= 0 then job[2] = call('HGET', more, 's' .. id) end
    if full and bit.band(f1, BLOBS) ~= 0 then
      local blobs = call('HMGET', more, 'h' .. id, 'r' .. id, 'p' .. id)
      job[3], job[4], job[5] = blobs[1], blobs[2], blobs[3]
      bytes = bytes + #(job[3] or '') + #(job[4] or '') + #(job[5] or '')
    end
    bytes = bytes + #record
  end
  reply[#reply + 1] = job
  if bytes > 1048576 then break end
end
return reply
