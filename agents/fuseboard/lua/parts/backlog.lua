-- Inserted into the scripts of the backlog: its keys, which are always the last ones, and how a job moves.
--
-- ready     ZSET score -> id, in the order of handing out; delayed, leases, dead: ZSET time in us -> id
-- meta      HASH id -> msgpack of an array, see `JOB` below; body: HASH id -> payload
-- fair      HASH digest of a tenant -> virtual time of its last job; '' -> that of the queue
-- stats     HASH of counters: submitted taken done requeued died cancelled expired refused bytes; fence and
--           sequence, which only grow; asked, when a worker last asked; fair, 1 for a fair queue; age, what
--           one priority is worth there; max_jobs and max_bytes of the last submit
-- results   HASH id -> `status us value`, where us is when it expires; expiring: ZSET us -> id
-- hint      STRING, exists while no further hint is published

local READY, DELAYED, LEASES, DEAD, META, BODY, FAIR, STATS, RESULTS, EXPIRING, HINT =
    unpack(KEYS, #KEYS - 10)
-- Places in the array of a job. `cancelled` is 1 when the job is to end as soon as its worker hears of it.
local JOB = {
    score = 1, tries = 2, max_tries = 3, fence = 4, token = 5, tenant = 6, tag = 7, submitted = 8,
    deadline = 9, bytes = 10, cancelled = 11, costs = 12, priority = 13, cause = 14,
}
local JOB_FIELDS = 14
-- Bounds of what one call moves, and of what is kept of the dead.
local MAX_MOVED, MAX_DEAD, DEAD_US = 50, 1000, 7 * 86400000000
local MAX_RESULTS, MAX_RESULT_BYTES = 10000, 16 * 1048576

-- All keys have the right type, or the script fails before it writes.
for _, key in ipairs({ READY, DELAYED, LEASES, DEAD, EXPIRING }) do redis.call('ZCARD', key) end
for _, key in ipairs({ META, BODY, FAIR, STATS, RESULTS }) do redis.call('HLEN', key) end

local function digits(number)
    return string.format('%d', number)
end

-- The names of the slots that a job occupies in a limit of this measure: one for each unit of its cost, as
-- fair_split.lua names them.
local function slots_of(job, measure)
    local names, costs = {}, job[JOB.costs]
    for j = 1, job[JOB.token] ~= '' and #costs or 0, 2 do
        if costs[j] == measure then
            for i = 1, costs[j + 1] do names[i] = job[JOB.token] .. (i > 1 and '.' .. digits(i) or '') end
        end
    end
    return names
end

local function stat(name)
    return tonumber(redis.call('HGET', STATS, name) or '') or 0
end

local function count(name, by)
    redis.call('HINCRBY', STATS, name, digits(by))
end

-- Ends the job everywhere, except its result.
local function remove(id, job)
    for _, key in ipairs({ READY, DELAYED, LEASES, DEAD }) do redis.call('ZREM', key, id) end
    redis.call('HDEL', META, id)
    redis.call('HDEL', BODY, id)
    if job then count('bytes', -job[JOB.bytes]) end
end

-- The job; nil when it is missing or unreadable. Then nothing of it stays, or it would block the queue.
local function read_job(id)
    local text = redis.call('HGET', META, id)
    local good, job = pcall(cmsgpack.unpack, text or '')
    good = good and text and type(job) == 'table' and #job == JOB_FIELDS and type(job[JOB.costs]) == 'table'
    for i = 1, good and JOB_FIELDS or 0 do
        local wanted = 'number'
        if i == JOB.costs then
            wanted = 'table'
        elseif i == JOB.token or i == JOB.tenant or i == JOB.cause then
            wanted = 'string'
        end
        good = good and type(job[i]) == wanted
    end
    if good and redis.call('HEXISTS', BODY, id) == 1 then return job end
    remove(id, good and job)
    return nil
end

local function write_job(id, job)
    redis.call('HSET', META, id, cmsgpack.pack(job))
end

local function forget_result(id)
    count('result_bytes', -#(redis.call('HGET', RESULTS, id) or ''))
    redis.call('HDEL', RESULTS, id)
    redis.call('ZREM', EXPIRING, id)
end

-- Results that have expired, and old dead letters; a bounded number per call.
local function purge()
    local old = redis.call('ZRANGEBYSCORE', EXPIRING, '-inf', digits(now), 'LIMIT', '0', digits(MAX_MOVED))
    for _, id in ipairs(old) do forget_result(id) end
    old = redis.call('ZRANGEBYSCORE', DEAD, '-inf', digits(now - DEAD_US), 'LIMIT', '0', digits(MAX_MOVED))
    for _, id in ipairs(old) do remove(id, read_job(id)) end
end

-- The job has ended with this status; its value is kept for `ttl` us.
local function finish(id, job, status, value, ttl)
    remove(id, job)
    -- Both keys expire when the queue rests for a day.
    if redis.call('ZCARD', EXPIRING) == 0 then redis.call('HDEL', STATS, 'result_bytes') end
    local text = status .. ' ' .. digits(now + ttl) .. ' ' .. value
    redis.call('HSET', RESULTS, id, text)
    redis.call('ZADD', EXPIRING, digits(now + ttl), id)
    count('result_bytes', #text)
    -- The oldest make room: a result that no caller fetched must not stop the queue.
    local most = MAX_MOVED
    while most > 0 and redis.call('ZCARD', EXPIRING) > 1 and
        (redis.call('ZCARD', EXPIRING) > MAX_RESULTS or stat('result_bytes') > MAX_RESULT_BYTES) do
        forget_result(redis.call('ZRANGE', EXPIRING, '0', '0')[1])
        most = most - 1
    end
    redis.call('PEXPIRE', RESULTS, '90000000')
    redis.call('PEXPIRE', EXPIRING, '90000000')
end

-- No worker gets the job any more, until a person puts it back.
local function bury(id, job, cause)
    redis.call('ZREM', READY, id)
    redis.call('ZREM', LEASES, id)
    job[JOB.cause], job[JOB.fence], job[JOB.token] = cause, 0, ''
    write_job(id, job)
    redis.call('ZADD', DEAD, digits(now), id)
    count('died', 1)
    while redis.call('ZCARD', DEAD) > MAX_DEAD do
        local oldest = redis.call('ZRANGE', DEAD, '0', '0')[1]
        remove(oldest, read_job(oldest))
    end
end

-- The lease of the job has ended without a result: hand it out again, `delay` us later, with its old score.
local function put_back(id, job, delay)
    redis.call('ZREM', LEASES, id)
    job[JOB.fence], job[JOB.token] = 0, ''
    write_job(id, job)
    if delay > 0 then
        redis.call('ZADD', DELAYED, digits(now + delay), id)
    else
        redis.call('ZADD', READY, digits(job[JOB.score]), id)
    end
    count('requeued', 1)
end

-- The virtual time of the next job of this tenant in a fair queue.
local function next_tag(tenant, weight)
    local virtual = tonumber(redis.call('HGET', FAIR, '') or '') or 0
    local own = tonumber(redis.call('HGET', FAIR, 't' .. tenant) or '') or 0
    local tag = math.max(virtual, own) + weight
    redis.call('HSET', FAIR, 't' .. tenant, digits(tag))
    return tag
end

-- The score of a job that was dead. A queue can have become fair since the job was submitted, or not be fair
-- any more, and virtual time begins again with every empty queue: so a fair queue takes it as a new job.
local function score_again(job)
    if stat('fair') == 1 then
        local weight = 1
        for j = 1, #job[JOB.costs], 2 do
            if job[JOB.costs][j] == 'calls' then weight = math.max(1, job[JOB.costs][j + 1]) end
        end
        job[JOB.tag] = next_tag(job[JOB.tenant], weight)
        job[JOB.score] = job[JOB.tag] - job[JOB.priority] * stat('age')
    elseif job[JOB.tag] > 0 then
        job[JOB.tag] = 0
        job[JOB.score] = job[JOB.submitted] - job[JOB.priority] * stat('age')
    end
end

-- Hand out a dead job again, with all its tries, and without a deadline that has passed: the next take would
-- end it by that.
local function revive(id, job)
    redis.call('ZREM', DEAD, id)
    job[JOB.tries], job[JOB.cause] = 0, ''
    if job[JOB.deadline] <= now then job[JOB.deadline] = 0 end
    score_again(job)
    put_back(id, job, 0)
end

-- A hint wakes workers that wait. Every hint may be lost: workers also look by the clock.
local function publish_hint(channel, name)
    if redis.call('SET', HINT, '1', 'NX', 'PX', '50') then redis.pcall('PUBLISH', channel, name) end
end
