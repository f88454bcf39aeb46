#!lua
-- The dead letters, for an operator: list them, hand them out again, or delete them. Pods do not run it.
--
-- Invariant: the queue never has more jobs than it may. A dead job that does not fit stays dead.
--
-- KEYS  of the backlog, in the order of parts/backlog.lua
-- ARGV  what         1 list the newest  2 hand out again, with all their tries, and without a deadline that
--                    has passed  3 delete, as a cancellation
--       most         jobs of one call, 1 to 200; the oldest first
--       until        store time in us: only those that died until then; 0 for all
--       result       us for which the result of a deleted job is kept
--       channel name                where a hint is published, and the name of the dependency there
-- Returns an array
--   changed left     jobs that this call changed, and those that are dead now
--   full             1 if it stopped because the queue is full
--   now              store time in us
--   jobs             what 1: an array; for each: id, died and submitted in store time, tries, max_tries,
--                    priority, bytes, cause. Never the payload, or a digest by which it could be guessed
--   lost             unreadable jobs that this call removed: nothing could be handed out

local time = redis.call('TIME')
local now = time[1] * 1000000 + time[2]

-- insert backlog

local what, most, before, result_us = ARGV[1], tonumber(ARGV[2]), tonumber(ARGV[3]), tonumber(ARGV[4])
assert(most >= 1 and most <= 200, 'at most 200 jobs at once')
local rows = {}
if what == '1' then
    for _, id in ipairs(redis.call('ZRANGE', DEAD, digits(-most), '-1')) do
        local good, job = pcall(cmsgpack.unpack, redis.call('HGET', META, id) or '')
        if good and type(job) == 'table' and #job == JOB_FIELDS then
            rows[#rows + 1] = {
                id, tonumber(redis.call('ZSCORE', DEAD, id)), job[JOB.submitted], job[JOB.tries], job[JOB.max_tries],
                job[JOB.priority], job[JOB.bytes], tostring(job[JOB.cause]),
            }
        end
    end
    return { 0, redis.call('ZCARD', DEAD), 0, now, rows, 0 }
end

local until_us = before > 0 and digits(before) or '+inf'
local jobs = redis.call('ZCARD', READY) + redis.call('ZCARD', DELAYED) + redis.call('ZCARD', LEASES)
local max_jobs, changed, full, lost = stat('max_jobs'), 0, 0, 0
for _, id in ipairs(redis.call('ZRANGEBYSCORE', DEAD, '-inf', until_us, 'LIMIT', '0', digits(most))) do
    if what == '2' and max_jobs > 0 and jobs + changed >= max_jobs then
        full = 1
        break
    end
    local job = read_job(id)
    if not job then
        lost = lost + 1
    elseif what == '2' then
        revive(id, job)
        changed = changed + 1
    else
        finish(id, job, 'cancelled', '', result_us)
        count('cancelled', 1)
        changed = changed + 1
    end
end
if changed > 0 and what == '2' then publish_hint(ARGV[5], ARGV[6]) end
return { changed, redis.call('ZCARD', DEAD), full, now, rows, lost }
