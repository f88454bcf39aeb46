#!lua
-- Notices that the store has lost what was spent of budgets, and puts back what pods know of it.
--
-- Invariant: after a loss, a budget counts the most that any pod had seen spent before it, once, and what
-- was spent since. A counter of a store that has lost nothing is not changed.
--
-- A mark is made once in a period. A pod that remembers another mark of the same period has seen what the
-- store had before it lost its data.
--
-- KEYS  for each budget: its counter, and its marks
-- ARGV  1 msgpack of an array: rules, as in admit.lua; then for each budget
--       rule     the number of its rule
--       mark     the one that this pod saw last in this period; '' for none
--       amount   spent when this pod saw it; 0 without a mark
-- Returns an array for each budget: its mark, what is spent, what was put back; an empty one outside of
-- its period
--
-- Marks: a HASH by the beginning of a period: `mark restored`. Two pods may have different periods, while
-- an edit reaches the fleet.

local time = redis.call('TIME')
local now = time[1] * 1000000 + time[2]

-- insert ring
-- insert limits

local known = cmsgpack.unpack(ARGV[1])
local rules = known[1]
local reply, changed = {}, {}
for i = 1, #KEYS / 2 do
    local rule, seen, amount = unpack(known, 3 * i - 1, 3 * i + 1)
    local counter, marks = KEYS[2 * i - 1], KEYS[2 * i]
    local limit = new_limit(counter, rules, 8 * rule - 7)
    local text = redis.pcall('GET', counter)
    read_limit(limit, type(text) == 'string' and text or false)
    reply[i] = {}
    if limit.count and not limit.tokens and not limit.outside then
        local began = string.format('%d', limit.window)
        local stored = redis.pcall('HGET', marks, began)
        local mark, restored = string.match(type(stored) == 'string' and stored or '', '^(%d+) (%d+)$')
        restored = tonumber(restored) or 0
        local missing = 0
        if seen ~= mark and amount > restored then
            missing = math.min(amount - restored, LARGEST - limit.count)
            spend(limit, missing)
        end
        if not mark or missing > 0 then
            mark = mark or string.format('%d', now)
            changed[#changed + 1] = { limit, marks, began, mark, math.max(restored, missing > 0 and amount or 0) }
        end
        reply[i] = { mark, limit.count, missing }
    end
end
for _, change in ipairs(changed) do
    local limit, marks, began, mark, restored = unpack(change)
    if limit.spent then write_limit(limit) end
    if redis.call('TYPE', marks).ok ~= 'hash' then redis.call('DEL', marks) end
    redis.call('HSET', marks, began, mark .. ' ' .. string.format('%d', restored))
    local left = math.max(1, math.ceil((limit.size - now) / 1000) + 1000)
    redis.call('PEXPIRE', marks, math.max(left, redis.call('PTTL', marks)))
end
return reply
