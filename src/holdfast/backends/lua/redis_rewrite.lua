-- Copies a page of a stream's events beside it, without the payloads that are to go; the page that
-- reaches the end puts the copy in the stream's place. Redis cannot change an entry, and a deleted
-- one leaves its bytes in the node that it shares with others.
--   args     stream, the last revision copied so far (0: none, and the copy begins anew), how many
--            entries to copy, and {revision, crc, payload} of each that is to be another
-- Answers with the last revision that was copied, and whether that was all.
local stream, after, most, wanted = args[1], args[2], args[3], args[4]
local events, beside = store .. ':events:' .. stream, store .. ':rewriting:' .. stream
if after == 0 then redis.call('DEL', beside) end
local newest = redis.call('XREVRANGE', beside, '+', '-', 'COUNT', 1)[1]
if after > 0 and (not newest or newest[1] ~= int(after) .. '-0') then
  return redis.error_reply('REWRITING another process rewrites the same stream')
end
local others = {}
for _, one in ipairs(wanted) do others[int(one[1]) .. '-0'] = one end
local entries = redis.call('XRANGE', events, '(' .. int(after) .. '-0', '+', 'COUNT', most)
for _, entry in ipairs(entries) do
  local id, fields = entry[1], entry[2]
  if others[id] then
    for place = 1, #fields, 2 do
      if fields[place] == 'payload' then fields[place + 1] = others[id][3] end
      if fields[place] == 'crc' then fields[place + 1] = others[id][2] end
    end
  end
  redis.call('XADD', beside, id, unpack(fields))
  after = tonumber(string.match(id, '^%d+'))
end
if #entries == most then return {int(after), 0} end
local left = redis.call('PTTL', events)
if left == -2 then
  redis.call('DEL', beside)
  return {int(after), 1}
end
-- Two at once could mix their copies: one that is not whole never takes the stream's place.
if redis.call('XLEN', beside) ~= redis.call('XLEN', events) then
  redis.call('DEL', beside)
  return redis.error_reply('REWRITING another process rewrites the same stream')
end
redis.call('RENAME', beside, events)
if left >= 0 then redis.call('PEXPIRE', events, left) end
return {int(after), 1}
