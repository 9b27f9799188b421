-- Give our share of the lock up: 1. Otherwise change nothing: 0 if nobody holds the lock, or
-- the value of whoever does, which is the marker if others share it. If nobody is left, the
-- first in line has the lock reserved, or is told, as by line_release.lua. It also takes the
-- caller's own entry out of the line.
--
-- The line is no declared key, and looked at by pcall: a user who may not touch it must
-- still be able to release.
--
-- KEYS[1] lock   KEYS[2] holders   ARGV[1] our value   ARGV[2] line, or '' if there
-- cannot be one   ARGV[3] our entry in it, or ''   ARGV[4] '0' if we did not hold the lock,
-- '2' if another node's line is served
--
-- Returns as line_release.lua: instead of 1, if somebody waits, 3, or 2 if PUBLISH was denied;
-- and 4 if we held nothing, and it is reserved for the first in line.
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
local denied, waits, reserved = false, false, false
if line ~= '' and redis.pcall('TYPE', line).ok == 'zset' then
  if ARGV[3] ~= '' then
    redis.call('ZREM', line, ARGV[3], 'woken ' .. ARGV[3], 'silent ' .. parts(ARGV[3]))
  end
  local head = redis.call('ZRANGEBYSCORE', line, 0, '+inf', 'LIMIT', 0, 1)[1]
  local now = redis.call('GET', lock)
  waits = head
  if not now and ARGV[4] ~= '2' then
    local done, served, d = pcall(serve, lock, line)
    denied, reserved = d == true, done and served
  elseif head and ARGV[4] ~= '0' then
    -- It has the lock reserved here, and tried in vain, or cannot reach the other line.
    local process, _, value = parts(head)
    reserved = value == now
    if reserved or not now then
      notify(process, value)
    end
  end
end
if ours == 1 then
  return denied and 2 or waits and 3 or 1
end
return reserved and 4 or redis.call('GET', lock) or 0
