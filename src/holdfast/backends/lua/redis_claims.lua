-- Lists the claims whose time is not over, with the time that each has left.
-- Answers with {index, {{key, owner, microseconds}, …}} for each index.
local now = now_us()
local answer = {}
count_indexes()
for number, index in ipairs(redis.call('SMEMBERS', store .. ':indexes')) do
  check_index(index)
  local found = {}
  local held = redis.call('ZRANGEBYSCORE', store .. ':held:' .. index, '(' .. int(now), '+inf',
    'WITHSCORES')
  for n = 1, #held, 2 do
    local key = string.sub(held[n], 41)
    local owner = redis.call('HGET', store .. ':claims:' .. index, key)
    if not owner then error('DAMAGED claims of ' .. index) end
    found[#found + 1] = {key, owner, int(tonumber(held[n + 1]) - now)}
  end
  answer[number] = {index, found}
end
return answer
