-- flags: no-writes
-- info: reads the state of the shard, and the total numbers of a part of its topics.
-- ARGV: now, place (in the form of ZRANGEBYLEX), maximum number of topics.
-- Reply: the shard's state (empty: it was never set), the last of these topics, whether more may follow (0 or 1);
-- records, scheduled, ready, backoff, dead, finished; the latest future due time (0: none).
--#include clock
--#include ready_list
--#include order_of_mark
local records, ready, dead, finished, latest, ahead = 0, 0, 0, 0, 0, { 0, 0 }

-- Adds the numbers of a topic. Returns the number of keys that it read.
local function count(name)
  local all = call('HLEN', P .. 'jobs:' .. name)
  if all == 0 then return 1 end
  records = records + all
  -- Marks of the orders that may have jobs.
  local marks = string.sub(call('HGET', P .. 'claims', name) or '', $claims.marks)
  ready = ready + line_count(name, marks)
  for letter in string.gmatch(marks, '[0-9a-l]') do
    local order, failed = order_of_mark(letter)
    order = P .. order .. ':' .. name
    local waiting = call('ZCARD', order)
    local due = waiting > 0 and call('ZCOUNT', order, '-inf', now_text) or 0
    local kind = failed and 2 or 1
    ahead[kind], ready = ahead[kind] + waiting - due, ready + due
    if waiting > due then
      latest = math.max(latest, tonumber(call('ZRANGE', order, -1, -1, 'WITHSCORES')[2]))
    end
  end
  dead = dead + call('ZCARD', P .. 'done:$phase.dead:' .. name)
  for _, phase in ipairs({ '$phase.succeeded:', '$phase.cancelled:', '$phase.expired:' }) do
    finished = finished + call('ZCARD', P .. 'done:' .. phase .. name)
  end
  return 8 + 3 * #marks
end

local names = call('ZRANGEBYLEX', P .. 'topics', ARGV[2], '+', 'LIMIT', 0, ARGV[3])
local looked, n = 0, 0
while n < #names and looked < $part.looks do
  n = n + 1
  looked = looked + count(names[n])
end
local more = (n < #names or #names == tonumber(ARGV[3])) and 1 or 0
return { call('GET', P .. 'state') or '', names[n] or '', more, records, ahead[1], ready, ahead[2], dead, finished,
         latest }
