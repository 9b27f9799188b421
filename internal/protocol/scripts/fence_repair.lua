-- Put a fenced lock back on a node that lost it, with its fencing counter: SET NX. The
-- counter comes first, see fence.lua.
--
-- KEYS[1] lock   KEYS[2] counter   ARGV[1] our value   ARGV[2] TTL in ms   ARGV[3] token
-- ARGV[4] how long the counter lives, in ms
local lock, counter = KEYS[1], KEYS[2]
-- include fence_counter.lua
local c, failure = read(counter)
if failure then
  return failure
end
if redis.call('TYPE', lock).ok ~= 'none' then
  return false
end
if c < tonumber(ARGV[3]) then
  redis.call('SET', counter, ARGV[3], 'PX', ARGV[4])
end
return redis.call('SET', lock, ARGV[1], 'NX', 'PX', ARGV[2])
