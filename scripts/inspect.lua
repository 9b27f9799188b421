-- What lies under the lock's key: its type ("none" if nothing), its value where that
-- is a string, and its remaining TTL in ms (-1 without one, -2 if nothing is there).
-- With a line also: how many wait, and the first of them, each with the microseconds
-- that it has waited.
--
-- KEYS[1] lock   ARGV[1] line, or ''   ARGV[2] how many waiters to list
local t = redis.call('TYPE', KEYS[1])['ok']
local v = ''
if t == 'string' then
  v = redis.call('GET', KEYS[1])
end
local found = {t, v, redis.call('PTTL', KEYS[1]), 0, {}}
if ARGV[1] ~= '' and redis.pcall('TYPE', ARGV[1]).ok == 'zset' then
  local now = redis.call('TIME')
  found[4] = redis.call('ZCOUNT', ARGV[1], 0, '+inf')
  found[5] = redis.call('ZRANGEBYSCORE', ARGV[1], 0, '+inf', 'WITHSCORES', 'LIMIT', 0, ARGV[2])
  for i = 2, #found[5], 2 do
    found[5][i] = now[1] * 1000000 + now[2] - found[5][i]
  end
end
return found
