-- Extends leases, of which `lease` has the form.
--   args  for how many microseconds, and the name, owner and epoch of each
-- Answers with epoch, end and owner for each, with nothing if it is not held by this owner.
local ttl, asked = args[1], args[2]
local now = now_us()
local leases = store .. ':leases'
local answer = {}
count_leases()
for n, one in ipairs(asked) do
  local name, owner, epoch = one[1], one[2], one[3]
  answer[n] = false
  local found = redis.call('HGET', leases, name)
  if found then
    local last, ends, holder = string.match(found, '^(%d+) (%d+) (.*)$')
    if not last then error('DAMAGED lease ' .. name) end
    ends = tonumber(ends)
    if holder == owner and tonumber(last) == epoch and ends > now then
      -- Never sooner than before: a caller may rely on the later end that it was promised.
      local until_us = int(math.max(ends, now + ttl))
      redis.call('HSET', leases, name, last .. ' ' .. until_us .. ' ' .. owner)
      answer[n] = {last, until_us, owner}
    end
  end
end
return answer
