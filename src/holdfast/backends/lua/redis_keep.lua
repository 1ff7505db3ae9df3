-- Keeps the keys of a stream past its end, or lets them go at it as before.
--   args  stream, and whether it is kept
-- Answers with 1 if the stream is there, 0 if the server has let go of it already, or never had it.
-- `kept` has the names of such streams: a commit to one of them gives no key an end.
local stream, keeps = args[1], args[2]
local kept = store .. ':kept'
local parts_kept = {':events:', ':keys:', ':checkpoints:', ':named:'}
local found = count('SCARD', 'kept')
local head = redis.call('HGET', store .. ':heads', stream)
if not head then
  count_heads()
  return 0
end
local parts = parts_of(stream, head)
local ends = tonumber(parts[6]) or 0
-- Asked for before anything is written: what is not there cannot be used while a cluster moves it.
local there = {}
for _, part in ipairs(parts_kept) do
  local key = store .. part .. stream
  if redis.call('EXISTS', key) == 1 then there[#there + 1] = key end
end
if keeps then
  if is_let_go(stream, parts) then return 0 end
  if redis.call('SADD', kept, stream) == 1 then
    redis.call('HSET', store, 'kept', int(found + 1))
  end
  for _, key in ipairs(there) do redis.call('PERSIST', key) end
  return 1
end
if ends > 0 then
  -- The time that was left, and a second more, as a commit gives it; one that is over goes now.
  local left = int(math.max(math.ceil((ends - now_us()) / 1000), 0) + 1000)
  for _, key in ipairs(there) do redis.call('PEXPIRE', key, left) end
end
if redis.call('SREM', kept, stream) == 1 then
  redis.call('HSET', store, 'kept', int(found - 1))
end
return #there > 0 and 1 or 0
