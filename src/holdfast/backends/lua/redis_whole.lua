-- Looks whether the keys of the store, and of some streams, are as long as they were left.
--   args  whether the store's own are looked at, and names of streams
-- Answers with {key, problem} for each that is not, and for each of the streams with 1 if the server
-- has let go of it at its end.
local problems, let_go = {}, {}

local function try(what, look, ...)
  local fine, problem = pcall(look, ...)
  if not fine then
    problem = type(problem) == 'table' and problem.err or problem
    problems[#problems + 1] = {what, problem}
  end
  return fine and problem
end

local function look_at_store()
  try(store .. ':heads', count_heads)
  try(store .. ':streams', count_streams)
  try(store .. ':log', count_entries)
  try(store .. ':leases', count_leases)
  try(store .. ':indexes', count_indexes)
  try(store .. ':kept', count, 'SCARD', 'kept')
  try(store .. ':indexes', function()
    for _, index in ipairs(redis.call('SMEMBERS', store .. ':indexes')) do
      try('marks of ' .. index, check_index, index)
    end
  end)
  for _, kind in ipairs({'blob', 'snapshot'}) do
    for _, set in ipairs({'objects:', 'expiring:'}) do
      local key = store .. ':' .. set .. kind
      try(key, count, 'ZCARD', set .. kind)
    end
  end
end

if args[1] then look_at_store() end
for number, stream in ipairs(args[2]) do
  local parts
  try('head of ' .. stream, function()
    local head = redis.call('HGET', store .. ':heads', stream)
    parts = head and parts_of(stream, head)
  end)
  let_go[number] = parts and try(stream, is_let_go, stream, parts) and 1 or 0
  if let_go[number] == 0 then
    try(store .. ':events:' .. stream, check_events, stream, parts)
    try(store .. ':keys:' .. stream, check_keys, stream, parts)
    try(store .. ':checkpoints:' .. stream, check_checkpoints, stream, parts)
  end
end
return {problems, let_go}
