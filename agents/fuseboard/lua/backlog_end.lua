#!lua
-- How did a job end? Stores its result, or hands it out again, and frees its slots.
--
-- Invariant: only the owner of the current lease ends a job. An old fence changes nothing.
--
-- KEYS  limits that count slots; then those of the backlog, in the order of parts/backlog.lua
-- ARGV  1 msgpack of an array:
--       id fence
--       how          1 done  2 try again, if it has tries left  3 dead  4 given back unstarted
--       delay        us before it is handed out again
--       result       us for which its result is kept
--       cause        of a failure, for people
--       channel name                where a hint is published, and the name of the dependency there
--       measures     an array; for each limit that counts slots its measure
--       2 the result
-- Returns an integer: 0 not ours, or ended before  1 done  2 handed out again  3 dead  4 cancelled

local time = redis.call('TIME')
local now = time[1] * 1000000 + time[2]

-- insert backlog

local DONE, RETRY, RELEASE = 1, 2, 4
local id, fence, how, delay, result_us, cause, channel, name, measures = unpack(cmsgpack.unpack(ARGV[1]))
local job = redis.call('ZSCORE', LEASES, id) and read_job(id)
if not job or job[JOB.fence] ~= fence then return 0 end

for n = 1, #KEYS - 11 do
    for _, slot in ipairs(slots_of(job, measures[n])) do redis.pcall('ZREM', KEYS[n], slot) end
end
-- Another process may wait for a slot.
if #KEYS > 11 then publish_hint(channel, name) end
if how == DONE then
    finish(id, job, 'done', ARGV[2], result_us)
    count('done', 1)
    return 1
elseif job[JOB.cancelled] == 1 then
    finish(id, job, 'cancelled', '', result_us)
    count('cancelled', 1)
    return 4
elseif how == RELEASE then
    job[JOB.tries] = job[JOB.tries] - 1
    put_back(id, job, 0)
    publish_hint(channel, name)
    return 2
elseif how == RETRY and job[JOB.tries] < job[JOB.max_tries] then
    put_back(id, job, delay)
    publish_hint(channel, name)
    return 2
end
bury(id, job, cause)
return 3
