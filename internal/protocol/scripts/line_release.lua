-- Release on a node that may keep a queue: as release.lua, but if a client waits, the lock is
-- reserved for the first in the queue instead of deleted. It also takes the caller's own entry
-- out of the queue, so that it is how a waiter leaves, too.
--
-- A holder serves the queue that it knows. On the other nodes it only looks: a client that
-- cannot reach that queue may wait there. The first of them is told that the lock is free,
-- and the holder that a client waits there.
--
-- The queue and the list of holders are no declared keys, and are looked at by pcall: a user
-- without permission for them must still be able to release. What comes before "include" is all
-- that runs when no client waits.
--
-- KEYS[1] lock   ARGV[1] our value   and only where they differ from those of a holder
-- that did not wait: ARGV[2] queue, or '' for the usual name   ARGV[3] our entry in it, or ''
-- ARGV[4] '0' if we did not hold the lock, '2' if another node's queue is served
-- ARGV[5] holders, if their key has not the usual name
--
-- Returns as release.lua; instead of 1, if a client waits, 3, or 2 if a PUBLISH was denied that reserves the lock;
-- and 4 if it was not ours, and is reserved for the first in the queue.
local lock = KEYS[1]
local line = ARGV[2]
if not line or line == '' then
  line = '{' .. lock .. '}:line'
end
-- include value.lua
local v = valueOf(lock)
if redis.pcall('TYPE', line).ok ~= 'zset' then
  if v == ARGV[1] then
    redis.call('DEL', lock)
    return 1
  end
  return v or 0
end
-- include shared.lua
-- include line.lua
local holders = ARGV[5] or '{' .. lock .. '}:shared'
if ARGV[3] and ARGV[3] ~= '' then
  leave(line, ARGV[3])
end
local ours = v == ARGV[1]
if ours then
  redis.call('DEL', lock)
end
return passOn(lock, holders, line, ours, ARGV[4])
