-- flags: allow-oom
-- cancel_claim: cancels a claim whose reply was lost: if it arrives later, it leases nothing.
-- ARGV: now, 0 and the nonce of the claim.
-- Reply: 1.
--#include clock
-- Removes old entries, whose claims cannot arrive any more.
local voids = P .. 'voids'
local old = call('ZRANGEBYSCORE', voids, '-inf', string.format('%d', now - 600000000), 'LIMIT', '0', '512')
if old[1] then
  call('HDEL', P .. 'claims', unpack(old))
  call('ZREM', voids, unpack(old))
end
call('HSET', P .. 'claims', ARGV[2], '1')
call('ZADD', voids, now_text, ARGV[2])
return 1
