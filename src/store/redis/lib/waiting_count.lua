-- Returns the number of waiting jobs of a topic. Jobs that have expired count until they are pruned. Needs
-- `ready_list.lua` and `order_of_mark.lua`.
local function waiting_count(name)
  local known = call('HGET', P .. 'claims', name)
  if not known then return 0 end
  local marks = string.sub(known, $claims.marks)
  -- Those of all groups whatever the marks: a script that gives a topic its first lane marks it at its end.
  local count = line_count(name, marks) + call('ZCARD', P .. 'grouped:0:' .. name) + call('ZCARD', P .. 'grouped:1:' .. name)
  for letter in string.gmatch(marks, '[0-9a-j]') do
    count = count + call('ZCARD', P .. order_of_mark(letter) .. ':' .. name)
  end
  return count
end
