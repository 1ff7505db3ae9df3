-- Lists the marks of one index, or of all, in the order of claims.
--   args  the index or false, what the due time must be below (as in the order), how many, whether
--         the newest position is asked for too, from which place in the order on, the group, the
--         keys: each false if it does not matter
-- Answers with {index, {{place in the order and key, group}, …}} for each index; then the position.
local indexes = args[1] and {args[1]} or redis.call('SMEMBERS', store .. ':indexes')
local before, limit, after, group, keys = args[2], args[3], args[5], args[6], args[7]
count_indexes()

local function look(index, found, member, mark)
  if not mark then error('DAMAGED marks of ' .. index) end
  local is_due = not before or string.sub(member, 21, 40) < before
  if #found < limit and is_due and (not group or string.sub(mark, 41) == group) then
    found[#found + 1] = {member, string.sub(mark, 41)}
  end
end

local answer = {}
for number, index in ipairs(indexes) do
  check_index(index)
  local found, marks = {}, store .. ':marks:' .. index
  local from = after and '[' .. after or '-'
  if keys then
    limit = #keys
    for _, key in ipairs(keys) do
      local mark = redis.call('HGET', marks, key)
      if mark then look(index, found, string.sub(mark, 1, 40) .. key, mark) end
    end
  else
    while #found < limit do
      local page = redis.call('ZRANGEBYLEX', store .. ':order:' .. index, from, '+', 'LIMIT', 0, 500)
      for _, member in ipairs(page) do
        look(index, found, member, redis.call('HGET', marks, string.sub(member, 41)))
      end
      if #page < 500 then break end
      from = '(' .. page[#page]
    end
  end
  answer[number] = {index, found}
end
if args[4] then answer[#answer + 1] = about[2] end
return answer
