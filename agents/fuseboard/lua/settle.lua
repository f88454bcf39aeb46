#!lua
-- Corrects the charges that calls got when they were admitted to their real costs, and charges what others spent
-- of a vendor's limit.
--
-- Invariant: nothing is refused, because the calls are over. A refund never gives back more than was
-- spent in its sub-bucket, nothing when the call has left the window, and a slot is freed once. A counter that
-- has another algorithm now keeps it: what a call cost in addition is spent there, and a refund is lost. What a
-- vendor has left only lowers what is left here: never below that, and never for longer than a window.
--
-- KEYS  limits, all of one domain
-- ARGV  1 msgpack of an array: rules, as in admit.lua; then for each key
--       rule         the number of its rule
--       amount       added to what is spent; negative is a refund
--       at           store time in us at which the call was admitted: a refund belongs there
--       tokens       of slots to free, an array
--       most         at most this is left of a sliding window or a bucket, the vendor reports; -1 for unknown
-- Returns integers, per key: left; then per key: charged because the vendor has less left

local time = redis.call('TIME')
local now = time[1] * 1000000 + time[2]

-- insert ring
-- insert limits
-- insert as_stored

local function refund(limit, amount, at)
    limit.spent = true
    local ring = limit.ring
    if ring then
        local index = math.floor(at / ring[1])
        -- Outside the window, or never counted there: nothing is left to refund.
        if index < ring[2] - limit.size or index > ring[2] then return end
        local slot = index % (limit.size + 1) + 4
        local given = math.min(amount, ring[slot])
        ring[slot], ring[3] = ring[slot] - given, ring[3] - given
    elseif limit.count then
        if at >= limit.window then limit.count = math.max(0, limit.count - amount) end
    elseif now < at + limit.window * math.max(1, limit.whole_size / limit.whole) then
        local sum = (limit.us - now) * limit.limit + limit.fraction - amount * limit.window
        sum = math.max(0, sum)
        limit.us, limit.fraction = now + math.floor(sum / limit.limit), sum % limit.limit
    end
end

-- However much a call cost, the counter stays readable, and what was spent before stays spent.
local function charge(limit, amount)
    if limit.ring or limit.count then
        spend(limit, math.min(amount, LARGEST - (limit.ring and limit.ring[3] or limit.count)))
    else
        -- read_bucket accepts no time further ahead.
        local most = math.max(limit.whole_size, limit.whole)
        spend(limit, math.min(amount, 2 * most))
        local full, longest = limit.whole_size * limit.window, most * limit.window
        limit.us = math.min(limit.us, now + ceil(full / limit.limit) + ceil(longest / limit.limit))
    end
end

-- The vendor has less left than is left here: others have spent the difference. It comes back as evenly as the
-- limit does, beginning now, so a vendor whose figures are wrong or stand still cannot stop all calls.
local function lower(limit, most)
    local over = room(limit, 1) - most
    if over <= 0 then return 0 end
    limit.spent = true
    local ring = limit.ring
    if not ring then
        spend(limit, over)
        return over
    end
    local all = over
    -- At this rate the sub-buckets have room for more than the limit, whatever is in them.
    local even = ceil(limit.limit / limit.size)
    for index = ring[2] - limit.size, ring[2] do
        local slot = index % (limit.size + 1) + 4
        local added = math.max(0, math.min(over, even - ring[slot]))
        ring[slot], ring[3], over = ring[slot] + added, ring[3] + added, over - added
    end
    return all - over
end

local corrections = cmsgpack.unpack(ARGV[1])
local rules = corrections[1]
local texts = redis.call('MGET', unpack(KEYS))
-- One limit may have several corrections, for calls that were admitted at different times.
local limits, reply = {}, {}
for i, key in ipairs(KEYS) do
    local rule, amount, at, tokens, most = unpack(corrections, 5 * i - 3, 5 * i + 1)
    local again, algorithm = limits[key], rules[8 * rule - 7]
    local limit = again or new_limit(key, rules, 8 * rule - 7)
    limits[key] = limit
    for _, token in ipairs(tokens) do redis.pcall('ZREM', key, token) end
    if not again or limit.tokens then read_as_stored(limit, texts[i]) end
    -- Outside its period a calendar quota has no count: there is nothing to correct.
    if amount > 0 and not limit.tokens and not limit.outside then
        charge(limit, amount)
    elseif amount < 0 and limit.algorithm == algorithm and not limit.outside and (texts[i] or limit.spent) then
        -- Without a counter, nothing is spent, or the store has lost it: an empty one would hide the loss.
        refund(limit, -amount, at)
    end
    -- A missing bucket is a full one. A missing window may be lost, and a new one would hide that.
    local known = limit.spent or texts[i] or not limit.ring
    local lowers = most >= 0 and limit.algorithm == algorithm and not limit.count and known
    reply[#KEYS + i] = lowers and lower(limit, most) or 0
    if limit.spent or limit.repaired then write_limit(limit) end
    reply[i] = math.max(0, room(limit, 1))
end
return reply
