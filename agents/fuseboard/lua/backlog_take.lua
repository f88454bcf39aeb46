#!lua
-- Hands out the jobs that may be sent now, in order, if override, breaker and limits admit their calls.
--
-- Invariant: what is handed out was admitted in the same script, as admit.lua admits calls. No job overtakes
-- another with a lower score. A call that hands out nothing spends nothing: no try, no slot, no limit. One
-- call hands out at most 64 jobs, and moves at most 50 that are due and 50 whose lease has ended.
--
-- KEYS  1 override 2 breaker 3 cooldown, then the limits; then outcomes, evidence and transitions; then those
--       of the backlog, in the order of parts/backlog.lua
-- ARGV  1 msgpack of the array of admit.lua with a breaker, up to its rules: without groups
--       2 msgpack of an array:
--         most       jobs to hand out, 1 to 64
--         lease      us until a job is handed out again, unless its worker renews the lease
--         result     us for which the result of an expired job is kept
--         limits     an array; for each limit in the order of KEYS: its measure, the number of its rule, the
--                    largest cost that can ever be admitted, 1 if it counts slots (concurrency)
-- Returns an array
--   1 msgpack of an array
--     verdict generation now rest      as admit.lua; verdict -1 when no job was ready
--     wait       us until asking again can hand out a job; 0 if unknown, or if a job only has to become ready
--     next       store time in us at which a job is due or a lease ends; 0 for none
--     again      1 if asking again at once can hand out more
--     jobs       an array; for each: id fence tries token lease_end submitted deadline priority tenant costs
--   2... the payload of each job

local time = redis.call('TIME')
local now = time[1] * 1000000 + time[2]

-- insert backlog
-- insert decide

local asked = cmsgpack.unpack(ARGV[1])
local most, lease_us, result_us, limits = unpack(cmsgpack.unpack(ARGV[2]))
assert(most >= 1 and most <= 64, 'a worker takes 1 to 64 jobs at once')
local first_limit, last_limit = 4, #KEYS - 14

-- The slots of a job that its worker no longer has.
local function free_slots(job)
    for n = first_limit, last_limit do
        if limits[4 * (n - 3)] == 1 then
            for _, slot in ipairs(slots_of(job, limits[4 * (n - 3) - 3])) do redis.pcall('ZREM', KEYS[n], slot) end
        end
    end
end

-- 1. What time has changed.
redis.call('HSET', STATS, 'asked', digits(now))
local moved = digits(MAX_MOVED)
for _, id in ipairs(redis.call('ZRANGEBYSCORE', DELAYED, '-inf', digits(now), 'LIMIT', '0', moved)) do
    local job = read_job(id)
    if job then
        redis.call('ZREM', DELAYED, id)
        redis.call('ZADD', READY, digits(job[JOB.score]), id)
    end
end
for _, id in ipairs(redis.call('ZRANGEBYSCORE', LEASES, '-inf', digits(now), 'LIMIT', '0', moved)) do
    local job = read_job(id)
    if job then
        free_slots(job)
        if job[JOB.cancelled] == 1 then
            finish(id, job, 'cancelled', '', result_us)
            count('cancelled', 1)
        elseif job[JOB.tries] >= job[JOB.max_tries] then
            bury(id, job, 'its worker ended')
        else
            put_back(id, job, 0)
        end
    end
end
purge()

-- 2. The jobs that come first.
local function largest(job)
    for j = 1, #job[JOB.costs], 2 do
        for n = 1, #limits, 4 do
            if limits[n] == job[JOB.costs][j] and job[JOB.costs][j + 1] > limits[n + 2] then return false end
        end
    end
    return true
end

