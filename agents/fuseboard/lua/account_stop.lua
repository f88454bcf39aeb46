#!lua
-- Stops all calls with an account that its vendor does not serve, and lets one call a minute try it.
--
-- Invariant: pods agree on the end of a stop, and no two of them probe at the same time. One pod alone
-- stops nobody else if there are more: it may be wrong about the account.
--
-- KEYS  1 stop of the account
-- ARGV  1 what this pod asks: `look`; `probe`, may its call be made; `refused`, the vendor does not serve the
--         account; `served`, the vendor serves it
--       2 the pod; 3 the pods that must report it before all stop
--       4 us of a stop, of a probe, and of a report
--       5 channel; 6 the name of the account there
-- Returns the us until the stop ends; 0 when the call may be made; -1 when it may be made as the probe
--
-- Stop: a HASH. `until` is the end of the stop, and `probe` that of the probe that runs; all other fields are
-- pods, and when their reports end.

local time = redis.call('TIME')
local now = time[1] * 1000000 + time[2]

local asked, pod, length = ARGV[1], 'pod ' .. ARGV[2], tonumber(ARGV[4])
if redis.call('TYPE', KEYS[1]).ok ~= 'hash' then redis.call('DEL', KEYS[1]) end

local function publish(us)
    redis.pcall('PUBLISH', ARGV[5], ARGV[6] .. ' 0 ' .. string.format('%d', us))
end

local function put(field, us)
    redis.call('HSET', KEYS[1], field, string.format('%d', us))
    -- A stop that nobody probes is forgotten after an hour.
    redis.call('PEXPIRE', KEYS[1], 3600000)
end

if asked == 'served' then
    if redis.call('DEL', KEYS[1]) == 1 then publish(0) end
    return 0
end

local stop = tonumber(redis.call('HGET', KEYS[1], 'until'))
if asked == 'refused' then
    local witnesses, fields = 1, redis.call('HGETALL', KEYS[1])
    for i = 1, #fields, 2 do
        if string.sub(fields[i], 1, 4) == 'pod ' and fields[i] ~= pod then
            if tonumber(fields[i + 1]) > now then
                witnesses = witnesses + 1
            else
                redis.call('HDEL', KEYS[1], fields[i])
            end
        end
    end
    put(pod, now + length)
    if stop or witnesses >= tonumber(ARGV[3]) then
        -- The calls that were under way report it late. They prolong nothing.
        if not stop or stop <= now then
            stop = now + length
            put('until', stop)
            redis.call('HDEL', KEYS[1], 'probe')
            publish(length)
        end
        return stop - now
    end
    return 0
end

if not stop then return 0 end
local probe = tonumber(redis.call('HGET', KEYS[1], 'probe')) or 0
local wait = math.max(stop, probe) - now
if wait > 0 or asked == 'look' then return math.max(0, wait) end
put('probe', now + length)
return -1
