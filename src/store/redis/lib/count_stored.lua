-- Counts the bytes of jobs that were stored before their topic had a limit of them: some with each call, until all are
-- counted. A job that is counted needs a check by its ack, and decisions about it as it was are not written any more.
-- Needs `record.lua`.
local DONE = 'done'

local function is_tombstone(j)
  return j.phase ~= 0 and j.phase ~= $phase.dead and sunpack($record[keep], j.record, $record.keep) < 0
end

local function count_stored(name)
  local k = topic_of(name)
  local cursor = k and (call('HGET', k.key, 'counting') or '0') or DONE
  if cursor == DONE then return end
  local page, bytes = call('HSCAN', k.jobs, cursor, 'COUNT', $call.jobs), 0
  for i = 1, #page[2], 2 do
    local j = job_of(k, page[2][i], page[2][i + 1])
    if j.apart < $apart.counted and not is_tombstone(j) then
      set_counted(j, true)
      renew(j)
      if j.lease then entangle(j) end
      save(j)
      bytes = bytes + j.bytes
    end
  end
  call('HINCRBY', k.key, 'bytes', bytes)
  call('HSET', k.key, 'counting', page[1] == '0' and DONE or page[1])
end
