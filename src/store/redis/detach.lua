-- flags: allow-oom
-- detach: let leases outlive their stream.
-- ARGV: now; per lease: topic, id, token.
-- Reply: how many it found.
--#include clock
--#include record
local found = 0
for a = 2, #ARGV, 3 do
  local leases = P .. 'leases:' .. ARGV[a]
  local raw = call('HGET', leases, ARGV[a + 1])
  if raw and sub(raw, 1, 8) == ARGV[a + 2] then
    local l = lease_of(raw)
    l.grace = 0
    call('HSET', leases, ARGV[a + 1], format_lease(l))
    found = found + 1
  end
end
return found
