#!lua
-- Counts how calls to one dependency ended across the fleet, trips the breaker, and closes it.
-- docs/breakers.md has the table of all states.
--
-- Invariant: outcomes of an older generation change nothing. A half-open breaker changes only by
-- outcomes of permits that have not expired. A closed one trips only when enough servers saw
-- failures, of those that had any outcomes.
--
-- KEYS  1 override  2 breaker  3 cooldown  4 outcomes  5 evidence  6 transitions  7 cooldown claim
-- ARGV  server generation          the reporting pod, and the generation that admitted its calls
--       ok failure slow            outcomes of calls admitted while closed
--       tail                       failures since the last success among them
--       consecutive                trip after this many failures since the last success; 0 never
--       failure_percent slow_percent minimum_calls window_s     trip by ratio over the window
--       minimum_servers            that must have seen failures, if as many had outcomes
--       open open_max              us it stays open the first time, and at most
--       successes                  probes that close it
--       jitter                     0 to 100: open this many thousandths longer
--       cooldown                   us for which the vendor asked not to be called; 0 if it did not
--       channel name               where opening is published, and the name of the breaker there
--       [`window_calls` n]         optional, and no permit has this name: judge the ratios over the
--                                  newest seconds of the window that have n calls together
--       [token outcome]...         permits; outcome 0 neutral, 1 ok, 2 failed or slow; or, at least 1000,
--                                  the us for which a permit of a call that runs is renewed
-- Returns integers
--   change       0 none  1 tripped  2 reopened  3 closed  4 stale  5 would have tripped
--   state        0 closed  1 open  2 half-open
--   generation   that applies now
--   remaining    us until an open breaker may probe; else 0
--   now          store time in us
--   calls failures consecutive      in the window, or in those newest seconds; across the fleet
--
-- outcomes: msgpack [second, consecutive, calls failures slow, ...], three numbers per second.
-- evidence: HASH server -> `last_outcome_us last_failure_us`.
-- cooldown claim: `till witness`, the longest cooldown that was reported, and the pod that reported it.

local time = redis.call('TIME')
local now = time[1] * 1000000 + time[2]

-- insert breaker_text

local NONE, TRIPPED, REOPENED, CLOSED, STALE, WOULD_TRIP = 0, 1, 2, 3, 4, 5
local STATES = { closed = 0, open = 1, half_open = 2 }
local server, generation = ARGV[1], tonumber(ARGV[2])
local ok, failure, slow, tail = tonumber(ARGV[3]), tonumber(ARGV[4]), tonumber(ARGV[5]), tonumber(ARGV[6])
local consecutive_limit = tonumber(ARGV[7])
local failure_percent, slow_percent = tonumber(ARGV[8]), tonumber(ARGV[9])
local minimum_calls, window = tonumber(ARGV[10]), tonumber(ARGV[11])
local minimum_servers = tonumber(ARGV[12])
local open_first, open_max, successes_needed = tonumber(ARGV[13]), tonumber(ARGV[14]), tonumber(ARGV[15])
local jitter, cooldown = tonumber(ARGV[16]), tonumber(ARGV[17])
local window_calls = ARGV[20] == 'window_calls' and tonumber(ARGV[21]) or math.huge

local texts = redis.call('MGET', KEYS[1], KEYS[2])
local mode, expires = read_override(texts[1])
local overridden = mode and expires > now
local breaker = read_breaker(texts[2])
-- Loops run over the seconds of the window, and over permits for each outcome of a probe.
local before_probes = ARGV[20] == 'window_calls' and 21 or 19
local bounded = window >= 1 and window <= 3600 and #ARGV <= before_probes + 2 * 10000
assert(bounded, 'a window must have 1 to 3600 s, and a report at most 10000 probes')

