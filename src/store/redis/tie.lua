-- flags: allow-oom
-- tie: detach leases from their streams, or tie them to others, which answer for them from then on.
-- ARGV: now; per lease: topic, id, token, owner and number of the stream that answers for it; owner and number of the one
--       that is to (empty: detach it), its grace as it is stored, time (empty: none). With a time only a lease that is
--       detached, or was extended then or later.
-- Reply: now; per lease 1 (also if the stream has it already), or 0 if it is not so, or not any more.
--#include clock
--#include tell
--#include line
--#include record
local function adopt(j, is_held, owner, stream, grace, since)
  local l = j.lease
  if l.owner == owner and l.stream == stream then return true end
  if not is_held or since ~= '' and l.grace ~= 0 and l.extended < tonumber(since) then return false end
  tell(l.raw, 'adopted')
  l.owner, l.stream, l.grace = owner, stream, grace
  -- The receipt names the stream that it came from, so an ack has to look whose lease it is.
  entangle(j)
  -- What is decided about the job may have to be told to its new owner.
  renew(j)
  save(j)
  return true
end

local function tie(name, id, token, from_owner, from_stream, owner, stream, grace, since)
  local k = topic_of(name)
  local j = k and load(k, id)
  local l = j and j.lease
  if not l or l.token ~= token then return false end
  local is_held = l.owner == tonumber(from_owner) and l.stream == tonumber(from_stream)
  if owner ~= '' then return adopt(j, is_held, tonumber(owner), tonumber(stream), tonumber(grace), since) end
  if is_held then
    l.grace = 0
    save(j)
  end
  return is_held
end

local reply = { now }
for a = 2, #ARGV, 9 do
  reply[#reply + 1] = tie(unpack(ARGV, a, a + 8)) and 1 or 0
end
tell_all()
return reply
