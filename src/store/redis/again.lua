-- flags:
-- again: write jobs that may have been written before, under ids that a server made. One that has succeeded
-- meanwhile and left nothing is recalled, and not written.
-- ARGV: now; per job: topic, id, blob (`enqueue.rs`).
-- Reply: now, next upkeep (0: none), then per job: action, state, due.
--#include clock
--#include line
--#include record
--#include recall
--#include lifecycle
--#include actions
--#include arrive
local reply, recent = { now, 0 }, {}

-- What has succeeded among the jobs that were named in such a second.
local function lines(key)
  recent[key] = recent[key] or call('GET', key) or ''
  return recent[key]
end

local function is_recalled(name, id)
  local second, line = recalled_by(name, id)
  return second and (string.find(lines(P .. 'recent:' .. second), line, 1, true)
    or string.find(lines(P .. 'recent.old:' .. second), line, 1, true))
end

for a = 2, #ARGV, 3 do
  local name, id, r = ARGV[a], ARGV[a + 1], #reply
  local k = topic_or_create(name)
  if not find(k, id) and is_recalled(name, id) then
    -- Left as it is.
    reply[r + 1], reply[r + 2], reply[r + 3] = 'L', state_in(SUCCEEDED), now
  else
    local seq = call('HINCRBY', k.key, 'arrived', '1')
    reply[r + 1], reply[r + 2], reply[r + 3] = arrive(k, id, ARGV[a + 2], seq)
  end
end
reply[2] = upkeep
return reply
