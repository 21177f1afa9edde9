-- Dumps all data as commands that write it again: one per line, a word in quotes where it has bytes that are no
-- text, those as \x00.
local function quoted(word)
  if word ~= '' and not string.find(word, '[^%w%p]') and not string.find(word, '["\'\\]') then return word end
  local escaped = string.gsub(word, '[%c"\\\128-\255]', function(char)
    return string.format('\\x%02x', string.byte(char))
  end)
  return '"' .. escaped .. '"'
end

local lines = {}
local function line(...)
  local words = { ... }
  for at, word in ipairs(words) do words[at] = quoted(word) end
  lines[#lines + 1] = table.concat(words, ' ')
end

-- Sorts a flat list of pairs by the first element of each.
local function sorted(flat)
  local pairs_of = {}
  for at = 1, #flat, 2 do pairs_of[#pairs_of + 1] = { flat[at], flat[at + 1] } end
  table.sort(pairs_of, function(a, b) return a[1] < b[1] end)
  return pairs_of
end

local keys = redis.call('KEYS', '*')
table.sort(keys)
for _, key in ipairs(keys) do
  local kind = redis.call('TYPE', key).ok
  if kind == 'hash' then
    for _, pair in ipairs(sorted(redis.call('HGETALL', key))) do line('HSET', key, pair[1], pair[2]) end
  elseif kind == 'zset' then
    local flat = redis.call('ZRANGE', key, '0', '-1', 'WITHSCORES')
    for at = 1, #flat, 2 do line('ZADD', key, flat[at + 1], flat[at]) end
  elseif kind == 'list' then
    for _, member in ipairs(redis.call('LRANGE', key, '0', '-1')) do line('RPUSH', key, member) end
  elseif kind == 'string' then
    line('SET', key, redis.call('GET', key))
  else
    return redis.error_reply('ERR ' .. key .. ' is a ' .. kind)
  end
end
return table.concat(lines, '\n')
