--#include lanes
--#include order_of_mark
-- Deletes what is left of lanes whose jobs were removed by hand; returns false if there are too many for one call.
local function delete_lanes(name)
  local t = lanes_of(name)
  local names = call('ZRANGE', t.lanes, '0', '511')
  for i = 1, #names do
    local l = lane_of(t, names[i])
    for letter in string.gmatch(l and l.marks or '', '[0-9a-j]') do call('UNLINK', (lane_orders(t, l, letter))) end
    call('ZREM', t.lanes, names[i])
    call('HDEL', t.groups, names[i])
  end
  lane_topics[name] = nil
  if #names == 512 then return false end
  call('UNLINK', t.groups, t.ready, t.later, P .. 'grouped:0:' .. name, P .. 'grouped:1:' .. name)
  return true
end

-- Deletes a topic: its keys have only the rests of removed jobs.
local function delete_topic(name)
  local marks = string.sub(call('HGET', P .. 'claims', name) or '', $claims.marks)
  for letter in string.gmatch(marks, '[0-9a-j]') do
    call('UNLINK', P .. order_of_mark(letter) .. ':' .. name)
  end
  call('UNLINK', P .. 'line:' .. name, P .. 'ends:' .. name, P .. 'more:' .. name, P .. 'topic:' .. name)
  call('HDEL', P .. 'claims', name)
  call('ZREM', P .. 'deadlines', name)
  call('ZREM', P .. 'topics', name)
  call('PUBLISH', P .. 'w', 'forgotten ' .. name)
end
