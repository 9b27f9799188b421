-- What the scripts that touch a shared lock have in common; it is pasted in where they say
-- "include".
--
-- A lock that several hold has a marker under its key, so that a client that wants the exclusive
-- lock is refused by SET NX. Beside it is a sorted set of its holders: the member is the
-- holder's value, the score the end of its lease in milliseconds of this server, times
-- 2048, plus the number of its permit, or 0. The set means nothing unless the marker is
-- there. Scores are exact until the year 2109.
--
-- What another program put under one of our keys stays as it is: a script that needs the key changes
-- nothing and returns an error that names it.
local marker, numbers = 'redlock:shared', 2048

local function millis()
  local t = redis.call('TIME')
  return t[1] * 1000 + math.floor(t[2] / 1000)
end

-- Drop the holders whose lease is over; all of them if there is no marker. Returns an error if the key is not ours.
-- Without the marker a sorted set is ours if its scores are times since 2004: one that we left is gone soon, and one
-- of others is not ours to delete.
local function purge(marked, holders, now)
  local r
  if marked then
    r = redis.pcall('ZREMRANGEBYSCORE', holders, '-inf', string.format('(%.0f', now * numbers))
  else
    r = redis.pcall('ZRANGE', holders, 0, 0, 'WITHSCORES')
  end
  if type(r) ~= 'table' or not (r.err or r[1]) then
    return nil
  end
  local score = tonumber(r[2])
  if r.err or score < 2 ^ 51 or score > 2 ^ 53 then
    return redis.error_reply((r.err or 'WRONGTYPE a sorted set of others') .. ': ' .. holders)
  end
  redis.call('UNLINK', holders)
end

-- Let the lock's key last as long as the longest lease. It is gone if no holder is left.
local function settle(lock, holders, now)
  local last = redis.call('ZRANGE', holders, -1, -1, 'WITHSCORES')[2]
  if not last then
    redis.call('DEL', lock)
    return
  end
  local left = string.format('%.0f', math.max(math.floor(last / numbers) - now, 1))
  redis.call('SET', lock, marker, 'PX', left)
  redis.call('PEXPIRE', holders, left)
end

-- The first number that is free here, beginning with the one that the token names: nodes
-- that list the same holders choose the same. A negative limit asks for that number and no
-- other.
local function free(holders, value, limit)
  if limit > 0 and redis.call('ZCARD', holders) >= limit then
    return nil
  end
  local taken, all = {}, redis.call('ZRANGE', holders, 0, numbers - 1, 'WITHSCORES')
  if #all == 2 * numbers then
    return nil -- so many share it that one more may have the number
  end
  for i = 2, #all, 2 do
    taken[all[i] % numbers] = true
  end
  if limit < 0 then
    return not taken[-limit] and -limit or nil
  end
  local from = tonumber(string.sub(value, 1, 8), 16) % limit
  for i = 0, limit - 1 do
    local number = (from + i) % limit + 1
    if not taken[number] then
      return number
    end
  end
end

-- Make value a holder of the lock, which must not be held exclusively, and return its number;
-- nothing if there are as many as there may be. A holder keeps its number, and never has less
-- time than before. After purge; settle is to follow.
local function list(holders, value, ttl, limit, now)
  local till, number = now + ttl, 0
  local have = redis.call('ZSCORE', holders, value)
  if have then
    till, number = math.max(till, math.floor(have / numbers)), have % numbers
  elseif limit ~= 0 then
    number = free(holders, value, limit)
    if not number then
      return nil
    end
  end
  redis.call('ZADD', holders, string.format('%.0f', till * numbers + number), value)
  return number
end
