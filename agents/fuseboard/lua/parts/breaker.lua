-- Inserted into decide.lua, for a breaker that may have changed: what override and breaker say now.
-- Decides, but writes nothing. `write_guard` writes, once it is known which calls may be made.
-- docs/breakers.md has the table of all states.

-- insert breaker_text

local probes, open_max, slow_start, server = asked[4], asked[6], asked[7], asked[8]
local before, forget
local mode, expires = read_override(texts[1])
breaker = read_breaker(texts[2])
if not breaker then
    breaker = { generation = 0, attempt = 0 }
    before = 'missing'
    move(breaker, 'closed', asked[10] > 0 and 'lost' or 'new', 0, now)
elseif breaker.cause == 'new' and asked[10] > 0 and breaker.generation ~= asked[10] then
    -- Made for a pod that did not know the earlier one.
    before, breaker.cause = 'missing', 'lost'
end
if breaker.cause == 'lost' then lost_since = breaker.since end
if mode and expires > now then
    if mode == 'forced_open' then
        verdict, wait = FORCED_OPEN, expires - now
    else
        verdict = BYPASS
    end
else
    if mode and mode ~= 'forced_open' and breaker.generation < expires then
        -- The override has expired: what was counted under it must not trip the breaker.
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
            -- A later expiry than possible is garbage, and must not take a permit forever.
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
        -- From a tenth to all of the traffic: waiting callers must not all come back at once.
        part = 0.1 + 0.9 * max(0, now - breaker.since) / slow_start
    end
end
local cool = tonumber(texts[3] and string.match(texts[3], '^%d+$'))
-- The vendor asked not to be called. That applies under an override too, like its limits. More than
-- an hour is garbage.
if cool and cool > now and cool <= now + 3600000000 and
    (verdict == ADMITS or verdict == PROBES or verdict == BYPASS) then
    verdict, wait = COOLING_DOWN, cool - now
end
generation = breaker.generation
if verdict == ADMITS and not texts[1] and not texts[3] and not part then
    if not before then rest = texts[2] elseif breaker.cause == 'lost' then rest = 'lost' end
end

function write_guard()
    if verdict == PROBES or before then
        write_breaker(KEYS[2], breaker)
        if forget then redis.call('DEL', KEYS[#KEYS - 2], KEYS[#KEYS - 1]) end
        if before and before ~= 'missing' then append_transition(KEYS[#KEYS], before, breaker, '', server, now) end
    end
end
