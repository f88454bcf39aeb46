-- Inserted into the scripts that read or write limits, by contract/scripts.py.
-- The four algorithms behind one set of functions: read, room, wait_for, spend, write. Amounts
-- are in the unit of the limit; times, also `now`, are store time in us. admit.lua describes what
-- is stored. A missing field is 0 or false: unset fields cost nothing. fast_path.lua repeats a part
-- of this, see the table there.

local SLIDING_WINDOW, TOKEN_BUCKET, FIXED_WINDOW, CONCURRENCY = 1, 2, 3, 4
local floor, ceil = math.floor, math.ceil
local LARGEST = 9007199254740991

-- One limit, by its rule: six numbers of `rules` from place `r` on, in the order of admit.lua.
local function new_limit(key, rules, r)
    local algorithm, window, size = rules[r], rules[r + 2], rules[r + 3]
    -- Loops run over the sub-buckets of a ring, and steps of time are no smaller than its width.
    local bounded = size >= 1 and size <= 995 and window >= 1 and window <= LARGEST
    assert(bounded or algorithm ~= SLIDING_WINDOW, 'a ring must have 1 to 995 sub-buckets, and a window')
    -- All fields at once: adding fields one by one costs several times as much.
    return {
        key = key, algorithm = algorithm, limit = rules[r + 1], window = window, size = size,
        shadow = rules[r + 4] == 1, lenient = rules[r + 5] == 1, us = 0, fraction = 0,
    }
end

-- An unreadable counter is spent or unspent, by the failure policy of the limit. It is repaired.
local function unreadable(limit, full)
    limit.unreadable, limit.repaired = 1, true
    return limit.lenient and 0 or full
end

-- A ring is doubles: width, head, sum, counts...
local function read_ring(limit, text)
    local size = limit.size
    local width = ceil(limit.window / size)
    local index = floor(now / width)
    local ring, sum, placed = nil, 0, index
    if text then
        local length = #text / 8
        if length == floor(length) and length > 3 and length < 1000 then
            local stored = { struct.unpack('>' .. string.rep('d', length), text) }
            for i = 4, length do sum = sum + stored[i] end
            -- Garbage does not add up, and neither does a count that is not a number.
            if sum ~= stored[3] or not (sum >= 0 and sum <= LARGEST and stored[1] >= 1 and stored[2] >= 0) then
                sum = unreadable(limit, limit.limit)
            elseif stored[1] == width and length == size + 4 and stored[2] <= index + size then
                ring = stored
                ring[length + 1] = nil -- unpack also returns where it stopped
            end
        else
            sum = unreadable(limit, limit.limit)
        end
    elseif limit.poisoned then
        sum = unreadable(limit, limit.limit)
    elseif limit.lost_since and now < limit.lost_since + limit.window and not limit.lenient then
        -- It may have been full when the store lost its data.
        sum, placed, limit.repaired = limit.limit, math.min(index, floor(limit.lost_since / width)), true
    end
    if not ring then
        -- New, unreadable, of another window, or from a clock far ahead: the known sum counts as
        -- spent now. That can only refuse too much, and for one window.
        limit.repaired = limit.repaired or text
        ring = { width, placed, sum }
        for i = 0, size do ring[i + 4] = 0 end
        ring[placed % (size + 1) + 4] = sum
    end
    local passed = index - ring[2]
    for step = 1, math.min(passed, size + 1) do
        local slot = (ring[2] + step) % (size + 1) + 4
        ring[3] = ring[3] - ring[slot]
        ring[slot] = 0
    end
    -- When the clock steps back, the ring stays where it is.
    ring[2] = math.max(ring[2], index)
    limit.ring = ring
end

-- A bucket is four doubles: us, fraction, limit, window.
local function read_bucket(limit, text)
    local us, fraction, old_limit, old_window
    if text and #text == 32 then us, fraction, old_limit, old_window = struct.unpack('>dddd', text) end
    local full = ceil(limit.size * limit.window / limit.limit)
    if not us then
        us, fraction = now, 0
        if text or limit.poisoned then us = now + unreadable(limit, full) end
    elseif not (us >= 0 and us <= LARGEST and fraction >= 0 and fraction <= old_limit and old_limit >= 1
        and old_limit <= LARGEST and old_window >= 1 and old_window <= LARGEST) then
        us, fraction = now + unreadable(limit, full), 0
    elseif us < now then
        us, fraction = now, 0
    elseif old_limit ~= limit.limit or old_window ~= limit.window then
        us, fraction = now + ceil((us - now) * old_limit / old_window * limit.window / limit.limit), 0
    end
    -- Far ahead of a full bucket: written with a clock that was ahead, or with a larger burst. After a
    -- small step back of the clock, the bucket waits instead.
    if us - now > 2 * full + 1000000 then limit.repaired, us, fraction = true, now + full, 0 end
    limit.us, limit.fraction = us, fraction
