#!lua
-- May these calls be made now? Override, breaker and every limit of one domain in one answer.
--
-- Invariant: all or nothing. Everything is checked before anything is written; a call that is
-- refused consumes nothing, and a batch in which every call is refused leaves every readable key
-- as it was. A batch that arrives after `not_after` charges nothing.
--
-- KEYS  guarded: 1 override  2 breaker  3 cooldown  4 outcomes  5 evidence  6 transitions, then
--       the limits; not guarded: the limits alone
-- ARGV  1 msgpack of one flat array (one word of many numbers costs a tenth of as many words):
--       not_after    store time in us after which nothing may be charged; 0 for no such time
--       token        prefix of permits and slots, unique to this batch; no spaces, no '='
--       guarded      1 when the domain is a dependency and has a breaker, else 0
--       only when guarded:
--         probes       half-open permits that may exist at once
--         lease        us a permit lives
--         open_max     us a breaker may stay open; a longer time in the key is garbage
--         slow_start   us in which a breaker that closed lets traffic grow back; 0 at once
--         server       who asks, for the history
--       rules        how many; then for each:
--         algorithm    1 sliding window  2 token bucket  3 fixed window  4 concurrency
--         limit        of calls (or of what they cost) per window, or at once; at least 1
--         window       us; fixed window: store time at which the period began; concurrency: lease
--         size         sliding window: sub-buckets; bucket: burst; fixed window: the period's end
--         shadow       1: count, never refuse
--         lenient      1: what cannot be read counts as unspent, else as spent
--       limits       how many; then for each key of a limit the number of its rule
--       groups       of like calls, most important first; for each:
--         class count  groups of one class share what is scarce; this many calls
--         n            then n times: the index of a limit that binds them, and their cost to it
-- Returns msgpack of an array of integers
--   verdict      0 admits  1 half-open: what is granted are probes  2 open  3 all probes busy
--                4 forced open  5 an override admits  6 too late  7 cooling down  8 slow start
--   generation   of the breaker; 0 when not guarded
--   wait         us until asking again can help, when the verdict refuses; else 0
--   now          store time in us
--   when there was enough for all: per limit, what is left. Otherwise:
--   per group    granted, the limit that refused the rest (0 none, -1 the breaker), its wait in us
--   per limit    left, calls a shadow limit would have refused, 1 if unreadable
-- Granted calls are numbered over the groups in order; the token of call n is `token.n`.
--
-- Token bucket: GCRA in exact rational arithmetic; four doubles us, fraction, limit, window hold the
-- theoretical arrival time us + fraction/limit; spent calls survive a change of the limit.
-- Sliding window: a ring of size + 1 sub-buckets, the oldest counted in full, so that any window
-- is covered; doubles width, head, sum, counts.... Fixed window: the text `began spent`.
-- Concurrency: a ZSET of tokens by the end of their lease.

local time = redis.call('TIME')
local now = time[1] * 1000000 + time[2]

-- insert breaker_text
-- insert limits

local ADMITS, PROBES, OPEN, PROBE_BUSY, FORCED_OPEN, BYPASS, LATE = 0, 1, 2, 3, 4, 5, 6
local COOLING_DOWN, SLOW_START = 7, 8
local min, max = math.min, math.max

local asked = cmsgpack.unpack(ARGV[1])
local not_after, token, guarded = asked[1], asked[2], asked[3] == 1
if not_after > 0 and now > not_after then return cmsgpack.pack({ LATE, 0, 0, now }) end

local probes, lease, open_max, slow_start, server = asked[4], asked[5], asked[6], asked[7], asked[8]
local first_limit = guarded and 7 or 1
-- Where the rules begin, the limits, and the groups.
local rules_at = guarded and 10 or 5
local limits_at = rules_at + 6 * asked[rules_at - 1] + 1
local groups_at = limits_at + asked[limits_at - 1]

