-- Claims due marks, or ends a claim.
--   args  'claim', index, owner, how many, microseconds; or 'release', index, owner, key
-- A mark is in one of three sets: due (by time), ready (in the order of claims), held (by the
-- claim's end). A claim moves what has become due or was given up, then takes from the front.
local what, index, owner = args[1], args[2], args[3]
local due, ready = store .. ':due:' .. index, store .. ':ready:' .. index
local held, claims = store .. ':held:' .. index, store .. ':claims:' .. index
local marks = store .. ':marks:' .. index
check_index(index)

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
local passed = {[due] = {}, [held] = {}}
for set, members in pairs(passed) do
  repeat
    local page = redis.call('ZRANGEBYSCORE', set, '-inf', int(now), 'LIMIT', #members, 500)
    for _, member in ipairs(page) do
      redis.call('ZADD', ready, 0, member)
      members[#members + 1] = member
    end
  until #page < 500
end
local taken, took, gone = {}, {}, {}
if n > 0 then
  for number, member in ipairs(redis.call('ZRANGE', ready, 0, n - 1)) do
    local key = string.sub(member, 41)
    local mark = redis.call('HGET', marks, key)
    if not mark then error('DAMAGED marks of ' .. index) end
    redis.call('ZADD', held, ends, member)
    redis.call('HSET', claims, key, owner)
    took[number], gone[member] = member, true
    taken[number] = {member, string.sub(mark, 41)}
  end
end

-- Removals come last, from each key in one go: one that is emptied is no key any more, and cannot
-- be used again while a cluster moves its slot.
local function remove(verb, key, members)
  for from = 1, #members, 1000 do
    redis.call(verb, key, unpack(members, from, math.min(from + 999, #members)))
  end
end
local ended, freed = {}, {}
for _, member in ipairs(passed[held]) do
  if not gone[member] then
    ended[#ended + 1], freed[#freed + 1] = member, string.sub(member, 41)
  end
end
remove('ZREM', due, passed[due])
remove('ZREM', held, ended)
remove('HDEL', claims, freed)
remove('ZREM', ready, took)
return taken
