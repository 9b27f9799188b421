-- Acquire the lock together with others: unless it is held exclusively, or the door is shut, or
-- there are as many holders as there may be.
--
-- A waiter whose turn it is passes the door. On the node that keeps its queue it is listed already, since the lock is
-- reserved for it. There it leaves the queue, and lets up to two more in.
--
-- KEYS[1] lock   KEYS[2] holders   KEYS[3] door   KEYS[4] queue, on the node that keeps it
-- ARGV[1] our value   ARGV[2] TTL in ms   ARGV[3] how many may hold it, or 0; below 0: the
-- number that we want, and no other   ARGV[4] our entry in the queue, if we were in it
--
-- Returns the number of our permit plus 1, so 1 without a limit, and 2048 more if others were let
-- in and PUBLISH was denied. Nothing if it is refused: then we are not listed.
local lock, holders, line = KEYS[1], KEYS[2], KEYS[4]
-- include value.lua
-- include shared.lua
local function claim()
  local v = valueOf(lock)
  if v and v ~= marker then
    return nil
  end
  local now = millis()
  local failure = purge(v == marker, holders, now)
  if failure then
    return failure
  end
  local door = not ARGV[4] and redis.pcall('GET', KEYS[3])
  if door and not redis.call('ZSCORE', holders, ARGV[1]) then
    if type(door) == 'table' then
      return redis.error_reply(door.err .. ': ' .. KEYS[3])
    elseif not string.find(door, '^%x+@') then
      return redis.error_reply('WRONGTYPE a value of others: ' .. KEYS[3])
    end
    return nil
  end
  local number = list(holders, ARGV[1], tonumber(ARGV[2]), tonumber(ARGV[3]), now)
  if not number then
    return nil
  end
  settle(lock, holders, now)
  return number + 1
end
if not line then
  return claim()
end
-- include line.lua
-- It leaves first: a script that fails after it has listed us would leave us there.
local failure = leave(line, ARGV[4])
if failure then
  return failure
end
local number = claim()
if redis.pcall('TYPE', line).ok == 'zset' then
  local done, _, denied = pcall(serve, lock, holders, line, 2)
  if done and denied and type(number) == 'number' then
    number = number + numbers
  end
end
return number
