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
    return nil, c -- WRONGTYPE
  end
  local n = #c <= 16 and string.match(c, '^%d+$') and tonumber(c)
  if not n or n > most then
    return nil, redis.error_reply('BADFENCE the fencing counter holds no integer from 0 to 2^52')
  end
  return n
end
