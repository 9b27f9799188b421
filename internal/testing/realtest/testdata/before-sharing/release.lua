-- Delete the lock if it is ours: 1. Otherwise change nothing: 0 if there is none,
-- or the value of whoever holds it. Comparing and deleting must be one step, or a
-- lease that ends in between would let us delete the next holder's key.
--
-- KEYS[1] lock   ARGV[1] our value
local v = redis.call('GET', KEYS[1])
if v == ARGV[1] then
  redis.call('DEL', KEYS[1])
  return 1
end
return v or 0
