-- flags: allow-oom
-- adopt: tie leases to another stream, which answers for them from now on.
-- ARGV: now, owner and number of the stream, its grace as it is stored; per lease: topic, id, token, owner and number of
--       the stream that it comes from, time (empty: none). With a time only a lease that is detached, or was extended
--       then or later.
-- Reply: per lease 1 (also if the stream has it already), or 0 if it is not so, or not any more.
--#include clock
--#include tell
--#include line
--#include record
local owner, stream, grace = tonumber(ARGV[2]), tonumber(ARGV[3]), tonumber(ARGV[4])

local function adopt(name, id, token, from_owner, from_stream, since)
  local k = topic_of(name)
  local j = k and load(k, id)
  local l = j and j.lease
  if not l or l.token ~= token then return 0 end
  if l.owner == owner and l.stream == stream then return 1 end
  if l.owner ~= tonumber(from_owner) or l.stream ~= tonumber(from_stream) then return 0 end
  if since ~= '' and l.grace ~= 0 and l.extended < tonumber(since) then return 0 end
  tell(l.raw, 'adopted')
  l.owner, l.stream, l.grace = owner, stream, grace
  -- The receipt names the stream that it came from, so an ack has to look whose lease it is.
  entangle(j)
  -- What is decided about the job may have to be told to its new owner.
  renew(j)
  save(j)
  return 1
end

local reply = {}
for a = 5, #ARGV, 6 do
  reply[#reply + 1] = adopt(ARGV[a], ARGV[a + 1], ARGV[a + 2], ARGV[a + 3], ARGV[a + 4], ARGV[a + 5])
end
tell_all()
return reply
