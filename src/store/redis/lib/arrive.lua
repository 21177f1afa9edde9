-- A job arrives: it is written, or what has its id meets it. Needs `lifecycle.lua`, and `actions`, which
-- say for each policy what to do about each thing found. The form of a new job's blob is described in
-- `enqueue.rs`.

-- The new job as a table, its due and expire times by this clock.
local function arrival(k, id, blob, seq)
  local mode, due, expires, length = string.byte(blob, 1), now, 0, #blob
  local at = 1
  -- The bits of the mode are told in `enqueue.rs`.
  if mode < $unusual then
    mode = 0
  else
    local micros, until_expiry
    micros, until_expiry, length = sunpack($blob[due..length], blob, $blob.due)
    at = $blob.fixed
    if band(mode, 1) ~= 0 then due = plus(now, micros) end
    if band(mode, 2) ~= 0 then due = math.max(now, micros) end
    if band(mode, 4) ~= 0 then expires = plus(now, until_expiry) end
    if band(mode, 8) ~= 0 then expires = math.max(until_expiry, 1) end
  end
  local raw = spack($record[due..created], due, seq, now) .. sub(blob, at, at + length - 1)
  local j = parse(k, id, raw)
  j.expire = expires
  j.policy, j.has_priority = band(mode, 48) / 16, band(mode, 64) ~= 0
  if j.large then j.payload = sub(blob, at + length) end
  return j
end

local function insert(j)
  if j.payload then call('HSET', j.k.more, 'p' .. j.id, j.payload) end
  wait(j)
end

-- What a job that was just written reads as.
local function state_now(j) return j.gone and state_in(EXPIRED) or state(j) end

local function defer(j, new, action)
  if action == 'N' then
    local waiting = parse(j.k, j.id, call('HGET', j.k.more, 'n' .. j.id))
    waiting.due = new.due
    if new.has_priority then waiting.priority = new.priority end
    new = waiting
  elseif action == 'S' then
    new.keep, new.bytes, new.own_lease, new.retention = j.keep, j.bytes, j.own_lease, j.retention
    new.holds, new.tail, new.large, new.expire = j.holds, j.tail, j.large, 0
    if not new.has_priority then new.priority = j.priority end
    new.payload = j.large and call('HGET', j.k.more, 'p' .. j.id)
  end
  if new.payload then
    call('HSET', j.k.more, 'q' .. j.id, new.payload)
  elseif j.next and action ~= 'N' then
    call('HDEL', j.k.more, 'q' .. j.id)
  end
  call('HSET', j.k.more, 'n' .. j.id, format(new))
  j.generation, j.next = j.generation + 1, true
  entangle(j)
  save(j)
  return new.due
end

-- The id is taken by `j`. Answers the action, the state and the due time to name.
local function meet(j, new)
  -- The table has nine letters for each policy: one for each state, and one for a job that runs and is to run
  -- again; for each of the four policies; and all that again for a repeated request, and for a request id that comes
  -- with another job (see `conflict.rs`: the last three bytes are those of the job).
  local found, repeated = j.next and 8 or state(j), 0
  if new.has_request == 1 and j.has_request == 1 and sub(new.request, 1, 5) == sub(j.request, 1, 5) then
    repeated = new.request == j.request and 1 or 2
  end
  local at = 36 * repeated + new.policy * 9 + found + 1
  -- L left, R refused, C created, P replaced, M moved, V revived, D deferred, S deferred with what is there, N its
  -- next generation moved.
  local action = sub(actions, at, at)
  if action == 'L' or action == 'R' then
    local due = j.due
    if j.next then due = parse(j.k, j.id, call('HGET', j.k.more, 'n' .. j.id)).due end
    return action, state(j), due
  end
  if new.has_request == 1 then j.has_request, j.request = 1, new.request end
  if action == 'C' or action == 'P' then
    leave(j)
    overwrite(j, new, new.payload)
    j.generation = j.generation + 1
    wait(j)
    return action, state_now(j), j.due
  end
  if action == 'M' or action == 'V' then
    leave(j)
    j.due = new.due
    if new.has_priority then j.priority = new.priority end
    if action == 'V' then
      revive(j)
    else
      save(j)
      join(j)
    end
    return action, state(j), j.due
  end
  return action, RUNNING, defer(j, new, action)
end

-- Writes one job, which is counted as arrived; answers like `meet`.
local function arrive(k, id, blob, seq)
  local new = arrival(k, id, blob, seq)
  local j = find(k, id)
  if not j then
    insert(new)
    return 'C', state_now(new), new.due
  end
  local action, at, due = meet(j, new)
  -- It has arrived, but is none of those that were enqueued.
  if string.find('LRMV', action, 1, true) then call('HINCRBY', k.key, 'ignored', '1') end
  return action, at, due
end
