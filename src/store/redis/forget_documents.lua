-- flags: allow-oom
-- forget_documents: removes documents of which nothing is left, which all shards have, and raises the horizon.
-- ARGV: now, number of the last change and version of the horizon that the shard must have, version of the new horizon, then
-- per document: name, version.
-- Reply: now, whether it was done (0 or 1).
--#include clock
--#include document_horizon
local documents, last, horizon = P .. 'documents', document_horizon()
if last ~= ARGV[2] + 0 or horizon ~= ARGV[3] + 0 then return { now, 0 } end
for a = 5, #ARGV, 2 do
  local version, live = string.match(call('HGET', documents, ARGV[a]) or '', '^(%d+) %d+ (%d)')
  if version == ARGV[a + 1] and live == '0' then
    call('HDEL', documents, ARGV[a])
    call('ZREM', P .. 'documents.order', ARGV[a])
  end
end
call('HSET', documents, '', ARGV[4] .. ' ' .. ARGV[2])
return { now, 1 }
