-- flags:
-- redrive: put terminal jobs back with fresh counters.
-- ARGV: now, which states are put back (a 0 or 1 for each), topic, target, delay and spacing in
--       microseconds, dry run (0 or 1), how many were put back by earlier calls of this redrive, how long after its new
--       due time a job expires whose expire time is not after that (empty: it is left); then ids.
-- Reply: next upkeep (0: none), redriven, skipped. It ends early once it has moved much to the other topic: the rest of
--        the ids is to be sent again.
--#include clock
--#include line
--#include record
--#include recall
--#include lifecycle
local takes, name, target, dry = ARGV[2], ARGV[3], ARGV[4], ARGV[7] == '1'
local delay, spacing, nth, ttl = tonumber(ARGV[5]), tonumber(ARGV[6]), tonumber(ARGV[8]), tonumber(ARGV[9])
local k, redriven, skipped, met, moved = topic_of(name), 0, 0, {}, 0
local to = topic_of(target)

-- The job that can be put back under this id, if there is one.
local function candidate(id)
  local j = k and not met[id] and find(k, id)
  if not j then return nil end
  met[id] = true
  local at = state(j)
  local tombstone = at ~= state_in(DEAD) and j.keep < 0
  if tombstone or sub(takes, at + 1, at + 1) ~= '1' then return nil end
  if target ~= name and to and find(to, id) then return nil end
  return j
end

local function move_topic(j)
  to = to or topic_or_create(target)
  local id = j.id
  note_ended(name, id, j.phase)
  call('HDEL', k.jobs, id)
  for _, kind in ipairs({ 's', 'h', 'r', 'p' }) do
    local value = call('HGET', k.more, kind .. id)
    if value then
      call('HSET', to.more, kind .. id, value)
      call('HDEL', k.more, kind .. id)
      moved = moved + #value
    end
  end
  -- Its place in the order of arrival is one of the other topic's; it was enqueued once.
  j.k, j.arrival = to, call('HINCRBY', to.key, 'arrived', '1')
  call('HINCRBY', to.key, 'ignored', '1')
end

for a = 10, #ARGV do
  local j, due = candidate(ARGV[a]), plus(now, delay + spacing * (nth + redriven))
  local is_late = j and j.expire ~= 0 and j.expire <= due
  if not j or is_late and not ttl then
    skipped = skipped + 1
  else
    if not dry then
      leave(j)
      j.due = due
      if is_late then j.expire = plus(due, ttl) end
      if target ~= name then move_topic(j) end
      revive(j)
    end
    redriven = redriven + 1
  end
  if moved > $call.bytes then break end
end
return { upkeep, redriven, skipped }
