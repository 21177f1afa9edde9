-- Returns the beginning of the key of the order of a mark, and whether its jobs have failed: a digit (from 48 on), or for
-- jobs that failed a letter (from 97 on); `k` and `l` for the jobs of all groups.
local function order_of_mark(mark)
  if mark == 'k' then return 'grouped:0', false end
  if mark == 'l' then return 'grouped:1', true end
  local letter = string.byte(mark)
  local failed = letter >= 97
  return (failed and 'back:' or 'wait:') .. (letter - (failed and 97 or 48)), failed
end
