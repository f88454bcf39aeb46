#!lua
-- May these calls be made now? Override, breaker and every limit of one domain in one answer.
--
-- Invariant: all or nothing. Everything is checked before anything is written; a call that is
-- refused consumes nothing, and a batch in which every call is refused leaves every readable key
-- as it was. A batch that arrives after `not_after` charges nothing.
--
-- KEYS  guarded: 1 override  2 breaker  3 outcomes  4 evidence  5 transitions, then the limits
--       not guarded: the limits alone
-- ARGV  not_after    store time in us after which nothing may be charged; 0 for no such time
--       guarded      1 when the domain is a dependency and has a breaker, else 0
--       only when guarded:
--         probes       half-open permits that may exist at once
--         lease        us a permit lives
--         open_max     us a breaker may stay open; a longer time in the key is garbage
--         token        prefix of the permits' tokens, unique to this batch; no spaces, no '='
--         server       who asks, for the history
--       limits       how many; then for each:
--         algorithm    1 sliding window, 2 token bucket
--         limit        calls per window, at least 1
--         window       us
--         size         sliding window: sub-buckets; token bucket: burst
--         shadow       1: count, never refuse
--       groups       how many groups of like calls, most important first; then for each:
--         count cost   this many calls of this cost
--         n index...   the limits that bind them
-- Returns integers
--   verdict      0 admits  1 half-open: what is granted are probes  2 open  3 all probes busy
--                4 forced open  5 an override admits  6 too late
--   generation   of the breaker; 0 when not guarded
--   wait         us until asking again can help, when the verdict refuses; else 0
--   now          store time in us
--   per group    granted, the limit that refused the rest (0 none, -1 the breaker), its wait in us
--   per limit    calls of cost 1 left, calls a shadow limit would have refused, 1 if unreadable
--
-- Token bucket: GCRA in exact rational arithmetic. The text `us fraction limit window` holds the
-- theoretical arrival time us + fraction/limit; spent calls survive a change of the limit.
-- Sliding window: a ring of size + 1 sub-buckets, the oldest counted in full, so that any window
-- is covered; msgpack [width, head, sum, counts...].

local time = redis.call('TIME')
local now = time[1] * 1000000 + time[2]

-- insert breaker_text

local ADMITS, PROBES, OPEN, PROBE_BUSY, FORCED_OPEN, BYPASS, LATE = 0, 1, 2, 3, 4, 5, 6
local SLIDING_WINDOW = 1
local floor, ceil, min, max = math.floor, math.ceil, math.min, math.max

local cursor = 0
local function argument()
    cursor = cursor + 1
    return ARGV[cursor]
end
local function number()
    return tonumber(argument())
end

local not_after, guarded = number(), number() == 1
if not_after > 0 and now > not_after then return { LATE, 0, 0, now } end

local probes, lease, open_max, token, server, first_limit
if guarded then
    probes, lease, open_max, token, server, first_limit = number(), number(), number(), argument(), argument(), 6
else
    first_limit = 1
end

-- Read everything the decision needs in one command. MGET answers nil for a key of another type.
local wanted = {}
if guarded then wanted[1], wanted[2] = KEYS[1], KEYS[2] end
for i = first_limit, #KEYS do wanted[#wanted + 1] = KEYS[i] end
local texts = #wanted > 0 and redis.call('MGET', unpack(wanted)) or {}

