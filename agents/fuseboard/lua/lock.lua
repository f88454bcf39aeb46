#!lua
-- Grants the lock. One token has it at a time, and each gets a higher number than all before it.
--
-- Invariant: only its token renews and releases an unexpired lock. Numbers (fences) rise, also after
-- Redis lost the lock or its clock was set back a little: a number is never below the time of the store.
--
-- KEYS  1 the lock: text "token fence until"; the token is - after a release
-- ARGV  1 take, renew or release
--       2 the token of the caller
--       3 how long the lock is valid, in us
--       4 how long its last number is remembered beyond that, in ms
--       5 take: store time in us after which the question is too late, and takes nothing; 0 is never
-- Returns an array: 1 if the caller has the lock (release: had it), else 0; the number of the lock; for
-- how long it is valid, in us; the time of the store in us

local time = redis.call('TIME')
local now = time[1] * 1000000 + time[2]

local action, caller = ARGV[1], ARGV[2]
local text = redis.pcall('GET', KEYS[1])
local owner, fence, til = string.match(type(text) == 'string' and text or '', '^(%S+) (%d+) (%d+)$')
-- A lock that cannot be read belongs to no token.
fence, til = tonumber(fence or 0), tonumber(til or 0)
local taken = owner ~= nil and owner ~= '-' and til > now
local mine = taken and owner == caller

local function write(token, valid)
    til = now + valid
    local line = string.format('%s %.0f %.0f', token, fence, til)
    redis.call('SET', KEYS[1], line, 'PX', math.ceil(valid / 1000) + ARGV[4])
end

if action == 'take' then
    local late = tonumber(ARGV[5])
    if taken and not mine or late > 0 and now > late then
        return { 0, fence, math.max(0, til - now), now }
    end
    -- A question that is repeated, because its answer was lost, gets the same number.
    if not mine then fence = math.max(fence + 1, now) end
    write(caller, tonumber(ARGV[3]))
    return { 1, fence, til - now, now }
end
if not mine then return { 0, fence, taken and til - now or 0, now } end
if action == 'renew' then
    write(caller, tonumber(ARGV[3]))
else
    write('-', 0)
end
return { 1, fence, til - now, now }
