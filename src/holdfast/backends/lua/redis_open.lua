-- Makes a store, or says what is there.
--   KEYS[1]  the store's own key; KEYS[2..]  some keys that a store with events has
--   ARGV     the id and format of a new store, '1' if it may be made, and the server's incarnation
-- Answers with its id, its format and its greatest position; with nothing if there is no store.
if redis.replicate_commands then redis.replicate_commands() end
local found = redis.call('HMGET', KEYS[1], 'store', 'format', 'position')
if found[1] then
  return found
end
if redis.call('EXISTS', unpack(KEYS)) > 0 then
  return redis.error_reply('HEADLESS the store has lost its own key')
end
if ARGV[3] ~= '1' then
  return false
end
-- With who made it: a server that comes back with the store as it was made, and none of its commits,
-- must not give their positions again.
redis.call('HSET', KEYS[1], 'store', ARGV[1], 'format', ARGV[2], 'position', '0',
  'incarnation', ARGV[4], 'streams', '0', 'entries', '0', 'leases', '0', 'indexes', '0')
return {ARGV[1], ARGV[2], '0'}
