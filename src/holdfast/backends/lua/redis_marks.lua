-- Lists the marks of one index, or of all, in the order of claims.
--   args  the index or false, what the due time must be below (as in the order), how many, whether
--         the newest position is asked for too
-- Answers with {index, {{place in the order and key, group}, …}} for each index; then the position.
local indexes = args[1] and {args[1]} or redis.call('SMEMBERS', store .. ':indexes')
local before, limit = args[2], args[3]
count_indexes()
local answer = {}
for number, index in ipairs(indexes) do
  check_index(index)
  local found, from = {}, 0
  while #found < limit do
    local page = redis.call('ZRANGE', store .. ':order:' .. index, from, from + 499)
    for _, member in ipairs(page) do
      if #found < limit and (not before or string.sub(member, 21, 40) < before) then
        local mark = redis.call('HGET', store .. ':marks:' .. index, string.sub(member, 41))
        if not mark then error('DAMAGED marks of ' .. index) end
        found[#found + 1] = {member, string.sub(mark, 41)}
      end
    end
    if #page < 500 then break end
    from = from + 500
  end
  answer[number] = {index, found}
end
if args[4] then answer[#answer + 1] = about[2] end
return answer
