-- The model files of a pool, wr:{pool}:files. KEYS[1] is a sorted set, digest -> when it was last asked about (ms of
-- Redis TIME); a file is a string beside it, KEYS[1]:<digest>, and one that is being written KEYS[1]:new:<token>.
-- ARGV[1] names the operation. Replies are {status, ...}.
local index = KEYS[1]
local operations = {}

local function file_key(digest)
  return index .. ':' .. digest
end

local function now_ms()
  local time = redis.call('TIME')
  return time[1] * 1000 + math.floor(time[2] / 1000)
end

-- lacking digest... -> ok, then those that are not there; the others are in use as of now
function operations.lacking()
  local reply, now = {'ok'}, now_ms()
  for at = 2, #ARGV do
    if redis.call('EXISTS', file_key(ARGV[at])) == 1 then
      redis.call('ZADD', index, now, ARGV[at])
    else
      redis.call('ZREM', index, ARGV[at])
      table.insert(reply, ARGV[at])
    end
  end
  return reply
end

-- piece token offset data ttl_ms -> ok; lost: what came before is gone. A repeat changes nothing.
function operations.piece()
  local key = index .. ':new:' .. ARGV[2]
  if redis.call('STRLEN', key) < tonumber(ARGV[3]) then return {'lost'} end
  redis.call('SETRANGE', key, ARGV[3], ARGV[4])
  redis.call('PEXPIRE', key, ARGV[5])
  return {'ok'}
end

-- finish token digest size most_files most_bytes in_use_ms -> ok; full: what is there is in use; lost: begin again
function operations.finish()
  local staged, digest, size = index .. ':new:' .. ARGV[2], ARGV[3], tonumber(ARGV[4])
  local most_files, most_bytes, now = tonumber(ARGV[5]), tonumber(ARGV[6]), now_ms()
  if redis.call('STRLEN', staged) ~= size then
    -- A client that lost the reply to this call repeats it.
    return {redis.call('EXISTS', file_key(digest)) == 1 and 'ok' or 'lost'}
  end
  local files, bytes, kept = 0, 0, {}
  local entries = redis.call('ZRANGE', index, 0, -1, 'WITHSCORES')
  for at = 1, #entries, 2 do
    local length = entries[at] ~= digest and redis.call('STRLEN', file_key(entries[at])) or 0
    if length > 0 then
      files, bytes = files + 1, bytes + length
      table.insert(kept, {entries[at], tonumber(entries[at + 1]), length})
    else
      redis.call('ZREM', index, entries[at])
    end
  end
  -- Oldest first.
  for _, entry in ipairs(kept) do
    if files + 1 <= most_files and bytes + size <= most_bytes then break end
    if now - entry[2] < tonumber(ARGV[7]) then break end
    redis.call('UNLINK', file_key(entry[1]))
    redis.call('ZREM', index, entry[1])
    files, bytes = files - 1, bytes - entry[3]
  end
  if files + 1 > most_files or bytes + size > most_bytes then
    redis.call('UNLINK', staged)
    return {'full'}
  end
  redis.call('RENAME', staged, file_key(digest))
  redis.call('PERSIST', file_key(digest))
  redis.call('ZADD', index, now, digest)
  return {'ok'}
end

-- forget -> ok
function operations.forget()
  for _, digest in ipairs(redis.call('ZRANGE', index, 0, -1)) do redis.call('UNLINK', file_key(digest)) end
  redis.call('UNLINK', index)
  return {'ok'}
end

return operations[ARGV[1]]()
