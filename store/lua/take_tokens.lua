-- Takes tokens out of several buckets that all gateways share. KEYS: buckets under one hash tag.
-- ARGV, four for each key: tokens a second, size of the bucket, tokens to take, '1' to take only if they are there.
-- Without the '1' they are already spent: the bucket may go into debt, by its own size at most.
-- Gives, two for each key: 1 if taken, and what is left. A full bucket is the same as none, so the key lives only
-- until it would be full again, and never longer than a day.
local time = redis.call('TIME')
local now = tonumber(time[1]) + tonumber(time[2]) / 1000000
local answer = {}
for i, key in ipairs(KEYS) do
  local at = (i - 1) * 4
  local rate, burst, amount = tonumber(ARGV[at + 1]), tonumber(ARGV[at + 2]), tonumber(ARGV[at + 3])
  local kept = redis.call('HMGET', key, 'tokens', 'at')
  local tokens = tonumber(kept[1]) or burst
  tokens = math.min(burst, tokens + math.max(0, now - (tonumber(kept[2]) or now)) * rate)
  local taken = 1
  if ARGV[at + 4] == '1' and tokens < amount then
    taken = 0
  else
    tokens = math.max(-burst, tokens - amount)
  end
  redis.call('HSET', key, 'tokens', string.format('%.6f', tokens), 'at', string.format('%.6f', now))
  redis.call('PEXPIRE', key, math.min(86400000, math.ceil((burst - tokens) / rate * 1000) + 1000))
  answer[#answer + 1] = taken
  answer[#answer + 1] = string.format('%.6f', tokens)
end
return answer