-- Read everything the decision needs in one command. MGET answers nil for a key of another type.
local wanted = {}
if guarded then wanted[1], wanted[2], wanted[3] = KEYS[1], KEYS[2], KEYS[3] end
for i = first_limit, #KEYS do wanted[#wanted + 1] = KEYS[i] end
local texts = #wanted > 0 and redis.call('MGET', unpack(wanted)) or {}

-- 1. Override and breaker: decide, write nothing.
local verdict, wait, slots, soonest, breaker, before, forget, part = ADMITS, 0, nil, nil, nil, nil, false, nil
if guarded then
    local mode, expires = read_override(texts[1])
    breaker = read_breaker(texts[2])
    if not breaker then
        breaker = { generation = 0, attempt = 0 }
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
        elseif breaker.state == 'closed' and breaker.cause == 'probes_passed' and now - breaker.since < slow_start then
            -- From a tenth to all of the traffic: whoever waited must not come back at once.
            part = 0.1 + 0.9 * max(0, now - breaker.since) / slow_start
        end
    end
    local cool = tonumber(texts[3] and string.match(texts[3], '^%d+$'))
    -- The vendor asked for quiet. That binds under a hold too, as its limits do; a longer time
    -- than an hour is garbage.
    if cool and cool > now and cool <= now + 3600000000 and
        (verdict == ADMITS or verdict == PROBES or verdict == BYPASS) then
        verdict, wait = COOLING_DOWN, cool - now
    end
end
local admitting = verdict == ADMITS or verdict == PROBES or verdict == BYPASS

-- 2. The limits as they stand.
local limits = {}
for i = 1, groups_at - limits_at do
    local rule = rules_at + 6 * (asked[limits_at + i - 1] - 1)
    local limit = new_limit(KEYS[first_limit + i - 1], asked, rule)
    if admitting then
        read_limit(limit, texts[(guarded and 3 or 0) + i])
        if limit.outside then return cmsgpack.pack({ LATE, 0, 0, now }) end
    end
    limits[i] = limit
end

-- Writes what the breaker has become.
local function write_guard()
    if verdict == PROBES or before then
        write_breaker(KEYS[2], breaker)
        if forget then redis.call('DEL', KEYS[4], KEYS[5]) end
        if before and before ~= 'missing' then append_transition(KEYS[6], before, breaker, '', server, now) end
    end
end

-- Nearly always there is enough for everybody. Then there is nothing to share out or to refuse, and
-- no need to know who wanted what.
if admitting and not slots and not part then
    local at = groups_at
    while asked[at] do
        local count = asked[at + 1]
        for j = at + 3, at + 1 + 2 * asked[at + 2], 2 do
            local limit = limits[asked[j]]
            limit.wanted = limit.wanted + count * asked[j + 1]
        end
        at = at + 3 + 2 * asked[at + 2]
    end
    local reply, enough = { verdict, breaker and breaker.generation or 0, 0, now }, true
    for i, limit in ipairs(limits) do
        local left = room(limit, 1) - limit.wanted
        reply[4 + i] = left
        if left < 0 or limit.tokens or limit.unreadable then enough = false break end
    end
    if enough then
        for _, limit in ipairs(limits) do
            spend(limit, limit.wanted)
            write_limit(limit)
        end
        if guarded then write_guard() end
        return cmsgpack.pack(reply)
    end
end

