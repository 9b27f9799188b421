-- Raise a node's fencing counter to what the holder of the lock was given elsewhere, as
-- long as it holds the lock here: 1. Otherwise change nothing: 0 if there is no lock, or
-- the holder's value.
--
-- KEYS[1] lock   KEYS[2] counter   ARGV[1] our value   ARGV[2] token   ARGV[3] how long the
-- counter lives, in ms
local lock, counter = KEYS[1], KEYS[2]
-- include value.lua
-- include fence_counter.lua
local v = valueOf(lock)
if v ~= ARGV[1] then
  return v or 0
end
local c, failure = read(counter)
if failure then
  return failure
end
if c < tonumber(ARGV[2]) then
  redis.call('SET', counter, ARGV[2], 'PX', ARGV[3])
end
return 1
