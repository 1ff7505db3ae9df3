-- Claims due marks, or ends a claim.
--   args  'claim', index, owner, how many, microseconds; or 'release', index, owner, key
-- A mark is in one of three sets: due (by time), ready (in the order of claims), held (by the
-- claim's end). A claim moves what has become due or was given up, then takes from the front.
local what, index, owner = args[1], args[2], args[3]
local due, ready = store .. ':due:' .. index, store .. ':ready:' .. index
local held, claims = store .. ':held:' .. index, store .. ':claims:' .. index
local marks = store .. ':marks:' .. index

if what == 'release' then
  local key = args[4]
  local mark = redis.call('HGET', marks, key)
  if mark and redis.call('HGET', claims, key) == owner then
    local member = string.sub(mark, 1, 40) .. key
    redis.call('ZADD', ready, 0, member)
    redis.call('ZREM', held, member)
    redis.call('HDEL', claims, key)
  end
  return 0
end

local n, now = args[4], now_us()
local ends = int(now + args[5])
for _, set in ipairs({due, held}) do
  while true do
    local passed = redis.call('ZRANGEBYSCORE', set, '-inf', int(now), 'LIMIT', 0, 500)
    for _, member in ipairs(passed) do
      redis.call('ZADD', ready, 0, member)
      redis.call('ZREM', set, member)
      redis.call('HDEL', claims, string.sub(member, 41))
    end
    if #passed < 500 then break end
  end
end
local taken = {}
if n > 0 then
  for number, member in ipairs(redis.call('ZRANGE', ready, 0, n - 1)) do
    local key = string.sub(member, 41)
    redis.call('ZADD', held, ends, member)
    redis.call('ZREM', ready, member)
    redis.call('HSET', claims, key, owner)
    taken[number] = {member, string.sub(redis.call('HGET', marks, key), 41)}
  end
end
return taken