local groups, at = {}, groups_at
while asked[at] do
    local count, n = asked[at + 1], asked[at + 2]
    local group = {
        class = asked[at], count = count, need = admitting and count or 0, granted = 0, blocked = 0, wait = 0,
        limits = {}, costs = {}, first = 0,
    }
    if part then
        -- Which calls pass is decided by the digits of the clock: even, and the same when replayed.
        local passing = floor(count * part + (now % 1000) / 1000)
        if passing < group.need then
            group.need, group.blocked, group.wait, verdict = passing, -1, 100000, SLOW_START
        end
    end
    if not admitting then group.blocked, group.wait = -1, wait end
    for j = 1, n do
        group.limits[j], group.costs[j] = limits[asked[at + 1 + 2 * j]], asked[at + 2 + 2 * j]
    end
    groups[#groups + 1] = group
    at = at + 3 + 2 * n
end

-- 3. Grant class by class; within one, in rounds of equal shares of whatever is scarce. Spending
-- happens on the copies read above.
local function fits(group)
    local most = slots or group.need
    for j, limit in ipairs(group.limits) do
        if not limit.shadow then most = min(most, room(limit, group.costs[j])) end
    end
    return most
end

local function grant(group, calls)
    for j, limit in ipairs(group.limits) do
        local counted = calls
        if limit.shadow then
            counted = min(calls, max(0, room(limit, group.costs[j])))
            limit.refused = (limit.refused or 0) + calls - counted
        end
        if counted > 0 then spend(limit, counted * group.costs[j]) end
    end
    group.granted, group.need = group.granted + calls, group.need - calls
    if slots then slots = slots - calls end
end

local position = 1
while admitting and position <= #groups do
    local last = position
    while groups[last + 1] and groups[last + 1].class == groups[position].class do last = last + 1 end
    repeat
        local contenders = 0
        for i = position, last do
            if groups[i].need > 0 and fits(groups[i]) > 0 then contenders = contenders + 1 end
        end
        local progress = false
        local shares = {}
        for i = position, last do
            -- Of what is there at the start of the round; one call at least, in order of arrival.
            shares[i] = contenders > 1 and max(1, floor(fits(groups[i]) / contenders)) or groups[i].need
        end
        for i = position, last do
            local calls = min(groups[i].need, shares[i], fits(groups[i]))
            if calls > 0 then
                grant(groups[i], calls)
                progress = true
            end
        end
    until not progress
    position = last + 1
end

local reply = { verdict, breaker and breaker.generation or 0, wait, now }
local granted_total = 0
for _, group in ipairs(groups) do
    if group.need > 0 then
        if slots and slots <= 0 then
            group.blocked, group.wait = -1, (soonest or now + lease) - now
        else
            local least, scarcest, its_cost = group.need, nil, nil
            for j, limit in ipairs(group.limits) do
                local left = limit.shadow and group.need or max(0, room(limit, group.costs[j]))
                if left < least then least, scarcest, its_cost = left, limit, group.costs[j] end
            end
            group.wait = wait_for(scarcest, its_cost)
            for index, limit in ipairs(limits) do
                if limit == scarcest then group.blocked = index break end
            end
        end
    end
    group.first = granted_total + 1
    granted_total = granted_total + group.granted
end
for _, group in ipairs(groups) do
    reply[#reply + 1] = group.granted
    reply[#reply + 1] = group.blocked
    reply[#reply + 1] = group.wait
end
for _, limit in ipairs(limits) do
    reply[#reply + 1] = admitting and max(0, room(limit, 1)) or 0
    reply[#reply + 1] = limit.refused or 0
    reply[#reply + 1] = limit.unreadable or 0
end

-- 4. Commit. What was repaired is written even when nothing was granted, or it would never heal.
for _, group in ipairs(groups) do
    for _, limit in ipairs(group.limits) do
        if limit.tokens then
            for n = group.first, group.first + group.granted - 1 do
                limit.tokens[#limit.tokens + 1] = token .. '.' .. whole(n)
            end
        end
    end
end
for _, limit in ipairs(limits) do
    if limit.spent or limit.repaired then write_limit(limit) end
end
if granted_total == 0 or not guarded then return cmsgpack.pack(reply) end
if verdict == PROBES then
    for i = 1, granted_total do
        breaker.permits[#breaker.permits + 1] = { token = token .. '.' .. whole(i), expires = now + lease }
    end
end
write_guard()
return cmsgpack.pack(reply)
