-- Join the line of a lock, or say that we still wait. If the lock is free, it is
-- reserved for the first in line, who may be the caller.
--
-- Joining twice is joining once. A waiter that comes back, be it after a failed attempt,
-- after it was taken for dead or from another node, gets its old place. What is left of
-- an attempt that ended is taken back in the same step, so that nobody slips in between.
--
-- KEYS[1] lock   KEYS[2] line   ARGV[1] our entry   ARGV[2] entry of the ended attempt, or ''
-- ARGV[3] our arrival on this server, or 0   ARGV[4] microseconds we have waited elsewhere
-- ARGV[5] how long the line lives unless somebody refreshes it, in ms
--
-- Returns: is the lock reserved for us; how many are ahead; PTTL of the lock; our
-- arrival; was our entry new; was PUBLISH denied; the value of the lock.
-- include line.lua
local lock, line = KEYS[1], KEYS[2]
local process, _, value = parts(ARGV[1])
local v = redis.call('GET', lock)
local place = redis.call('ZSCORE', line, ARGV[1])
local new = not place

if ARGV[2] ~= '' then
  local _, _, ended = parts(ARGV[2])
  place = place or redis.call('ZSCORE', line, ARGV[2])
  redis.call('ZREM', line, ARGV[2], 'woken ' .. ARGV[2])
  if v == ended then
    redis.call('DEL', lock)
    v = false
  end
end
if new then
  place = tonumber(place or ARGV[3])
  if place == 0 then
    place = micros() - ARGV[4]
    local last = redis.call('ZREVRANGE', line, 0, 0, 'WITHSCORES')[2]
    if ARGV[4] == '0' and last and place <= tonumber(last) then
      place = last + 1 -- the clock stood still, or was set back
    end
  end
  redis.call('ZADD', line, string.format('%.0f', place), ARGV[1])
end
place = tonumber(place)
redis.call('ZREM', line, 'silent ' .. process)
redis.call('PEXPIRE', line, ARGV[5])

local denied = false
if not v then
  v, denied = serve(lock, line, value)
end
local ahead = redis.call('ZCOUNT', line, 0, string.format('(%.0f', place))
return {v == value and 1 or 0, ahead, redis.call('PTTL', lock), place, new and 1 or 0, denied and 1 or 0, v or ''}