local heads, again = {}, 0
for _, id in ipairs(redis.call('ZRANGE', READY, '0', digits(most - 1))) do
    local job = read_job(id)
    if not job then
        again = 1
    elseif job[JOB.deadline] > 0 and job[JOB.deadline] <= now then
        finish(id, job, 'expired', '', result_us)
        count('expired', 1)
        again = 1
    elseif not largest(job) then
        -- It would wait at the head for ever.
        bury(id, job, 'its cost exceeds a limit')
        again = 1
    else
        heads[#heads + 1] = { id = id, job = job }
    end
end

local function next_time()
    local due = redis.call('ZRANGE', DELAYED, '0', '0', 'WITHSCORES')[2]
    local ends = redis.call('ZRANGE', LEASES, '0', '0', 'WITHSCORES')[2]
    return math.min(tonumber(due or '9007199254740991'), tonumber(ends or '9007199254740991')) % 9007199254740991
end

if #heads == 0 then
    return { cmsgpack.pack({ -1, 0, now, '', 0, next_time(), again, {} }) }
end

-- 3. Their groups: jobs in a row with the same cost are one. Limits are numbered in the order of their use.
local keys, places, groups = { KEYS[1], KEYS[2], KEYS[3] }, {}, {}
local function add_group(class, job, calls)
    local wanted = { class, calls, 0 }
    for n = 1, #limits, 4 do
        for j = 1, #job[JOB.costs], 2 do
            if job[JOB.costs][j] == limits[n] and job[JOB.costs][j + 1] > 0 then
                wanted[3] = wanted[3] + 1
                wanted[#wanted + 1] = places[n] or 0
                wanted[#wanted + 1] = limits[n + 1]
                wanted[#wanted + 1] = job[JOB.costs][j + 1]
                if not places[n] then
                    keys[#keys + 1] = KEYS[first_limit + (n - 1) / 4]
                    places[n] = #keys - 3
                end
            end
        end
    end
    groups[#groups + 1] = calls
    for _, word in ipairs(wanted) do asked[#asked + 1] = word end
end

local from, costs = 1, cmsgpack.pack(heads[1].job[JOB.costs])
for i = 2, #heads + 1 do
    local its = heads[i] and cmsgpack.pack(heads[i].job[JOB.costs])
    if its ~= costs then
        add_group(from, heads[from].job, i - from)
        from, costs = i, its
    end
end
for n = 3, 1, -1 do keys[#keys + 1] = KEYS[last_limit + 4 - n] end

-- 4. The decision. It spends what it grants.
local verdict, generation, wait, _, rest, figures = unpack(decide(keys, asked, true))
local granted = 0
if verdict == 0 or verdict == 1 or verdict == 5 or verdict == 8 then
    if #figures == #keys - 6 then
        granted = #heads
    else
        for i = 1, #groups do
            granted = granted + figures[3 * i - 2]
            if wait == 0 then wait = figures[3 * i] end
        end
    end
end

-- 5. Hand out. Granted calls are numbered in the order of the jobs.
local fence, virtual = stat('fence'), 0
local jobs, reply, taken = {}, { '' }, digits(now + lease_us)
for i = 1, granted do
    local id, job = heads[i].id, heads[i].job
    fence = math.max(fence + 1, now)
    job[JOB.fence], job[JOB.tries], job[JOB.token] = fence, job[JOB.tries] + 1, asked[2] .. '.' .. digits(i)
    write_job(id, job)
    redis.call('ZREM', READY, id)
    redis.call('ZADD', LEASES, taken, id)
    if job[JOB.tag] > 0 then
        virtual = math.max(virtual, job[JOB.tag])
        -- The last job of its tenant: the tenant begins again where the queue is.
        if redis.call('HGET', FAIR, 't' .. job[JOB.tenant]) == digits(job[JOB.tag]) then
            redis.call('HDEL', FAIR, 't' .. job[JOB.tenant])
        end
    end
    jobs[i] = {
        id, fence, job[JOB.tries], job[JOB.token], now + lease_us, job[JOB.submitted], job[JOB.deadline],
        job[JOB.priority], job[JOB.tenant], job[JOB.costs],
    }
    reply[i + 1] = redis.call('HGET', BODY, id)
end
if granted > 0 then
    redis.call('HSET', STATS, 'fence', digits(fence))
    count('taken', granted)
    if virtual > (tonumber(redis.call('HGET', FAIR, '') or '') or 0) then
        redis.call('HSET', FAIR, '', digits(virtual))
    end
end
if granted == most then again = 1 end
reply[1] = cmsgpack.pack({ verdict, generation, now, rest, wait, next_time(), again, jobs })
return reply
