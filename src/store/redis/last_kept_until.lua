-- flags: no-writes
-- last_kept_until: finds the time at which the last dead or finished job is deleted, among the alarms from the latest one back;
-- alarms of waiting jobs that expire lie between.
-- ARGV: now, number of alarms already read, limit.
-- Reply: that time (0: not among these), number of alarms read, time of the last of them.
local P, call = KEYS[1], redis.call
local first = tonumber(ARGV[2])
local alarms = call('ZRANGE', P .. 'alarms', first, first + ARGV[3] - 1, 'REV', 'WITHSCORES')
for i = 1, #alarms, 2 do
  local split = string.find(alarms[i], '\0', 1, true)
  local record = split and call('HGET', P .. 'jobs:' .. string.sub(alarms[i], 1, split - 1),
    string.sub(alarms[i], split + 1))
  -- Jobs in lower phases wait or run.
  if record and string.byte(record, $record.phase) >= $phase.succeeded then return { tonumber(alarms[i + 1]), 0, 0 } end
end
return { 0, #alarms / 2, tonumber(alarms[#alarms] or 0) }
