#!lua
-- Did this request run before? One owner runs it at a time, and its answer is stored once.
--
-- Invariant: a request has one unexpired owner. Only an owner that finished makes it done, and what is
-- done never changes. A request whose owner died stays running until the lease ends, then runs again.
-- Numbers (fences) rise from owner to owner.
--
-- KEYS  1 the request: HASH state (running, done or free), owner, fence, print, til; answer, or sealed, which
--         only pods of the service can read. Earlier versions find an empty answer beside a sealed one
-- ARGV  1 begin, renew, done, sealed (done, with a sealed answer) or release
--       2 the token of the owner
--       3 begin, renew: the lease in us
--       4 begin, renew, done, sealed: how long the request is remembered from now on, at least the lease; release:
--         how long its number is; in ms
--       5 begin: the fingerprint of the request; done, sealed: the answer, empty when it is not kept
--       6 begin: store time in us after which the question is too late, and begins nothing; 0 is never
-- Returns an array: begin: run, running, other (fingerprint), done or late; else ok or lost; the number;
-- the rest of the lease in us; the answer; the time of the store in us

local time = redis.call('TIME')
local now = time[1] * 1000000 + time[2]

local action, caller = ARGV[1], ARGV[2]
local state, owner, fence, known, til =
    unpack(redis.call('HMGET', KEYS[1], 'state', 'owner', 'fence', 'print', 'til'))
fence, til = tonumber(fence or 0), tonumber(til or 0)
local mine = state == 'running' and owner == caller

local function text(number) return string.format('%.0f', number) end

if action == 'begin' then
    if state == 'running' or state == 'done' then
        if known ~= ARGV[5] then return { 'other', fence, 0, '', now } end
        if state == 'done' then
            local answer, sealed = unpack(redis.call('HMGET', KEYS[1], 'answer', 'sealed'))
            return { 'done', fence, 0, sealed or answer or '', now }
        end
        if til > now and not mine then return { 'running', fence, til - now, '', now } end
    end
    local late = tonumber(ARGV[6])
    if late > 0 and now > late then return { 'late', fence, 0, '', now } end
    -- A question that is repeated, because its answer was lost, gets the same number.
    if not mine then fence = math.max(fence + 1, now) end
    til = now + ARGV[3]
    redis.call('HSET', KEYS[1], 'state', 'running', 'owner', caller, 'fence', text(fence),
        'print', ARGV[5], 'til', text(til))
    redis.call('PEXPIRE', KEYS[1], ARGV[4])
    return { 'run', fence, til - now, '', now }
end
-- Repeated because its answer was lost.
local ends = action == 'done' or action == 'sealed'
if ends and state == 'done' and owner == caller then return { 'ok', fence, 0, '', now } end
if not mine then return { 'lost', fence, 0, '', now } end
if action == 'renew' then
    -- Also when the lease is over: no other owner came, so the request did not begin again.
    til = now + ARGV[3]
    redis.call('HSET', KEYS[1], 'til', text(til))
    redis.call('PEXPIRE', KEYS[1], ARGV[4])
elseif ends then
    redis.call('HSET', KEYS[1], 'state', 'done', 'answer', action == 'done' and ARGV[5] or '')
    if action == 'sealed' then redis.call('HSET', KEYS[1], 'sealed', ARGV[5]) end
    redis.call('PEXPIRE', KEYS[1], ARGV[4])
else
    redis.call('HSET', KEYS[1], 'state', 'free')
    redis.call('PEXPIRE', KEYS[1], ARGV[4])
end
return { 'ok', fence, math.max(0, til - now), '', now }
