-- Go on with a lock that is held under a token: the key goes from that token, followed by '@' and an
-- owner's label or by nothing, to our value in one step, and the lease begins anew. A key that is free
-- is left alone: others may have had it since. So is one that has our value already: this request came
-- twice, and the lease may be longer by now.
--
-- With a counter it is fenced as by fence.lua, and in the same order: the counter, which the
-- user may have no right to, is written before the lock.
--
-- KEYS[1] lock   KEYS[2] counter, if it is fenced   ARGV[1] our value   ARGV[2] TTL in ms
-- ARGV[3] token   ARGV[4] proposal   ARGV[5] how long the counter lives, in ms
--
-- Returns the fencing token of this node, or 1 without a counter. If another holds the lock,
-- its value; 0 if it is free.
local lock, counter, token = KEYS[1], KEYS[2], ARGV[3]
-- include value.lua
-- include fence_counter.lua
local v = valueOf(lock)
if not v or v ~= token and string.sub(v, 1, #token + 1) ~= token .. '@' then
  return v or 0
end
local fence = 1
if counter then
  local failure
  fence, failure = next_token(counter, ARGV[4])
  if failure then
    return failure
  end
  redis.call('SET', counter, string.format('%.0f', fence), 'PX', ARGV[5])
end
redis.call('SET', lock, ARGV[1], 'PX', ARGV[2])
return fence
