-- Lists the leases that were not released, with the time that each has left.
--   args  what names begin with
-- Answers with {name, owner, epoch, microseconds} for each, in no order.
local prefix = args[1]
local now = now_us()
local answer = {}
count_leases()
local all = redis.call('HGETALL', store .. ':leases')
for n = 1, #all, 2 do
  local name, lease = all[n], all[n + 1]
  local epoch, ends, owner = string.match(lease, '^(%d+) (%d+) (.*)$')
  if not epoch then error('DAMAGED lease ' .. name) end
  if string.sub(name, 1, #prefix) == prefix then
    answer[#answer + 1] = {name, owner, epoch, int(tonumber(ends) - now)}
  end
end
return answer
