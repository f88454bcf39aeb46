-- Inserted into scripts that correct counters, after limits.lua. A correction can arrive when the limit has
-- another rule already, or not yet. It then changes the counter as that rule keeps it: to convert the counter
-- back would lose the times of its calls.

local function read_as_stored(limit, text)
    if text then
        local ring, began = parse_ring(text), parse_period(text)
        local us, _, old_limit, old_window = parse_bucket(text)
        if ring then
            limit.algorithm, limit.window, limit.size = SLIDING_WINDOW, ring[1] * (#ring - 4), #ring - 4
        elseif us then
            -- A bucket does not say its burst.
            if limit.algorithm ~= TOKEN_BUCKET then limit.size = LARGEST end
            limit.algorithm, limit.limit, limit.window = TOKEN_BUCKET, old_limit, old_window
        elseif began and began ~= limit.window then
            local end_us = now + redis.call('PTTL', limit.key) * 1000 - 1000000
            -- A period that is over has no count any more, and the present one has none yet.
            if limit.algorithm ~= FIXED_WINDOW or end_us > now then
                limit.algorithm, limit.window, limit.size = FIXED_WINDOW, began, end_us
            end
        end
    elseif redis.call('TYPE', limit.key).ok == 'zset' then
        limit.algorithm = CONCURRENCY
    end
    read_limit(limit, text)
end
