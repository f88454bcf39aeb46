-- Inserted into limits.lua: what a counter says that another rule has written. A key is named by its limit,
-- but its text depends on the algorithm, the window and the period. What counts under the other rule at
-- this moment counts under the new one from then on. Only slots have no amount in common with the others.

-- A bucket is four doubles: us, fraction, limit, window.
local function parse_bucket(text)
    if #text ~= 32 then return end
    local us, fraction, limit, window = struct.unpack('>dddd', text)
    if us >= 0 and us <= LARGEST and fraction >= 0 and fraction <= limit and limit >= 1 and limit <= LARGEST
        and window >= 1 and window <= LARGEST then
        return us, fraction, limit, window
    end
end

-- A calendar period is the text `began spent`.
local function parse_period(text)
    local began, spent = string.match(text, '^(%d+) (%d+)$')
    began, spent = tonumber(began), tonumber(spent)
    if began and began <= LARGEST and spent <= LARGEST then return began, spent end
end

-- When the stored period ends. The text does not say it, but its key expires one second later. Half of
-- that second is for rounding.
local function ends(limit)
    return now + redis.call('PTTL', limit.key) * 1000 - 1500000
end

-- Returns what counts now under the rule that wrote the text: times and amounts in turn, oldest first.
-- A time is the latest at which the amount can have been spent. Returns nothing for garbage.
local function counted(text)
    local began, spent = parse_period(text)
    if began then return { now, spent } end
    local us, fraction, old_limit, old_window = parse_bucket(text)
    if us then
        spent = ceil(((us - now) * old_limit + fraction) / old_window)
        return { now, math.max(0, math.min(spent, LARGEST)) }
    end
    local ring, charges = parse_ring(text), {}
    if not ring then return end
    local width, size = ring[1], #ring - 4
    -- A sub-bucket after this moment was written with a clock that was ahead.
    local oldest = math.max(ring[2], floor(now / width)) - size
    for index = math.max(oldest, ring[2] - size), ring[2] do
        local amount = ring[index % (size + 1) + 4]
        if amount > 0 then
            charges[#charges + 1] = math.min(now, (index + 1) * width - 1)
            charges[#charges + 1] = amount
        end
    end
    return charges
end
