-- Whether the keys of a store are as long as they were left. Each has a count of what it holds: in the
-- store's own key, or in the head of its stream. So a key that somebody deleted, renamed or replaced,
-- or that the server evicted, is found by whoever relies on it, and never taken for an empty one.
-- Counting costs the server one step, however long a key is. A key of another type fails here too,
-- before anything is written. A count that is not there is not compared.
local seen = tonumber(about[5]) or 0

local function check(key, found, counted)
  if counted and found ~= tonumber(counted) then
    error('DAMAGED the key ' .. key .. ': it has ' .. found .. ' entries, expected ' .. counted)
  end
end

-- Returns how long one of the store's own keys is, which is as long as it was left.
local function count(verb, name, field)
  local found = redis.call(verb, store .. ':' .. name)
  check(store .. ':' .. name, found, redis.call('HGET', store, field or name))
  return found
end

local function count_heads() return count('HLEN', 'heads', 'streams') end
local function count_streams() return count('ZCARD', 'streams') end
local function count_leases() return count('HLEN', 'leases') end
local function count_indexes() return count('SCARD', 'indexes') end

local function count_entries()
  local found = redis.call('XLEN', store .. ':log')
  check(store .. ':log', found, about[4])
  return found
end

-- Every mark is in the order of its index and in one of the three sets that it can be claimed from.
local function check_index(index)
  count_indexes()
  local marks = redis.call('HLEN', store .. ':marks:' .. index)
  local held = redis.call('ZCARD', store .. ':held:' .. index)
  local due = redis.call('ZCARD', store .. ':due:' .. index)
  local ready = redis.call('ZCARD', store .. ':ready:' .. index)
  local listed = redis.call('SISMEMBER', store .. ':indexes', index) == 1
  if marks ~= redis.call('ZCARD', store .. ':order:' .. index) or marks ~= due + ready + held
    or held ~= redis.call('HLEN', store .. ':claims:' .. index) or listed ~= (marks > 0) then
    error('DAMAGED marks of ' .. index .. ': its keys do not hold the same marks')
  end
end

-- The parts of a head: revision, link, time, position, first, end, and how many keys and checkpoint
-- names the stream has; the last two are empty where they were never counted.
local function parts_of(stream, head)
  local parts = {string.match(head, '^(%d+) (%x+) (%d+) (%d+) (%d+) ?(%d*) ?(%d*) ?(%d*)$')}
  if not parts[1] then error('DAMAGED head of ' .. stream) end
  return parts
end

-- Returns whether the server has let go of a stream at its end. Gone before that is lost. `seen` is
-- the latest time that a commit was made at: a clock that was set back since brings nothing back.
local function is_let_go(stream, parts)
  local ends = tonumber(parts[6]) or 0
  if ends == 0 or redis.call('EXISTS', store .. ':events:' .. stream) == 1 then return false end
  if ends <= math.max(now_us(), seen) then return true end
  error('LOST the events of ' .. stream .. ' are gone, and its end has not come')
end

local function check_events(stream, parts)
  local expected = parts and tonumber(parts[1]) - tonumber(parts[5]) + 1 or 0
  check(store .. ':events:' .. stream, redis.call('XLEN', store .. ':events:' .. stream), expected)
end

local function check_keys(stream, parts)
  check(store .. ':keys:' .. stream, redis.call('HLEN', store .. ':keys:' .. stream),
    not parts and 0 or tonumber(parts[7]))
end

local function check_checkpoints(stream, parts)
  for _, set in ipairs({':checkpoints:', ':named:'}) do
    check(store .. set .. stream, redis.call('ZCARD', store .. set .. stream),
      not parts and 0 or tonumber(parts[8]))
  end
end
