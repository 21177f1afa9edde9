-- flags: allow-oom
-- heal: the clock went back. Jobs of one order that were enqueued without a delay do not wait for it to
-- catch up: they are due now. Those of priority 0 that stand in the line come first, from its end.
-- ARGV: now, topic, priority, due time and arrival to begin after (empty: at the beginning), how many to look at, when
--       they are due (empty: now). One due time for all of them leaves them in the order of their arrival.
-- Reply: how many were looked at, how many of them are due now, and when; due time and arrival to go on after.
--#include clock
--#include line
--#include place
--#include record
local k, healed, due = topic_of(ARGV[2]), 0, tonumber(ARGV[7]) or now

-- The job has left its place.
local function heal(j)
  j.due, j.record = due, spack($record[due], due) .. sub(j.record, $record.arrival)
  renew(j)
  save(j)
  join(j)
  healed = healed + 1
end

-- The end of the line, as far as it is not due: nobody in it was delayed.
if ARGV[3] == '0' then
  local line = P .. 'line:' .. k.name
  local page = call('LRANGE', line, '-' .. ARGV[6], '-1')
  local first = 1
  while page[first] and sunpack($member[due], page[first]) <= now do first = first + 1 end
  local late = { unpack(page, first) }
  if late[1] then
    call('LTRIM', line, '0', -#late - 1)
    local gaps = #late
    for _, m in ipairs(standing(k.name, late)) do
      local j = load(k, sub(m, $member.id))
      -- One that is in the order, too, has left the line and come back: here it was a gap.
      if call('ZREM', order_of(j), m) == 0 then gaps = gaps - 1 end
      heal(j)
    end
    if gaps > 0 then note_gaps(k, count_gaps(k.name, -gaps) == 0) end
    return { #late, healed, due, ARGV[4], ARGV[5] }
  end
end

local order = P .. 'wait:' .. ARGV[3] .. ':' .. k.name
local is_due = call('ZCOUNT', order, '-inf', text(now))
local from = math.max(is_due, passed(order, tonumber(ARGV[4]), tonumber(ARGV[5])))
local page = call('ZRANGE', order, from, from + ARGV[6] - 1, 'WITHSCORES')
local after_due, after_seq = ARGV[4], ARGV[5]
for i = 1, #page, 2 do
  local m = page[i]
  after_due, after_seq = page[i + 1], text(struct.unpack($member[arrival], m, $member.arrival))
  local j = load(k, sub(m, $member.id))
  -- One that has no job, because somebody has removed that by hand, is left for claims.
  if j and j.due == j.created then
    leave(j)
    heal(j)
  end
end
return { #page / 2, healed, due, after_due, after_seq }
