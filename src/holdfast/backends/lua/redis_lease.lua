-- Takes, ends or shows a lease: "<epoch> <end in microseconds> <owner>". One that is
-- released is taken out; the greatest epoch of those is kept in the store's own key, as `epoch`.
--   args  what to do, the name, the owner, the epoch, and for how many microseconds
-- Answers with epoch, end and owner; with nothing if it is not held, or not by this owner.
local what, name, owner, epoch, ttl = args[1], args[2], args[3], args[4], args[5]
local now = now_us()
local leases = store .. ':leases'
local last, ends, holder = 0, 0, false
local leased = count_leases()
local found = redis.call('HGET', leases, name)
if found then
  last, ends, holder = string.match(found, '^(%d+) (%d+) (.*)$')
  if not last then error('DAMAGED lease ' .. name) end
  last, ends = tonumber(last), tonumber(ends)
elseif what == 'acquire' then
  last = tonumber(redis.call('HGET', store, 'epoch') or 0)
end
local held = ends > now

local function keep(number, until_us)
  redis.call('HSET', leases, name, int(number) .. ' ' .. int(until_us) .. ' ' .. owner)
  if not found then redis.call('HSET', store, 'leases', int(leased + 1)) end
  return {int(number), int(until_us), owner}
end

if what == 'holder' then
  return held and {int(last), int(ends), holder}
end
if what == 'acquire' then
  if held and holder ~= owner then return false end
  -- Never sooner than before: a caller may rely on the later end that it was promised.
  if held then return keep(last, math.max(ends, now + ttl)) end
  -- Above every epoch that a server gave which has since lost it.
  return keep(math.max(last + 1, math.floor(now / 1000)), now + ttl)
end
if not found or holder ~= owner or last ~= epoch then return false end
local greatest = tonumber(redis.call('HGET', store, 'epoch') or 0)
if last > greatest then redis.call('HSET', store, 'epoch', int(last)) end
redis.call('HSET', store, 'leases', int(leased - 1))
redis.call('HDEL', leases, name)
return false
