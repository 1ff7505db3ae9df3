-- What every script begins with.
--   KEYS[1]  the store's own key, holdfast:{application}; every other key begins with it
--   ARGV[1]  the store's id: a store that is gone, or another in its place, is never written
--   ARGV[2]  the arguments, as MessagePack
-- Numbers are doubles here: whole up to 2^53, and written with %.0f.

-- Effects are what replicas and the append-only file get, also where a server of version 6 was told
-- to send whole scripts: this script reads the clock, and would do otherwise there.
if redis.replicate_commands then redis.replicate_commands() end

local store = KEYS[1]
local about = redis.call('HMGET', store, 'store', 'position', 'incarnation', 'entries', 'seen')
if about[1] ~= ARGV[1] then
  return redis.error_reply('GONE the store is not there')
end
if not tonumber(about[2]) then
  return redis.error_reply('DAMAGED the key ' .. store .. ': it has no position')
end
local args = cmsgpack.unpack(ARGV[2])

local function int(number)
  return string.format('%.0f', number)
end
