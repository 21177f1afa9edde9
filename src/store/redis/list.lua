-- flags: no-writes
-- list: reads the jobs of a topic that are in one state, by due time, then by arrival; not those that run.
-- ARGV: now, whether jobs past their time must be pruned first (0 or 1), topic, state (`r` ready, `s` scheduled, `b`
-- backoff, or the digit of a finished phase), due time and arrival to begin after (empty: at the beginning), limit, for
-- waiting jobs which of them: `a` all, `u` those without a group, `g` and a name: those of the group.
-- Reply: false when a prune is needed first. Else now, the due time and arrival of the last member that was read if
-- the script stopped before it had found enough (else 0 and 0), members (arrival and id) and due times.
--#include clock
--#include ready_list
--#include list_cursor
local unpack_ = struct.unpack
local name, state, limit, which = ARGV[3], ARGV[4], tonumber(ARGV[7]), ARGV[8]
local after_due, after_seq = tonumber(ARGV[5]), tonumber(ARGV[6])
local alarm = ARGV[2] == '1' and call('ZRANGE', P .. 'alarms', 0, 0, 'WITHSCORES')[2]
if alarm and tonumber(alarm) <= now then return false end

-- Lists jobs of the line after the cursor. With gaps the number of members is limited: returns where that stopped.
local function list_line(found)
  local line, claims = P .. 'line:' .. name, call('HGET', P .. 'claims', name) or ''
  local gaps = string.find(claims, '-', $claims.marks, true)
  local low, high = 0, call('LLEN', line)
  while after_due and low < high do
    local middle = math.floor((low + high) / 2)
    local due, seq = unpack_($member[due..arrival], call('LINDEX', line, middle))
    if due < after_due or (due == after_due and seq <= after_seq) then low = middle + 1 else high = middle end
  end
  local wanted, size = limit, gaps and 128 or limit
  while wanted > 0 do
    local page = call('LRANGE', line, low, low + size - 1)
    if not page[1] then break end
    low = low + #page
    for _, member in ipairs(gaps and standing(name, page) or page) do
      local due, seq = unpack_($member[due..arrival], member)
      if due > now then return end
      found[#found + 1], wanted = { due, member, seq }, wanted - 1
    end
    -- The search for the cursor has read some, too.
    local is_last = looked_enough() or looks + size > $call.looks - 24
    if wanted > 0 and gaps and is_last then return unpack_($member[due..arrival], page[#page]) end
  end
end

local orders, found, stop_due, stop_seq = {}, {}, nil, nil
local lane = string.sub(which, 1, 1) == 'g' and '\0' .. string.sub(which, 2) or ''
if state == 'r' and lane == '' then stop_due, stop_seq = list_line(found) end
local ahead = state == 's' or state == 'b'
if tonumber(state) then
  orders[1] = P .. 'done:' .. state .. ':' .. name
else
  for priority = 0, 9 do
    if state ~= 'b' then orders[#orders + 1] = P .. 'wait:' .. priority .. ':' .. name .. lane end
    if state ~= 's' then orders[#orders + 1] = P .. 'back:' .. priority .. ':' .. name .. lane end
  end
end
if not tonumber(state) and which == 'a' then
  -- The jobs of all groups.
  if state ~= 'b' then orders[#orders + 1] = P .. 'grouped:0:' .. name end
  if state ~= 's' then orders[#orders + 1] = P .. 'grouped:1:' .. name end
end
local filled = {}
for _, order in ipairs(orders) do
  if call('ZCARD', order) > 0 then filled[#filled + 1] = order end
end
-- Reads of each order as much as all orders together may return; stops at the first position after which an order has
-- more.
local size = math.min(limit, math.floor(768 / math.max(#filled, 1)))
for _, order in ipairs(filled) do
  local from = passed(order, after_due, after_seq)
  if ahead then from = math.max(from, call('ZCOUNT', order, '-inf', now_text)) end
  local page = call('ZRANGE', order, from, from + size - 1, 'WITHSCORES')
  local last
  for i = 1, #page, 2 do
    local due = tonumber(page[i + 1])
    if state == 'r' and due > now then break end
    last = i
    found[#found + 1] = { due, page[i], unpack_($member[arrival], page[i], $member.arrival) }
  end
  if last and last == 2 * size - 1 then
    local due, seq = found[#found][1], found[#found][3]
    if not stop_due or due < stop_due or (due == stop_due and seq < stop_seq) then
      stop_due, stop_seq = due, seq
    end
  end
end
table.sort(found, function(x, y)
  if x[1] ~= y[1] then return x[1] < y[1] end
  return x[3] < y[3]
end)
-- Returns whether unread members may come before this position.
local function is_behind_stop(place)
  return stop_due and (place[1] > stop_due or (place[1] == stop_due and place[3] > stop_seq))
end

local members, dues = {}, {}
for i = 1, #found do
  if #members == limit or is_behind_stop(found[i]) then break end
  -- A member that left the line and came back with the same due time is in both.
  if found[i][2] ~= members[#members] then
    members[#members + 1], dues[#dues + 1] = found[i][2], found[i][1]
  end
end
-- A full page has no stop position: it ends with its last member.
if #members == limit then stop_due, stop_seq = nil, nil end
return { now, stop_due or 0, stop_seq or 0, members, dues }
