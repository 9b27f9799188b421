-- What the scripts that touch a line have in common; it is pasted in where they say
-- "include".
--
-- A line is a sorted set. A waiter is a member "<process> <grace in ms> <value>" whose
-- score is its arrival in microseconds of this server; value is what its next attempt
-- will set. Of one who wants to share the lock, "s" and the limit follow the grace: "s0" for
-- any number, "s3" for one of three permits.
--
-- Marks have negative scores. Those of "woken <member>", the lock is reserved for that waiter,
-- and of "silent <process>", that process has not been heard of since one of its waiters was
-- woken, are the time until which they bind. That of "told" is an arrival: all who share and
-- came before it are woken.
--
-- shared.lua comes before it.

local function micros()
  local t = redis.call('TIME')
  return t[1] * 1000000 + t[2]
end

-- The process, the grace, the value, and the limit of one who wants to share or ''.
local function parts(member)
  local process, grace, limit, value = string.match(member, '^(%S+) (%d+)s?(%d*) (.*)$')
  return process, grace, value, limit
end

-- A notice is the value of one who has the lock reserved alone, or number and token of each who
-- shares it. A denied PUBLISH must not fail what was done before it. Waiters have timers, so that
-- they only learn of it later. true: denied.
local function notify(process, text)
  local r = redis.pcall('PUBLISH', 'redlock:' .. process, text)
  return type(r) == 'table' and r.err ~= nil
end

-- A text with one more who shares: the number of its permit, or 0, and its token.
local function add(text, number, value)
  return (text and text .. ' ' or '') .. string.format('%.0f ', number) .. string.sub(value, 1, 32)
end

-- Is it a member of a line? Others may have a sorted set of that name.
local function known(member)
  return parts(member) or member == 'told' or string.find(member, '^woken ') or string.find(member, '^silent ')
end

-- The first in line, false if nobody waits.
local function headOf(line)
  local head = redis.call('ZRANGEBYSCORE', line, 0, '+inf', 'LIMIT', 0, 1)[1]
  return head and parts(head) and head
end

-- How many waiters forget looks at, in one command and in one script: a line of a hundred
-- thousand must not stop the server.
local pageSize, farthest = 500, 5000

