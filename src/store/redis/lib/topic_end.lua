-- Deletes a topic: its keys have only the rests of removed jobs.
local function delete_topic(name)
  local marks = string.sub(call('HGET', P .. 'claims', name) or '', $claims.marks)
  for letter in string.gmatch(marks, '[0-9a-j]') do
    letter = string.byte(letter)
    -- A digit (from 48 on), or for jobs that failed a letter (from 97 on).
    local failed = letter >= 97
    call('UNLINK', P .. (failed and 'back:' or 'wait:') .. (letter - (failed and 97 or 48)) .. ':' .. name)
  end
  call('UNLINK', P .. 'line:' .. name, P .. 'ends:' .. name, P .. 'more:' .. name, P .. 'topic:' .. name)
  call('HDEL', P .. 'claims', name)
  call('ZREM', P .. 'deadlines', name)
  call('ZREM', P .. 'topics', name)
  call('PUBLISH', P .. 'w', 'forgotten ' .. name)
end
