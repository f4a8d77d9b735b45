-- Appends a message to its room's stream and publishes it stamped with its place there, as one step.
-- KEYS: the stream, the channel.
-- ARGV: the message, how many comments it stands for, how many the stream keeps, after how many milliseconds without
-- another message it expires, 1 if the message may have been appended before, the command to publish with.
local stream, channel = KEYS[1], KEYS[2]
local message, count, keeps, expiry = ARGV[1], tonumber(ARGV[2]), tonumber(ARGV[3]), ARGV[4]
if ARGV[5] == '1' then
  for _, entry in ipairs(redis.call('XREVRANGE', stream, '+', '-')) do
    if entry[2][2] == message then
      return 0
    end
  end
end
local newest = redis.call('XREVRANGE', stream, '+', '-', 'COUNT', 1)[1]
local epoch, seq
if newest then
  epoch, seq = string.match(newest[1], '(%d+)-(%d+)')
  epoch, seq = tonumber(epoch), tonumber(seq)
else
  local now = redis.call('TIME')
  epoch, seq = now[1] * 1000 + math.floor(now[2] / 1000), 0
end
seq = seq + count
local oldest = string.format('%.0f-%.0f', epoch, math.max(seq - keeps + 1, 0))
redis.call('XADD', stream, 'MINID', '=', oldest, string.format('%.0f-%.0f', epoch, seq), 'm', message)
redis.call('PEXPIRE', stream, expiry)
redis.call(ARGV[6], channel, struct.pack('>BI8I8', 4, epoch, seq) .. message)
return 1