end

local function read_period(limit, text)
    -- The pod computed the period from an estimate of this clock, which can be wrong at the edges.
    limit.outside = now < limit.window or now >= limit.size
    local began, spent
    if text then began, spent = string.match(text, '^(%d+) (%d+)$') end
    if began then
        limit.count = tonumber(began) == limit.window and tonumber(spent) or 0
    else
        limit.count = (text or limit.poisoned) and unreadable(limit, limit.limit) or 0
    end
end

local function read_slots(limit)
    local taken = redis.pcall('ZCOUNT', limit.key, '(' .. string.format('%d', now), '+inf')
    if type(taken) ~= 'number' then taken = unreadable(limit, limit.limit) end
    limit.count, limit.tokens = taken, {}
end

local function read_limit(limit, text)
    if limit.algorithm == CONCURRENCY then return read_slots(limit) end
    -- MGET returns nothing for a key of another type. For a lenient limit that is the same as no key.
    limit.poisoned = not text and not limit.lenient and redis.call('TYPE', limit.key).ok ~= 'none'
    if limit.algorithm == SLIDING_WINDOW then
        read_ring(limit, text)
    elseif limit.algorithm == TOKEN_BUCKET then
        read_bucket(limit, text)
    else
        read_period(limit, text)
    end
end

-- How many calls of `cost` fit now; negative when more is spent than the limit allows.
local function room(limit, cost)
    if limit.ring then return floor((limit.limit - limit.ring[3]) / cost) end
    if limit.count then return floor((limit.limit - limit.count) / cost) end
    local spent = (limit.us - now) * limit.limit + limit.fraction
    return floor((limit.size * limit.window - spent) / (cost * limit.window))
end

-- How many us until a call of `cost` fits, if no other call comes.
local function wait_for(limit, cost)
    local ring = limit.ring
    if ring then
        local need, freed = ring[3] + cost - limit.limit, 0
        for index = ring[2] - limit.size, ring[2] do
            freed = freed + ring[index % (limit.size + 1) + 4]
            if freed >= need then return (index + limit.size + 1) * ring[1] - now end
        end
        return ring[1] * (limit.size + 1)
    elseif limit.algorithm == FIXED_WINDOW then
        return limit.size - now
    elseif limit.algorithm == CONCURRENCY then
        local after = '(' .. string.format('%d', now)
        local first = redis.pcall('ZRANGEBYSCORE', limit.key, after, '+inf', 'WITHSCORES', 'LIMIT', '0', '1')
        return first[2] and tonumber(first[2]) - now or limit.window
    end
    local spent = (limit.us - now) * limit.limit + limit.fraction
    return math.max(1, ceil((spent - (limit.size - cost) * limit.window) / limit.limit))
end

local function spend(limit, amount)
    limit.spent = true
    local ring = limit.ring
    if ring then
        local slot = ring[2] % (limit.size + 1) + 4
        ring[slot] = ring[slot] + amount
        ring[3] = ring[3] + amount
    elseif limit.count then
        limit.count = limit.count + amount
    else
        local sum = limit.fraction + amount * limit.window
        limit.us = limit.us + floor(sum / limit.limit)
        limit.fraction = sum % limit.limit
    end
end

-- A key expires when it has no effect any more.
local function write_limit(limit)
    local ring = limit.ring
    if ring then
        local text = struct.pack('>' .. string.rep('d', #ring), unpack(ring))
        redis.call('SET', limit.key, text, 'PX', ceil(ring[1] * (limit.size + 2) / 1000))
    elseif limit.algorithm == FIXED_WINDOW then
        local text = string.format('%d', limit.window) .. ' ' .. string.format('%d', limit.count)
        redis.call('SET', limit.key, text, 'PX', ceil((limit.size - now) / 1000) + 1000)
    elseif limit.algorithm == CONCURRENCY then
        if limit.repaired then redis.call('DEL', limit.key) end
        redis.call('ZREMRANGEBYSCORE', limit.key, '-inf', string.format('%d', now))
        for _, slot in ipairs(limit.tokens) do
            redis.call('ZADD', limit.key, string.format('%d', now + limit.window), slot)
        end
        redis.call('PEXPIRE', limit.key, ceil(limit.window / 1000) + 1)
    else
        local text = struct.pack('>dddd', limit.us, limit.fraction, limit.limit, limit.window)
        redis.call('SET', limit.key, text, 'PX', math.max(1, ceil((limit.us - now) / 1000) + 1))
    end
end
