-- What lies under the lock's key: its type ("none" if nothing), its value where that
-- is a string, and its remaining TTL in ms (-1 without one, -2 if nothing is there).
-- With a queue also: how many wait, and the first of them, each with the microseconds
-- that it has waited. If several share the lock, a sixth field lists them: value, ms left
-- and number of each.
--
-- The list of holders is no declared key: a user that never shares a lock needs no permission for it.
--
-- KEYS[1] lock   ARGV[1] queue, or ''   ARGV[2] how many to list, waiters and holders
-- ARGV[3] holders, if their key has not the usual name
-- include value.lua
-- include shared.lua
local t = redis.call('TYPE', KEYS[1])['ok']
local v = ''
if t == 'string' then
  v = valueOf(KEYS[1])
end
local found = {t, v, redis.call('PTTL', KEYS[1]), 0, {}}
if ARGV[1] ~= '' and redis.pcall('TYPE', ARGV[1]).ok == 'zset' then
  local now = redis.call('TIME')
  found[4] = redis.call('ZCOUNT', ARGV[1], 0, '+inf')
  found[5] = redis.call('ZRANGEBYSCORE', ARGV[1], 0, '+inf', 'WITHSCORES', 'LIMIT', 0, ARGV[2])
  if found[5][1] and not string.find(found[5][1], '^%S+ %d+s?%d* ') then
    found[4], found[5] = 0, {} -- a sorted set of another program
  end
  for i = 2, #found[5], 2 do
    found[5][i] = now[1] * 1000000 + now[2] - found[5][i]
  end
end
if v == marker then
  local holders, now, list = ARGV[3] or '{' .. KEYS[1] .. '}:shared', millis(), {}
  local all = {}
  if redis.pcall('TYPE', holders).ok == 'zset' then
    all = redis.call('ZRANGEBYSCORE', holders, string.format('%.0f', now * numbers), '+inf', 'WITHSCORES', 'LIMIT', 0, ARGV[2])
  end
  for i = 2, #all, 2 do
    list[#list + 1] = all[i - 1]
    list[#list + 1] = math.floor(all[i] / numbers) - now
    list[#list + 1] = all[i] % numbers
  end
  found[6] = list
end
return found
