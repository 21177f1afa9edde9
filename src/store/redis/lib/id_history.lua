-- History of a server-made id without a record. Needs `ended_ids.lua`.
local recent, dropped, draining = {}, nil, nil

-- Returns the phase in which a job with this line ended, from the lines of its second; nil: not recorded.
local function recalled(second, line)
  recent[second] = recent[second] or call('GET', P .. 'recent:' .. second) or ''
  local lines, at = recent[second], 1
  while true do
    local first, last = string.find(lines, line, at, true)
    if not first then return nil end
    local behind = string.byte(lines, last + 1)
    if behind == 10 then return '$phase.succeeded' end
    if behind == 0 then return string.sub(lines, last + 2, last + 2) end
    -- The line is that of a topic with a longer name.
    at = last + 1
  end
end

-- Returns `O` if the id is too old for a retry, `A` if it is ahead of this clock, `F` if the lines of its second were
-- dropped, `X` if this shard is draining, or the phase in which its job ended; false: no history, so it may be
-- written.
local function memory(name, id)
  local number, second, line = made_in(name, id)
  if not number then return false end
  if is_old(number) then return 'O' end
  if is_ahead(number) then return 'A' end
  local phase = recalled(second, line)
  if phase then return phase end
  dropped = dropped or tonumber(call('GET', P .. 'recent.from') or -1)
  if number <= dropped then return 'F' end
  if draining == nil then draining = call('GET', P .. 'state') == 'draining' end
  return draining and 'X' or false
end
