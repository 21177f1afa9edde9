-- flags:
-- reschedule: move what waits, revive what is dead.
-- ARGV: now, which states can be moved (a 0 or 1 for each); per job: topic, id, due (empty: it stays;
--       `+` and microseconds from now; `@` and a time), priority (empty: it stays).
-- Reply: now, next upkeep (0: none), then per job: -1 (none), the state that refuses it, or record and
--        story or false.
--#include clock
--#include line
--#include record
--#include recall
--#include lifecycle
local movable, reply = ARGV[2], { now, 0 }

local function move(j, due, priority)
  local dead = j.phase == DEAD
  leave(j)
  local micros = tonumber(sub(due, 2))
  if sub(due, 1, 1) == '+' then
    j.due = plus(now, micros)
  elseif due ~= '' then
    j.due = math.max(now, micros)
  elseif dead then
    j.due = now
  end
  if priority ~= '' then j.priority = tonumber(priority) end
  if dead then
    revive(j)
  else
    save(j)
    join(j)
  end
end

for a = 3, #ARGV, 4 do
  local k = topic_of(ARGV[a])
  local j, answer = k and find(k, ARGV[a + 1]), -1
  if j then
    answer = state(j)
    if sub(movable, answer + 1, answer + 1) == '1' then
      move(j, ARGV[a + 2], ARGV[a + 3])
      answer = { call('HGET', k.jobs, j.id), j.has_story and call('HGET', k.more, 's' .. j.id) }
    end
  end
  reply[#reply + 1] = answer
end
reply[2] = upkeep
return reply