-- Take the waiters of a process out of the line, from the first on, and look at no more than so
-- many. Where there are more, the process stays silent, so that the next script goes on. Returns
-- how many may be looked at still.
local function forget(line, process, far)
  local from, start = 0, process .. ' '
  while far > 0 do
    local page = redis.call('ZRANGEBYSCORE', line, from, '+inf', 'WITHSCORES', 'LIMIT', 0, pageSize)
    local gone = {}
    for i = 1, #page, 2 do
      if string.sub(page[i], 1, #start) == start then
        gone[#gone + 1] = page[i]
        gone[#gone + 1] = 'woken ' .. page[i]
      end
    end
    if #gone > 0 then
      redis.call('ZREM', line, unpack(gone))
    end
    far = far - #page / 2
    if #page < 2 * pageSize then
      redis.call('ZREM', line, 'silent ' .. process)
      return far
    end
    from = '(' .. page[#page]
  end
  return 0
end

-- One who has its turn leaves the line. Returns an error if the key is no line.
local function leave(line, member)
  local r = redis.pcall('ZREM', line, member, 'woken ' .. member, 'silent ' .. parts(member))
  return type(r) == 'table' and redis.error_reply(r.err .. ': ' .. line) or nil
end

-- Tell the first in line that it may ask again: the lock is free here, or reserved for it, and
-- whoever held it without this node, while it tried in vain, is gone now. True if it is
-- reserved.
local function remind(lock, holders, member)
  local process, _, value, limit = parts(member)
  local v, number = redis.call('GET', lock), false
  if v == marker and limit ~= '' then
    -- Who releases a lock that it held alone may have no right to the list.
    local listed = redis.pcall('ZSCORE', holders, value)
    number = type(listed) == 'string' and listed % numbers
  end
  local reserved = v == value or number ~= false
  if reserved or not v then
    notify(process, number and add(nil, number, value) or value)
  end
  return reserved
end

-- How many one script lets in. It looks at no more than twice as many. Each of them that claims
-- lets two more in.
local atOnce = 64

-- Let in who may come now, in the order of the line: the first if it wants the lock alone and
-- nobody has it, or those who share it, up to one who cannot. The lock is reserved for them: the
-- key gets the value of the one attempt for the grace, so that a newcomer's plain SET NX is
-- refused, or the value is listed with those who share. When the lock was free, those who share
-- it come in together, also past others who want it alone: these wait for the first of them
-- anyway.
--
-- A waiter that let its grace pass is taken out, and so is each of a process of which nothing was
-- heard since one of its waiters let its grace pass: one by one, a dead process would cost one
-- grace for each waiter it had. Whoever is taken out and lives comes back with its old arrival.
--
-- A process hears of all its waiters at once. It needs no notice for the value mine. all: look at those that were told, too.
-- Returns the value of the last that was let in, false if nobody was; and whether PUBLISH was
-- denied.
--
-- Work: most times list and notify, twice as many looks, and what forget looks at.
local function serve(lock, holders, line, most, mine, all)
  local v, now = redis.call('GET', lock), micros()
  local ms = math.floor(now / 1000)
  if v == marker then
    redis.call('ZREMRANGEBYSCORE', holders, '-inf', string.format('(%.0f', ms * numbers))
    if redis.call('ZCARD', holders) == 0 then
      redis.call('DEL', lock)
      v = false
    end
  end
  if v and v ~= marker then
    return false, false
  end
  local told = not all and v and redis.call('ZSCORE', line, 'told')
  local from = told and string.format('%.0f', -told) or 0
  local first, past, at, come, denied, last = not v, false, 0, 0, false, false
  local processes, notices = {}, {}
  local before, far = told, farthest
  for _ = 1, 2 * most do
    local head = redis.call('ZRANGEBYSCORE', line, from, '+inf', 'WITHSCORES', 'LIMIT', at, 1)
    local member = head[1]
    if not member then
      local last = at == 0 and redis.call('ZREVRANGE', line, 0, 0, 'WITHSCORES')
      if last and not (last[2] and tonumber(last[2]) >= 0) then
        told = before -- a mark would bring it back, without an end
        if last[1] and known(last[1]) then
          redis.call('DEL', line)
        end
      end
      break
    end
    local process, grace, value, limit = parts(member)
    if not process then
      break -- a sorted set of others
    end
    local left, woken = grace * 1000, redis.call('ZSCORE', line, 'woken ' .. member)
    if woken then
      left = math.min(left, -woken - now)
    end
    local till = string.format('-%.0f', now + left)
    local silent = (left <= 0 or not woken) and redis.call('ZSCORE', line, 'silent ' .. process)
    local dead = silent and -silent <= now
    if left <= 0 or dead then
      redis.call('ZREM', line, member, 'woken ' .. member)
      if dead and far <= 0 then
        break -- the next script goes on
      elseif dead then
        far, at = forget(line, process, far), 0
      end
    elseif limit == '' and come == 0 and at == 0 and not v then
      if not woken then
        redis.call('ZADD', line, till, 'woken ' .. member)
        redis.call('ZADD', line, 'NX', till, 'silent ' .. process)
      end
      redis.call('SET', lock, value, 'PX', math.ceil(left / 1000))
      return value, value ~= mine and notify(process, value)
    elseif limit == '' then
      if not first then
        break
      end
      past, at = true, at + 1
    else
      if not (woken and v and redis.call('ZSCORE', holders, value)) then
        local failure = not v and purge(false, holders, ms)
        if failure then
          error(failure.err)
        end
        local number = come < most and list(holders, value, math.ceil(left / 1000), tonumber(limit), ms)
        if not number then
          break
        end
        if not woken then
          redis.call('ZADD', line, till, 'woken ' .. member)
          redis.call('ZADD', line, 'NX', till, 'silent ' .. process)
        end
        if value ~= mine then
          if not notices[process] then
            processes[#processes + 1] = process
          end
          notices[process] = add(notices[process], number, value)
        end
        come, last, v = come + 1, value, marker
      end
      at = at + 1
      if not past then
        told = '-' .. head[2]
      end
    end
  end
  if told and told ~= before then
    redis.call('ZADD', line, told, 'told')
  end
  if come > 0 then
    settle(lock, holders, ms)
  end
  for _, process in ipairs(processes) do
    denied = notify(process, notices[process]) or denied
  end
  return last, denied
end
