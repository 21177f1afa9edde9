-- Notifies the replicas whose streams hold leases of changes by another replica: one message per owner and call, on
-- the owner's channel. The caller is not notified: the reply has its own changes.
-- KEYS[2] ends with the caller's nonce, as leases have that of their owner.
local me, messages = string.sub(KEYS[2], -4), nil

-- `lease`: in the stored form; `what`: `settled`, `adopted`, `expired` (also: released), `deleted`, or `extended@`
-- and the new deadline.
local function add_lease_event(lease, what)
  if string.sub(lease, $lease.owner, $lease.stream - 1) == me then return end
  local owner, stream = struct.unpack($lease[owner..stream], lease, $lease.owner)
  messages = messages or {}
  local parts = messages[owner] or {}
  messages[owner] = parts
  local part = what .. ':' .. string.format('%d', stream) .. ':'
  local tokens = parts[part] or {}
  parts[part] = tokens
  tokens[#tokens + 1] = string.format('%08x%08x', struct.unpack('>I4I4', lease))
end

local function publish_lease_events()
  for owner, parts in pairs(messages or {}) do
    local words = {}
    for part, tokens in pairs(parts) do words[#words + 1] = part .. table.concat(tokens, ',') end
    call('PUBLISH', P .. 'r:' .. string.format('%08x', owner), table.concat(words, ' '))
  end
end
