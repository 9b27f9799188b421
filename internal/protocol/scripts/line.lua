-- What the scripts that touch a queue have in common; it is pasted in where they say
-- "include". In the code a queue is called a line, as its key is.
--
-- A queue is a sorted set. A waiter is a member "<process> <grace in ms> <value>" whose
-- score is its arrival in microseconds of this server; value is what its next attempt
-- will set. Of a waiter that wants to share the lock, "s" and the limit follow the grace: "s0" for
-- any number, "s3" for one of three permits.
--
-- Marks have negative scores. That of "woken <member>" is until when the lock is reserved for that waiter, that of
-- "silent <process>" until when the process is taken to live: each of its requests says when the next will come, and
-- a reservation brings that forward to its own end. That of "told" is an arrival: all waiters that share, up to that
-- arrival, were let in.
--
-- value.lua and shared.lua come before it.

local function micros()
  local t = redis.call('TIME')
  return t[1] * 1000000 + t[2]
end

-- The process, the grace, the value, and the limit of a waiter that wants to share or ''.
local function parts(member)
  local process, grace, limit, value = string.match(member, '^(%S+) (%d+)s?(%d*) (.*)$')
  return process, grace, value, limit
end

-- What a notice calls a waiter: half of its token, since a token is a secret, and all may listen. A
-- process of a version that knows whole tokens only has no dot at the end of its id.
local function nameOf(process, value)
  return string.sub(value, 1, string.sub(process, -1) == '.' and 16 or 32)
end

-- A notice is the name of the one waiter for which the lock is reserved, or number and name of each that shares it. A
-- denied PUBLISH must not fail what was done before it. Waiters have timers and learn of it later. true: denied.
local function notify(process, text)
  local r = redis.pcall('PUBLISH', 'redlock:' .. process, text)
  return type(r) == 'table' and r.err ~= nil
end

-- A text with one more that shares: the number of its permit, or 0, and its name.
local function add(text, number, process, value)
  return (text and text .. ' ' or '') .. string.format('%.0f ', number) .. nameOf(process, value)
end

-- Is it a member of a queue? Another program may have a sorted set of that name.
local function known(member)
  return parts(member) or member == 'told' or string.find(member, '^woken ') or string.find(member, '^silent ')
end

-- The first in the queue; nothing if it is empty or not a queue of ours.
local function headOf(line)
  local head = redis.call('ZRANGEBYSCORE', line, 0, '+inf', 'LIMIT', 0, 1)[1]
  return head and parts(head) and head
end

-- How many waiters forget looks at, and all of a script: a queue of a hundred thousand must not stop the server.
local pageSize, farthest = 1000, 3000