-- The cooldown applies whatever happens to the outcomes. The longest one counts. One pod alone stops the
-- fleet for a minute at most; longer only for the time that a second pod, or a probe, has asked for too.
-- One claim is enough for that: the longest of the others is already in the cooldown.
if cooldown > 0 then
    local hour, minute = 3600000000, 60000000
    local asked, witness = now + math.min(cooldown, hour), server
    if breaker and breaker.state == 'half_open' and breaker.generation == generation then
        for i = before_probes + 1, #ARGV, 2 do
            for _, permit in ipairs(breaker.permits) do
                local ended = permit.token == ARGV[i] and tonumber(ARGV[i + 1]) < 1000
                if ended and permit.expires > now then witness = server .. ' probe' end
            end
        end
    end
    local stored = redis.call('MGET', KEYS[3], KEYS[7])
    local standing = tonumber(stored[1] and string.match(stored[1], '^%d+$')) or 0
    local till, first = string.match(stored[2] or '', '^(%d+) (.+)$')
    till = tonumber(till) or 0
    if till > now + hour then till = 0 end
    local sure = math.min(asked, now + minute)
    if first ~= witness then sure = math.max(sure, math.min(asked, till)) end
    if sure > standing or standing > now + hour then
        redis.call('SET', KEYS[3], whole(sure), 'PX', math.ceil((sure - now) / 1000) + 1)
    end
    if asked > till then
        redis.call('SET', KEYS[7], whole(asked) .. ' ' .. witness, 'PX', math.ceil((asked - now) / 1000) + 1)
    end
end

local calls, failures, consecutive = 0, 0, 0
local function answer(change)
    local remaining = 0
    if breaker and breaker.state == 'open' then remaining = math.max(0, breaker.till - now) end
    local state = breaker and STATES[breaker.state] or 0
    return { change, state, breaker and breaker.generation or 0, remaining, now, calls, failures, consecutive }
end

if not breaker or breaker.generation ~= generation then return answer(STALE) end
-- An override that expired starts a new generation with the next admission.
if mode and not overridden and mode ~= 'forced_open' and generation < expires then return answer(STALE) end
if overridden and (mode == 'disabled' or mode == 'forced_open') then return answer(NONE) end

local function change_state(state, cause, till, ...)
    local from = breaker.state
    move(breaker, state, cause, till, now)
    write_breaker(KEYS[2], breaker)
    redis.call('DEL', KEYS[4], KEYS[5])
    append_transition(KEYS[6], from, breaker, '', server, now, ...)
end

local function open(cause, ...)
    -- Backs off while recoveries fail, and starts again after ten open times without a trip.
    if breaker.state == 'closed' and now - breaker.since > 10 * open_first then breaker.attempt = 0 end
    local length = math.min(open_max, open_first * 2 ^ math.min(breaker.attempt, 20))
    breaker.attempt = breaker.attempt + 1
    length = math.floor(length * (1000 + jitter) / 1000)
    change_state('open', cause, now + length, ...)
    -- Pods with fleet leases rarely ask. This is a hint: a pod that misses it learns it with its next lease.
    redis.pcall('PUBLISH', ARGV[18], ARGV[19] .. ' ' .. whole(breaker.generation) .. ' ' .. whole(length))
end

if breaker.state == 'open' then return answer(NONE) end

if breaker.state == 'half_open' then
    local changed = false
    for i = 20, #ARGV, 2 do
        for at, permit in ipairs(breaker.permits) do
            if permit.token == ARGV[i] then
                changed = true
                local renewed = tonumber(ARGV[i + 1])
                if renewed >= 1000 then
                    if permit.expires > now then permit.expires = now + renewed end
                    break
                end
                table.remove(breaker.permits, at)
                local outcome = permit.expires > now and ARGV[i + 1] or '0'
                if outcome == '2' then
                    open('probe_failed')
                    return answer(REOPENED)
                elseif outcome == '1' then
                    breaker.successes = breaker.successes + 1
                end
                break
            end
        end
    end
    if breaker.successes >= successes_needed then
        change_state('closed', 'probes_passed', 0)
        return answer(CLOSED)
    end
    if changed then write_breaker(KEYS[2], breaker) end
    return answer(NONE)
