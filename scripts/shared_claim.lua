-- Acquire the lock together with others: unless somebody holds it alone, or keeps newcomers
-- out because it waits to hold it alone, or there are as many as there may be.
--
-- KEYS[1] lock   KEYS[2] holders   KEYS[3] door
-- ARGV[1] our value   ARGV[2] TTL in ms   ARGV[3] how many may hold it, or 0; below 0: the
-- number that we want, and no other
--
-- Returns the number of our permit plus 1, so 1 without a limit. Nothing if it is refused:
-- then we are not listed.
local lock, holders = KEYS[1], KEYS[2]
-- include shared.lua
local v = redis.call('GET', lock)
if v and v ~= marker then
  return false
end
local now = millis()
purge(lock, holders, now)
if redis.call('EXISTS', KEYS[3]) == 1 and not redis.call('ZSCORE', holders, ARGV[1]) then
  return false
end
local number = share(lock, holders, ARGV[1], tonumber(ARGV[2]), tonumber(ARGV[3]), now)
return number and number + 1
