-- flags: allow-oom
-- make_undelayed_due: after the clock went back, makes jobs of one order that were enqueued without a delay due now, so that they
-- do not wait for the clock to catch up. For priority 0 the jobs in the line come first, from its end.
-- ARGV: now, topic, priority (empty: the jobs of all groups), due time and arrival to begin after (empty: at the beginning), maximum number of
-- members to check, new due time (empty: now). One due time for all of them keeps them in the order of their arrival.
-- Reply: number of checked members, number of those that are due now, the new due time; due time and arrival to
-- continue after.
--#include clock
--#include ready_list
--#include list_cursor
--#include record
local k, changed, due = topic_of(ARGV[2]), 0, tonumber(ARGV[7]) or now

-- Adds a job, which has left its place, with the new due time.
local function make_due(j)
  j.due, j.record = due, spack($record[due], due) .. sub(j.record, $record.arrival)
  renew(j)
  save(j)
  join(j)
  changed = changed + 1
end

-- The end of the line, as far as it is not due: no job in it was delayed.
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
      -- A member that is in the order, too, has left the line and come back: here it was a gap.
      if call('ZREM', order_of(j), m) == 0 then gaps = gaps - 1 end
      make_due(j)
    end
    if gaps > 0 then note_gaps(k, count_gaps(k.name, -gaps) == 0) end
    store_lanes()
    return { #late, changed, due, ARGV[4], ARGV[5] }
  end
end

local order = (ARGV[3] == '' and P .. 'grouped:0:' or P .. 'wait:' .. ARGV[3] .. ':') .. k.name
local is_due = call('ZCOUNT', order, '-inf', text(now))
local from = math.max(is_due, passed(order, tonumber(ARGV[4]), tonumber(ARGV[5])))
local page = call('ZRANGE', order, from, from + ARGV[6] - 1, 'WITHSCORES')
local after_due, after_seq = ARGV[4], ARGV[5]
for i = 1, #page, 2 do
  local m = page[i]
  after_due, after_seq = page[i + 1], text(struct.unpack($member[arrival], m, $member.arrival))
  local j = load(k, sub(m, $member.id))
  -- A member without a job, which was removed by hand, is left for claims.
  if j and j.due == j.created then
    leave(j)
    make_due(j)
  end
end
store_lanes()
return { #page / 2, changed, due, after_due, after_seq }
