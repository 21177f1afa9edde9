-- flags: allow-oom
-- unclaim: undo leases that reached nobody: back to the old place, nothing counted.
-- ARGV: now, 0 and the nonce of a claim whose answer was lost (empty: of none); per lease: topic, id,
--       token. That claim may still be on its way: once it is named here it takes nothing any more.
-- Reply: next upkeep (0: none), how many it found.
--#include clock
--#include line
--#include record
--#include recall
--#include lifecycle
local undone = 0
if ARGV[2] ~= '' then
  -- Those that nobody can expect any more go.
  local voids = P .. 'voids'
  local old = call('ZRANGEBYSCORE', voids, '-inf', text(now - 600000000), 'LIMIT', '0', '512')
  if old[1] then
    call('HDEL', P .. 'claims', unpack(old))
    call('ZREM', voids, unpack(old))
  end
  call('HSET', P .. 'claims', ARGV[2], '1')
  call('ZADD', voids, text(now), ARGV[2])
end

for a = 3, #ARGV, 3 do
  local k = topic_of(ARGV[a])
  local j = k and load(k, ARGV[a + 1])
  if j and j.lease and j.lease.token == ARGV[a + 2] then
    local s = story(j)
    local first, worker = s.first, s.worker
    leave(j)
    s.first, s.worker = first, worker
    -- The claim made the eleventh end before it be forgotten, and that stays so.
    s.past = sub(s.past, 1, PAST_BYTES_MAX - PAST_BYTES)
    if j.next then begin_next(j) else wait(j) end
    undone = undone + 1
  end
end
return { upkeep, undone }
