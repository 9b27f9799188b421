-- An operator's release: delete the lock whoever holds it if ARGV[1] is empty, or else
-- if its value is ARGV[1], alone or followed by '@' and an owner's label. 1 if deleted,
-- 0 if there was none, or the value that was left alone. Whoever waits is woken.
--
-- KEYS[1] lock   ARGV[1] token, or ''   ARGV[2] line, or '' if there cannot be one
-- include line.lua
local lock, line = KEYS[1], ARGV[2]
if ARGV[1] ~= '' then
  local v = redis.call('GET', lock)
  if v and v ~= ARGV[1] and string.sub(v, 1, #ARGV[1] + 1) ~= ARGV[1] .. '@' then
    return v
  end
end
local deleted = redis.call('DEL', lock)
if redis.pcall('TYPE', line).ok == 'zset' then
  serve(lock, line)
end
return deleted
