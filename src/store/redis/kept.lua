-- flags: no-writes
-- kept: when the last dead or finished job is forgotten. It is looked for among the alarms from the latest
-- one back; those of jobs that wait and expire lie between.
-- ARGV: now, how many were passed already, limit.
-- Reply: that time (0: it is not among these), how many were looked at, the time of the last of them.
local P, call = KEYS[1], redis.call
local first = tonumber(ARGV[2])
local alarms = call('ZRANGE', P .. 'alarms', first, first + ARGV[3] - 1, 'REV', 'WITHSCORES')
for i = 1, #alarms, 2 do
  local split = string.find(alarms[i], '\0', 1, true)
  local record = split and call('HGET', P .. 'jobs:' .. string.sub(alarms[i], 1, split - 1),
    string.sub(alarms[i], split + 1))
  -- The phases before it wait or run.
  if record and string.byte(record, $record.phase) >= $phase.succeeded then return { tonumber(alarms[i + 1]), 0, 0 } end
end
return { 0, #alarms / 2, tonumber(alarms[#alarms] or 0) }
