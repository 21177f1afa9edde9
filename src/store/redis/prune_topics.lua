-- flags: allow-oom
-- prune_topics: deletes topics that have been empty for long. An empty topic is marked with the time and the number of jobs
-- that had arrived by then; if the number is the same that much later, the topic was empty all the time.
-- ARGV: now, place (in the form of ZRANGEBYLEX), maximum number of topics, microseconds for which an empty one is
-- kept.
-- Reply: the last of these topics, whether more may follow (0 or 1), then the deleted ones.
--#include clock
--#include lanes
--#include order_of_mark
local names = call('ZRANGEBYLEX', P .. 'topics', ARGV[2], '+', 'LIMIT', 0, ARGV[3])
local reply, keep = { names[#names] or '', #names == tonumber(ARGV[3]) and 1 or 0 }, tonumber(ARGV[4])

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

for _, name in ipairs(names) do
  local topic = P .. 'topic:' .. name
  local empty = call('HLEN', P .. 'jobs:' .. name) == 0
  local known = call('HMGET', topic, 'arrived', 'empty')
  local arrived, since, then_ = known[1] or '0', nil, nil
  if known[2] then since, then_ = string.match(known[2], '^(%d+) (%d+)') end
  if not empty then
    if known[2] then call('HDEL', topic, 'empty') end
  elseif then_ ~= arrived then
    call('HSET', topic, 'empty', now_text .. ' ' .. arrived)
  elseif now - since >= keep and delete_lanes(name) then
    delete_topic(name)
    reply[#reply + 1] = name
  end
end
return reply
