-- flags: no-writes
-- documents: reads documents in the order of their changes, of $call.bytes bytes or one more.
-- ARGV: now, number of the change after which they were stored, limit.
-- Reply: number of the last change (0: there was none), version and change of the horizon, then per document: name, number
-- of its change, stored value (empty: it was removed by hand).
local P, call = KEYS[1], redis.call
--#include document_horizon
local order = P .. 'documents.order'
local names = call('ZRANGEBYSCORE', order, '(' .. ARGV[2], '+inf', 'WITHSCORES', 'LIMIT', '0', ARGV[3])
local last, version, removed = document_horizon()
local reply, bytes = { last, version, removed }, 0
for i = 1, #names, 2 do
  if bytes > $call.bytes then break end
  local value, n = call('HGET', P .. 'documents', names[i]) or '', #reply
  reply[n + 1], reply[n + 2], reply[n + 3] = names[i], names[i + 1] + 0, value
  bytes = bytes + #value
end
return reply
