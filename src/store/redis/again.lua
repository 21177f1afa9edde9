-- flags:
-- again: write one job that may have been written before, under an id that a server made. One that has
-- finished meanwhile and left nothing is recalled, and not written.
-- ARGV: now, topic, id, blob (`enqueue.rs`).
-- Reply: now, next upkeep (0: none), action, state, due.
--#include clock
--#include record
--#include lifecycle
--#include actions
--#include arrive
local id = ARGV[3]

-- Whether the end of the id is among those, of 13 bytes each.
local function is_among(ends)
  local at = string.find(ends, sub(id, -13), 1, true)
  while at and at % 13 ~= 1 do at = string.find(ends, sub(id, -13), at + 1, true) end
  return at
end

local made = string.find(id, '~', 1, true)
local second = made and sub(id, made + 8, made + 8)
if made and (is_among(call('GET', P .. 'recent:' .. second) or '')
    or is_among(call('GET', P .. 'recent.old:' .. second) or '')) then
  return { now, 0, 'L', 4, now }
end
local k = topic_or_create(ARGV[2])
local action, at, due = arrive(k, id, ARGV[4], call('HINCRBY', k.key, 'arrived', '1'))
return { now, upkeep, action, at, due }
