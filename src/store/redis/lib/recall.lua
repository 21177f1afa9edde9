-- A job under an id that a server made leaves nothing once it has ended, but its id is recalled for as long as the call
-- may be repeated (`load.lua` looks there; `beat.lua` bounds it): in a line of the last 13 characters of the id and the topic,
-- then, unless the job has succeeded, a zero and its phase. Lines of ids that were made in one second (1,024 ms) lie
-- together, under the first 8 characters behind the `~`. Needs `clock.lua`.
local SECOND, REPEATS, AHEAD = 1024000, $limit.repeats, $limit.ahead

-- The second in which a server made the id, its name, and the line without its end; nil for an id of another kind.
local function made_in(name, id)
  local made = string.find(id, '~', 1, true)
  local second = made and string.sub(id, made + 1, made + 8)
  local number = second and tonumber(second, 32)
  if number then return number, second, string.sub(id, -13) .. name end
end

-- Whether an id of this second was made too long ago to be repeated, or so far ahead that no server can have made it.
local function is_old(number) return number < math.floor((now - REPEATS) / SECOND) end
local function is_ahead(number) return number > math.floor((now + AHEAD) / SECOND) end

-- The job has ended in this phase and nothing stays of it.
local function note_ended(name, id, phase)
  local number, second, line = made_in(name, id)
  -- One that is ahead was made before the clock went back.
  if not number or is_old(number) then return end
  line = line .. (phase == $phase.succeeded and '\n' or '\0' .. phase .. '\n')
  if call('APPEND', P .. 'recent:' .. second, line) == #line then call('ZADD', P .. 'recent', number, second) end
end
