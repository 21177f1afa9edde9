-- flags: allow-oom
-- prune_topics: deletes topics that have been empty for long. An empty topic is marked with the time and the number of jobs
-- that had arrived by then; if the number is the same that much later, the topic was empty all the time.
-- ARGV: now, place (in the form of ZRANGEBYLEX), maximum number of topics, microseconds for which an empty one is
-- kept.
-- Reply: the last of these topics, whether more may follow (0 or 1), then the deleted ones.
--#include clock
local names = call('ZRANGEBYLEX', P .. 'topics', ARGV[2], '+', 'LIMIT', 0, ARGV[3])
local reply, keep = { names[#names] or '', #names == tonumber(ARGV[3]) and 1 or 0 }, tonumber(ARGV[4])

-- Deletes a topic: its keys have only the rests of removed jobs.
local function delete_topic(name)
  local marks = string.sub(call('HGET', P .. 'claims', name) or '', $claims.marks)
  for letter in string.gmatch(marks, '[0-9a-j]') do
    letter = string.byte(letter)
    -- A digit (from 48 on), or for jobs that failed a letter (from 97 on).
    local failed = letter >= 97
    call('UNLINK', P .. (failed and 'back:' or 'wait:') .. (letter - (failed and 97 or 48)) .. ':' .. name)
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
  elseif now - since >= keep then
    delete_topic(name)
    reply[#reply + 1] = name
  end
end
return reply
