-- An operator's release: delete the lock if ARGV[1] is empty, or else if its value is ARGV[1], alone or followed by
-- '@' and an owner's label; of several holders, the one with that value. 1 if deleted, 0 if there was none, or the
-- value that was left alone. Waiters have their turns then, also where only leases that were over went; but not the
-- waiter whose value was deleted: it may have the lock by now, and its claim has not come here, so the lock would be
-- reserved for it again. Of a lock that several hold that waiter is not known, see docs/safety.md.
--
-- The list of holders is no declared key: a user that never shares a lock needs no permission for it.
--
-- KEYS[1] lock   ARGV[1] token, or ''   ARGV[2] queue, or '' if there cannot be one
-- ARGV[3] holders, if their key has not the usual name
-- include value.lua
-- include shared.lua
-- include line.lua
local lock, line, token = KEYS[1], ARGV[2], ARGV[1]
local function named(v)
  return v == token or string.sub(v, 1, #token + 1) == token .. '@'
end
local v, deleted = token ~= '' and valueOf(lock), 0
local was = v or select(2, pcall(valueOf, lock))
if v == marker then
  local holders, now = ARGV[3] or '{' .. lock .. '}:shared', millis()
  local failure = purge(true, holders, now)
  if failure then
    return failure
  end
  local most = 10000
  local all = redis.call('ZRANGE', holders, 0, most - 1)
  for _, m in ipairs(all) do
    if named(m) then
      deleted = deleted + redis.call('ZREM', holders, m)
    end
  end
  if deleted == 0 and #all == most then
    return redis.error_reply('ERR more than ' .. most .. ' share the lock, too many to look for one of them')
  end
  settle(lock, holders, now)
elseif v and not named(v) then
  return v
else
  deleted = redis.call('DEL', lock)
end
local left = valueOf(lock)
local answer = deleted > 0 and deleted or left or 0
if line ~= '' and (not left or left == marker) and redis.pcall('TYPE', line).ok == 'zset' then
  pcall(function()
    local head = headOf(line)
    if head and select(3, parts(head)) == was then
      redis.call('ZREM', line, head, 'woken ' .. head)
    end
    serve(lock, ARGV[3] or '{' .. lock .. '}:shared', line, atOnce) -- what is deleted is released
  end)
end
return answer
