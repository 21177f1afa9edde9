-- Positions in an order.

-- Returns the number of members up to and including the one with this due time and arrival. Members of one due time
-- are in the order of arrival, so the last of them is found by binary search.
local function passed(order, after_due, after_seq)
  if not after_due then return 0 end
  local due = string.format('%d', after_due)
  local low = call('ZCOUNT', order, '-inf', '(' .. due)
  local high = low + call('ZCOUNT', order, due, due)
  while low < high do
    local middle = math.floor((low + high) / 2)
    local member = call('ZRANGE', order, middle, middle)[1]
    local seq = struct.unpack($member[arrival], member, $member.arrival)
    if seq <= after_seq then low = middle + 1 else high = middle end
  end
  return low
end
