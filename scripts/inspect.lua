-- What lies under the lock's key: its type ("none" if nothing), its value where that
-- is a string, and its remaining TTL in ms (-1 without one, -2 if nothing is there).
--
-- KEYS[1] lock
local t = redis.call('TYPE', KEYS[1])['ok']
local v = ''
if t == 'string' then
  v = redis.call('GET', KEYS[1])
end
return {t, v, redis.call('PTTL', KEYS[1])}
