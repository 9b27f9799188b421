-- What the scripts that touch a fencing counter have in common; it is pasted in where
-- they say "include".

-- Integers up to 2^53 are exact in Lua. What follows must have room to add to them.
local most = 2 ^ 52

-- The counter, 0 if there is none; or nothing and an error.
local function read(counter)
  local c = redis.pcall('GET', counter)
  if not c then
    return 0
  end
  if type(c) == 'table' then
    return nil, redis.error_reply(c.err .. ': ' .. counter)
  end
  local n = #c <= 16 and string.match(c, '^%d+$') and tonumber(c)
  if not n or n > most then
    return nil, redis.error_reply('BADFENCE the fencing counter holds no integer from 0 to 2^52: ' .. counter)
  end
  return n
end

-- The token that this node gives next, or nothing and an error. The proposal is the client's wall
-- clock, kept within a second of this server's, so that a client whose clock is wrong by days
-- cannot drive the counter away from time: when counters expire, or a node loses its memory,
-- servers' clocks keep the order.
local function next_token(counter, proposal)
  local c, failure = read(counter)
  if failure then
    return nil, failure
  end
  local t = redis.call('TIME')
  local now = t[1] * 1000000 + t[2]
  local token = math.max(now - 1000000, math.min(now + 1000000, tonumber(proposal)))
  token = math.max(c + 1, token)
  if token > most then
    return nil, redis.error_reply('BADFENCE the fencing counter has reached its end')
  end
  return token
end
