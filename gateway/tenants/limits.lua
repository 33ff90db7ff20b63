-- One gateway's call for one tenant, atomic: what it spent comes off, what it asks for is granted from what is left.
--
-- KEYS[1]  hash: r, t = balances of the requests' and tokens' buckets, at = when they were right (ms of Redis's clock),
--          c:<gateway> = "<slots claimed> <deadline in ms>"
-- ARGV     gateway, its time to live in ms (0: it leaves),
--          requests a minute, spent, least, wanted; tokens a minute, spent, least, wanted (a limit of 0 is none)
--          slots, in use, wanted
-- Returns  requests granted, left; tokens granted, left; slots claimed, by others; gateways
local time = redis.call('TIME')
local now = time[1] * 1000 + math.floor(time[2] / 1000)
local row, others, gateways = {}, 0, 1
local fields = redis.call('HGETALL', KEYS[1])
for i = 1, #fields, 2 do
  local name, value = fields[i], fields[i + 1]
  if string.sub(name, 1, 2) ~= 'c:' then
    row[name] = tonumber(value)
  elseif name ~= 'c:' .. ARGV[1] then
    local claimed, deadline = string.match(value, '(%d+) (%d+)')
    if tonumber(deadline) < now then
      redis.call('HDEL', KEYS[1], name)
    else
      others, gateways = others + tonumber(claimed), gateways + 1
    end
  end
end
-- The clock of a server that took over may be behind: nothing is refilled then, and nothing is lost.
local elapsed = math.max(0, now - (row.at or now))

local function bucket(name, at)
  local limit, spent, least, wanted = tonumber(ARGV[at]), tonumber(ARGV[at + 1]), tonumber(ARGV[at + 2]), tonumber(ARGV[at + 3])
  if limit == 0 then return 0, 0 end
  local balance = math.min(limit, (row[name] or limit) + limit * elapsed / 60000)
  -- At most ten minutes' worth of debt.
  balance = math.max(-10 * limit, math.min(limit, balance - spent))
  local granted = 0
  if balance >= least then granted = math.max(0, math.min(wanted, math.floor(balance))) end
  balance = balance - granted
  redis.call('HSET', KEYS[1], name, string.format('%.17g', balance))
  return granted, math.floor(balance)
end

local requests, requests_left = bucket('r', 3)
local tokens, tokens_left = bucket('t', 7)
local slots, in_use, wanted = tonumber(ARGV[11]), tonumber(ARGV[12]), tonumber(ARGV[13])
-- What runs is claimed even past the limit, as after an outage: the claim says the truth.
local claimed = slots > 0 and math.max(in_use, math.min(wanted, slots - others)) or 0
local life = tonumber(ARGV[2])
if life > 0 then
  redis.call('HSET', KEYS[1], 'at', now, 'c:' .. ARGV[1], string.format('%.0f %.0f', claimed, now + life))
else
  redis.call('HSET', KEYS[1], 'at', now)
  redis.call('HDEL', KEYS[1], 'c:' .. ARGV[1])
end
-- By then the deepest debt is paid and every bucket is full, which is what a missing key means.
redis.call('PEXPIRE', KEYS[1], 720000)
return {requests, requests_left, tokens, tokens_left, claimed, others, gateways}
