-- An operator's release: delete the lock whoever holds it if ARGV[1] is empty, or else
-- if its value is ARGV[1], alone or followed by '@' and an owner's label. 1 if deleted,
-- 0 if there was none, or the value that was left alone.
--
-- KEYS[1] lock   ARGV[1] token, or ''
if ARGV[1] == '' then
  return redis.call('DEL', KEYS[1])
end
local v = redis.call('GET', KEYS[1])
if not v then
  return 0
end
if v == ARGV[1] or string.sub(v, 1, #ARGV[1] + 1) == ARGV[1] .. '@' then
  return redis.call('DEL', KEYS[1])
end
return v
