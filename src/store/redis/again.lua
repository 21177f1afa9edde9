-- flags:
-- again: write jobs that may have been written before, under ids that a server made. What has ended meanwhile and left
-- nothing is recalled, and not written; nor is what cannot be the repeat of a call, or of what nothing is known any
-- more.
-- ARGV: now; per job: topic, id, blob (`enqueue.rs`).
-- Reply: now, next upkeep (0: none), then per job: action, state, due.
--#include clock
--#include line
--#include record
--#include recall
--#include lifecycle
--#include actions
--#include arrive
local reply, recent, dropped, draining = { now, 0 }, {}, nil, nil

-- The phase in which a job with this line ended, among the lines of its second; nil: it is not recalled.
local function recalled(second, line)
  recent[second] = recent[second] or call('GET', P .. 'recent:' .. second) or ''
  local lines, at = recent[second], 1
  while true do
    local first, last = string.find(lines, line, at, true)
    if not first then return nil end
    local behind = string.byte(lines, last + 1)
    if behind == 10 then return SUCCEEDED end
    if behind == 0 then return tonumber(sub(lines, last + 2, last + 2)) end
    -- Of a topic whose name goes on.
    at = last + 1
  end
end

-- Why a job without a record is not written: O its id is too old, A it is ahead of this clock, L it is recalled, F what
-- was recalled of its second was dropped, X this shard is to become empty. nil: it is written.
local function refusal(name, id)
  local number, second, line = made_in(name, id)
  if not number then return nil end
  if is_old(number) then return 'O', READY end
  if is_ahead(number) then return 'A', READY end
  local phase = recalled(second, line)
  if phase then return 'L', state_in(phase) end
  dropped = dropped or tonumber(call('GET', P .. 'recent.from') or -1)
  if number <= dropped then return 'F', READY end
  if draining == nil then draining = call('GET', P .. 'state') == 'draining' end
  if draining then return 'X', READY end
end

for a = 2, #ARGV, 3 do
  local name, id, r = ARGV[a], ARGV[a + 1], #reply
  local k = topic_of(name)
  local j = k and find(k, id)
  local action, at, due
  if not j then
    action, at = refusal(name, id)
    due = now
  elseif j.phase == CANCELLED then
    -- An id that a server made is never free again.
    action, at, due = 'L', state(j), j.due
  end
  if not action then
    k = k or topic_or_create(name)
    action, at, due = arrive(k, id, ARGV[a + 2], call('HINCRBY', k.key, 'arrived', '1'))
  end
  reply[r + 1], reply[r + 2], reply[r + 3] = action, at, due
end
reply[2] = upkeep
return reply
