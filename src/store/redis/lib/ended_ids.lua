-- A job with a server-made id leaves no record once it has ended, but its id is recorded for as long as the call may
-- be retried (`load.lua` reads it; `heartbeat.lua` limits the size): in a line of the last 13 characters of the id and the
-- topic, then, unless the job has succeeded, a zero and its phase. Lines of ids that were made in one second (1,024
-- ms) are stored together, under the first 8 characters after the `~`. Needs `clock.lua`.
local SECOND, REPEATS, AHEAD = 1024000, $limit.repeats, $limit.ahead

-- Returns the second in which a server made the id, its name, and the line without its end; nil for other ids.
local function made_in(name, id)
  local made = string.find(id, '~', 1, true)
  local second = made and string.sub(id, made + 1, made + 8)
  local number = second and tonumber(second, 32)
  if number then return number, second, string.sub(id, -13) .. name end
end

-- Return whether an id of this second is too old for a retry, or too far ahead for any server to have made it.
local function is_old(number) return number < math.floor((now - REPEATS) / SECOND) end
local function is_ahead(number) return number > math.floor((now + AHEAD) / SECOND) end

-- Records that the job has ended in this phase and left nothing.
local function note_ended(name, id, phase)
  local number, second, line = made_in(name, id)
  -- An id ahead of the clock was made before the clock went back.
  if not number or is_old(number) then return end
  line = line .. (phase == $phase.succeeded and '\n' or '\0' .. phase .. '\n')
  if call('APPEND', P .. 'recent:' .. second, line) == #line then call('ZADD', P .. 'recent', number, second) end
end
