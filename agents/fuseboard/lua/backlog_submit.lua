#!lua
-- Put one job into the backlog of a dependency, once.
--
-- Invariant: an id that is known changes nothing. The queue never has more jobs and bytes than it may, and
-- a job that is refused leaves nothing behind, except in the statistics.
--
-- KEYS  of the backlog, in the order of parts/backlog.lua
-- ARGV  1 msgpack of an array:
--       id           of the job
--       tenant       digest of the tenant; '' for none
--       priority     1 to 10; higher first
--       delay        us before it may be handed out; 0 for none
--       deadline     us after which it expires unless it is handed out; 0 for none
--       max_tries    how often it is handed out at most
--       age_us       what one priority is worth: us of waiting
--       age_calls    the same in a fair queue: cost
--       fair         1: tenants get equal parts. Applies from when the queue is empty
--       weight       what it costs in a fair queue, at least 1
--       costs        an array of measure, amount, ...
--       max_jobs max_bytes          of the queue: ready, delayed and leased together
--       max_memory   percent of maxmemory above which nothing is accepted
--       channel name                where a hint is published, and the name of the dependency there
--       2 the payload
-- Returns integers
--   status       0 accepted  1 known, not finished  2 known, finished  3 too many jobs  4 too many bytes
--                5 too little memory
--   now jobs bytes                  store time in us; in the queue now

local time = redis.call('TIME')
local now = time[1] * 1000000 + time[2]

-- insert backlog

local ACCEPTED, KNOWN, FINISHED, MANY_JOBS, MANY_BYTES, NO_MEMORY = 0, 1, 2, 3, 4, 5
local id, tenant, priority, delay, deadline, max_tries, age_us, age_calls, fair, weight, costs, max_jobs,
    max_bytes, max_memory, channel, name = unpack(cmsgpack.unpack(ARGV[1]))
local payload = ARGV[2]

local jobs = redis.call('ZCARD', READY) + redis.call('ZCARD', DELAYED) + redis.call('ZCARD', LEASES)
local bytes = jobs + redis.call('ZCARD', DEAD) > 0 and stat('bytes') or 0
if redis.call('HEXISTS', META, id) == 1 then return { KNOWN, now, jobs, bytes } end
if redis.call('HEXISTS', RESULTS, id) == 1 then return { FINISHED, now, jobs, bytes } end
local function refuse(why)
    redis.call('HSET', STATS, 'max_jobs', digits(max_jobs), 'max_bytes', digits(max_bytes))
    count('refused', 1)
    return { why, now, jobs, bytes }
end
if jobs >= max_jobs then return refuse(MANY_JOBS) end
if bytes + #payload > max_bytes then return refuse(MANY_BYTES) end

-- Above maxmemory, Redis refuses every script that writes, and all pods would decide alone.
local percent = stat('memory')
if math.abs(now - stat('memory_at')) >= 1000000 then
    local info = redis.pcall('INFO', 'memory')
    local text = type(info) == 'string' and info or ''
    local used, most = string.match(text, '\nused_memory:(%d+)'), string.match(text, '\nmaxmemory:(%d+)')
    percent = 0
    if used and most and tonumber(most) > 0 then percent = math.floor(100 * tonumber(used) / tonumber(most)) end
    redis.call('HSET', STATS, 'memory', digits(percent), 'memory_at', digits(now))
end
if percent > max_memory then return refuse(NO_MEMORY) end

if jobs == 0 then
    redis.call('HSET', STATS, 'fair', digits(fair))
    redis.call('DEL', FAIR)
    if bytes == 0 then redis.call('HSET', STATS, 'bytes', '0') end
else
    fair = stat('fair')
end
-- In the order of arrival, also when two arrive in the same microsecond or the clock steps back.
local sequence = math.max(stat('sequence') + 1, now)
-- That of the queue counts: a pod with another option must not mix two scales of scores.
local age = fair == 1 and age_calls or age_us
redis.call(
    'HSET', STATS, 'sequence', digits(sequence), 'max_jobs', digits(max_jobs), 'max_bytes', digits(max_bytes),
    'age', digits(age)
)
local score, tag = sequence - priority * age, 0
if fair == 1 then
    local virtual = tonumber(redis.call('HGET', FAIR, '') or '') or 0
    if redis.call('HLEN', FAIR) > max_jobs then
        -- More tenants than jobs: their jobs were cancelled. They begin again where the queue is.
        redis.call('DEL', FAIR)
        redis.call('HSET', FAIR, '', digits(virtual))
    end
    tag = next_tag(tenant, weight)
    score = tag - priority * age
end
write_job(id, {
    score, 0, max_tries, 0, '', tenant, tag, now, deadline > 0 and now + deadline or 0, #payload, 0, costs,
    priority, '',
})
redis.call('HSET', BODY, id, payload)
if delay > 0 then
    redis.call('ZADD', DELAYED, digits(now + delay), id)
else
    redis.call('ZADD', READY, digits(score), id)
end
count('bytes', #payload)
count('submitted', 1)
publish_hint(channel, name)
return { ACCEPTED, now, jobs + 1, bytes + #payload }
