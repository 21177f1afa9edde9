-- flags:
-- configure_groups: replaces the settings of the groups of a topic.
-- ARGV: now, topic, then per setting: group (empty: the jobs without one), weight, paused (0 or 1).
-- Reply: nothing.
--#include clock
--#include lanes
local name, key = ARGV[2], P .. 'shares:' .. ARGV[2]
local t, groups = lanes_of(ARGV[2]), {}

local old = call('HGETALL', key)
for i = 1, #old, 2 do groups[old[i]] = true end
local _, was_paused = lane_setting(name, '')
call('UNLINK', key)
for a = 3, #ARGV, 3 do
  groups[ARGV[a]] = true
  call('HSET', key, ARGV[a], ARGV[a + 1] .. (ARGV[a + 2] == '1' and ' paused' or ''))
end

-- Changes the setting of a lane that exists; returns the due time of its first job if it has been resumed.
local function change(l)
  local weight, paused = lane_setting(name, l.group)
  if weight == l.weight and paused == l.paused then return nil end
  local resumed = paused == 0 and l.paused == 1
  unplace_lane(t, l)
  l.weight, l.paused = weight, paused
  local _, _, due = lane_head(t, l, now)
  place_lane(t, l, due, now)
  return resumed and due or nil
end

local wake
for group in pairs(groups) do
  local l, due = group ~= '' and lane_of(t, group), nil
  if l then due = change(l) end
  if due and (not wake or due < wake) then wake = due end
end
local _, is_paused = lane_setting(name, '')
if was_paused == 1 and is_paused == 0 then wake = now end
if wake then call('PUBLISH', P .. 'w', string.format('%d', wake) .. ' ' .. name) end
save_lanes()
return { now }
