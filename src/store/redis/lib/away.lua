-- When no server served the shard: since the last sign of one, until the next. Nobody could extend a lease then.
-- Answers the text of the last sign, of these two times (0 before the first time that it was away), and whether it
-- was away just now: `beat.lua` notes each sign, and whichever call comes first after a silence notes that.
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
