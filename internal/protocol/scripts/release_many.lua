-- Release several locks in one command: to call a script, and a command in it, costs a server more
-- than a release does. Each is released as release.lua does it, or line_release.lua where no client
-- waits. Where there is more to do or to say, nothing is done: the lock is another's, or gone, or is
-- no string, or a client waits for it. DEL is the last command and the only write, so an error
-- means that nothing was done of any of them.
--
-- The queues are no declared keys, and are looked at by pcall: a user without permission for them
-- must still be able to release. EXISTS asks for all at once, and where it is denied, or finds something, TYPE
-- does for each.
--
-- KEYS locks, no two the same   ARGV[i] our value of KEYS[i]   ARGV[#KEYS + i] queue of KEYS[i], for
-- as many from the first on as may have one
--
-- Returns the places of those of which nothing was done.
local n = #KEYS
local lines = #ARGV - n
local quiet = lines == 0 or redis.pcall('EXISTS', unpack(ARGV, n + 1)) == 0
local values = redis.call('MGET', unpack(KEYS))
local ours, others = {}, {}
for i = 1, n do
  local waits = not quiet and i <= lines and redis.pcall('TYPE', ARGV[n + i]).ok == 'zset'
  if values[i] == ARGV[i] and not waits then
    ours[#ours + 1] = KEYS[i]
  else
    others[#others + 1] = i
  end
end
if #ours > 0 then
  redis.call('DEL', unpack(ours))
end
return others
