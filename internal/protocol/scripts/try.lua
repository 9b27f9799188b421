-- The trial of the commands that scripts use for a lock: whether this server runs them for this user in its present
-- state. They write nothing, as nothing is there.
--
-- KEYS[1] a key that is never there
--
-- Returns 1, or the first command that fails with its error: {command, error}. If the key is there, {'', ''}.
local function failed(command, answer)
  return type(answer) == 'table' and answer.err and {command, answer.err}
end
local found = redis.pcall('GET', KEYS[1])
if found and type(found) ~= 'table' then
  return {'', ''}
end
return failed('GET', found)
  or failed('SET', redis.pcall('SET', KEYS[1], 'trial', 'XX', 'PX', '1000'))
  or failed('PEXPIRE', redis.pcall('PEXPIRE', KEYS[1], '1000'))
  or failed('PTTL', redis.pcall('PTTL', KEYS[1]))
  or failed('DEL', redis.pcall('DEL', KEYS[1]))
  or 1
