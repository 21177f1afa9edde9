-- flags: no-writes
-- info: what the shard says of itself, and what lies in a part of its topics, summed.
-- ARGV: now, place (as ZRANGEBYLEX has it), limit.
-- Reply: the shard's state (empty: nobody has said so), how many topics these are, the name of the last one;
--        records, scheduled, ready, backoff, dead, finished; the latest due time that is ahead (0: none).
--#include clock
--#include line
local records, ready, dead, finished, latest, ahead = 0, 0, 0, 0, 0, { 0, 0 }
local names = call('ZRANGEBYLEX', P .. 'topics', ARGV[2], '+', 'LIMIT', 0, ARGV[3])
for _, name in ipairs(names) do
  -- Of the orders that may have jobs.
  local marks = string.sub(call('HGET', P .. 'claims', name) or '', $claims.marks)
  ready = ready + in_line(name, marks)
  for letter in string.gmatch(marks, '[0-9a-j]') do
    letter = string.byte(letter)
    -- A digit (from 48 on), or for jobs that failed a letter (from 97 on).
    local failed = letter >= 97
    local order = P .. (failed and 'back:' or 'wait:') .. (letter - (failed and 97 or 48)) .. ':' .. name
    local all = call('ZCARD', order)
    local due = all > 0 and call('ZCOUNT', order, '-inf', now_text) or 0
    local kind = failed and 2 or 1
    ahead[kind], ready = ahead[kind] + all - due, ready + due
    if all > due then
      latest = math.max(latest, tonumber(call('ZRANGE', order, -1, -1, 'WITHSCORES')[2]))
    end
  end
  records = records + call('HLEN', P .. 'jobs:' .. name)
  dead = dead + call('ZCARD', P .. 'done:$phase.dead:' .. name)
  for _, phase in ipairs({ '$phase.succeeded:', '$phase.cancelled:', '$phase.expired:' }) do
    finished = finished + call('ZCARD', P .. 'done:' .. phase .. name)
  end
end
return { call('GET', P .. 'state') or '', #names, names[#names] or '', records, ahead[1], ready, ahead[2],
         dead, finished, latest }
