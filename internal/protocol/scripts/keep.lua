-- Leave the lock to nobody for a while, or delete it if that is over: 1. If it is another's,
-- change nothing: its value, or 0 if there is none.
--
-- Our value becomes one that no request of ours fits, so what its holder still sends finds
-- nothing of its own. The same request may come again, with what is left by then: it never
-- makes the rest longer.
--
-- KEYS[1] lock   ARGV[1] our value   ARGV[2] the value that it is left under   ARGV[3] for how
-- many ms, or 0
-- include value.lua
local v = valueOf(KEYS[1])
if v ~= ARGV[1] and v ~= ARGV[2] then
  return v or 0
end
if ARGV[3] == '0' then
  redis.call('DEL', KEYS[1])
elseif v == ARGV[1] or redis.call('PTTL', KEYS[1]) > tonumber(ARGV[3]) then
  redis.call('SET', KEYS[1], ARGV[2], 'PX', ARGV[3])
end
return 1
