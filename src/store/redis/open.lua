-- flags: allow-oom
-- open: writes the shard's name and the key of its receipts at first contact, compares the name later, and stores the time.
-- ARGV: now, name, stored format of this build, oldest format that it reads and raises to its own, the key of receipts that
-- this server has or has made, commands.
-- Reply: the name and the format found on the shard, the previously stored time (0: none), now, the commands that the
-- login may not use (if any, the other values are empty; before Redis 7, which has no such check, always empty), the key of
-- receipts (empty: the name is another one).
--#include clock
-- A script that lacks a right in its middle leaves half of its work.
local refused = {}
for a = 6, redis.acl_check_cmd and #ARGV or 0 do
  local publishes = ARGV[a] == 'PUBLISH' or ARGV[a] == 'SUBSCRIBE'
  local name = P .. (publishes and 'w' or 'topics')
  if not redis.acl_check_cmd(ARGV[a], name, name, name, name) then refused[#refused + 1] = ARGV[a] end
end
if refused[1] then return { '', 0, 0, now, table.concat(refused, ' '), '' } end
-- The only key without the shard's name in it, so that another shard on this Redis finds it.
local key = 'ringq:shard'
call('HSETNX', key, 'name', ARGV[2])
call('HSETNX', key, 'format', ARGV[3])
local found = call('HMGET', key, 'name', 'format', 'time')
local format, receipts = tonumber(found[2]), ''
if found[1] == ARGV[2] then
  call('HSET', key, 'time', now_text)
  call('HSETNX', key, 'receipts', ARGV[5])
  receipts = call('HGET', key, 'receipts')
  if format >= tonumber(ARGV[4]) and format < tonumber(ARGV[3]) then call('HSET', key, 'format', ARGV[3]) end
end
return { found[1], format, tonumber(found[3] or 0), now, '', receipts }
