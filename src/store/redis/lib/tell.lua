-- Tells the replicas whose streams hold leases what another one made of them: one message per owner and
-- call, on the owner's channel. Nobody tells itself: it knows from the answer.
-- KEYS[2] ends with the caller's nonce, as leases have their owner's.
local me, told = string.sub(KEYS[2], -4), nil

-- `lease`: as it was stored; what: `settled`, `adopted`, `expired` (also: given back), `deleted`, or `extended@` and the
-- new deadline.
local function tell(lease, what)
  if string.sub(lease, $lease.owner, $lease.stream - 1) == me then return end
  local owner, stream = struct.unpack($lease[owner..stream], lease, $lease.owner)
  told = told or {}
  local parts = told[owner] or {}
  told[owner] = parts
  local part = what .. ':' .. string.format('%d', stream) .. ':'
  local tokens = parts[part] or {}
  parts[part] = tokens
  tokens[#tokens + 1] = string.format('%08x%08x', struct.unpack('>I4I4', lease))
end

local function tell_all()
  for owner, parts in pairs(told or {}) do
    local words = {}
    for part, tokens in pairs(parts) do words[#words + 1] = part .. table.concat(tokens, ',') end
    call('PUBLISH', P .. 'r:' .. string.format('%08x', owner), table.concat(words, ' '))
  end
end
