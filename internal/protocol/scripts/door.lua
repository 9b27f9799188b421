-- Keep newcomers from sharing a lock while a waiter for the exclusive lock is the first in the
-- queue. The door of another waiter is replaced: the one that comes last is the first in the queue.
-- A value that is no waiter's belongs to another program, and stays as it is.
--
-- KEYS[1] door   ARGV[1] our value   ARGV[2] for how long, in ms
local v = redis.pcall('GET', KEYS[1])
if type(v) == 'table' then
  return redis.error_reply(v.err .. ': ' .. KEYS[1])
elseif v and not string.find(v, '^%x+@') then
  return redis.error_reply('WRONGTYPE a value of others: ' .. KEYS[1])
end
return redis.call('SET', KEYS[1], ARGV[1], 'PX', ARGV[2])
