-- flags: allow-oom
-- void: a claim whose answer was lost takes nothing any more if it arrives only now.
-- ARGV: now, 0 and the nonce of the claim.
-- Reply: 1.
--#include clock
-- Those that no server can expect any more go.
local voids = P .. 'voids'
local old = call('ZRANGEBYSCORE', voids, '-inf', string.format('%d', now - 600000000), 'LIMIT', '0', '512')
if old[1] then
  call('HDEL', P .. 'claims', unpack(old))
  call('ZREM', voids, unpack(old))
end
call('HSET', P .. 'claims', ARGV[2], '1')
call('ZADD', voids, now_text, ARGV[2])
return 1
