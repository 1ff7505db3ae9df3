-- Keeps named bytes, or lets them go.
--   args     kind, name, and when they may go by themselves (false: never)
--   ARGV[3]  the bytes behind their checksum; none if they are to go
-- A name that was promised for longer, or for good, keeps that: others may rely on it. `expiring`
-- has the names that go by themselves, by the server's own milliseconds, which is what it counts in.
local kind, name, ends, data = args[1], args[2], args[3], ARGV[3]
local key, names = store .. ':object:' .. kind .. ':' .. name, store .. ':objects:' .. kind
local expiring = store .. ':expiring:' .. kind
local time = redis.call('TIME')
local now = time[1] * 1000 + math.floor(time[2] / 1000)
-- Asked for before anything is written: what is emptied cannot be used while a cluster moves it.
local before = redis.call('PTTL', key)
local named, ending = count('ZCARD', 'objects:' .. kind), count('ZCARD', 'expiring:' .. kind)
local gone = redis.call('ZRANGEBYSCORE', expiring, 0, now, 'LIMIT', 0, 500)
local stays = {}
if not data then
  redis.call('DEL', key)
  gone[#gone + 1] = name
else
  stays[name] = true
  if not ends or before == -1 then
    redis.call('SET', key, data)
    ending = ending - redis.call('ZREM', expiring, name)
  else
    local left = math.max(math.ceil((ends - now_us()) / 1000), before, 1)
    redis.call('SET', key, data, 'PX', int(left))
    ending = ending + redis.call('ZADD', expiring, int(now + left), name)
  end
  named = named + redis.call('ZADD', names, 0, name)
end
for _, old in ipairs(gone) do
  if not stays[old] then
    named = named - redis.call('ZREM', names, old)
    ending = ending - redis.call('ZREM', expiring, old)
  end
end
redis.call('HSET', store, 'objects:' .. kind, int(named), 'expiring:' .. kind, int(ending))
return 0
