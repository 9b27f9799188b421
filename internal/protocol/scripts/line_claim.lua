-- The acquire of a waiter on the node that keeps its queue: SET NX, except that the key
-- may hold our value already, because a release reserved the lock for us. The lease
-- counts from here, as that of any SET; one that an extend ahead of us has made longer stays so.
-- It leaves the queue: the lock must not be reserved for an attempt's token again.
--
-- KEYS[1] lock   KEYS[2] queue   ARGV[1] our value   ARGV[2] TTL in ms   ARGV[3] our entry
-- include value.lua
local v = valueOf(KEYS[1])
local r = redis.pcall('ZREM', KEYS[2], ARGV[3], 'woken ' .. ARGV[3], 'silent ' .. string.match(ARGV[3], '^%S+'))
if type(r) == 'table' then
  return redis.error_reply(r.err .. ': ' .. KEYS[2])
end
if v == ARGV[1] then
  if redis.call('PTTL', KEYS[1]) < tonumber(ARGV[2]) then
    redis.call('PEXPIRE', KEYS[1], ARGV[2])
  end
  return redis.status_reply('OK')
end
return redis.call('SET', KEYS[1], ARGV[1], 'NX', 'PX', ARGV[2])
