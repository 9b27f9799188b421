-- Give our share of the lock up: 1. Otherwise change nothing: 0 if nobody holds the lock, or
-- the value of whoever does, which is the marker if others share it. If nobody is left, the
-- first in line has the lock reserved, as by line_release.lua. It also takes the caller's own
-- entry out of the line.
--
-- The line is no declared key, and looked at by pcall: a user who may not touch it must
-- still be able to release.
--
-- KEYS[1] lock   KEYS[2] holders   ARGV[1] our value   ARGV[2] line, or '' on a node that does
-- not keep it   ARGV[3] our entry in it, or ''
--
-- Returns 2 instead of 1 if it is done but PUBLISH was denied.
local lock, holders, line = KEYS[1], KEYS[2], ARGV[2]
-- include line.lua
-- include shared.lua
local v, ours = redis.call('GET', lock), 0
if v == ARGV[1] then
  redis.call('DEL', lock, holders) -- a downgrade that has not come here
  ours = 1
elseif v == marker then
  local now = millis()
  purge(lock, holders, now)
  ours = redis.call('ZREM', holders, ARGV[1])
  settle(lock, holders, now)
end
local denied = false
if line ~= '' and redis.pcall('TYPE', line).ok == 'zset' then
  if ARGV[3] ~= '' then
    redis.call('ZREM', line, ARGV[3], 'woken ' .. ARGV[3], 'silent ' .. parts(ARGV[3]))
  end
  if not redis.call('GET', lock) then
    local _, _, d = pcall(serve, lock, line)
    denied = d == true
  end
end
if ours == 1 then
  return denied and 2 or 1
end
return redis.call('GET', lock) or 0
