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
local tail = sub(id, -13)
if call('SISMEMBER', P .. 'recent', tail) + call('SISMEMBER', P .. 'recent.old', tail) > 0 then
  return { now, 0, 'L', 4, now }
end
local k = topic_or_create(ARGV[2])
local action, at, due = arrive(k, id, ARGV[4], call('HINCRBY', k.key, 'arrived', '1'))
return { now, upkeep, action, at, due }
