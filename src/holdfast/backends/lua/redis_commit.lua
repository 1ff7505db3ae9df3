-- Writes the commits of a list that are accepted, each whole or not at all.
--   args  the server's incarnation, whether this list was sent before, the commits, whether the
--         caller waits for the append-only file behind this script, and how far a time may be ahead
-- A commit is {appends, reads, fence, marks, watch, time, actor, token, whether it is a copy}, an
-- append {stream, expected, fork, previous link, whether a record has a key, records, end, the end
-- that it moves to}, a read {stream, expected, end}, a record {type, number of its payload in ARGV,
-- link, checkpoint, subject, crc, key, meta}; what there is none of is false. Every key that is
-- written is in KEYS, so that a cluster that moves them to another server refuses the script before
-- it begins.
--
-- Nothing is rolled back here if a command fails. So a commit is judged whole before its first
-- write; that first write is one which a server refuses that is full, read-only or cut off.
local incarnation, again, commits, waits, ahead = args[1], args[2], args[3], args[4], args[5]
local now = now_us()
local position = tonumber(about[2])
local heads = {}
local entries = count_entries()
local streams, checked = nil, {}

local function head_of(stream)
  local head = heads[stream]
  if head == nil then
    head = redis.call('HGET', store .. ':heads', stream)
    if head then
      head = parts_of(stream, head)
    elseif not streams then
      -- A stream that is not there, if no head is missing. What is there needs no count to prove it.
      count_heads()
      streams = count_streams()
    end
    heads[stream] = head
  end
  return head
end

