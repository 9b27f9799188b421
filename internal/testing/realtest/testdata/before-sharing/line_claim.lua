-- The acquire of a waiter on the node that keeps its line: SET NX, except that the key
-- may hold our value already, because a release reserved the lock for us. The lease
-- counts from here, as that of any SET. It leaves the line: an attempt's token must not
-- be reserved for again.
--
-- KEYS[1] lock   KEYS[2] line   ARGV[1] our value   ARGV[2] TTL in ms   ARGV[3] our entry
local v = redis.call('GET', KEYS[1])
redis.call('ZREM', KEYS[2], ARGV[3], 'woken ' .. ARGV[3], 'silent ' .. string.match(ARGV[3], '^%S+'))
if v == ARGV[1] then
  redis.call('PEXPIRE', KEYS[1], ARGV[2])
  return redis.status_reply('OK')
end
return redis.call('SET', KEYS[1], ARGV[1], 'NX', 'PX', ARGV[2])
