-- Lists keys under a prefix that should not exist when all jobs of the load have ended: a line for each item; empty:
-- nothing. Other topics belong to their scenarios.
local found, call = {}, redis.call
local function report(...) found[#found + 1] = table.concat({ ... }, ' ') end

-- Kinds of keys that may be left, by the part before the first colon of the name.
local MAY_BE = { topics = 1, claims = 1, topic = 1, jobs = 1, more = 1, line = 1, done = 1, deadlines = 1, alarms = 1,
                 recent = 1, ['recent.from'] = 1, ['recent.since'] = 1, replicas = 1, rings = 1, state = 1, voids = 1,
                 away = 1, documents = 1, ['documents.order'] = 1, shares = 1 }

local function exists(topic, id) return call('HEXISTS', KEYS[1] .. 'jobs:' .. topic, id) == 1 end

local function is_ours(topic) return string.sub(topic, 1, 7) == 'faults.' end

for _, key in ipairs(call('KEYS', string.gsub(KEYS[1], '[{}]', '\\%0') .. '*')) do
  local kind, rest = string.match(string.sub(key, #KEYS[1] + 1), '^([^:]+):?(.*)$')
  local topic = string.match(rest, '[^:]*$')
  if topic ~= '' and not is_ours(topic) and kind ~= 'recent' then
    -- It does not belong to the load.
  elseif not MAY_BE[kind] then
    report('there is', key)
  elseif kind == 'line' then
    local gaps = tonumber(call('HGET', KEYS[1] .. 'topic:' .. rest, 'gaps') or 0)
    if call('LLEN', key) ~= gaps then report(call('LLEN', key), 'in', key, 'with gaps:', gaps) end
  elseif kind == 'jobs' then
    local left = call('HLEN', key)
    for phase = 2, 5 do left = left - call('ZCARD', KEYS[1] .. 'done:' .. phase .. ':' .. rest) end
    if left ~= 0 then report(left, 'in', key, 'that are in no order of the finished') end
  elseif kind == 'more' then
    for _, field in ipairs(call('HKEYS', key)) do
      if not exists(rest, string.sub(field, 2)) then report(field, 'in', key, 'without its record') end
    end
  elseif kind == 'alarms' then
    for _, member in ipairs(call('ZRANGE', key, 0, -1)) do
      local at = string.find(member, '\0', 1, true)
      local its = string.sub(member, 1, at - 1)
      if is_ours(its) and not exists(its, string.sub(member, at + 1)) then
        report(string.gsub(member, '%z', ' '), 'in', key, 'without its record')
      end
    end
  end
end
return table.concat(found, '\n')
