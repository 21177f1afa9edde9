-- flags: allow-oom
-- open: write the shard's name at first contact, compare it ever after; note the time.
-- ARGV: now, name, format of what is stored, the oldest one that can be read and is raised to it, commands.
-- Reply: the name and the format found on the shard, the time noted before (0: none), now, which of the commands
--        the login has no right to, and then nothing else (before Redis 7, which cannot tell, empty).
--#include clock
-- A script that lacks a right in its middle leaves half of its work.
local refused = {}
for a = 5, redis.acl_check_cmd and #ARGV or 0 do
  local tells = ARGV[a] == 'PUBLISH' or ARGV[a] == 'SUBSCRIBE'
  local name = P .. (tells and 'w' or 'topics')
  if not redis.acl_check_cmd(ARGV[a], name, name, name, name) then refused[#refused + 1] = ARGV[a] end
end
if refused[1] then return { '', 0, 0, now, table.concat(refused, ' ') } end
-- The one key without the shard's name in it: another shard here must find it.
local key = 'ringq:shard'
call('HSETNX', key, 'name', ARGV[2])
call('HSETNX', key, 'format', ARGV[3])
local found = call('HMGET', key, 'name', 'format', 'time')
local format = tonumber(found[2])
if found[1] == ARGV[2] then
  call('HSET', key, 'time', now_text)
  if format >= tonumber(ARGV[4]) and format < tonumber(ARGV[3]) then call('HSET', key, 'format', ARGV[3]) end
end
return { found[1], format, tonumber(found[3] or 0), now, '' }
