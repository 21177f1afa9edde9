-- flags: allow-oom
-- heartbeat: stores the heartbeat of a replica and times without any heartbeat, merges what the replica sends, and reads
-- the state that all replicas share. It also limits the recent ids (`ended_ids.lua`).
-- ARGV: now, owner (8 hex digits), fingerprint of its ring (16 hex digits), initial state, its key of receipts, number of
-- new replicas, number of removed ones, their owners, then per ring: members, version, open (0 or 1).
-- Reply: now, state, whether the shard had none before (0 or 1), time of the former heartbeat of this replica (0: none),
-- the key of receipts, number of rings, per ring: members, `<version> <open>`; per replica: owner,
-- `<last heartbeat> <fingerprint>`.
--#include clock
--#include ended_ids
--#include outage
local _, away_since, away_till = away()
note_sign(away_since, away_till)
local replicas, rings, state, met, gone = P .. 'replicas', P .. 'rings', P .. 'state', ARGV[6], ARGV[7]
local is_new, before = call('SETNX', state, ARGV[4]), call('HGET', replicas, ARGV[2])
-- A shard that was emptied gets back the key that its servers have: they go on accepting each other's receipts.
call('HSETNX', 'ringq:shard', 'receipts', ARGV[5])
call('HSET', replicas, ARGV[2], now_text .. ' ' .. ARGV[3])

local function drop(second)
  call('UNLINK', P .. 'recent:' .. second)
  call('ZREM', P .. 'recent', second)
end

-- Drops seconds that no retry can refer to any more. One call checks a limited number; later calls drop the rest.
local function drop_between(first, last)
  local seconds = call('ZRANGE', P .. 'recent', first, last, 'BYSCORE', 'LIMIT', '0', '64')
  for i = 1, #seconds do drop(seconds[i]) end
end

-- Keeps the newest seconds within the size limit. Older ones are dropped, and the newest dropped second is stored.
local function drop_over_limit()
  local seconds, bytes, dropped = call('ZRANGE', P .. 'recent', '0', '895', 'REV'), 0, nil
  for i = 1, #seconds do
    bytes = bytes + call('STRLEN', P .. 'recent:' .. seconds[i])
    if bytes > $limit.recalled then
      dropped = dropped or tonumber(seconds[i], 32)
      drop(seconds[i])
    end
  end
  if dropped and dropped > tonumber(call('GET', P .. 'recent.from') or -1) then
    call('SET', P .. 'recent.from', dropped)
  end
end

local since = tonumber(call('GET', P .. 'recent.since') or 0)
-- Also after the clock went back.
if math.abs(now - since) >= $limit.look then
  call('SET', P .. 'recent.since', now_text)
  drop_between('-inf', '(' .. math.floor((now - REPEATS) / SECOND))
  drop_over_limit()
end
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
local last = tonumber(before and string.match(before, '^%d+') or 0)
local reply = { now, call('GET', state), is_new, last, call('HGET', 'ringq:shard', 'receipts'), #known / 2 }
for i = 1, #known do reply[i + 6] = known[i] end
for i = 1, #signs do reply[#known + i + 6] = signs[i] end
return reply
