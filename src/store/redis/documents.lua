-- flags: no-writes
-- documents: reads documents in the order of their changes.
-- ARGV: now, number of the change after which they were stored, limit.
-- Reply: number of the last change (0: there was none), version and change of the horizon, then per document: name, stored
-- value.
local P, call = KEYS[1], redis.call
--#include document_horizon
local order = P .. 'documents.order'
local names = call('ZRANGEBYSCORE', order, '(' .. ARGV[2], '+inf', 'LIMIT', '0', ARGV[3])
local last, version, removed = document_horizon()
local reply = { last, version, removed }
local values = names[1] and call('HMGET', P .. 'documents', unpack(names)) or {}
for i = 1, #names do
  reply[2 * i + 2], reply[2 * i + 3] = names[i], values[i] or ''
end
return reply
