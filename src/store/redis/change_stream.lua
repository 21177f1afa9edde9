-- flags: allow-oom
-- change_stream: detaches leases from their streams, or ties them to other streams, which are responsible for them from then
-- on.
-- ARGV: now; per lease: topic, id, token, owner and number of its current stream; owner and number of its new one
-- (empty: detach it), its grace in the stored form, and the time since which the lease must have been extended: one that
-- is not detached, and one that is.
-- Reply: now; per lease 1 (also if it is tied to the new stream already), or 0 if it does not have that stream, or no
-- longer exists.
--#include clock
--#include lease_events
--#include ready_list
--#include record
local function adopt(j, is_held, owner, stream, grace, since, since_detached)
  local l = j.lease
  if l.owner == owner and l.stream == stream then return true end
  if not is_held or l.extended < tonumber(l.grace == 0 and since_detached or since) then return false end
  add_lease_event(l.raw, 'adopted')
  l.owner, l.stream, l.grace = owner, stream, grace
  -- The receipt names its first stream, so an ack has to check the owner of the lease.
  entangle(j)
  -- Decisions about the job may need a notification of its new owner.
  renew(j)
  save(j)
  return true
end

local function tie(name, id, token, from_owner, from_stream, owner, stream, grace, ...)
  local k = topic_of(name)
  local j = k and load(k, id)
  local l = j and j.lease
  if not l or l.token ~= token then return false end
  local is_held = l.owner == tonumber(from_owner) and l.stream == tonumber(from_stream)
  if owner ~= '' then return adopt(j, is_held, tonumber(owner), tonumber(stream), tonumber(grace), ...) end
  if is_held then
    l.grace = 0
    save(j)
  end
  return is_held
end

local reply = { now }
for a = 2, #ARGV, 10 do
  reply[#reply + 1] = tie(unpack(ARGV, a, a + 9)) and 1 or 0
end
publish_lease_events()
return reply
