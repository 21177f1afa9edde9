-- flags: allow-oom
-- prune_topics: deletes topics that have been empty for long. An empty topic is marked with the time and the number of jobs
-- that had arrived by then; if the number is the same that much later, the topic was empty all the time.
-- ARGV: now, place (in the form of ZRANGEBYLEX), maximum number of topics, microseconds for which an empty one is
-- kept. A topic with a policy stays; one that an operator has deleted has the time 0 as its mark.
-- Reply: the last of these topics, whether more may follow (0 or 1), then the deleted ones.
--#include clock
--#include topic_end
local names = call('ZRANGEBYLEX', P .. 'topics', ARGV[2], '+', 'LIMIT', 0, ARGV[3])
local reply, keep = { names[#names] or '', #names == tonumber(ARGV[3]) and 1 or 0 }, tonumber(ARGV[4])

-- Returns whether anything is left of the policy of the topic.
local function has_policy(name)
  return string.match(call('HGET', P .. 'documents', 'topic/' .. name) or '', '^%d+ %d+ (%d)') == '1'
end

for _, name in ipairs(names) do
  local topic = P .. 'topic:' .. name
  local empty = call('HLEN', P .. 'jobs:' .. name) == 0
  local known = call('HMGET', topic, 'arrived', 'empty', 'bytes')
  local arrived, since, then_ = known[1] or '0', nil, nil
  if known[2] then since, then_ = string.match(known[2], '^(%d+) (%d+)') end
  -- Jobs that were removed by hand have not given back their bytes.
  if empty and known[3] and known[3] ~= '0' then call('HSET', topic, 'bytes', '0') end
  if not empty then
    if known[2] and (since ~= '0' or then_ ~= arrived) then call('HDEL', topic, 'empty') end
  elseif then_ ~= arrived then
    call('HSET', topic, 'empty', now_text .. ' ' .. arrived)
  elseif now - since >= keep and not has_policy(name) and delete_lanes(name) then
    delete_topic(name)
    reply[#reply + 1] = name
  end
end
return reply
