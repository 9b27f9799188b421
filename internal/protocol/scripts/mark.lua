-- Write the memory mark if the key still holds what the writer read there: compare and
-- set. Two clients that find the same thing wrong write one mark, and not two, of which
-- the second would bar the node to the client that wrote the first.
--
-- A mark is "<id> <at> <first|later> <run id> <replication id> <start> <puts> [all<nodes>]"; see mark.go.
-- The time is this server's own, so that any client can tell the mark's age by asking it.
--
-- KEYS[1] mark
-- ARGV[1] what was read; empty: there was no mark
-- ARGV[2] id   ARGV[3] when, in microseconds; empty: now   ARGV[4] the rest of the mark
--
-- Returns the mark that is there now, ours or another's, and the time in microseconds.
local t = redis.call('TIME')
local now = t[1] * 1000000 + t[2]
local mark = redis.call('GET', KEYS[1]) or ''
if mark == ARGV[1] then
  local at = ARGV[3]
  if at == '' then
    at = string.format('%.0f', now)
  end
  mark = ARGV[2] .. ' ' .. at .. ' ' .. ARGV[4]
  redis.call('SET', KEYS[1], mark)
end
return {mark, now}
