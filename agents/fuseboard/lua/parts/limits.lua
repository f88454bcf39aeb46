-- Inserted into the scripts that read or write limits, by contract/scripts.py.
-- The four algorithms behind one set of functions: read, room, wait_for, spend, write. Amounts
-- are in the unit of the limit; times, also `now`, are store time in us. admit.lua describes what
-- is stored. A missing field is 0 or false: unset fields cost nothing. fast_path.lua repeats a part
-- of this, see the table there.

local SLIDING_WINDOW, TOKEN_BUCKET, FIXED_WINDOW, CONCURRENCY = 1, 2, 3, 4

-- One limit, by its rule: eight numbers of `rules` from place `r` on, in the order of admit.lua. A pod that
-- ramps up asks for a part of the limit, but what is stored is about the whole: no debt is lost by such a
-- question.
local function new_limit(key, rules, r)
    local algorithm, window, size = rules[r], rules[r + 2], rules[r + 3]
    -- Loops run over the sub-buckets of a ring, and steps of time are no smaller than its width.
    local bounded = size >= 1 and size <= 995 and window >= 1 and window <= LARGEST
    assert(bounded or algorithm ~= SLIDING_WINDOW, 'a ring must have 1 to 995 sub-buckets, and a window')
    -- All fields at once: adding fields one by one costs several times as much.
    return {
        key = key, algorithm = algorithm, limit = rules[r + 1], window = window, size = size,
        shadow = rules[r + 4] == 1, lenient = rules[r + 5] == 1, whole = rules[r + 6],
        whole_size = rules[r + 7], us = 0, fraction = 0,
    }
end

-- An unreadable counter is spent or unspent, by the failure policy of the limit. It is repaired.
local function unreadable(limit, full)
    limit.unreadable, limit.repaired = 1, true
    return limit.lenient and 0 or full
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

-- insert other_rules

local function read_ring(limit, text)
    local size = limit.size
    local width = ceil(limit.window / size)
    local index = floor(now / width)
    local ring = text and parse_ring(text)
    if ring and ring[1] == width and #ring == size + 4 and ring[2] <= index + size then
        turn(ring, index)
    else
        local charges = {}
        if text or limit.poisoned then
            charges = text and counted(text) or { now, unreadable(limit, limit.whole) }
            limit.repaired = true
        elseif limit.lost_since and now < limit.lost_since + limit.window and not limit.lenient then
            -- It may have been full when the store lost its data.
            charges, limit.repaired = { math.min(now, limit.lost_since), limit.whole }, true
        end
        ring = { width, index, 0 }
        for i = 0, size do ring[i + 4] = 0 end
        for i = 1, #charges, 2 do
            local at, amount = floor(charges[i] / width), charges[i + 1]
            if at >= index - size then
                local slot = at % (size + 1) + 4
                ring[slot], ring[3] = ring[slot] + amount, ring[3] + amount
            end
        end
    end
    limit.ring = ring
end

local function read_bucket(limit, text)
    local us, fraction, old_limit, old_window
    if text then us, fraction, old_limit, old_window = parse_bucket(text) end
    local full = ceil(limit.whole_size * limit.window / limit.limit)
    -- A bucket owes at most one window, or itself if that is more. The fraction counts: a debt that is
    -- rounded up is one call more under the next rule.
    local most = math.max(limit.whole_size, limit.whole) * limit.window
    local latest, part = now + floor(most / limit.limit), most % limit.limit
    if not us then
        limit.us, limit.fraction = now, 0
        local charges = text and counted(text)
        if charges then
            limit.us, limit.repaired = 0, true
            for i = 1, #charges, 2 do
                if limit.us < charges[i] then limit.us, limit.fraction = charges[i], 0 end
                spend(limit, charges[i + 1])
            end
            if limit.us >= latest then limit.us, limit.fraction = latest, part end
        elseif text or limit.poisoned then
            limit.us = now + unreadable(limit, full)
        end
        us, fraction = limit.us, limit.fraction
    elseif us > now and (old_limit ~= limit.limit or old_window ~= limit.window) then
        local spent = (us - now) * old_limit + fraction
        -- Whole calls and the rest apart: their product with a window may be too large to be exact.
        local rest = spent % old_window
        spent = (spent - rest) / old_window * limit.window + ceil(rest * limit.window / old_window)
        us, fraction = now + floor(spent / limit.limit), spent % limit.limit
    end
    if us < now then us, fraction = now, 0 end
    -- Far ahead: written with a clock that was ahead, or with a larger burst. After a small step back of
    -- the clock, the bucket waits instead.
    if us > latest + full + 1000000 then limit.repaired, us, fraction = true, latest, part end
    limit.us, limit.fraction = us, fraction
end

local function read_period(limit, text)
    -- The pod computed the period from an estimate of this clock, which can be wrong at the edges.
    limit.outside = now < limit.window or now >= limit.size
    limit.count = 0
    local began, spent
    if text then began, spent = parse_period(text) end
    if began == limit.window then
        limit.count = spent
    elseif began then
        if began < limit.size and (began > limit.window or ends(limit) > limit.window) then
            limit.count, limit.repaired = spent, true
        end
    else
        local charges = text and counted(text)
        if charges then
            limit.repaired = true
            for i = 1, #charges, 2 do
                if charges[i] >= limit.window then limit.count = limit.count + charges[i + 1] end
            end
        elseif text or limit.poisoned then
            limit.count = unreadable(limit, limit.whole)
        end
    end
end

local function read_slots(limit, text)
    limit.count, limit.tokens = 0, {}
    if text and counted(text) then
        limit.repaired = true
    else
        local taken = redis.pcall('ZCOUNT', limit.key, '(' .. string.format('%d', now), '+inf')
        limit.count = type(taken) == 'number' and taken or unreadable(limit, limit.whole)
    end
end

local function read_limit(limit, text)
    if limit.algorithm == CONCURRENCY then return read_slots(limit, text) end
    -- MGET returns nothing for a key of another type. For a lenient limit that is the same as no key, and
    -- so are slots for every limit: how many calls are in progress says nothing of a rate.
    local kind = not text and not limit.lenient and redis.call('TYPE', limit.key).ok
    limit.poisoned = kind and kind ~= 'none' and kind ~= 'zset'
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
    local wait = ceil((spent - (limit.size - cost) * limit.window) / limit.limit)
    -- A ramp ends long before a part of the limit has paid what the whole owes. A call that is larger than the
    -- part waits as long as the whole needs for it. With a shorter wait, its caller would ask all the time.
    local due = cost > limit.size and math.max(spent, cost * limit.window) or spent
    if limit.limit < limit.whole then wait = math.min(wait, ceil(due / limit.whole)) end
    return math.max(1, wait)
end

-- A key expires when it has no effect any more.
local function write_limit(limit)
    local ring = limit.ring
    if ring then
        redis.call('SET', limit.key, ring_text(ring), 'PX', ceil(ring[1] * (limit.size + 2) / 1000))
    elseif limit.algorithm == FIXED_WINDOW then
        local text = string.format('%d', limit.window) .. ' ' .. string.format('%d', limit.count)
        redis.call('SET', limit.key, text, 'PX', math.max(1, ceil((limit.size - now) / 1000) + 1000))
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
