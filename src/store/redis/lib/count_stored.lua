-- Counts the bytes of jobs that were stored before their topic had a limit of them: some with each call, until all are
-- counted. A job that is counted needs a check by its ack, and decisions about it as it was are not written any more.
-- Needs `record.lua`.
local DONE = 'done'
-- Number of jobs that the script has looked at; a call may have many such topics.
local stored_looks = 0

local function is_tombstone(j)
  return j.phase ~= 0 and j.phase ~= $phase.dead and sunpack($record[keep], j.record, $record.keep) < 0
end

local function count_stored(name)
  local k = topic_of(name)
  local cursor = k and (call('HGET', k.key, 'counting') or '0') or DONE
  if cursor == DONE or stored_looks >= $call.looks then return end
  local page, bytes = call('HSCAN', k.jobs, cursor, 'COUNT', $part.looks), 0
  stored_looks = stored_looks + #page[2] / 2
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
