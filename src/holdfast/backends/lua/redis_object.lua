-- Keeps named bytes, or lets them go.
--   args     kind, name
--   ARGV[3]  the bytes behind their checksum; none if they are to go
local kind, name, data = args[1], args[2], ARGV[3]
if data then
  redis.call('SET', store .. ':object:' .. kind .. ':' .. name, data)
  redis.call('ZADD', store .. ':objects:' .. kind, 0, name)
else
  redis.call('DEL', store .. ':object:' .. kind .. ':' .. name)
  redis.call('ZREM', store .. ':objects:' .. kind, name)
end
return 0
