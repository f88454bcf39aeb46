#!lua
-- What was really spent? Corrects what calls were charged when they were admitted.
--
-- Invariant: nothing is checked, because what happened has happened; a refund never gives back
-- more than was spent where it was spent, and a slot is freed once.
--
-- KEYS  limits, all of one domain
-- ARGV  per limit: algorithm limit window size shadow lenient, as in admit.lua; then
--       amount       added to what is spent; negative is a refund
--       at           store time in us at which the call was admitted: where a refund belongs
--       tokens       how many slots to free, then the tokens
-- Returns integers, per limit: left

local time = redis.call('TIME')
local now = time[1] * 1000000 + time[2]

-- insert limits

local cursor = 0
local function number()
    cursor = cursor + 1
    return tonumber(ARGV[cursor])
end

local function refund(limit, amount, at)
    limit.spent = true
    local ring = limit.ring
    if ring then
        local index = math.floor(at / ring[1])
        -- Out of the window, or never counted there: there is nothing left to give back.
        if index < ring[2] - limit.size or index > ring[2] then return end
        local slot = index % (limit.size + 1) + 4
        local given = math.min(amount, ring[slot])
        ring[slot], ring[3] = ring[slot] - given, ring[3] - given
    elseif limit.count then
        if at >= limit.window then limit.count = math.max(0, limit.count - amount) end
    else
        local sum = (limit.us - now) * limit.limit + limit.fraction - amount * limit.window
        sum = math.max(0, sum)
        limit.us, limit.fraction = now + math.floor(sum / limit.limit), sum % limit.limit
    end
end

local texts = redis.call('MGET', unpack(KEYS))
-- One limit may be corrected several times, for calls admitted at different times.
local limits, reply = {}, {}
for i, key in ipairs(KEYS) do
    local again = limits[key]
    local limit = new_limit(key, number, now)
    local amount, at, tokens = number(), number(), number()
    if again then
        limit = again
    else
        limits[key] = limit
    end
    if limit.algorithm == CONCURRENCY then
        for _ = 1, tokens do
            cursor = cursor + 1
            redis.pcall('ZREM', key, ARGV[cursor])
        end
        read_limit(limit)
        if limit.repaired then write_limit(limit) end
    else
        if not again then read_limit(limit, texts[i]) end
        if limit.outside then
            amount = 0 -- the period is over, and its count with it
        elseif amount > 0 then
            spend(limit, amount)
        elseif amount < 0 then
            refund(limit, -amount, at)
        end
        if limit.spent or limit.repaired then write_limit(limit) end
    end
    reply[i] = math.max(0, room(limit, 1))
end
return reply
