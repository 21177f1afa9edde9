-- flags: allow-oom
-- detach: let leases outlive their stream, unless another one has adopted them.
-- ARGV: now; per lease: topic, id, token, owner and number of the stream.
-- Reply: how many it found.
--#include clock
--#include line
--#include record
local found = 0
for a = 2, #ARGV, 5 do
  local k = topic_of(ARGV[a])
  local j = k and load(k, ARGV[a + 1])
  local l = j and j.lease
  if l and l.token == ARGV[a + 2] and l.owner == tonumber(ARGV[a + 3]) and l.stream == tonumber(ARGV[a + 4]) then
    l.grace = 0
    save(j)
    found = found + 1
  end
end
return found
