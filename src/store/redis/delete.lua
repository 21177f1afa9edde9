-- flags: allow-oom
-- delete: cancel what waits or runs, forget what is finished.
-- ARGV: now; per job: topic, id, when it finished (empty: whatever it is; else any other generation is left alone).
-- Reply: next upkeep (0: none), then per job: the state before (-1: no such job), and of a running one
--        its lease, else false.
--#include clock
--#include tell
--#include line
--#include record
--#include recall
--#include lifecycle
local reply = { 0 }

local function delete(j)
  local before, lease = state(j), j.lease
  if lease then tell(lease.raw, 'deleted') end
  leave(j)
  if j.next then
    call('HDEL', j.k.more, 'n' .. j.id, 'q' .. j.id)
    j.next = false
  end
  if j.phase ~= 0 then
    note_ended(j.k.name, j.id, j.phase)
    forget(j)
  else
    if lease and j.keep ~= 0 then
      remember(j, lease, { outcome = $outcome.revoked, code = $outcome.revoked, counted = 0, error = '' })
    end
    finish(j, CANCELLED, now)
  end
  return before, lease and lease.raw or false
end

for a = 2, #ARGV, 3 do
  local k = topic_of(ARGV[a])
  local j, finished = k and find(k, ARGV[a + 1]), ARGV[a + 2]
  local is_meant = j and (finished == '' or j.phase ~= 0 and story(j).finished == tonumber(finished))
  local r = #reply
  reply[r + 1], reply[r + 2] = -1, false
  if is_meant then reply[r + 1], reply[r + 2] = delete(j) end
end
reply[1] = upkeep
tell_all()
return reply
