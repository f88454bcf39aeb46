#!lua
-- Cancel a job, or hand out a dead one again.
--
-- KEYS  of the backlog, in the order of parts/backlog.lua
-- ARGV  id
--       what         1 cancel  2 hand out a dead job again, with all its tries, and without a deadline that has passed
--       result       us for which the result of a cancelled job is kept
--       channel name                where a hint is published, and the name of the dependency there
-- Returns an integer: 0 unknown, or finished  1 changed  2 a worker has it, and is notified when it renews

local time = redis.call('TIME')
local now = time[1] * 1000000 + time[2]

-- insert backlog

local id, what, result_us = ARGV[1], ARGV[2], tonumber(ARGV[3])
local job = redis.call('HEXISTS', META, id) == 1 and read_job(id)
if not job then return 0 end
if what == '2' then
    if not redis.call('ZSCORE', DEAD, id) then return 0 end
    revive(id, job)
    publish_hint(ARGV[4], ARGV[5])
    return 1
end
if redis.call('ZSCORE', LEASES, id) then
    job[JOB.cancelled] = 1
    write_job(id, job)
    return 2
end
finish(id, job, 'cancelled', '', result_us)
count('cancelled', 1)
return 1
