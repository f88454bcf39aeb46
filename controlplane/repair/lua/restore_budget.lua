#!lua
-- Put back what is missing of a budget after the store has lost its data.
--
-- Invariant: as in restore.lua of the agent, whose marks this reads and writes. After a loss, a budget counts
-- the most that any pod, the worker or the ledger knew of before it, once, and what was spent since. A counter
-- of a store that has lost nothing is not changed. What pods decided without the store is in the ledger, and they
-- report it when the store is back: the ledger is counted after that.
--
-- KEYS  1 counter, 2 marks
-- ARGV  1 start of the period in us, 2 its end in us
--       3 the mark that the worker saw last in this period; '' if only the ledger is to be counted
--       4 spent when it saw it
--       5 spent in the period as the ledger knows, with what was spent since the loss
--       6 how long after a mark was made the ledger waits, in us
-- Returns mark, spent, put back, 1 if the ledger waits; nothing outside of the period

local time = redis.call('TIME')
local now = time[1] * 1000000 + time[2]

local LARGEST = 2 ^ 53 - 1
local began, ends = tonumber(ARGV[1]), tonumber(ARGV[2])
if now < began or now >= ends then return {} end

local text = redis.pcall('GET', KEYS[1])
local window, count = string.match(type(text) == 'string' and text or '', '^(%d+) (%d+)$')
count = tonumber(window) == began and tonumber(count) or 0
local stored = redis.pcall('HGET', KEYS[2], ARGV[1])
local mark, restored = string.match(type(stored) == 'string' and stored or '', '^(%d+) (%d+)$')
restored = tonumber(restored) or 0

local amount = math.min(LARGEST, tonumber(ARGV[4]))
local waits = not mark or now < tonumber(mark) + tonumber(ARGV[6])
if not waits then amount = math.max(amount, tonumber(ARGV[5]) - math.max(0, count - restored)) end
if mark == ARGV[3] or amount <= restored then
    return { mark or '', string.format('%d', count), '0', waits and '1' or '0' }
end

local missing = math.max(0, math.min(amount - restored, LARGEST - count))
local left = math.ceil((ends - now) / 1000) + 1000
mark = mark or string.format('%d', now)
redis.call('SET', KEYS[1], ARGV[1] .. ' ' .. string.format('%d', count + missing), 'PX', left)
if redis.call('TYPE', KEYS[2]).ok ~= 'hash' then redis.call('DEL', KEYS[2]) end
redis.call('HSET', KEYS[2], ARGV[1], mark .. ' ' .. string.format('%d', amount))
redis.call('PEXPIRE', KEYS[2], math.max(left, redis.call('PTTL', KEYS[2])))
return { mark, string.format('%d', count + missing), string.format('%d', missing), waits and '1' or '0' }
