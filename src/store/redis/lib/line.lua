-- The line of a topic: jobs without a priority that were due when they came, in that order, which is the order of
-- their due times and arrivals, too. Claims read it from its head. A list gives nothing back from its middle, so a
-- job that leaves from there leaves a gap: a member that its record does not agree with. While a topic has gaps,
-- they are counted in `gaps` of its key, and `-` is among its `marks`. A line from which somebody has taken jobs by
-- hand is `torn` until it is empty: its gaps are not known, so it always counts as one with gaps.

-- Whether the job that stands there still waits there. `record`: what lies under its id, if anything.
local function stands(member, record)
  if not record or string.byte(record) == $running then return false end
  local due, seq, phase, priority = struct.unpack($record[due,arrival,phase,priority], record)
  local its_due, its_seq = struct.unpack($member[due..arrival], member)
  return due == its_due and seq == its_seq and phase == 0 and priority == 0
end

-- Of these members, which follow each other in a line, the ones that still stand there.
local function standing(name, members)
  local ids, found = {}, {}
  for i = 1, #members do ids[i] = string.sub(members[i], $member.id) end
  local records = call('HMGET', P .. 'jobs:' .. name, unpack(ids))
  for i = 1, #members do
    if stands(members[i], records[i]) then found[#found + 1] = members[i] end
  end
  return found
end

-- How many jobs stand in the line, and when the first of them became due (0: there is none), or behind many gaps
-- a time before that. From when the clock goes back until the shard is healed they count as ready all the same.
local function in_line(name, marks)
  local line = P .. 'line:' .. name
  local count, first = call('LLEN', line), call('LINDEX', line, '0')
  if first and string.find(marks, '-', 1, true) then
    count = count - (call('HGET', P .. 'topic:' .. name, 'gaps') or 0)
    local page = call('LRANGE', line, '0', '511')
    first = count > 0 and (standing(name, page)[1] or page[#page])
  end
  return count, first and struct.unpack($member[due], first) or 0
end

-- So many gaps more, or fewer; how many there are, at least 1 while the line is `torn`.
local function count_gaps(name, more)
  local gaps = call('HINCRBY', P .. 'topic:' .. name, 'gaps', more)
  if gaps > 0 then return gaps end
  call('HDEL', P .. 'topic:' .. name, 'gaps')
  return call('HGET', P .. 'topic:' .. name, 'torn') and 1 or 0
end

-- How many members `shift` looks at in one call.
local SHIFT_MAX = 1024

-- Moves at least `want` jobs, or all, from the head of the line to the order by due time, where jobs can be taken
-- from the middle; gaps among them go. Answers whether that is done (else there were too many of them for one
-- call), and whether no gap is left.
local function shift(name, want)
  local line, moved, looked, gaps = P .. 'line:' .. name, 0, 0, nil
  while moved < want and looked < SHIFT_MAX do
    local page = call('LRANGE', line, '0', math.max(math.min(want - moved, 512), 16) - 1)
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
    -- What is there already left the line and came back with the same due time, so here it is a gap.
    if adds[1] then added = call('ZADD', P .. 'wait:0:' .. name, unpack(adds)) end
    call('LTRIM', line, n, '-1')
    if added < n then gaps = count_gaps(name, added - n) end
    looked, moved = looked + n, moved + added
  end
  return moved >= want, gaps == 0
end
