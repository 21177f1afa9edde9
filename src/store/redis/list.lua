-- flags: no-writes
-- list: which jobs of a topic are in one state, by due time, then by arrival; not those that run.
-- ARGV: now, topic, state (`r` ready, `s` scheduled, `b` backoff, or the digit of a finished phase), due
--       time and arrival to begin after (empty: at the beginning), limit.
-- Reply: when there is something to prune first: false. Else now, members (arrival and id) and due times.
--#include clock
--#include line
local unpack_ = struct.unpack
local name, state, limit = ARGV[2], ARGV[3], tonumber(ARGV[6])
local after_due, after_seq = tonumber(ARGV[4]), tonumber(ARGV[5])
local alarm = call('ZRANGE', P .. 'alarms', 0, 0, 'WITHSCORES')[2]
if alarm and tonumber(alarm) <= now then return false end

-- How many members come up to and including the cursor. Members of one due time are in the order of
-- arrival, so the last one that is passed is searched by halves.
local function passed(order)
  if not after_due then return 0 end
  local due = string.format('%d', after_due)
  local low = call('ZCOUNT', order, '-inf', '(' .. due)
  local high = low + call('ZCOUNT', order, due, due)
  while low < high do
    local middle = math.floor((low + high) / 2)
    local member = call('ZRANGE', order, middle, middle)[1]
    if unpack_($member[arrival], member, $member.arrival) <= after_seq then low = middle + 1 else high = middle end
  end
  return low
end

-- Jobs of the line behind the cursor.
local function list_line(found)
  local line, claims = P .. 'line:' .. name, call('HGET', P .. 'claims', name) or ''
  local gaps = string.find(claims, '-', $claims.marks, true)
  local low, high = 0, call('LLEN', line)
  while after_due and low < high do
    local middle = math.floor((low + high) / 2)
    local due, seq = unpack_($member[due..arrival], call('LINDEX', line, middle))
    if due < after_due or (due == after_due and seq <= after_seq) then low = middle + 1 else high = middle end
  end
  local wanted, size = limit, gaps and math.max(limit, 512) or limit
  while wanted > 0 do
    local page = call('LRANGE', line, low, low + size - 1)
    if not page[1] then break end
    low = low + #page
    for _, member in ipairs(gaps and standing(name, page) or page) do
      local due, seq = unpack_($member[due..arrival], member)
      if due > now then return end
      found[#found + 1], wanted = { due, member, seq }, wanted - 1
    end
  end
end

local orders, found = {}, {}
if state == 'r' then list_line(found) end
local ahead = state == 's' or state == 'b'
if tonumber(state) then
  orders[1] = P .. 'done:' .. state .. ':' .. name
else
  for priority = 0, 9 do
    if state ~= 'b' then orders[#orders + 1] = P .. 'wait:' .. priority .. ':' .. name end
    if state ~= 's' then orders[#orders + 1] = P .. 'back:' .. priority .. ':' .. name end
  end
end
for _, order in ipairs(orders) do
  local from = passed(order)
  if ahead then from = math.max(from, call('ZCOUNT', order, '-inf', now_text)) end
  local page = call('ZRANGE', order, from, from + limit - 1, 'WITHSCORES')
  for i = 1, #page, 2 do
    local due = tonumber(page[i + 1])
    if state == 'r' and due > now then break end
    found[#found + 1] = { due, page[i], unpack_($member[arrival], page[i], $member.arrival) }
  end
end
table.sort(found, function(x, y)
  if x[1] ~= y[1] then return x[1] < y[1] end
  return x[3] < y[3]
end)
local members, dues = {}, {}
for i = 1, #found do
  -- One that left the line and came back with the same due time is in both.
  if #members < limit and found[i][2] ~= members[#members] then
    members[#members + 1], dues[#dues + 1] = found[i][2], found[i][1]
  end
end
return { now, members, dues }
