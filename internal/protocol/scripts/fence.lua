-- Acquire with a fencing token: SET NX and a counter in one step. It grants only what
-- it can fence: a counter that holds something else, or has no number left, is an error before
-- anything is set. A script that fails half-way is not rolled back, so the counter, which
-- the user may have no right to, is written before the lock. A number too many is harmless.
--
-- A waiter that was in the queue names its entry; see line_claim.lua.
--
-- KEYS[1] lock   KEYS[2] counter   KEYS[3] queue, if we were in it
-- ARGV[1] our value   ARGV[2] TTL in ms   ARGV[3] proposal   ARGV[4] how long the counter
-- lives, in ms   ARGV[5] our entry in the queue
--
-- Returns the token of this node: more than any that it gave before. Nothing if another
-- holds the lock.
local lock, counter = KEYS[1], KEYS[2]
-- include value.lua
-- include fence_counter.lua
local fence, failure = next_token(counter, ARGV[3])
if failure then
  return failure
end
if KEYS[3] then
  local r = redis.pcall('ZREM', KEYS[3], ARGV[5], 'woken ' .. ARGV[5], 'silent ' .. string.match(ARGV[5], '^%S+'))
  if type(r) == 'table' then
    return redis.error_reply(r.err .. ': ' .. KEYS[3])
  end
end
local reserved = KEYS[3] and valueOf(lock) == ARGV[1]
if not reserved and redis.call('TYPE', lock).ok ~= 'none' then
  return false
end
redis.call('SET', counter, string.format('%.0f', fence), 'PX', ARGV[4])
if not reserved then
  redis.call('SET', lock, ARGV[1], 'NX', 'PX', ARGV[2])
elseif redis.call('PTTL', lock) < tonumber(ARGV[2]) then
  redis.call('PEXPIRE', lock, ARGV[2])
end
return fence
