-- flags: allow-oom
-- write_documents: stores documents, each if the shard has the expected version, with their effects.
-- ARGV: now, then per document: name, expected version (0: none), version (0: it is not stored), whether anything is left of
-- it (0 or 1), body, topic that it has an effect on (empty: none). With a topic: effect (`d` delivers, `p` pauses, `r`
-- releases the topic, `f` forgets it if it has no job; then 1 or 0 if the topic has settings, with or without a limit of
-- bytes), for `p` the time until which (0: no end), number of settings of groups; per setting: group (empty: the jobs
-- without one), weight, paused (0 or 1).
-- Reply: now, then per document: whether it was written (0 or 1), version that the shard has.
--#include clock
--#include topic_end
--#include document_horizon
local reply, changed = { now }, false
local documents, order, claims = P .. 'documents', P .. 'documents.order', P .. 'claims'
local last, horizon = document_horizon()

-- Writes the mark of a paused topic among its marks, or removes it.
local function pause(name, till)
  local topic, known = P .. 'topic:' .. name, call('HGET', claims, name)
  if not known then
    -- Also if its jobs without a group are paused, a claim has to look at its lanes.
    local _, is_paused = lane_setting(name, '')
    known = struct.pack($claims[bound], $time.max) .. (is_paused == 1 and '0kl' or '0')
    call('HSETNX', topic, 'created', now_text)
    call('ZADD', P .. 'topics', '0', name)
    call('HSET', claims, name, known)
  end
  local marks = string.sub(known, $claims.marks)
  local was = string.find(marks, 'P', 1, true)
  if till then call('HSET', topic, 'paused', till) elseif was then call('HDEL', topic, 'paused') end
  if (till and true or false) ~= (was and true or false) then
    marks = till and marks .. 'P' or string.gsub(marks, 'P', '')
    call('HSET', claims, name, string.sub(known, 1, $claims.marks - 1) .. marks)
    if not till then call('PUBLISH', P .. 'w', now_text .. ' ' .. name) end
  elseif till and till ~= '0' then
    -- A claim sleeps until the end that it has found.
    call('PUBLISH', P .. 'w', till .. ' ' .. name)
  end
end

-- Replaces the settings of the groups of a topic by those at these arguments.
local function configure(name, from, to)
  local key, t, groups = P .. 'shares:' .. name, lanes_of(name), {}
  local old = call('HGETALL', key)
  for i = 1, #old, 2 do groups[old[i]] = true end
  if not old[1] and to < from then return end
  local _, was_paused = lane_setting(name, '')
  call('UNLINK', key)
  for b = from, to, 3 do
    groups[ARGV[b]] = true
    call('HSET', key, ARGV[b], ARGV[b + 1] .. (ARGV[b + 2] == '1' and ' paused' or ''))
  end
  local wake
  for group in pairs(groups) do
    local l = group ~= '' and lane_of(t, group)
    if l then
      local weight, paused = lane_setting(name, group)
      local resumed, changed = paused == 0 and l.paused == 1, paused ~= l.paused or weight ~= l.weight
      if changed then
        unplace_lane(t, l)
        l.weight, l.paused = weight, paused
        local _, _, due = lane_head(t, l, now)
        place_lane(t, l, due, now)
        if resumed and due and (not wake or due < wake) then wake = due end
      end
    end
  end
  local _, is_paused = lane_setting(name, '')
  if was_paused == 1 and is_paused == 0 then wake = now end
  if wake then call('PUBLISH', P .. 'w', string.format('%d', wake) .. ' ' .. name) end
end

-- Applies the effect whose arguments begin here to a topic.
local function apply(topic, a, behind)
  local effect, limit = string.sub(ARGV[a], 1, 1), string.sub(ARGV[a], 2)
  local key = P .. 'topic:' .. topic
  configure(topic, a + 3, behind - 1)
  -- There may be no such topic.
  if (effect == 'f' or effect == 'r') and not call('HGET', claims, topic) then return end
  -- A limit of bytes that comes, or comes again, counts the jobs that were written without it.
  if (call('HGET', key, 'limited') or '') ~= limit then
    call('HDEL', key, 'counting', 'limited')
    if limit ~= '' then call('HSET', key, 'limited', limit) end
  end
  call('HDEL', key, 'empty')
  pause(topic, effect == 'p' and ARGV[a + 1] or nil)
  if effect ~= 'f' then return end
  if call('HLEN', P .. 'jobs:' .. topic) == 0 and delete_lanes(topic) then
    delete_topic(topic)
  else
    -- It goes as soon as it is empty, unless a job comes.
    call('HSET', key, 'empty', '0 ' .. (call('HGET', key, 'arrived') or '0'))
  end
end

local a = 2
while a < #ARGV do
  local name, topic = ARGV[a], ARGV[a + 5]
  local behind = topic == '' and a + 6 or a + 9 + 3 * ARGV[a + 8]
  local stored = call('HGET', documents, name)
  local version = stored and string.match(stored, '^%d+') or '0'
  -- What the shard lacks up to its horizon was removed, which the caller has not read yet.
  local is_gone = not stored and ARGV[a + 2] ~= '0' and ARGV[a + 2] + 0 <= horizon
  local holds = version == ARGV[a + 1] and not is_gone
  if holds then
    if ARGV[a + 2] ~= '0' then
      version, last, changed = ARGV[a + 2], last + 1, true
      local sequence = string.format('%d', last)
      call('HSET', documents, name, version .. ' ' .. sequence .. ' ' .. ARGV[a + 3] .. ' ' .. ARGV[a + 4])
      call('ZADD', order, sequence, name)
    end
    if topic ~= '' then apply(topic, a + 6, behind) end
  end
  reply[#reply + 1], reply[#reply + 2] = holds and 1 or 0, version + 0
  a = behind
end
save_lanes()
if changed then call('PUBLISH', P .. 'w', 'documents') end
return reply
