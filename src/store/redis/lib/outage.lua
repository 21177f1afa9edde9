-- Times when no server served the shard: from the last heartbeat of any server until the next one. No client could
-- extend a lease then. Returns the text of the last heartbeat, start and end of the last such time (0: never), and
-- whether it ends with this call: `heartbeat.lua` stores each heartbeat, and the first call after a silence stores its
-- end.
local function away()
  local raw = call('GET', P .. 'away')
  if not raw then return now_text, '0', '0', false end
  local last, since, till = string.match(raw, '(%d+) (%d+) (%d+)')
  if now - last < $limit.away then return last, since, till, false end
  return now_text, last, now_text, true
end

local function note_sign(since, till)
  call('SET', P .. 'away', now_text .. ' ' .. since .. ' ' .. till)
end
