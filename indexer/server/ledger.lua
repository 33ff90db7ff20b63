-- The ledger's one atomic script. KEYS[1] is the prefix of a part, wr:{pool/part}; every key it touches carries that
-- hash tag. ARGV[1] names the operation. Redis keys (64-bit) arrive as decimal strings and are never computed on:
-- Lua's numbers are doubles. Replies are {status, ...}:
--   ok ...      done
--   lost        the ledger does not know the worker, its epoch, or a slot for it
--   taken       another stream of the worker has its token here
--   superseded  the epoch was replaced by a newer one
--   order n     out of order; n is the state (delta) or the chunk (snapshot) that was expected
--   wait ms     enough snapshots of the part are under way
local prefix = KEYS[1]
local workers, log, beats = prefix .. ':workers', prefix .. ':log', prefix .. ':beats'
local slots, snapshots = prefix .. ':slots', prefix .. ':snapshots'
local MAX_UNPACK = 4000
local OLD_EPOCHS = 8
local LOG_SAMPLES = 20
-- Bucket sets that one call may unlink, about: others wait for it.
local MOST_RETIRED = 20000

local function now_ms()
  local time = redis.call('TIME')
  return time[1] * 1000 + math.floor(time[2] / 1000)
end

local function digits(number)
  return string.format('%.0f', number)
end

local function load(worker)
  local packed = redis.call('HGET', workers, worker)
  return packed and cmsgpack.unpack(packed) or nil
end

local function save(worker, record)
  redis.call('HSET', workers, worker, cmsgpack.pack(record))
end

local function append(...)
  local last = redis.call('XREVRANGE', log, '+', '-', 'COUNT', 1)
  redis.call('XADD', log, 'MAXLEN', '~', ARGV[2], '*', 'v', 1, 'p', last[1] and last[1][1] or '0-0', ...)
end

local function append_worker(worker, record, replaced)
  append('k', 'worker', 'w', worker, 'e', record.epoch, 's', digits(record.slot), 'r', digits(replaced),
         'b', cmsgpack.pack(record.buckets), 'f', record.facts)
end

-- Slot numbers are never reused: not after a wipe nor a failover that lost the counter, since the clock goes on.
-- Microseconds stay below 2^53 for two centuries, but need a format: Lua prints 14 digits.
local function next_slot()
  local time = redis.call('TIME')
  local slot = math.max(tonumber(redis.call('GET', slots) or 0) + 1, time[1] * 1000000 + time[2])
  redis.call('SET', slots, digits(slot))
  return slot
end

local function bucket_key(slot, tier, bucket)
  return prefix .. ':keys:' .. digits(slot) .. ':' .. tier .. ':' .. bucket
end

local function retire(slot, buckets)
  if slot == 0 then return end
  for tier, count in pairs(buckets) do
    for bucket = 0, count - 1 do redis.call('UNLINK', bucket_key(slot, tier, bucket)) end
  end
end

local function retire_next(record)
  if record.next then
    retire(record.next.slot, record.next.buckets)
    record.next = nil
  end
end

-- The record, if this stream still owns the worker; else nil and the reply.
local function owned(worker, token, epoch)
  local record = load(worker)
  if not record or record.epoch ~= epoch then return nil, {'lost'} end
  if record.token ~= token then return nil, {'taken'} end
  return record
end

-- Runs of `tier bucket removed added key...` from ARGV[at] on.
local function write_buckets(slot, at)
  while ARGV[at] do
    local key = bucket_key(slot, ARGV[at], ARGV[at + 1])
    local removed, added = tonumber(ARGV[at + 2]), tonumber(ARGV[at + 3])
    at = at + 4
    for _, run in ipairs({{'SREM', removed}, {'SADD', added}}) do
      local stop = at + run[2] - 1
      for first = at, stop, MAX_UNPACK do
        redis.call(run[1], key, unpack(ARGV, first, math.min(stop, first + MAX_UNPACK - 1)))
      end
      at = stop + 1
    end
  end
end

local operations = {}

-- hello log_entries worker token epoch facts buckets -> ok seq
function operations.hello()
  local worker, token, epoch, facts = ARGV[3], ARGV[4], ARGV[5], ARGV[6]
  local buckets = cmsgpack.unpack(ARGV[7])
  local record = load(worker)
  local replaced = 0
  if not record then
    record = {v = 1, slot = 0, seq = 0, epoch = epoch, buckets = buckets, old = {}}
  else
    for _, old in ipairs(record.old) do
      if old == epoch then return {'superseded'} end
    end
    retire_next(record)
    if record.epoch ~= epoch then
      table.insert(record.old, record.epoch)
      if #record.old > OLD_EPOCHS then table.remove(record.old, 1) end
      retire(record.slot, record.buckets)
      replaced = record.slot
      record.slot, record.seq, record.epoch, record.buckets = 0, 0, epoch, buckets
    end
  end
  local same_buckets = true
  for tier, count in pairs(buckets) do same_buckets = same_buckets and record.buckets[tier] == count end
  for tier, count in pairs(record.buckets) do same_buckets = same_buckets and buckets[tier] == count end
  record.token, record.facts = token, facts
  save(worker, record)
  redis.call('ZREM', snapshots, worker)
  redis.call('ZADD', beats, now_ms(), worker)
  append_worker(worker, record, replaced)
  return {'ok', record.slot > 0 and same_buckets and record.seq or 0}
end

