-- Notes how many viewers a room has on a node, and gives how many it has on the others.
-- KEYS: the room's counts, a hash with a field for each node: its viewers, and when that was told, in milliseconds.
-- ARGV: the node; its viewers, or nothing to ask alone; for how many milliseconds what was told counts.
local counts, node, here, expiry = KEYS[1], ARGV[1], tonumber(ARGV[2]), tonumber(ARGV[3])
local now = redis.call('TIME')
now = now[1] * 1000 + math.floor(now[2] / 1000)
if here and here > 0 then
  redis.call('HSET', counts, node, string.format('%.0f %.0f', here, now))
  redis.call('PEXPIRE', counts, expiry)
elseif here then
  redis.call('HDEL', counts, node)
else
  -- Refused where telling is: what others had told is not kept up to date then, and says nothing.
  redis.call('HSET', counts, '?', '')
  redis.call('HDEL', counts, '?')
end
local elsewhere, fields = 0, redis.call('HGETALL', counts)
for place = 1, #fields, 2 do
  local viewers, told = string.match(fields[place + 1], '^(%d+) (%d+)$')
  -- Told in the future: by the clock of another master.
  if not told or math.abs(now - told) > expiry then
    redis.call('HDEL', counts, fields[place])
  elseif fields[place] ~= node then
    elsewhere = elsewhere + viewers
  end
end
return elsewhere
