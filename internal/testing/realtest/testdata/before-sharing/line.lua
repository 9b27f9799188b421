-- What the scripts that touch a line have in common; it is pasted in where they say
-- "include".
--
-- A line is a sorted set. A waiter is a member "<process> <grace in ms> <value>" whose
-- score is its arrival in microseconds of this server; value is what its next attempt
-- will set. Marks have negative scores, the time until which they bind: "woken
-- <member>", the lock is reserved for that waiter; "silent <process>", that process has
-- not been heard of since one of its waiters was woken.

local function micros()
  local t = redis.call('TIME')
  return t[1] * 1000000 + t[2]
end

local function parts(member)
  return string.match(member, '^(%S+) (%d+) (.*)$')
end

-- A denied PUBLISH must not fail what was done before it. Waiters have timers, so that
-- they only learn of it later. true: denied.
local function notify(process, value)
  local r = redis.pcall('PUBLISH', 'redlock:' .. process, value)
  return type(r) == 'table' and r.err ~= nil
end

-- Take every waiter of a process out of the line.
local function forget(line, process)
  local from, start = 0, process .. ' '
  repeat
    local page = redis.call('ZRANGEBYSCORE', line, 0, '+inf', 'LIMIT', from, 500)
    local gone = {}
    for _, m in ipairs(page) do
      if string.sub(m, 1, #start) == start then
        gone[#gone + 1] = m
      end
    end
    if #gone > 0 then
      redis.call('ZREM', line, unpack(gone))
    end
    from = from + #page - #gone
  until #page < 500
end

-- Reserve the lock, which must be free, for the first waiter: the key gets the value of
-- its next attempt for the grace, so that a newcomer's plain SET NX is refused. A waiter
-- that let its grace pass is taken out, and the whole process with it if nothing was
-- heard of that: one by one, a dead process would cost one grace for each waiter it had.
-- Whoever is taken out and lives comes back with its old arrival. The process me needs
-- no notice for the value mine.
-- Returns the value, or false if nobody waits; and whether PUBLISH was denied.
local function serve(lock, line, mine)
  local now = micros()
  while true do
    local head = redis.call('ZRANGEBYSCORE', line, 0, '+inf', 'LIMIT', 0, 1)[1]
    if not head then
      redis.call('DEL', line)
      return false, false
    end
    local process, grace, value = parts(head)
    local left = grace * 1000
    local woken = redis.call('ZSCORE', line, 'woken ' .. head)
    if woken then
      left = math.min(left, -tonumber(woken) - now)
    end
    if left > 0 then
      if not woken then
        local till = string.format('-%.0f', now + left)
        redis.call('ZADD', line, till, 'woken ' .. head, till, 'silent ' .. process)
      end
      redis.call('SET', lock, value, 'PX', math.ceil(left / 1000))
      return value, value ~= mine and notify(process, value)
    end
    redis.call('ZREM', line, head, 'woken ' .. head)
    if redis.call('ZREM', line, 'silent ' .. process) == 1 then
      forget(line, process)
    end
  end
end
