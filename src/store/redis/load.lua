-- flags: no-writes
-- load: read jobs to decide what becomes of them. Of ids that servers made it says what is known where there is no
-- record.
-- ARGV: now; per job: topic, id, whether it may have been written before (0 or 1).
-- Reply: now, then per job its entry; or if there is none, false, or one letter (`lib/memory.lua`). It ends early once it
--        has become large: the rest is to be asked for again.
--#include clock
--#include recall
--#include memory
local reply, bytes = { now }, 0
for a = 2, #ARGV, 3 do
  local entry = call('HGET', P .. 'jobs:' .. ARGV[a], ARGV[a + 1])
  if not entry and ARGV[a + 2] == '1' then entry = memory(ARGV[a], ARGV[a + 1]) end
  reply[#reply + 1], bytes = entry, bytes + #(entry or '')
  if bytes > $call.bytes then break end
end
return reply
