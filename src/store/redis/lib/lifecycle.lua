-- What several scripts do to a job: it finishes, waits again, is forgotten, makes way for its next
-- generation. Needs `record.lua` and `recall.lua`. A job that is given here has left its place (`leave`) already.

-- Removes the job and everything of it.
local function forget(j)
  call('HDEL', j.k.jobs, j.id)
  if j.has_story or j.has_history or j.has_result or j.large or j.next then
    local id = j.id
    call('HDEL', j.k.more, 's' .. id, 'h' .. id, 'r' .. id, 'p' .. id, 'n' .. id, 'q' .. id)
  end
  j.gone = true
end

local function drop(j, kind, has)
  if has then call('HDEL', j.k.more, kind .. j.id) end
end

-- A lease has ended: it is counted and remembered. `lease`: as it was; `ended`: outcome, code, counted
-- (0 or 1), error.
local function remember(j, lease, ended)
  local s = story(j)
  j.deliveries, j.failures = j.deliveries + 1, j.failures + ended.counted
  if ended.counted == 1 and ended.error ~= '' then s.error = ended.error end
  s.past = sub(lease.token .. string.char(ended.code) .. s.past, 1, PAST_BYTES_MAX)
  local attempt = spack('>I4I7I7BBc0', j.deliveries, lease.started, now, ended.outcome, #lease.worker,
    lease.worker) .. ended.error
  local stored = j.has_history and call('HGET', j.k.more, 'h' .. j.id) or ''
  local kept, stop = 1, 1
  while kept < $limit.attempts and stop <= #stored do
    stop = stop + 4 + sunpack('>I4', stored, stop)
    kept = kept + 1
  end
  local history = spack('>I4', #attempt) .. attempt .. sub(stored, 1, stop - 1)
  call('HSET', j.k.more, 'h' .. j.id, history)
  j.has_history = true
end

-- The job is finished and stays until `till`.
local function conclude(j, phase, finished, till, result)
  local s, tombstone = story(j), phase ~= DEAD and j.keep < 0
  j.phase, s.finished, s.forgotten = phase, finished, till
  if tombstone then
    drop(j, 'p', j.large)
    drop(j, 'h', j.has_history)
    drop(j, 'r', j.has_result)
    j.holds, j.tail, j.large, j.has_history, j.has_result = 0, '', false, false, false
    s.error, s.progress = '', ''
  elseif result then
    call('HSET', j.k.more, 'r' .. j.id, result)
    j.has_result = true
  end
  save(j)
  call('ZADD', P .. 'done:' .. phase .. ':' .. j.k.name, text(j.due), member(j))
  call('ZADD', P .. 'alarms', text(till), global_member(j))
  alarm_at(till)
end

-- The job is finished; how long it stays is its own word.
local function finish(j, phase, at, result)
  local till = plus(at, math.abs(j.keep))
  if j.keep ~= 0 and till > now then
    conclude(j, phase, at, till, result)
  else
    note_ended(j.k.name, j.id, phase)
    forget(j)
  end
end

-- The job waits from now on, unless its expire time has passed: then it is kept from now on.
local function wait(j)
  if j.expire ~= 0 and j.expire <= now then return finish(j, EXPIRED, now) end
  save(j)
  join(j)
end

-- Another generation in place of this one: of the old one only its place in the order of arrival and
-- the ends of its leases stay. `new`: a parsed record; `payload`: its body, if it lies apart.
local function overwrite(j, new, payload)
  drop(j, 'h', j.has_history)
  drop(j, 'r', j.has_result)
  if payload then
    call('HSET', j.k.more, 'p' .. j.id, payload)
  else
    drop(j, 'p', j.large)
  end
  for _, field in ipairs({ 'priority', 'due', 'created', 'expire', 'keep', 'bytes', 'own_lease',
                           'retention', 'holds', 'tail', 'large' }) do
    j[field] = new[field]
  end
  j.phase, j.failures, j.deliveries, j.has_history, j.has_result = 0, 0, 0, false, false
  j.s = { first = 0, finished = 0, forgotten = 0, worker = '', error = '', progress = '',
          past = story(j).past }
end

-- The waiting generation takes the place of the one whose lease has just ended.
local function begin_next(j)
  local new = parse(j.k, j.id, call('HGET', j.k.more, 'n' .. j.id))
  local payload = new.large and call('HGET', j.k.more, 'q' .. j.id)
  call('HDEL', j.k.more, 'n' .. j.id, 'q' .. j.id)
  overwrite(j, new, payload)
  j.next = false
  wait(j)
end

-- As `begin_next`; of the old generation only the way its lease ended is remembered.
local function hand_on(j, lease, code)
  local s = story(j)
  s.past = sub(lease.token .. string.char(code) .. s.past, 1, PAST_BYTES_MAX)
  begin_next(j)
end

-- A finished job waits again with fresh counters. An expire time that has passed has had its say.
local function revive(j)
  local s = story(j)
  drop(j, 'r', j.has_result)
  j.phase, j.failures, j.deliveries, j.has_result = 0, 0, 0, false
  s.first, s.finished, s.forgotten = 0, 0, 0
  if j.expire <= now then j.expire = 0 end
  save(j)
  join(j)
end

-- A job that waits has passed its expire time: it finished then, not now.
local function expire(j)
  leave(j)
  finish(j, EXPIRED, j.expire)
end

-- The job of that id after everything that its clock has brought about.
local function find(k, id)
  local j = load(k, id)
  if not j then return nil end
  if j.phase ~= 0 and story(j).forgotten <= now then
    leave(j)
    note_ended(j.k.name, j.id, j.phase)
    forget(j)
    return nil
  end
  if j.phase == 0 and not j.lease and j.expire ~= 0 and j.expire <= now then
    expire(j)
    if j.gone then return nil end
  end
  return j
end
