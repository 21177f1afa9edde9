-- flags: allow-oom
-- detach: let leases outlive their stream.
-- ARGV: now; per lease: topic, id, token.
-- Reply: how many it found.
--#include clock
--#include line
--#include record
local found = 0
for a = 2, #ARGV, 3 do
  local k = topic_of(ARGV[a])
  local j = k and load(k, ARGV[a + 1])
  if j and j.lease and j.lease.token == ARGV[a + 2] then
    j.lease.grace = 0
    save(j)
    found = found + 1
  end
end
return found
