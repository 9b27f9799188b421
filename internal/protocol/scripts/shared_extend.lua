-- Let our share of the lock last ARGV[2] ms more: 1. Otherwise 0 if we have none here, or the
-- value of the exclusive holder.
--
-- Never shorten and never create, as extend.lua. A permit that has another number here than a majority gave it is given
-- that one if it is free, and taken away if not; either way it counts as none, since it was
-- no vote before.
--
-- KEYS[1] lock   KEYS[2] holders   ARGV[1] our value   ARGV[2] TTL in ms   ARGV[3] our number
local lock, holders = KEYS[1], KEYS[2]
-- include value.lua
-- include shared.lua
local function hold(lock, holders, value, number, till, now)
  redis.call('ZADD', holders, string.format('%.0f', till * numbers + number), value)
  settle(lock, holders, now)
end

local v, want = valueOf(lock), tonumber(ARGV[3])
local now = millis()
if v ~= marker then
  return v or 0
end
local failure = purge(true, holders, now)
if failure then
  return failure
end
local have = redis.call('ZSCORE', holders, ARGV[1])
if not have then
  settle(lock, holders, now)
  return 0
end
local till = math.max(now + ARGV[2], math.floor(have / numbers))
if have % numbers == want then
  hold(lock, holders, ARGV[1], want, till, now)
  return 1
end
redis.call('ZREM', holders, ARGV[1])
if free(holders, ARGV[1], -want) then
  hold(lock, holders, ARGV[1], want, till, now)
else
  settle(lock, holders, now)
end
return 0
