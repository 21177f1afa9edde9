-- flags: allow-oom
-- extend: move deadlines of running leases to now plus a duration.
-- ARGV: now; per lease: topic, id, token, microseconds (empty: the lease's own), note (empty, or `+` and
--       the note), and for one that ran out while no server served the shard the deadline that it must have still, and
--       when the shard was served again, from where it lasts (else both empty).
-- Reply: now, next upkeep (0: none), then per lease its deadline, or -2 not found, -3 stale.
--#include clock
--#include tell
--#include line
--#include record
--#include recall
--#include lifecycle
local reply = { now, 0 }
local NOT_FOUND, STALE = -2, -3

local function extend(name, id, token, micros, note, lapsed, served)
  local k = topic_of(name)
  local j = k and find(k, id)
  if not j or j.phase == CANCELLED then return NOT_FOUND end
  local l = j.lease
  if not l or l.token ~= token or lapsed ~= '' and text(l.deadline) ~= lapsed then return STALE end
  l.extended = served == '' and now or tonumber(served)
  if note ~= '' then
    story(j).progress = sub(note, 2)
    entangle(j)
  end
  ends_at(j, plus(l.extended, micros == '' and l.duration or tonumber(micros)))
  save(j)
  alarm_at(l.deadline)
  tell(l.raw, 'extended@' .. text(l.deadline))
  return l.deadline
end

for a = 2, #ARGV, 7 do
  reply[#reply + 1] = extend(unpack(ARGV, a, a + 6))
end
reply[2] = upkeep
tell_all()
return reply
