#!lua
-- Renews the leases that are still ours, with their slots.
--
-- Invariant: an old fence renews nothing.
--
-- KEYS  limits that count slots; then those of the backlog, in the order of parts/backlog.lua
-- ARGV  1 msgpack of an array:
--       lease        us from now until the lease ends
--       slots        an array; for each limit its measure, and us until a slot expires
--       jobs         an array of id, fence, ...; at most 1000
-- Returns integers
--   for each job           0 not ours  1 renewed  2 renewed, but the job was cancelled
--   now                    store time in us

local time = redis.call('TIME')
local now = time[1] * 1000000 + time[2]

-- insert backlog

local lease_us, slots, asked = unpack(cmsgpack.unpack(ARGV[1]))
assert(#asked <= 2000, 'a worker renews at most 1000 leases at once')
local reply = {}
for i = 1, #asked, 2 do
    local id = asked[i]
    local job = redis.call('ZSCORE', LEASES, id) and read_job(id)
    local answer = 0
    if job and job[JOB.fence] == asked[i + 1] then
        answer = 1 + job[JOB.cancelled]
        redis.call('ZADD', LEASES, digits(now + lease_us), id)
        for n = 1, #slots, 2 do
            local key = KEYS[(n + 1) / 2]
            for _, slot in ipairs(slots_of(job, slots[n])) do
                redis.pcall('ZADD', key, digits(now + slots[n + 1]), slot)
                redis.pcall('PEXPIRE', key, digits(math.ceil(slots[n + 1] / 1000) + 1))
            end
        end
    end
    reply[#reply + 1] = answer
end
reply[#reply + 1] = now
return reply
