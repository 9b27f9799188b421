-- Join the queue of a lock, or say that we still wait. If the lock can be had, it is reserved
-- for the first in the queue, which may be the caller, or for all that share it up to one that
-- cannot.
--
-- Joining twice is joining once. A waiter that comes back, be it after a failed attempt,
-- after it was taken for dead or from another node, gets its old place. What is left of
-- an attempt that ended is taken back in the same step, so that no client slips in between.
--
-- The list of holders is no declared key: a user that never shares a lock needs no permission for it.
--
-- KEYS[1] lock   KEYS[2] queue   ARGV[1] our entry   ARGV[2] entry of the ended attempt, or ''
-- ARGV[3] our arrival on this server, or 0   ARGV[4] microseconds we have waited elsewhere
-- ARGV[5] how long the queue lives unless it is refreshed, in ms
-- ARGV[6] in how many ms at most our process will be heard of again
-- ARGV[7] holders, if their key has not the usual name
--
-- Returns: is the lock reserved for us, 1 or the number of our permit plus 1; how many are ahead;
-- in how many ms it may be ours; our arrival; was our entry new; was PUBLISH denied; the value of
-- the lock; and, unless our entry was new, a notice of all waiters of our process that have it
-- reserved together with others, whatever we want ourselves: the first waiter of a process acts for all.
-- include value.lua
-- include shared.lua
-- include line.lua
local lock, line, holders = KEYS[1], KEYS[2], ARGV[7] or '{' .. KEYS[1] .. '}:shared'
local process, _, value, limit = parts(ARGV[1])
local v = valueOf(lock)
local place = redis.pcall('ZSCORE', line, ARGV[1])
if type(place) == 'table' then
  return redis.error_reply(place.err .. ': ' .. line)
end
local new = not place
local last = new and redis.call('ZREVRANGE', line, 0, 0, 'WITHSCORES')
if new and last[1] and not known(last[1]) then
  return redis.error_reply('WRONGTYPE a sorted set of others: ' .. line)
end
if limit ~= '' and (not v or v == marker) then
  local failure = purge(v == marker, holders, millis())
  if failure then
    return failure
  end
end

if ARGV[2] ~= '' then
  local _, _, ended = parts(ARGV[2])
  place = place or redis.call('ZSCORE', line, ARGV[2])
  redis.call('ZREM', line, ARGV[2], 'woken ' .. ARGV[2])
  if v == ended then
    redis.call('DEL', lock)
    v = false
  elseif v == marker and limit ~= '' and redis.call('ZREM', holders, ended) == 1 then
    settle(lock, holders, math.floor(micros() / 1000))
    v = valueOf(lock)
  end
end
if new then
  place = tonumber(place or ARGV[3])
  if place == 0 then
    place = micros() - ARGV[4]
    if ARGV[4] == '0' and last[2] and place <= tonumber(last[2]) then
      place = last[2] + 1 -- the clock stood still, or was set back
    end
  end
  redis.call('ZADD', line, string.format('%.0f', place), ARGV[1])
  local told = redis.call('ZSCORE', line, 'told')
  if told and place <= -told then
    redis.call('ZADD', line, string.format('-%.0f', place), 'told')
  end
end
place = tonumber(place)
redis.call('ZADD', line, string.format('-%.0f', micros() + ARGV[6] * 1000), 'silent ' .. process)
redis.call('PEXPIRE', line, ARGV[5])

local denied = false
if not v or v == marker then
  -- Without permission for the list we are let in by clients that have it.
  local done, served, silent = pcall(serve, lock, holders, line, atOnce, value, not new)
  if not done and not v then
    error(served)
  end
  denied, v = done and silent, valueOf(lock)
end
local ours, left, given = v == value and 1, redis.call('PTTL', lock), nil
if v == marker and limit ~= '' then
  ours = redis.call('ZSCORE', holders, value)
  ours = ours and ours % numbers + 1
  if limit ~= '0' then
    local next = redis.call('ZRANGE', holders, 0, 0, 'WITHSCORES')[2]
    left = next and math.max(math.floor(next / numbers) - math.floor(micros() / 1000), 1) or left
  end
end
if v == marker and not new then
  local start = 'woken ' .. process .. ' '
  for _, m in ipairs(redis.call('ZRANGEBYSCORE', line, '-inf', '(0', 'LIMIT', 0, 8 * atOnce)) do
    if string.sub(m, 1, #start) == start then
      local _, _, other = parts(string.sub(m, 7))
      local listed = redis.pcall('ZSCORE', holders, other)
      if type(listed) == 'string' then
        given = add(given, listed % numbers, process, other)
      end
    end
  end
end
local ahead = redis.call('ZCOUNT', line, 0, string.format('(%.0f', place))
if ahead > 0 and not new and v and v ~= marker then
  -- The first in the queue finds out that the lock is free elsewhere, so it must not be dead.
  nextOf({line = line, now = micros(), from = 0, at = 0, looks = 2 * atOnce, far = farthest})
end
return {ours or 0, ahead, left, place, new and 1 or 0, denied and 1 or 0, v or '', given}
