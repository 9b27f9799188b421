-- Acquire with a fencing token: SET NX and a counter in one step. It grants only what
-- it can fence: a counter that is none, or has no number left, is an error before
-- anything is set. A script that fails half-way is not rolled back, so the counter, which
-- the user may have no right to, is written before the lock. A number too many is harmless.
--
-- The proposal is the client's wall clock, kept within a second of this server's, so
-- that a client whose clock is wrong by days cannot drive the counter away from time:
-- when counters expire, or a node loses its memory, servers' clocks keep the order.
--
-- A waiter that was in line names its entry; see line_claim.lua.
--
-- KEYS[1] lock   KEYS[2] counter   KEYS[3] line, if we were in it
-- ARGV[1] our value   ARGV[2] TTL in ms   ARGV[3] proposal   ARGV[4] how long the counter
-- lives, in ms   ARGV[5] our entry in the line
--
-- Returns the token of this node: more than any that it gave before. Nothing if another
-- holds the lock.
local lock, counter = KEYS[1], KEYS[2]
-- include fence_counter.lua
local c, failure = read(counter)
if failure then
  return failure
end
local t = redis.call('TIME')
local now = t[1] * 1000000 + t[2]
local fence = math.max(now - 1000000, math.min(now + 1000000, tonumber(ARGV[3])))
fence = math.max(c + 1, fence)
if fence > most then
  return redis.error_reply('BADFENCE the fencing counter has reached its end')
end
if KEYS[3] then
  redis.call('ZREM', KEYS[3], ARGV[5], 'woken ' .. ARGV[5], 'silent ' .. string.match(ARGV[5], '^%S+'))
end
local reserved = KEYS[3] and redis.call('GET', lock) == ARGV[1]
if not reserved and redis.call('TYPE', lock).ok ~= 'none' then
  return false
end
redis.call('SET', counter, string.format('%.0f', fence), 'PX', ARGV[4])
if reserved then
  redis.call('PEXPIRE', lock, ARGV[2])
else
  redis.call('SET', lock, ARGV[1], 'NX', 'PX', ARGV[2])
end
return fence