-- 1. Override and breaker: decide, write nothing.
local verdict, wait, slots, soonest, breaker, before, forget = ADMITS, 0, nil, nil, nil, nil, false
if guarded then
    local mode, expires = read_override(texts[1])
    breaker = read_breaker(texts[2])
    if not breaker then
        breaker = { state = 'closed', generation = 0, till = 0, since = now, attempt = 0, successes = 0, cause = 'new', permits = {} }
        before = 'missing'
        move(breaker, 'closed', 'new', 0, now)
    end
    if mode and expires > now then
        if mode == 'forced_open' then
            verdict, wait = FORCED_OPEN, expires - now
        else
            verdict = BYPASS
        end
    else
        if mode and mode ~= 'forced_open' and breaker.generation < expires then
            -- The hold ended by itself: what was counted under it must not trip the breaker.
            before = breaker.state
            forget = mode ~= 'metrics_only'
            move(breaker, 'closed', 'override_expired', 0, now)
        end
        if breaker.state == 'open' then
            local longest = breaker.cause == 'forced' and 86400000000 or open_max
            if breaker.till > now + longest then breaker.till = breaker.since + longest end
            if now < breaker.till and breaker.till <= now + longest then
                verdict, wait = OPEN, breaker.till - now
            else
                before = 'open'
                move(breaker, 'half_open', 'open_time_over', 0, now)
            end
        end
        if breaker.state == 'half_open' then
            local live = {}
            for _, permit in ipairs(breaker.permits) do
                -- An expiry beyond any lease is garbage and must not hold a slot for ever.
                if permit.expires > now and permit.expires <= now + lease then
                    live[#live + 1] = permit
                    soonest = min(soonest or permit.expires, permit.expires)
                end
            end
            breaker.permits = live
            slots = probes - #live
            verdict, wait = PROBES, 0
            if slots <= 0 then verdict, wait = PROBE_BUSY, soonest - now end
        end
    end
end
local admitting = verdict == ADMITS or verdict == PROBES or verdict == BYPASS

-- 2. The limits as they stand.
local limits = {}
local total_limits = number()

local function read_ring(limit, text, missing)
    local width, size = limit.width, limit.size
    local index = floor(now / width)
    local ring, sum = nil, 0
    if text then
        local ok, stored = pcall(cmsgpack.unpack, text)
        local sane = ok and type(stored) == 'table' and #stored >= 4
        for i = 1, sane and #stored or 0 do
            local value = stored[i]
            sane = sane and type(value) == 'number' and value >= 0 and value == floor(value)
            if sane and i > 3 then sum = sum + value end
        end
        if not sane or sum ~= stored[3] then
            limit.unreadable, sum = 1, limit.limit
        elseif stored[1] == width and #stored == size + 4 and stored[2] <= index + size then
            ring = stored
        end
    elseif not missing then
        limit.unreadable, sum = 1, limit.limit
    end
    if not ring then
        -- New, unreadable, of another window, or from a clock far ahead: what is known to be
        -- spent counts as spent now, which can only refuse too much, and for one window.
        limit.repaired = text or not missing
        ring = { width, index, sum }
        for i = 0, size do ring[i + 4] = 0 end
        ring[index % (size + 1) + 4] = sum
    end
    local passed = index - ring[2]
    for step = 1, min(passed, size + 1) do
        local slot = (ring[2] + step) % (size + 1) + 4
        ring[3] = ring[3] - ring[slot]
        ring[slot] = 0
    end
    -- A clock that stepped back does not turn the ring back.
    ring[2] = max(ring[2], index)
    limit.ring = ring
end

local function read_bucket(limit, text, missing)
    local us, fraction, old_limit, old_window
    if text then
        us, fraction, old_limit, old_window = string.match(text, '^(%d+) (%d+) (%d+) (%d+)$')
        us, fraction, old_limit, old_window = tonumber(us), tonumber(fraction), tonumber(old_limit), tonumber(old_window)
    end
    local full = ceil(limit.size * limit.window / limit.limit)
    if not us or old_limit < 1 or old_window < 1 then
        us, fraction = now, 0
        if text or not missing then
            limit.unreadable, limit.repaired, us = 1, true, now + full
        end
    elseif us < now then
        us, fraction = now, 0
    elseif old_limit ~= limit.limit or old_window ~= limit.window then
        us, fraction = now + ceil((us - now) * old_limit / old_window * limit.window / limit.limit), 0
    end
    -- Far ahead of a full bucket: written under a clock that was ahead, or a larger burst. A clock
    -- that stepped back a little is waited for instead.
    if us - now > 2 * full + 1000000 then limit.repaired, us, fraction = true, now + full, 0 end
    limit.us, limit.fraction = us, fraction
end

for i = 1, total_limits do
    local limit = { key = KEYS[first_limit + i - 1], refused = 0, unreadable = 0, spent = false }
    limit.algorithm, limit.limit, limit.window, limit.size = number(), number(), number(), number()
    limit.shadow = number() == 1
    if admitting then
        local text = texts[(guarded and 2 or 0) + i]
        local missing = text or redis.call('TYPE', limit.key).ok == 'none'
        if limit.algorithm == SLIDING_WINDOW then
            limit.width = ceil(limit.window / limit.size)
            read_ring(limit, text, missing)
        else
            read_bucket(limit, text, missing)
        end
    end
    limits[i] = limit
end

-- How many calls of `cost` fit, and how long until one more would.
local function room(limit, cost)
    if limit.ring then return floor((limit.limit - limit.ring[3]) / cost) end
    local spent = (limit.us - now) * limit.limit + limit.fraction
    return floor((limit.size * limit.window - spent) / (cost * limit.window))
end

local function wait_for(limit, cost)
    local ring = limit.ring
    if not ring then
        local spent = (limit.us - now) * limit.limit + limit.fraction
        return max(1, ceil((spent - (limit.size - cost) * limit.window) / limit.limit))
    end
    local need, freed = ring[3] + cost - limit.limit, 0
    for index = ring[2] - limit.size, ring[2] do
        freed = freed + ring[index % (limit.size + 1) + 4]
        if freed >= need then return (index + limit.size + 1) * limit.width - now end
    end
    return limit.width * (limit.size + 1)
end

local function spend(limit, amount)
    limit.spent = true
    local ring = limit.ring
    if ring then
        local slot = ring[2] % (limit.size + 1) + 4
        ring[slot] = ring[slot] + amount
        ring[3] = ring[3] + amount
        return
    end
    local sum = limit.fraction + amount * limit.window
    limit.us = limit.us + floor(sum / limit.limit)
    limit.fraction = sum % limit.limit
end

-- 3. Grant in the order of importance; spending happens on the copies read above.
local reply = { verdict, breaker and breaker.generation or 0, wait, now }
local granted_total = 0
for _ = 1, number() do
    local count, cost, bound = number(), number(), {}
    for i = 1, number() do bound[i] = number() end
    local granted, blocked, group_wait = admitting and count or 0, 0, 0
    if not admitting then blocked, group_wait = -1, wait end
    if admitting and slots and granted > slots then
        granted, blocked, group_wait = slots, -1, (soonest or now + lease) - now
    end
    if admitting then
        for _, index in ipairs(bound) do
            local limit = limits[index]
            if not limit.shadow then
                local fits = max(0, room(limit, cost))
                if fits < granted then granted, blocked = fits, index end
            end
        end
        for _, index in ipairs(bound) do
            local limit = limits[index]
            local counted = granted
            if limit.shadow then
                counted = min(granted, max(0, room(limit, cost)))
                limit.refused = limit.refused + granted - counted
            end
            if counted > 0 then spend(limit, counted * cost) end
        end
        if blocked > 0 then group_wait = wait_for(limits[blocked], cost) end
        if slots then slots = slots - granted end
    end
    granted_total = granted_total + granted
    reply[#reply + 1] = granted
    reply[#reply + 1] = blocked
    reply[#reply + 1] = group_wait
end
for _, limit in ipairs(limits) do
    local left = admitting and room(limit, 1) or 0
    reply[#reply + 1] = max(0, left)
    reply[#reply + 1] = limit.refused
    reply[#reply + 1] = limit.unreadable
end

-- 4. Commit. What was repaired is written even when nothing was granted, or it would never heal.
for _, limit in ipairs(limits) do
    if limit.spent or limit.repaired then
        local ring = limit.ring
        if ring then
            redis.call('SET', limit.key, cmsgpack.pack(ring), 'PX', ceil(limit.width * (limit.size + 2) / 1000))
        else
            local text = whole(limit.us) .. ' ' .. whole(limit.fraction) .. ' ' .. whole(limit.limit) .. ' ' .. whole(limit.window)
            redis.call('SET', limit.key, text, 'PX', ceil((limit.us - now) / 1000) + 1)
        end
    end
end
if granted_total == 0 or not guarded then return reply end
if verdict == PROBES then
    for i = 1, granted_total do
        breaker.permits[#breaker.permits + 1] = { token = token .. '.' .. whole(i), expires = now + lease }
    end
end
if verdict == PROBES or before then
    write_breaker(KEYS[2], breaker)
    if forget then redis.call('DEL', KEYS[3], KEYS[4]) end
    if before and before ~= 'missing' then append_transition(KEYS[5], before, breaker, '', server, now) end
end
return reply
