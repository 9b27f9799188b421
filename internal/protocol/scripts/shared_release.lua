-- Give our share of the lock up: 1. Otherwise change nothing: 0 if the lock is free, or the
-- holder's value, which is the marker if others share it. The lock is reserved for the waiters
-- that may come in now, or the first in the queue is told, as by line_release.lua. It also takes
-- the caller's own entry out of the queue.
--
-- The queue is no declared key, and is looked at by pcall: a user without permission for it must
-- still be able to release.
--
-- KEYS[1] lock   KEYS[2] holders   ARGV[1] our value   ARGV[2] queue, or '' if there
-- cannot be one   ARGV[3] our entry in it, or ''   ARGV[4] '0' if we did not hold the lock,
-- '2' if another node's queue is served
--
-- Returns as line_release.lua: instead of 1, if a client waits, 3, or 2 if PUBLISH was denied;
-- and 4 if we held nothing, and it is reserved for the first in the queue.
local lock, holders, line = KEYS[1], KEYS[2], ARGV[2]
-- include value.lua
-- include shared.lua
local v, ours = valueOf(lock), 0
if v == ARGV[1] then
  redis.call('DEL', lock) -- a client that knows no sharing reserved it for us
  purge(false, holders, millis())
  ours = 1
elseif v == marker then
  local now = millis()
  local failure = purge(true, holders, now)
  if failure then
    return failure
  end
  ours = redis.call('ZREM', holders, ARGV[1])
  settle(lock, holders, now)
end
if line == '' or redis.pcall('TYPE', line).ok ~= 'zset' then
  return ours == 1 and 1 or valueOf(lock) or 0
end
-- include line.lua
if ARGV[3] ~= '' then
  leave(line, ARGV[3])
end
return passOn(lock, holders, line, ours == 1, ARGV[4])
