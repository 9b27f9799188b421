-- Release on the node that keeps the line: as release.lua, but if somebody waits, the
-- lock is reserved for the first in line instead of deleted. It also takes the caller's
-- own entry out of the line, so that it is how a waiter leaves, too.
--
-- The line is no declared key, and looked at by pcall: a user who may not touch it must
-- still be able to release. What comes before "include" is all that runs when nobody
-- waits.
--
-- KEYS[1] lock   ARGV[1] our value   and only where they differ from what a holder has
-- who did not wait: ARGV[2] line   ARGV[3] our entry in it, or ''   ARGV[4] '0' if we did
-- not hold the lock
--
-- Returns as release.lua; 2 instead of 1 if it is done but PUBLISH was denied.
local lock = KEYS[1]
local line = ARGV[2] or '{' .. lock .. '}:line'
local v = redis.call('GET', lock)
if redis.pcall('TYPE', line).ok ~= 'zset' then
  if v == ARGV[1] then
    redis.call('DEL', lock)
    return 1
  end
  return v or 0
end
-- include line.lua
if ARGV[3] and ARGV[3] ~= '' then
  redis.call('ZREM', line, ARGV[3], 'woken ' .. ARGV[3], 'silent ' .. parts(ARGV[3]))
end
if v and v ~= ARGV[1] then
  -- Whoever held the lock without this node, where the first in line has it reserved
  -- and tries in vain, is gone now.
  local head = ARGV[4] ~= '0' and redis.call('ZRANGEBYSCORE', line, 0, '+inf', 'LIMIT', 0, 1)[1]
  if head then
    local process, _, value = parts(head)
    if value == v then
      notify(process, value)
    end
  end
  return v
end
if v then
  redis.call('DEL', lock)
end
-- What is deleted is released, even if a full node has no room for what comes next.
local _, _, denied = pcall(serve, lock, line)
if not v then
  return 0
end
return denied and 2 or 1
