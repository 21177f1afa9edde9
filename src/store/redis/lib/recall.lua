-- What a server has named leaves nothing when it has succeeded, but is recalled for a while, should it be written
-- again (`again.lua`; `beat.lua` ends it): by the last 13 characters of its id and its topic, in a line under the
-- character of its id that changes each second.

-- That character and the line; nil for an id that a client chose.
local function recalled_by(name, id)
  local made = string.find(id, '~', 1, true)
  if made then return string.sub(id, made + 8, made + 8), string.sub(id, -13) .. name .. '\n' end
end

-- The job has succeeded and nothing stays of it.
local function note_done(name, id)
  local second, line = recalled_by(name, id)
  if second then call('APPEND', P .. 'recent:' .. second, line) end
end
