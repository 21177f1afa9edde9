-- flags: no-writes
-- load: reads jobs for a decision. For server-made ids without a record it returns their history.
-- ARGV: now; per job: topic, id, whether it may have been written before (0 or 1).
-- Reply: now, then per job its entry; or if there is none, false, or one letter (`lib/id_history.lua`). The reply ends
-- early once it is large: the caller requests the rest again.
--#include clock
--#include ended_ids
--#include id_history
local reply, bytes = { now }, 0
for a = 2, #ARGV, 3 do
  local entry = call('HGET', P .. 'jobs:' .. ARGV[a], ARGV[a + 1])
  if not entry and ARGV[a + 2] == '1' then entry = memory(ARGV[a], ARGV[a + 1]) end
  reply[#reply + 1], bytes = entry, bytes + #(entry or '')
  if bytes > $call.bytes then break end
end
return reply
