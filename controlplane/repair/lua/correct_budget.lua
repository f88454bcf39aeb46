#!lua
-- Add to what is spent of a budget, or take from it, once.
--
-- Invariant: a correction counts once, however often this runs with its number. A counter of another period is
-- not changed, and no counter falls below 0.
--
-- KEYS  1 counter, 2 marks
-- ARGV  1 start of the period in us, 2 its end in us
--       3 the number of the correction
--       4 what to add, negative to take
-- Returns a number and the mark of restore.lua in this period, '' for none. The number is 2 if it counts now, 1 if
--         it did before; 0 outside of the period; 3 if the counter is damaged, or of a later period
--
-- Marks: beside those of restore.lua of the agent, `corrected:` and the number of each correction.

local time = redis.call('TIME')
local now = time[1] * 1000000 + time[2]

local LARGEST = 2 ^ 53 - 1
local began, ends = tonumber(ARGV[1]), tonumber(ARGV[2])
if now < began or now >= ends then return { 0, '' } end
local corrected = 'corrected:' .. ARGV[3]
if redis.pcall('HEXISTS', KEYS[2], corrected) == 1 then return { 1, '' } end

local text = redis.pcall('GET', KEYS[1])
if type(text) == 'table' then return { 3, '' } end
local window, count = string.match(text or '', '^(%d+) (%d+)$')
if text and not window or (tonumber(window) or 0) > began then return { 3, '' } end
count = tonumber(window) == began and tonumber(count) or 0

local left = math.ceil((ends - now) / 1000) + 1000
local after = math.max(0, math.min(LARGEST, count + tonumber(ARGV[4])))
if after ~= count then
    redis.call('SET', KEYS[1], ARGV[1] .. ' ' .. string.format('%d', after), 'PX', left)
end
if redis.call('TYPE', KEYS[2]).ok ~= 'hash' then redis.call('DEL', KEYS[2]) end
local mark = string.match(redis.call('HGET', KEYS[2], ARGV[1]) or '', '^(%d+) ') or ''
redis.call('HSET', KEYS[2], corrected, 1)
redis.call('PEXPIRE', KEYS[2], math.max(left, redis.call('PTTL', KEYS[2])))
return { 2, mark }
