-- flags: allow-oom
-- extend: moves deadlines of running leases to now plus a duration. Only the lease changes, so no decision is needed.
-- ARGV: now; per lease: topic, id, token, microseconds (empty: the lease's own), and for a lease that expired while
-- no server served the shard its expected deadline, and the time when the shard was served again, from which the new
-- deadline is counted (else both empty).
-- Reply: now, next upkeep (0: none), then per lease its deadline, or 0 if there is no such lease.
--#include clock
--#include lease_events
--#include ready_list
--#include record
local reply, soonest = { now, 0 }, 0

local function extend(name, id, token, micros, lapsed, served)
  local k = topic_of(name)
  local j = k and load(k, id)
  local l = j and j.lease
  if not l or l.token ~= token or lapsed ~= '' and text(l.deadline) ~= lapsed then return 0 end
  l.extended = served == '' and now or tonumber(served)
  ends_at(j, plus(l.extended, micros == '' and l.duration or tonumber(micros)))
  save(j)
  if soonest == 0 or l.deadline < soonest then soonest = l.deadline end
  add_lease_event(l.raw, 'extended@' .. text(l.deadline))
  return l.deadline
end

for a = 2, #ARGV, 6 do
  reply[#reply + 1] = extend(unpack(ARGV, a, a + 5))
end
reply[2] = soonest
publish_lease_events()
return reply
