#!lua
-- How full is the backlog, and what became of these jobs? Changes nothing.
--
-- KEYS  of the backlog, in the order of parts/backlog.lua
-- ARGV  ids of jobs, at most 1000
-- Returns an array
--   1 an array of integers, in the order of contract/backlog_figures.py
--     now ready delayed leased dead bytes results    store time in us; jobs, payloads in bytes
--     waiting      us since the job that comes next was submitted; 0 if none is ready
--     asked        store time in us at which a worker last asked; 0 for never
--     memory       percent of maxmemory, when it was last read
--     submitted taken done requeued died cancelled expired refused     since the first job
--     max_jobs max_bytes           what the last submit may fill; 0 for unknown
--     held         leased jobs whose lease has not ended
--     due          delayed jobs that are due. As leases that have ended, they stay until a worker asks
--     late         us for which the oldest work has waited that a worker could take; 0 if there is none
--   2... for each job: `ready`, `delayed`, `leased`, `dead cause`, its result `status us value`, or ''

local time = redis.call('TIME')
local now = time[1] * 1000000 + time[2]

-- insert backlog

assert(#ARGV <= 1000, 'at most 1000 jobs at once')
local function peek(id)
    local good, job = pcall(cmsgpack.unpack, redis.call('HGET', META, id) or '')
    return good and type(job) == 'table' and job or {}
end

local head, waiting = redis.call('ZRANGE', READY, '0', '0')[1], 0
if head then waiting = math.max(0, now - (tonumber(peek(head)[JOB.submitted]) or now)) end
local figures = {
    now, redis.call('ZCARD', READY), redis.call('ZCARD', DELAYED), redis.call('ZCARD', LEASES),
    redis.call('ZCARD', DEAD), stat('bytes'), redis.call('HLEN', RESULTS), waiting, stat('asked'), stat('memory'),
}
local totals = { 'submitted', 'taken', 'done', 'requeued', 'died', 'cancelled', 'expired', 'refused' }
for _, name in ipairs(totals) do figures[#figures + 1] = stat(name) end
figures[#figures + 1] = stat('max_jobs')
figures[#figures + 1] = stat('max_bytes')
figures[#figures + 1] = redis.call('ZCOUNT', LEASES, '(' .. digits(now), '+inf')
figures[#figures + 1] = redis.call('ZCOUNT', DELAYED, '-inf', digits(now))
local late = waiting
for _, key in ipairs({ DELAYED, LEASES }) do
    late = math.max(late, now - tonumber(redis.call('ZRANGE', key, '0', '0', 'WITHSCORES')[2] or now))
end
figures[#figures + 1] = late
local reply = { figures }
for i, id in ipairs(ARGV) do
    local answer = redis.call('HGET', RESULTS, id) or ''
    for word, key in pairs({ ready = READY, delayed = DELAYED, leased = LEASES, dead = DEAD }) do
        if redis.call('ZSCORE', key, id) then
            answer = word
            if word == 'dead' then answer = 'dead ' .. tostring(peek(id)[JOB.cause] or '') end
        end
    end
    reply[i + 1] = answer
end
return reply
