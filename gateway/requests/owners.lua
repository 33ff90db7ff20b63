-- Who keeps which stored response, for all gateways: one call, atomic. A bucket holds a share of them, at most so many.
--
-- KEYS[1]  hash: digest of the response's id -> owner, JSON that begins with the tenant's name
-- KEYS[2]  sorted set: digest -> when it was last made or found (s of Redis's clock)
-- ARGV     operation, digest; seconds that an owner is kept, most owners of the bucket; for learn: tenant, owner
-- Returns  find: the owner or nil; learn: nil, or the owner where it is another tenant's, which stays; forget: nil
local operation, digest = ARGV[1], ARGV[2]
local time, life = redis.call('TIME'), tonumber(ARGV[3])
local now = time[1] + time[2] / 1e6

local function drop(digests)
  for _, old in ipairs(digests) do
    redis.call('HDEL', KEYS[1], old)
    redis.call('ZREM', KEYS[2], old)
  end
end

drop(redis.call('ZRANGEBYSCORE', KEYS[2], '-inf', now - life, 'LIMIT', 0, 64))
local known = redis.call('HGET', KEYS[1], digest)
if operation == 'forget' then
  drop({digest})
  return false
end
if operation == 'find' then
  if not known then return false end
elseif known and cjson.decode(known)[1] ~= ARGV[5] then
  return known
else
  redis.call('HSET', KEYS[1], digest, ARGV[6])
end
redis.call('ZADD', KEYS[2], now, digest)
local excess = redis.call('ZCARD', KEYS[2]) - tonumber(ARGV[4])
if excess > 0 then drop(redis.call('ZRANGE', KEYS[2], 0, excess - 1)) end
redis.call('PEXPIRE', KEYS[1], life * 1000)
redis.call('PEXPIRE', KEYS[2], life * 1000)
return operation == 'find' and known
