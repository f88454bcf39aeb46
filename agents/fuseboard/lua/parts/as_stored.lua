-- Inserted into scripts that correct counters, after limits.lua. A correction can arrive when the limit has
-- another rule already, or not yet. It then changes the counter as that rule keeps it: to convert the counter
-- back would lose the times of its calls.

-- Give the limit the rule that wrote the text.
local function take_rule(limit, text)
    local us, _, old_limit, old_window = parse_bucket(text)
    if us then
        -- A bucket does not say its burst.
        if limit.algorithm ~= TOKEN_BUCKET then limit.size, limit.whole_size = LARGEST, LARGEST end
        limit.algorithm, limit.limit, limit.window, limit.whole = TOKEN_BUCKET, old_limit, old_window, old_limit
        return
    end
    local began, ring = parse_period(text), parse_ring(text)
    if ring then
        limit.algorithm, limit.window, limit.size = SLIDING_WINDOW, ring[1] * (#ring - 4), #ring - 4
    elseif began and began ~= limit.window then
        local end_us = now + redis.call('PTTL', limit.key) * 1000 - 1000000
        -- A period that is over has no count any more, and the present one has none yet.
        if limit.algorithm ~= FIXED_WINDOW or end_us > now then
            limit.algorithm, limit.window, limit.size = FIXED_WINDOW, began, end_us
        end
    end
end

local function read_as_stored(limit, text)
    -- A bucket of another size is converted without a loss.
    local usual = text and #text == 32 and limit.algorithm == TOKEN_BUCKET
        or text and #text == 8 * limit.size + 32 and limit.algorithm == SLIDING_WINDOW
        and struct.unpack('>d', text) == ceil(limit.window / limit.size)
    if text and not usual then
        take_rule(limit, text)
    elseif not text and limit.algorithm ~= CONCURRENCY and redis.call('TYPE', limit.key).ok == 'zset' then
        limit.algorithm = CONCURRENCY
    end
    read_limit(limit, text)
end
