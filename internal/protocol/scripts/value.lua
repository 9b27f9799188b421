-- How scripts read the value under a lock's key; it is pasted in where they say "include".
--
-- Others may have put anything there, and most scripts answer with what they found: of a text that
-- is longer than any of ours they take one byte more than that, and the client knows it by its
-- length. It costs no right beside GET: where GETRANGE is denied, or there is no text, GET does it.
-- The places are strings, since Redis prints a number of Lua's, which takes longer than all else here.
local function valueOf(lock)
  local v = redis.pcall('GETRANGE', lock, '0', '289')
  if type(v) == 'string' and v ~= '' then
    return v
  end
  v = redis.call('GET', lock)
  return v and string.sub(v, 1, 290)
end
