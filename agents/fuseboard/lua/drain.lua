#!lua
-- Counts decisions that a pod made without Redis. Counts each once, however often it is reported.
--
-- Invariant: a segment counts once per domain, even if its pod died before the answer came. Totals
-- are history: they refuse no calls. Only shares of a limit that a pod spent alone are charged, as
-- spent now, because they are a part of the limit.
--
-- KEYS  1 segments reported before, of this domain; 2 totals of this domain; then limits to charge
-- ARGV  1 the segment's name
--       2 how long it is remembered, in s; 3 how long totals are kept, in s
--       4 msgpack of an array: rules, as in admit.lua; an array of field, amount ... for the
--         totals; then for each limit its rule and the amount
-- The totals also have a field @id: a hash that was lost and began again has another one.
-- Returns 1 when the segment was counted, 0 when it was counted before

local time = redis.call('TIME')
local now = time[1] * 1000000 + time[2]

-- insert ring
-- insert limits
-- insert as_stored

if redis.call('SISMEMBER', KEYS[1], ARGV[1]) == 1 then return 0 end
local reported = cmsgpack.unpack(ARGV[4])
local rules, totals = reported[1], reported[2]
local limits = {}
for i = 3, #KEYS do
    local limit = new_limit(KEYS[i], rules, 8 * reported[2 * i - 3] - 7)
    local text = redis.pcall('GET', KEYS[i])
    read_as_stored(limit, type(text) == 'string' and text or false)
    -- Outside its period a calendar quota has no count, and slots have none of calls.
    if not limit.outside and not limit.tokens then spend(limit, reported[2 * i - 2]) end
    limits[i - 2] = limit
end
for _, limit in ipairs(limits) do
    if limit.spent or limit.repaired then write_limit(limit) end
end
for i = 1, #totals, 2 do redis.call('HINCRBY', KEYS[2], totals[i], totals[i + 1]) end
redis.call('HSETNX', KEYS[2], '@id', ARGV[1])
redis.call('EXPIRE', KEYS[2], ARGV[3])
redis.call('SADD', KEYS[1], ARGV[1])
redis.call('EXPIRE', KEYS[1], ARGV[2])
return 1
