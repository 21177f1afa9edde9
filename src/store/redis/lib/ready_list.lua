-- The line of a topic: jobs without a priority that were due when they came, in that order, which is also the order
-- of their due times and arrivals. Claims read it from its head. A list cannot remove a member from its middle
-- cheaply, so a job that leaves from there leaves a gap: a member that does not match its record. While a topic has
-- gaps, they are counted in `gaps` of its key, and `-` is among its `marks`. A line from which jobs were removed by
-- hand is `torn` until it is empty: its gaps are not known, so it always counts as one with gaps.

-- Returns whether the job of this member still waits in the line. `record`: entry of its id, if any.
local function is_in_line(member, record)
  if not record or string.byte(record) == $running then return false end
  -- A job that was replaced in the same microsecond by one with a group waits in a lane, at the same due time.
  if string.byte(record, $record.inside) >= $inside.group then return false end
  local due, seq, phase, priority = struct.unpack($record[due,arrival,phase,priority], record)
  local its_due, its_seq = struct.unpack($member[due..arrival], member)
  return due == its_due and seq == its_seq and phase == 0 and priority == 0
end

-- Number of members of lines that this script has read, and bytes of their records: a script that reads many stops at
-- `$call.looks` members, or `$call.bytes`.
local looks, look_bytes = 0, 0

local function looked_enough() return looks >= $call.looks or look_bytes >= $call.bytes end

-- Returns those of consecutive members of a line whose jobs still wait in it.
local function standing(name, members)
  local ids, found = {}, {}
  for i = 1, #members do ids[i] = string.sub(members[i], $member.id) end
  local records = call('HMGET', P .. 'jobs:' .. name, unpack(ids))
  for i = 1, #members do
    if is_in_line(members[i], records[i]) then found[#found + 1] = members[i] end
    look_bytes = look_bytes + #(records[i] or '')
  end
  looks = looks + #members
  return found
end

-- Number of jobs in the line. After the clock went back they count as ready even before `make_undelayed_due.lua` has made them due.
local function line_count(name, marks)
  local count = call('LLEN', P .. 'line:' .. name)
  if count > 0 and string.find(marks, '-', 1, true) then
    count = count - (call('HGET', P .. 'topic:' .. name, 'gaps') or 0)
  end
  return count
end

-- Due time of the first job of the line (0: none), or an earlier time after many gaps.
local function line_first(name, marks)
  local line = P .. 'line:' .. name
  local first = call('LINDEX', line, '0')
  if first and string.find(marks, '-', 1, true) then
    local page = call('LRANGE', line, '0', '63')
    first = standing(name, page)[1] or page[#page]
  end
  return first and struct.unpack($member[due], first) or 0
end

-- Adds to the number of gaps; returns the number, at least 1 while the line is `torn`.
local function count_gaps(name, more)
  local gaps = call('HINCRBY', P .. 'topic:' .. name, 'gaps', more)
  if gaps > 0 then return gaps end
  call('HDEL', P .. 'topic:' .. name, 'gaps')
  return call('HGET', P .. 'topic:' .. name, 'torn') and 1 or 0
end

-- Moves at least `want` jobs, or all, from the head of the line to the order by due time, where jobs can be removed
-- from the middle; gaps among them are dropped. Returns whether that is done (if not, there were too many gaps for
-- one script, or the script had read `most` members), and whether no gap is left.
local function shift(name, want, most)
  local line, moved, gaps = P .. 'line:' .. name, 0, nil
  while moved < want and not looked_enough() and looks < (most or $call.looks) do
    local page = call('LRANGE', line, '0', math.max(math.min(want - moved, $call.looks - looks, 512), 16) - 1)
    local n = #page
    if n == 0 then
      call('HDEL', P .. 'topic:' .. name, 'gaps', 'torn')
      return true, true
    end
    local adds, added = {}, 0
    for _, member in ipairs(standing(name, page)) do
      adds[#adds + 1] = string.format('%d', struct.unpack($member[due], member))
      adds[#adds + 1] = member
    end
    -- A member that exists there has left the line and come back with the same due time, so here it is a gap.
    if adds[1] then added = call('ZADD', P .. 'wait:0:' .. name, unpack(adds)) end
    call('LTRIM', line, n, '-1')
    if added < n then gaps = count_gaps(name, added - n) end
    moved = moved + added
  end
  return moved >= want, gaps == 0
end
