-- Let the lock last ARGV[2] ms more if it is ours: 1. Otherwise change nothing: 0 if
-- there is none, or the value of whoever holds it.
--
-- Never shorten: an extend that comes late must not cut a lease that was promised
-- since. A key that lost its TTL (-1) gets one again, which PEXPIRE GT would not do.
-- Never create: a key that is gone was free for others meanwhile.
--
-- KEYS[1] lock   ARGV[1] our value   ARGV[2] TTL in ms
local v = redis.call('GET', KEYS[1])
if v == ARGV[1] then
  if redis.call('PTTL', KEYS[1]) < tonumber(ARGV[2]) then
    redis.call('PEXPIRE', KEYS[1], ARGV[2])
  end
  return 1
end
return v or 0