local function text_of(head)
  if not head then return '' end
  return table.concat(head, ' ', 1, head[7] == '' and (head[6] == '' and 5 or 6) or #head)
end

local function revision_of(stream)
  local head = head_of(stream)
  return head and tonumber(head[1]) or 0
end

local function holds(fence)
  local lease = redis.call('HGET', store .. ':leases', fence[1])
  if not lease then
    count_leases()
    return false
  end
  local epoch, ends, owner = string.match(lease, '^(%d+) (%d+) (.*)$')
  return owner == fence[2] and tonumber(epoch) == fence[3] and tonumber(ends) > now
end

local function fits(append, head)
  if append[3] or not head then
    return not head and (append[3] or append[2] == 0)
  end
  return tonumber(head[1]) == append[2] and (not append[4] or append[4] == head[2])
end

-- A stream's end has come by the clock, or the server has let it go already: then its clock was set
-- back since, and an event behind the end would stand alone. Of a stream whose end was moved since
-- by somebody else, this one knows an earlier end than its head has; a copy may know a later one.
local function is_over(append)
  local head = append[7] and head_of(append[1])
  if append[7] and append[7] <= now then return true end
  if not head then return false end
  local ends = tonumber(head[6]) or 0
  return ends > 0 and ends <= now or is_let_go(append[1], head)
end

-- What the append relies on is as long as it was left. Asked before anything is written, and even
-- if nothing is: a duplicate that is not found is written twice.
local function check_append(append)
  local stream, head = append[1], head_of(append[1])
  check_events(stream, head)
  if append[5] then check_keys(stream, head) end
  for _, record in ipairs(append[6]) do
    if record[4] then return check_checkpoints(stream, head) end
  end
end

-- A time that is far ahead of this clock would stay with its stream for ever, and go on to every
-- stream that is written with it. It is accepted where each stream has that time already.
local function is_new_to(commit, append)
  local head = head_of(append[1])
  return not (head and tonumber(head[3]) >= commit[6])
end

-- Expired, duplicate, fenced, conflict, ahead: the first that fails is the refusal.
local function refusal(commit)
  for number, append in ipairs(commit[1]) do
    if is_over(append) then return {'expired', number} end
  end
  for number, read in ipairs(commit[2]) do
    if read[3] and read[3] <= now then return {'ended', number} end
  end
  for _, append in ipairs(commit[1]) do check_append(append) end
  for number, append in ipairs(commit[1]) do
    for _, record in ipairs(append[5] and append[6] or {}) do
      local found = record[7] and redis.call('HGET', store .. ':keys:' .. append[1], record[7])
      if found then
        return {'duplicate', number, tonumber(string.match(found, '^%d+'))}
      end
    end
  end
  if commit[3] and not holds(commit[3]) then
    return {'fenced'}
  end
  for number, append in ipairs(commit[1]) do
    local head = head_of(append[1])
    if not fits(append, head) then
      return {'conflict', number, text_of(head)}
    end
  end
  for number, read in ipairs(commit[2]) do
    if revision_of(read[1]) ~= read[2] then
      return {'stale', number, text_of(head_of(read[1]))}
    end
  end
  if commit[6] > now + ahead and not commit[9] then
    for number, append in ipairs(commit[1]) do
      if is_new_to(commit, append) then return {'ahead', number, int(now)} end
    end
  end
end

-- The position of a commit whose own events are there, from when it was sent before.
local function landed(commit)
  local append = commit[1][1]
  if not append then return end
  local id = int(append[2] + 1) .. '-0'
  local found = redis.call('XRANGE', store .. ':events:' .. append[1], id, id)[1]
  if not found then return end
  local fields = {}
  for n = 1, #found[2], 2 do fields[found[2][n]] = found[2][n + 1] end
  return fields.link == append[6][1][3] and tonumber(fields.position)
end

local function receipt(at, commit)
  local answer = {at}
  for _, stream in ipairs(commit[5]) do answer[#answer + 1] = revision_of(stream) end
  return answer
end

local function has_meta(commit)
  for _, append in ipairs(commit[1]) do
    for _, record in ipairs(append[6]) do
      if record[8] then return true end
    end
  end
  return false
end

-- Another server process than the one that gave the last position may never have seen the newest
-- ones: it goes on above all that can have been given, which the time is.
local function next_position(commit)
  local change = {}
  if about[3] ~= incarnation then
    if about[3] then position = math.max(position, now) end
    about[3] = incarnation
    change = {'incarnation', incarnation}
  end
  position = position + 1
  entries = entries + math.ceil(#commit[1] / 1000)
  local before = streams
  for _, append in ipairs(commit[1]) do
    if not head_of(append[1]) then streams = streams + 1 end
  end
  if streams ~= before then
    change[#change + 1] = 'streams'
    change[#change + 1] = int(streams)
  end
  -- The first event with meta raises the format: who knows format 1 alone refuses the store.
  if has_meta(commit) then
    change[#change + 1] = 'format'
    change[#change + 1] = '2'
  end
  -- To the second, which is as exact as what is let go of.
  if now > seen + 1000000 then
    seen = now
    change[#change + 1] = 'seen'
    change[#change + 1] = int(seen)
  end
  redis.call('HSET', store, 'position', int(position), 'entries', int(entries), unpack(change))
  return int(position)
end

-- When a stream ends from this append on: an end never moves back.
local function end_after(append, head)
  if not append[7] then return 0 end
  return math.max(append[7], append[8] or 0, head and tonumber(head[6]) or 0)
end

-- The server lets go of the stream's keys by itself. What stays is its name, and its head with the
-- end: a tombstone. The time left is given, not the end, because only the clock that judges knows
-- both; and a second more, so that nothing goes before the clock says so: what is gone before its
-- end is lost. All that the stream has is given it, and not what is written now alone: its end may
-- have moved. The head knows which keys there are; one without counts is of a stream whose end is
-- fixed, and what was written before has it already. A stream that is kept has keys without an end.
local function expire(stream, head, has_keys, has_names)
  if redis.call('SISMEMBER', store .. ':kept', stream) == 1 then return end
  local left = int(math.ceil((tonumber(head[6]) - now) / 1000) + 1000)
  redis.call('PEXPIRE', store .. ':events:' .. stream, left)
  if has_keys or (tonumber(head[7] or 0) or 0) > 0 then
    redis.call('PEXPIRE', store .. ':keys:' .. stream, left)
  end
  if has_names or (tonumber(head[8] or 0) or 0) > 0 then
    redis.call('PEXPIRE', store .. ':checkpoints:' .. stream, left)
    redis.call('PEXPIRE', store .. ':named:' .. stream, left)
  end
end

local function add_events(append, commit, at)
  local stream, revision, time = append[1], append[2], int(commit[6])
  local head = head_of(stream)
  local last, names, keys = nil, 0, {}
  for _, record in ipairs(append[6]) do
    revision = revision + 1
    last = record
    local entry = {'position', at, 'time', time, 'type', record[1], 'actor', commit[7],
      'link', record[3], 'crc', record[6]}
    local function add(name, value)
      if value then entry[#entry + 1] = name; entry[#entry + 1] = value end
    end
    add('key', record[7])
    add('checkpoint', record[4])
    add('subject', record[5])
    add('meta', record[8])
    add('payload', ARGV[record[2]])
    redis.call('XADD', store .. ':events:' .. stream, int(revision) .. '-0', unpack(entry))
    if record[7] then keys[#keys + 1] = {record[7], int(revision) .. ' ' .. time} end
    if record[4] then
      names = names + 1
      local padded = string.format('%016.0f', revision)
      redis.call('ZADD', store .. ':checkpoints:' .. stream, int(revision),
        int(revision) .. ' ' .. time .. ' ' .. record[4])
      redis.call('ZADD', store .. ':named:' .. stream, 0, record[4] .. '\0' .. padded .. ' ' .. time)
    end
  end
  local first = head and head[5] or int(append[2] + 1)
  local after = {int(revision), last[3], time, at, first, int(end_after(append, head))}
  if not head or head[7] ~= '' then
    after[7] = int((head and tonumber(head[7]) or 0) + #keys)
    after[8] = int((head and tonumber(head[8]) or 0) + names)
  end
  heads[stream] = after
  redis.call('HSET', store .. ':heads', stream, text_of(after))
  if not head then redis.call('ZADD', store .. ':streams', 0, stream) end
  for _, key in ipairs(keys) do redis.call('HSET', store .. ':keys:' .. stream, key[1], key[2]) end
  if append[7] then expire(stream, after, append[5], names > 0) end
end

-- Which events the commit has, for readers of everything: at most 1,000 streams to an entry.
local function add_to_log(commit, at)
  local part, entry = 0, {}
  for number, append in ipairs(commit[1]) do
    entry[#entry + 1] = append[1]
    entry[#entry + 1] = int(append[2] + 1) .. ' ' .. #append[6]
    if #entry == 2000 or number == #commit[1] then
      redis.call('XADD', store .. ':log', at .. '-' .. part, unpack(entry))
      part, entry = part + 1, {}
    end
  end
end

-- What can be emptied by a removal, and is then no key any more.
local function keys_of(index)
  local keys = {store .. ':indexes'}
  for _, set in ipairs({':marks:', ':order:', ':due:', ':ready:', ':held:', ':claims:'}) do
    keys[#keys + 1] = store .. set .. index
  end
  return keys
end

-- A key that is not there cannot be used while a cluster moves its slot, not even one that this
-- script itself has emptied: the command would fail, with half a commit written. So each commit
-- looks at them before it writes, adds before it removes, and removes from each key at its end.
local function probe(commit)
  local probed = {}
  for _, mark in ipairs(commit[4]) do
    local index = mark[1]
    if not checked[index] then check_index(index) end
    if not probed[index] then redis.call('EXISTS', unpack(keys_of(index))) end
    checked[index], probed[index] = true, true
  end
end

local function later(removals, verb, key, member)
  local removal = removals[key] or {verb}
  removal[#removal + 1] = member
  removals[key] = removal
end

local function remove(removals)
  for key, removal in pairs(removals) do
    for from = 2, #removal, 1000 do
      local to = math.min(from + 999, #removal)
      redis.call(removal[1], key, unpack(removal, from, to))
    end
  end
end

-- A mark is {index, key, place in the order, due, group}, one that is cleared {index, key}.
local function apply(marks)
  local removals, cleared = {}, {}
  local indexes = redis.call('SCARD', store .. ':indexes')
  local listed = indexes
  for _, mark in ipairs(marks) do
    local index, key, order = mark[1], mark[2], mark[3]
    local before = redis.call('HGET', store .. ':marks:' .. index, key)
    local old = before and string.sub(before, 1, 40) .. key
    local new = order and order .. key
    if new then
      redis.call('HSET', store .. ':marks:' .. index, key, order .. mark[5])
      redis.call('ZADD', store .. ':order:' .. index, 0, new)
      redis.call('ZADD', store .. ':due:' .. index, mark[4], new)
      indexes = indexes + redis.call('SADD', store .. ':indexes', index)
    elseif old then
      cleared[index] = (cleared[index] or 0) + 1
      later(removals, 'HDEL', store .. ':marks:' .. index, key)
    end
    if old then
      later(removals, 'ZREM', store .. ':ready:' .. index, old)
      later(removals, 'ZREM', store .. ':held:' .. index, old)
      later(removals, 'HDEL', store .. ':claims:' .. index, key)
    end
    if old and old ~= new then
      later(removals, 'ZREM', store .. ':order:' .. index, old)
      later(removals, 'ZREM', store .. ':due:' .. index, old)
    end
  end
  for index, count in pairs(cleared) do
    if redis.call('HLEN', store .. ':marks:' .. index) == count then
      later(removals, 'SREM', store .. ':indexes', index)
      indexes = indexes - 1
    end
  end
  if indexes ~= listed then redis.call('HSET', store, 'indexes', int(indexes)) end
  remove(removals)
end

-- Returns the outcome of a commit of which nothing is to be written. All that can fail in a script
-- fails here: what was deleted or damaged is found before the first write.
local function judged(commit)
  local token = commit[8] and store .. ':token:' .. commit[8]
  local done = token and redis.call('GET', token)
  if done then return receipt(tonumber(done), commit) end
  local refused = refusal(commit)
  if refused then
    local at = again and landed(commit)
    return at and receipt(at, commit) or refused
  end
  probe(commit)
end

local function write(commit)
  local at = next_position(commit)
  for _, append in ipairs(commit[1]) do add_events(append, commit, at) end
  if #commit[1] > 0 then add_to_log(commit, at) end
  if #commit[4] > 0 then apply(commit[4]) end
  -- A commit without events leaves nothing else by which it could be known again.
  if commit[8] then redis.call('SET', store .. ':token:' .. commit[8], at, 'PX', 86400000) end
  return receipt(position, commit)
end

-- An error undoes nothing. Behind a commit of this list that was written it is an outcome, the last
-- one, so that the caller knows what was written.
local outcomes, wrote = {}, false
for number, commit in ipairs(commits) do
  local fine, outcome = pcall(judged, commit)
  if not fine then
    if not wrote then error(outcome, 0) end
    outcomes[number] = {'stopped', type(outcome) == 'table' and outcome.err or outcome}
    break
  end
  if not outcome then outcome, wrote = write(commit), true end
  outcomes[number] = outcome
end
-- An answer may rest on what another connection wrote, and a wait covers only what this one did.
if waits then redis.call('HSET', store, 'position', int(position)) end
return outcomes