-- snapshot log_entries worker token epoch seq chunk last limit ttl_ms buckets (tier bucket 0 added key...)* -> ok
function operations.snapshot()
  local worker, token, epoch = ARGV[3], ARGV[4], ARGV[5]
  local seq, chunk, last = tonumber(ARGV[6]), tonumber(ARGV[7]), ARGV[8] == '1'
  local record, refusal = owned(worker, token, epoch)
  if not record then return refusal end
  local now = now_ms()
  -- First, since a server that is out of memory refuses a script at its first write that may take some, or not at all.
  redis.call('ZADD', beats, now, worker)
  if chunk == 0 then
    redis.call('ZREMRANGEBYSCORE', snapshots, '-inf', now)
    redis.call('ZREMRANGEBYSCORE', snapshots, '(' .. digits(now + ARGV[10]), '+inf')  -- the clock went back
    if redis.call('ZCARD', snapshots) >= tonumber(ARGV[9]) and not redis.call('ZSCORE', snapshots, worker) then
      local first = redis.call('ZRANGE', snapshots, 0, 0, 'WITHSCORES')
      return {'wait', math.max(50, math.min(1000, first[2] - now))}
    end
    retire_next(record)
    record.next = {slot = next_slot(), seq = seq, chunk = -1, buckets = cmsgpack.unpack(ARGV[11])}
  end
  local next = record.next
  -- A client that lost the reply to a call repeats the call.
  if not next and last and record.slot > 0 and record.seq == seq then return {'ok'} end
  if not next then return {'order', 0} end
  if chunk > 0 and next.seq == seq and next.chunk == chunk then return {'ok'} end
  if next.seq ~= seq or next.chunk + 1 ~= chunk then return {'order', next.chunk + 1} end
  write_buckets(next.slot, 12)
  next.chunk = chunk
  if last then
    local replaced = record.slot
    retire(record.slot, record.buckets)
    record.slot, record.seq, record.buckets, record.next = next.slot, seq, next.buckets, nil
    redis.call('ZREM', snapshots, worker)
    append_worker(worker, record, replaced)
  else
    redis.call('ZADD', snapshots, now + tonumber(ARGV[10]), worker)
  end
  save(worker, record)
  return {'ok'}
end

-- delta log_entries worker token epoch seq keys (tier bucket removed added key...)* -> ok
function operations.delta()
  local worker, seq = ARGV[3], tonumber(ARGV[6])
  local record, refusal = owned(worker, ARGV[4], ARGV[5])
  if not record then return refusal end
  if record.slot == 0 then return {'lost'} end
  if seq == record.seq then return {'ok'} end
  if seq ~= record.seq + 1 then return {'order', record.seq + 1} end
  write_buckets(record.slot, 8)
  record.seq = seq
  save(worker, record)
  append('k', 'delta', 'w', worker, 's', digits(record.slot), 'keys', ARGV[7])
  return {'ok'}
end

-- The log has two bounds: entries, kept at every write, and bytes, kept here, since to weigh it takes a sample.
local function trim_log(limit)
  local bytes = redis.call('MEMORY', 'USAGE', log, 'SAMPLES', LOG_SAMPLES)
  if bytes and bytes > limit then
    redis.call('XTRIM', log, 'MAXLEN', '~', math.floor(redis.call('XLEN', log) * limit / bytes * 0.75))
  end
end

-- beat log_entries log_bytes (worker token epoch seq)* -> ok, then which of them (from 0) must start over
function operations.beat()
  local now, reply = now_ms(), {'ok'}
  trim_log(tonumber(ARGV[3]))
  -- After a step back of the clock, or a failover to a slower one, a beat of then would make all others late.
  for _, worker in ipairs(redis.call('ZRANGEBYSCORE', beats, '(' .. digits(now), '+inf')) do
    redis.call('ZADD', beats, now, worker)
  end
  for at = 4, #ARGV, 4 do
    local record = owned(ARGV[at], ARGV[at + 1], ARGV[at + 2])
    -- A higher number is a write of the same stream that is still on its way back; a lower one was lost here.
    if record and record.seq >= tonumber(ARGV[at + 3]) then
      redis.call('ZADD', beats, now, ARGV[at])
    else
      table.insert(reply, (at - 4) / 4)
    end
  end
  return reply
end

-- drop_late log_entries late_ms limit by_clock log_bytes -> ok remaining, then the workers that were dropped
function operations.drop_late()
  local newest = redis.call('ZRANGE', beats, -1, -1, 'WITHSCORES')[2]
  local dropped, room = {}, MOST_RETIRED
  if newest then
    if ARGV[5] == '1' then newest = now_ms() end
    local oldest = digits(newest - ARGV[3])
    for _, worker in ipairs(redis.call('ZRANGEBYSCORE', beats, '-inf', '(' .. oldest, 'LIMIT', 0, ARGV[4])) do
      if room <= 0 then break end
      local record = load(worker)
      if record then
        for _, count in pairs(record.buckets) do room = room - count end
        retire(record.slot, record.buckets)
        retire_next(record)
        redis.call('HDEL', workers, worker)
        append('k', 'drop', 'w', worker)
      end
      redis.call('ZREM', beats, worker)
      redis.call('ZREM', snapshots, worker)
      table.insert(dropped, worker)
    end
  end
  trim_log(tonumber(ARGV[6]))
  return {'ok', redis.call('HLEN', workers), unpack(dropped)}
end

-- forget log_entries -> ok
function operations.forget()
  if redis.call('HLEN', workers) == 0 then redis.call('UNLINK', log, beats, slots, snapshots) end
  return {'ok'}
end

return operations[ARGV[1]]()