end

-- Closed: count.
local second = math.floor(now / 1000000)
local text = redis.call('MGET', KEYS[4])[1]
local good, ring = false, nil
if text then
    good, ring = pcall(cmsgpack.unpack, text)
    good = good and type(ring) == 'table' and #ring == 2 + 3 * window
    for i = 1, good and #ring or 0 do good = good and type(ring[i]) == 'number' end
    -- From a clock far ahead: its seconds would never end.
    good = good and ring[1] <= second + window
end
if not good then
    ring = { second, 0 }
    for i = 1, 3 * window do ring[2 + i] = 0 end
end
for step = 1, math.min(math.max(0, second - ring[1]), window) do
    local slot = ((ring[1] + step) % window) * 3 + 3
    ring[slot], ring[slot + 1], ring[slot + 2] = 0, 0, 0
end
ring[1] = math.max(ring[1], second)
local slot = (ring[1] % window) * 3 + 3
ring[slot] = ring[slot] + ok + failure + slow
ring[slot + 1] = ring[slot + 1] + failure
ring[slot + 2] = ring[slot + 2] + slow
ring[2] = (ok > 0) and tail or ring[2] + tail
consecutive = ring[2]
local slow_calls = 0
for back = 0, window - 1 do
    local i = ((ring[1] - back) % window) * 3 + 3
    calls, failures, slow_calls = calls + ring[i], failures + ring[i + 1], slow_calls + ring[i + 2]
    if calls >= window_calls then break end
end

if ok + failure + slow > 0 then
    redis.call('SET', KEYS[4], cmsgpack.pack(ring), 'PX', window * 1000 + 1000)
    local known = redis.pcall('HGET', KEYS[5], server)
    if type(known) == 'table' then
        redis.call('DEL', KEYS[5])
        known = nil
    end
    local last_failure = known and string.match(known, '^%d+ (%d+)$') or '0'
    if failure + slow > 0 then last_failure = whole(now) end
    redis.call('HSET', KEYS[5], server, whole(now) .. ' ' .. last_failure)
    redis.call('PEXPIRE', KEYS[5], window * 1000 + 1000)
end

local cause, threshold = nil, nil
if failure + slow > 0 then
    if consecutive_limit > 0 and consecutive >= consecutive_limit then
        cause, threshold = 'consecutive', consecutive_limit
    elseif calls >= minimum_calls and failures * 100 >= failure_percent * calls then
        cause, threshold = 'ratio', failure_percent
    elseif calls >= minimum_calls and slow_calls * 100 >= slow_percent * calls then
        cause, threshold = 'slow', slow_percent
    end
end
if not cause then return answer(NONE) end

-- One bad node must not stop a vendor for all. Its own breaker protects that node.
local with_outcomes, with_failures, since, old = 0, 0, now - window * 1000000, {}
local evidence = redis.call('HGETALL', KEYS[5])
for i = 1, #evidence, 2 do
    local any, bad = string.match(evidence[i + 1], '^(%d+) (%d+)$')
    if any and tonumber(any) > since then
        with_outcomes = with_outcomes + 1
        if tonumber(bad) > since then with_failures = with_failures + 1 end
    else
        old[#old + 1] = evidence[i]
    end
end
if #old > 0 then redis.call('HDEL', KEYS[5], unpack(old)) end
if with_failures < math.min(minimum_servers, with_outcomes) then return answer(NONE) end
if overridden then return answer(WOULD_TRIP) end
local seen_calls, seen_failures, seen_consecutive = calls, failures, consecutive
open(cause, 'calls', whole(calls), 'failures', whole(failures), 'slow', whole(slow_calls),
    'consecutive', whole(consecutive), 'threshold', whole(threshold))
calls, failures, consecutive = seen_calls, seen_failures, seen_consecutive
return answer(TRIPPED)
