-- Who holds a pool's worker ids and addresses. Each of KEYS is one lease, all of one pool, and expires by itself: a map
-- of d (digest of the holder's instance), p (the host it came from) and s (its streams: token -> until when, in ms).
-- ARGV[1] names the operation, ARGV[2] is how long a lease lasts, in ms. Replies are {status, ...}.
local operations = {}
local time = redis.call('TIME')
local now, lasts = time[1] * 1000 + math.floor(time[2] / 1000), tonumber(ARGV[2])

-- nil too for what is not ours: it is written over.
local function load(key)
  local packed = redis.pcall('GET', key)
  local read, lease = pcall(cmsgpack.unpack, type(packed) == 'string' and packed or '')
  if not read or type(lease) ~= 'table' or type(lease.s) ~= 'table' then return nil end
  for token, until_ms in pairs(lease.s) do
    if until_ms <= now then lease.s[token] = nil end
  end
  return lease
end

local function save(key, lease)
  -- First: a server that is out of memory refuses a script at its first write that may take some, or not at all.
  redis.call('UNLINK', key)
  redis.call('SET', key, cmsgpack.pack(lease), 'PX', lasts)
end

local function hold(key, lease, digest, peer, token)
  if not lease or lease.d ~= digest then lease = {d = digest, s = {}} end
  lease.p, lease.s[token] = peer, now + lasts
  save(key, lease)
end

-- take lasts digest peer token -> ok; held n: another instance has KEYS[n]. After its streams' end it keeps it from
-- those that come from elsewhere than it did.
function operations.take()
  local digest, peer, token = ARGV[3], ARGV[4], ARGV[5]
  local leases = {}
  for at, key in ipairs(KEYS) do
    local lease = load(key)
    if lease and lease.d ~= digest and (next(lease.s) or lease.p ~= peer) then return {'held', at} end
    leases[at] = lease or false
  end
  for at, key in ipairs(KEYS) do hold(key, leases[at], digest, peer, token) end
  return {'ok'}
end

-- keep lasts (keys digest peer token)* -> ok and the numbers, from 0, of streams that another instance took the place
-- of. Each stream has the next `keys` of KEYS. What is not there any more is taken again.
function operations.keep()
  local reply, key_at = {'ok'}, 1
  for at = 3, #ARGV, 4 do
    local count, lost = tonumber(ARGV[at]), false
    for n = key_at, key_at + count - 1 do
      local lease = load(KEYS[n])
      if lease and lease.d ~= ARGV[at + 1] and next(lease.s) then
        lost = true
      else
        hold(KEYS[n], lease, ARGV[at + 1], ARGV[at + 2], ARGV[at + 3])
      end
    end
    if lost then table.insert(reply, (at - 3) / 4) end
    key_at = key_at + count
  end
  return reply
end

-- leave lasts token -> ok
function operations.leave()
  for _, key in ipairs(KEYS) do
    local lease = load(key)
    if lease and lease.s[ARGV[3]] then
      lease.s[ARGV[3]] = nil
      save(key, lease)
    end
  end
  return {'ok'}
end

return operations[ARGV[1]]()