-- Take the waiters of dead processes out of the queue that are among the next ones. Where there may be more behind
-- them, their processes stay silent, and those are taken out when one of them is met.
local function forget(s)
  local page = redis.call('ZRANGEBYSCORE', s.line, s.from, '+inf', 'LIMIT', 0, pageSize)
  local gone, dead = {}, {}
  for _, member in ipairs(page) do
    local process = string.match(member, '^%S*')
    if dead[process] == nil then
      local silent = redis.call('ZSCORE', s.line, 'silent ' .. process)
      dead[process] = silent and -silent <= s.now
      if dead[process] and #page < pageSize then
        gone[#gone + 1] = 'silent ' .. process
      end
    end
    if dead[process] then
      gone[#gone + 1] = member
      gone[#gone + 1] = 'woken ' .. member
    end
  end
  redis.call('ZREM', s.line, unpack(gone))
  s.far, s.at = s.far - #page, 0
end

-- Take a waiter out of the queue. Its process was heard of, so its 'silent' mark goes, too. Returns an error if the
-- key is no queue.
local function leave(line, member)
  local r = redis.pcall('ZREM', line, member, 'woken ' .. member, 'silent ' .. parts(member))
  return type(r) == 'table' and redis.error_reply(r.err .. ': ' .. line) or nil
end

-- Tell the first in the queue to ask again, if the lock is free here or reserved for it: the holder that made its
-- attempts fail is gone. True if it is reserved.
local function remind(lock, holders, member)
  local process, _, value, limit = parts(member)
  local v, number = valueOf(lock), false
  if v == marker and limit ~= '' then
    -- The releaser of an exclusive lock may have no permission for the list.
    local listed = redis.pcall('ZSCORE', holders, value)
    number = type(listed) == 'string' and listed % numbers
  end
  local reserved = v == value or number ~= false
  if reserved or not v then
    notify(process, number and add(nil, number, process, value) or nameOf(process, value))
  end
  return reserved
end

-- How many one script lets in. It looks at no more than twice as many. Each of them that claims
-- lets two more in.
local atOnce = 64

-- The next waiter at the place where s stands, or nothing. Those that are found there and are dead
-- are taken out: a waiter that let its reservation pass, and all of a process that was not heard of
-- for as long as it said. One by one, a dead process would cost a reservation for each waiter it
-- had. A waiter that is taken out and lives comes back with its old arrival.
local function nextOf(s)
  while s.looks > 0 do
    s.looks = s.looks - 1
    local head = redis.call('ZRANGEBYSCORE', s.line, s.from, '+inf', 'WITHSCORES', 'LIMIT', s.at, 1)
    local member = head[1]
    if not member then
      local last = s.at == 0 and redis.call('ZREVRANGE', s.line, 0, 0, 'WITHSCORES')
      if last and not (last[2] and tonumber(last[2]) >= 0) then
        s.told = false -- ZADD of it would create the key again, without an expiry
        if last[1] and known(last[1]) then
          redis.call('DEL', s.line)
        end
      end
      return
    end
    local process, grace, value, limit = parts(member)
    if not process then
      return -- a sorted set of others
    end
    local left, woken = grace * 1000, redis.call('ZSCORE', s.line, 'woken ' .. member)
    if woken then
      left = math.min(left, -woken - s.now)
    end
    local silent = (left <= 0 or not woken) and redis.call('ZSCORE', s.line, 'silent ' .. process)
    local dead = silent and -silent <= s.now
    if left > 0 and not dead then
      if not (silent or woken) then -- it may be in the way of those behind it while it lives: it is to be heard of
        redis.call('ZADD', s.line, string.format('-%.0f', s.now + left), 'silent ' .. process)
      end
      return {member = member, arrival = head[2], process = process, value = value, limit = limit, left = left, woken = woken}
    end
    if not dead then
      redis.call('ZREM', s.line, member, 'woken ' .. member)
    elseif s.far > 0 then
      forget(s)
    else
      return -- the next script goes on
    end
  end
end

-- The lock is reserved for a waiter, and its process has to be heard of by the end of that.
local function reserve(s, w)
  if w.woken then
    return
  end
  local till = string.format('-%.0f', s.now + w.left)
  redis.call('ZADD', s.line, till, 'woken ' .. w.member)
  if -redis.call('ZSCORE', s.line, 'silent ' .. w.process) > s.now + w.left then
    redis.call('ZADD', s.line, till, 'silent ' .. w.process)
  end
end

-- Let in a waiter for the exclusive lock: the key gets the value of its attempt, so that a newcomer's
-- plain SET NX is refused.
local function alone(s, w)
  reserve(s, w)
  redis.call('SET', s.lock, w.value, 'PX', math.ceil(w.left / 1000))
  return w.value, w.value ~= s.mine and notify(w.process, nameOf(w.process, w.value))
end

-- Let in the waiters that share the lock, from w on and up to one that cannot: they are listed with
-- its holders. When the lock was free they come in together, also past waiters for the exclusive
-- lock, which wait for the first of them anyway.
local function together(s, w, free)
  local ms, shared, past, come, last, denied = math.floor(s.now / 1000), not free, false, 0, false, false
  local processes, notices = {}, {}
  while w do
    local listed = w.woken and shared and redis.call('ZSCORE', s.holders, w.value)
    local number
    if w.limit == '' then
      past = true
    elseif not listed then
      local failure = not shared and purge(false, s.holders, ms)
      if failure then
        error(failure.err)
      end
      number = come < s.most and list(s.holders, w.value, math.ceil(w.left / 1000), tonumber(w.limit), ms)
    end
    if not listed and not number and not (past and free and w.limit == '') then
      break
    end
    if number then
      reserve(s, w)
      if w.value ~= s.mine then
        if not notices[w.process] then
          processes[#processes + 1] = w.process
        end
        notices[w.process] = add(notices[w.process], number, w.process, w.value)
      end
      come, last, shared = come + 1, w.value, true
    end
    s.at = s.at + 1
    if not past then
      s.told = '-' .. w.arrival
    end
    w = nextOf(s)
  end
  if s.told then
    redis.call('ZADD', s.line, s.told, 'told')
  end
  if come > 0 then
    settle(s.lock, s.holders, ms)
  end
  for _, process in ipairs(processes) do
    denied = notify(process, notices[process]) or denied
  end
  return last, denied
end

-- Let in the waiters that may come now, and reserve the lock for them for their grace.
--
-- A process hears of all its waiters at once. It needs no notice for the value mine. all: look at
-- those that were told, too. Returns the value of the last that was let in, or false; and
-- whether PUBLISH was denied.
--
-- Work: most times list and notify, twice as many looks, and what forget looks at.
local function serve(lock, holders, line, most, mine, all)
  local v, now = valueOf(lock), micros()
  if v and v ~= marker then
    return false, false
  end
  if v then
    redis.call('ZREMRANGEBYSCORE', holders, '-inf', string.format('(%.0f', math.floor(now / 1000) * numbers))
    if redis.call('ZCARD', holders) == 0 then
      redis.call('DEL', lock)
      v = false
    end
  end
  local told = not all and v and redis.call('ZSCORE', line, 'told')
  local s = {
    lock = lock, holders = holders, line = line, most = most, mine = mine, now = now,
    from = told and string.format('%.0f', -told) or 0, at = 0, looks = 2 * most, far = farthest,
  }
  local w = nextOf(s)
  if w and w.limit == '' and not v then
    return alone(s, w)
  end
  return together(s, w, not v)
end

-- The end of a release, ours: of what was held, which is gone from here. It serves the queue; as, '2', means that
-- another node's is served, and '0' that the lock was not held. Where nothing is reserved, the first is told that a
-- holder of another node's queue, or of a lock that was not ours here, is gone.
local function passOn(lock, holders, line, ours, as)
  local denied, reserved = false, false
  if as ~= '2' then
    -- What is deleted is released, even if a full node has no room for what comes next.
    local done, served, silent = pcall(serve, lock, holders, line, atOnce)
    denied, reserved = done and silent, done and served
  end
  local head = not reserved and headOf(line)
  if head and as ~= '0' and (not ours or as == '2') then
    reserved = remind(lock, holders, head)
  end
  if ours then
    return denied and 2 or (reserved or head) and 3 or 1
  end
  return reserved and 4 or valueOf(lock) or 0
end
