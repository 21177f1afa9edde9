-- flags: allow-oom
-- beat: note that a replica lives, take in what it brings along, and read what all replicas share. It also
-- turns the generations of what `again.lua` recalls.
-- ARGV: now, microseconds of a generation, owner (8 hex digits), fingerprint of its ring (16 hex digits), state to
--       begin with, how many replicas were met, how many are gone, those, then per ring: members, version,
--       open (0 or 1).
-- Reply: now, state, how many rings, per ring: members, `<version> <open>`; per replica: owner,
--        `<last sign> <fingerprint>`.
--#include clock
local replicas, rings, state, met, gone = P .. 'replicas', P .. 'rings', P .. 'state', ARGV[6], ARGV[7]
call('SETNX', state, ARGV[5])
call('HSET', replicas, ARGV[3], now_text .. ' ' .. ARGV[4])
local since = tonumber(call('GET', P .. 'recent.since') or 0)
local over = now - since >= tonumber(ARGV[2])
for second in string.gmatch('0123456789abcdefghijklmnopqrstuv', '.') do
  -- One that has grown too long to be looked through is turned early.
  local length = call('STRLEN', P .. 'recent:' .. second)
  if over or length > 4000000 then call('UNLINK', P .. 'recent.old:' .. second) end
  if length > 0 and (over or length > 4000000) then
    call('RENAME', P .. 'recent:' .. second, P .. 'recent.old:' .. second)
  end
end
if over then call('SET', P .. 'recent.since', now_text) end
local a = 8
for _ = 1, met do
  call('HSETNX', replicas, ARGV[a], now_text .. ' 0000000000000000')
  a = a + 1
end
for _ = 1, gone do
  call('HDEL', replicas, ARGV[a])
  a = a + 1
end
for at = a, #ARGV, 3 do
  local version, open = tonumber(ARGV[at + 1]), ARGV[at + 2]
  local known = call('HGET', rings, ARGV[at])
  local split = known and string.find(known, ' ', 1, true)
  local before = split and tonumber(string.sub(known, 1, split - 1)) or 0
  if version > before or version == before and open == '1' then
    call('HSET', rings, ARGV[at], ARGV[at + 1] .. ' ' .. open)
  end
end
local known, signs = call('HGETALL', rings), call('HGETALL', replicas)
local reply = { now, call('GET', state), #known / 2 }
for i = 1, #known do reply[i + 3] = known[i] end
for i = 1, #signs do reply[#known + i + 3] = signs[i] end
return reply
