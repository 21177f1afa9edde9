-- by hand: prints a message of a job's record for a person; no server calls this. Positions: `layout.rs`.
--   redis-cli --raw --eval src/store/redis/by_hand.lua 'ringq:{s0}:jobs:emails' , order-1 life |
--     protoc -I src/store/codec --decode ringq.stored.Life stored.proto
-- KEYS: the hash of the topic's jobs. ARGV: id; `life`, `spec` (`ringq.stored.Spec`), `payload` if it is inside of
-- the record (`ringq.stored.Payload`), or `head`: due, arrival, created, flags of parts apart and inside, bytes,
-- phase, priority and keep.
local call = redis.call
local record, what = call('HGET', KEYS[1], ARGV[1]), ARGV[2]
if not record then return redis.error_reply('job not found') end
-- The lease of a running job is in front, after its length.
if string.byte(record) == 255 then record = string.sub(record, 4 + struct.unpack('>I2', record, 2)) end
local due, arrival, created, apart, inside, _, bytes, phase, priority, keep = struct.unpack('>I7I6I7BBc8I4BBi8', record)
if what == 'head' then return { due, arrival, created, apart, inside, bytes, phase, priority, keep } end
-- A finished job has the times of its end and of its deletion here, then an extended one its extension, and one
-- with a group the group after its length.
local at = 45 + (phase > 0 and 14 or 0) + (inside >= 8 and 23 or 0)
if inside >= 16 then at = at + 1 + string.byte(record, at) end
for _, message in ipairs({ { 2, 'spec' }, { 4, 'life' } }) do
  local found = ''
  if bit.band(inside, message[1]) ~= 0 then
    local length = struct.unpack('>I4', record, at)
    found, at = string.sub(record, at + 4, at + 3 + length), at + 4 + length
  end
  if what == message[2] then return found end
end
return string.sub(record, at)
