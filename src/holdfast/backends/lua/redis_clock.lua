-- The server's clock, in microseconds: the only one that judges leases and due marks.
local function now_us()
  local time = redis.call('TIME')
  return time[1] * 1000000 + time[2]
end
