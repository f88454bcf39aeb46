#!lua
-- How much of a limit does the vendor really allow? Adds what one pod saw since its last report. When a tick is
-- over, decides once for all pods: the script is the one writer, so it needs no leader.
--
-- Invariant: floor <= followed <= ceiling. At most one step per tick, however many pods report. One pod alone, of
-- several, moves nothing: the one with the most refusals counts as many as the second one, the calls of each count
-- at most twice what the others make on average, and a stated number counts when two pods and half of them agree on it.
-- A pod is not the only one because the others have not reported in this tick: what it saw waits for their reports.
-- What cannot be read counts as never learned.
--
-- A pool of own machines refuses nothing: its queue grows. So with `rise` above 0, the limit falls, too, when calls
-- take longer than their lowest time and this part of it. The lowest time is not that of the last minutes, which
-- would rise with the queue. If calls have not been near it for ten minutes, the limit is lowered shortly, until the
-- queue is empty, and what calls take then is the lowest time.
--
-- KEYS  learned, slots: the counter of a limit of calls at once
-- ARGV  1 server   the reporting pod
--       2 asked    calls that it wanted to make since its last report
--       3 sent     calls that it made
--       4 refused  calls that the vendor refused because of a limit
--       5 stated   the vendor's own number for the limit, 0 for unknown
--       6 ceiling  the configured limit
--       7 floor    the lowest limit, at least 1
--       8 tick     us
--       9 took     us, the median of the pod's calls since its last report, 0 for unknown
--       10 rise    percent; 0 for not by time
-- Returns integers: followed, generation (rises when followed changes), steps so far, the cause of the last change
--       (0 none  1 stated by the vendor  2 refusals  3 room again  4 calls take longer  5 to measure the lowest
--       time), share of refusals in that step in 1/10,000, the lowest time and the present one in us, 0 for unknown

local time = redis.call('TIME')
local now = time[1] * 1000000 + time[2]

local floor, ceil, min, max = math.floor, math.ceil, math.min, math.max
local LARGEST = 9007199254740991
-- Shares of refusals: above the first, the limit falls; below the second, it rises.
local TOO_MANY, FEW = 0.01, 0.005
local MOST_DOWN = 0.3
-- Ticks: of the window in which refusals count, without another fall, to come back, in which a number counts.
local WINDOW, HELD, BACK, HEARD = 6, 2, 18, 60
-- Pods that are told apart: calls wanted, made, refused; the stated number; when it reported, heard the number, and
-- reported calls.
-- The other pods of a large fleet see the same vendor.
local MOST_SERVERS = 200
-- Ticks: for which the time of a pod counts at least, until the lowest time is measured again, in which that must end.
local RECENT, STALE, PROBE = 2, 120, 24
-- The most that the limit rises by time in a tick; the part of the limit without a queue that is used to measure.
local MOST_UP, QUIET = 0.1, 0.8

local server, ceiling = ARGV[1], tonumber(ARGV[6])
local lowest, tick = min(ceiling, tonumber(ARGV[7])), tonumber(ARGV[8])
local took, rise = tonumber(ARGV[9]), 1 + tonumber(ARGV[10]) / 100
local by_time = rise > 1

local function is_number(value)
    return type(value) == 'number' and value == value and value >= 0 and value <= LARGEST
end

local function length(pods)
    local number = 0
    for _ in pairs(pods) do number = number + 1 end
    return number
end

local NUMBERS = {
    'next', 'limit', 'bound', 'was', 'fell', 'at', 'held', 'why', 'share', 'generation', 'steps',
}

-- base: the lowest time; near: when calls were last near it; before: the time one step ago; ends: of a measurement, 0
-- for none; held: until then, nothing moves by time; at: the last report of a pod that follows the time.
local TIMES = { 'base', 'near', 'present', 'before', 'ends', 'held', 'at' }

local function read_times(t)
    local good = type(t) == 'table' and type(t.pods) == 'table' and length(t.pods) <= MOST_SERVERS
    for _, name in ipairs(TIMES) do good = good and is_number(t[name]) end
    if not good then return { base = 0, near = now, present = 0, before = 0, ends = 0, held = 0, at = 0, pods = {} } end
    for name, pod in pairs(t.pods) do
        local known = type(name) == 'string' and type(pod) == 'table'
        if known and is_number(pod[1]) and pod[1] >= 1 and is_number(pod[2]) then
            pod[2] = min(pod[2], now)
        else
            t.pods[name] = nil
        end
    end
    t.near, t.ends, t.held = min(t.near, now), min(t.ends, now + PROBE * tick), min(t.held, now + PROBE * tick)
    t.at = min(t.at, now)
    return t
end

-- Every field is checked, so that no text in the key can raise an error or leave the bounds.
local function read(text)
    local good, s = pcall(cmsgpack.unpack, text or '')
    good = good and type(s) == 'table' and type(s.pods) == 'table' and type(s.window) == 'table'
    -- A long text must not keep Redis busy.
    good = good and #s.window <= WINDOW and length(s.pods) <= MOST_SERVERS
    for _, name in ipairs(NUMBERS) do good = good and is_number(s[name]) end
    if not good then
        s = {
            next = now + tick, limit = ceiling, bound = ceiling, was = 0, fell = 0, at = 0, held = 0, why = 0,
            share = 0, generation = 0, steps = 0, pods = {}, window = {},
        }
    end
    for name, pod in pairs(s.pods) do
        local known = type(name) == 'string' and type(pod) == 'table' and #pod == 7
        for i = 1, 7 do known = known and is_number(pod[i]) end
        if known then
            for i = 5, 7 do pod[i] = min(pod[i], now) end
        else
            s.pods[name] = nil
        end
    end
    for i = #s.window, 1, -1 do
        local one = s.window[i]
        if type(one) ~= 'table' or not is_number(one[1]) or not is_number(one[2]) then table.remove(s.window, i) end
    end
    -- After a failover, the clock may be behind.
    s.next, s.held = min(s.next, now + tick), min(s.held, now + HELD * tick)
    s.at = min(s.at, now)
    -- A pod with an older configuration does not end what the others have measured.
    local times = (by_time or s.times) and read_times(s.times)
    if by_time then times.at = now end
    s.times = times and now - times.at <= HEARD * tick and times or nil
    return s
end

-- The number that most pods have heard lately; the ceiling if they do not agree. One pod alone is believed only if
-- no other one makes calls: those hear none.
local function stated(s)
    local votes, pods, silent, most, number = {}, 0, 0, 0, ceiling
    for _, pod in pairs(s.pods) do
        if pod[4] > 0 and now - pod[6] <= HEARD * tick then
            pods = pods + 1
            local count = (votes[pod[4]] or 0) + 1
            votes[pod[4]] = count
            if count > most or count == most and pod[4] < number then most, number = count, pod[4] end
        elseif pod[7] > 0 and now - pod[7] <= HEARD * tick then
            silent = silent + 1
        end
    end
    local agreed = pods == 1 and silent == 0 or most >= 2 and 2 * most >= pods
    return agreed and number or ceiling
end

-- Pods that have lately made calls.
local function calling(s)
    local number = 0
    for _, pod in pairs(s.pods) do
        if pod[7] > 0 and now - pod[7] <= WINDOW * tick then number = number + 1 end
    end
    return number
end

-- The number that applies: less than the limit while the lowest time is measured.
local function applied(s)
    local t = s.times
    if not by_time or t.ends == 0 then return floor(s.limit) end
    return floor(max(lowest, t.base > 0 and s.limit * QUIET / rise or 0))
end

-- Whether the time of a pod counts. Few calls are made while the lowest time is measured, and long ones end seldom:
-- their times count until the next ones can have ended. A time from before the measurement does not last until its end.
local function counts(t, pod)
    local longer = t.ends > 0 and min(PROBE * tick / 2, 2 * pod[1]) or 0
    return now - pod[2] <= max(RECENT * tick, longer)
end

-- The time of the pod in the middle. Of two pods, the faster one says that calls take long, and the slower one
-- that they are fast: one of them alone moves nothing.
local function middle(s)
    local times = {}
    for _, pod in pairs(s.times.pods) do
        if counts(s.times, pod) then times[#times + 1] = pod[1] end
    end
    if #times == 0 or #times == 1 and calling(s) > 1 then return 0, 0 end
    table.sort(times)
    return times[ceil(#times / 2)], times[floor(#times / 2) + 1]
end

-- The factor by which calls may take longer than now: below 1, they take too long. Nothing if that is unknown, or
-- is being measured.
local function slack(s)
    local t = s.times
    local fast, slow = middle(s)
    local lately = max(slow, t.before)
    t.present, t.before = fast, t.ends > 0 and slow == 0 and t.before or slow
    if t.ends > 0 then
        if now < t.ends then return end
        -- No call has ended lately: else the next one would begin another measurement, again and again.
        if slow == 0 then slow = t.base > 0 and t.base or t.before end
        t.base, t.near, t.ends, t.held, s.why = slow, now, 0, now + tick + slow, 3
    elseif slow > 0 then
        t.base = min(t.base, lately)
        -- First: calls may be fast again after a pause.
        if slow <= t.base * (1 + rise) / 2 then t.near = now end
        if not (t.base == 0 or now - t.near > STALE * tick and s.limit < ceiling) then return rise * t.base / fast end
        t.ends, s.why = now + min(PROBE * tick, 2 * tick + 3 * slow), 5
    end
end

-- Whether the limit binds, calls that were made and refused in this tick, and whether they wait for other reports.
local function count(s)
    local names, all = {}, 0
    for name, pod in pairs(s.pods) do
        if pod[2] > 0 then
            names[#names + 1] = name
            all = all + pod[2]
        end
    end
    -- Always in one order: the same reports give the same limit.
    table.sort(names)
    local asked, sent, refused, worst, second = 0, 0, 0, 0, 0
    for _, name in ipairs(names) do
        local pod = s.pods[name]
        local most = #names > 1 and 2 * (all - pod[2]) / (#names - 1) or pod[2]
        local part = min(1, most / pod[2])
        local bad = min(pod[3], pod[2]) * part
        asked, sent, refused = asked + pod[1] * part, sent + pod[2] * part, refused + bad
        if bad > worst then worst, second = bad, worst else second = max(second, bad) end
    end
    local binds = asked > 1.02 * sent
    if #names > 1 then refused = refused - worst + second end
    return binds, sent, refused, #names == 1 and calling(s) > 1
end

-- Calls in progress.
local function in_use()
    local number = redis.pcall('ZCOUNT', KEYS[2], '(' .. string.format('%d', now), '+inf')
    return type(number) == 'number' and number or 0
end

local function step(s)
    local before, bound = applied(s), max(lowest, min(ceiling, stated(s)))
    local binds, made, bad, waits = count(s)
    local room, used = by_time and slack(s), by_time and in_use() or 0
    local full = room and used >= floor(s.limit)
    -- After a fall, calls that were made before it are still answered: they must not count again.
    local rests = now < s.held
    waits = waits and not rests
    if not rests and not waits then table.insert(s.window, { made, bad }) end
    while #s.window > WINDOW do table.remove(s.window, 1) end
    local sent, refused = 0, 0
    for _, one in ipairs(s.window) do sent, refused = sent + one[1], refused + one[2] end
    local share = sent > 0 and refused / sent or 0
    -- A jump shows in one tick. Half a minute of good calls before it would hide it. One call alone is no jump.
    if not waits and bad >= 2 then share = max(share, bad / made) end
    if bound > s.bound and s.bound > 0 and s.bound < ceiling then
        -- The vendor has raised it. What was refused before is raised, too, or the climb would begin late.
        s.limit, s.why = s.limit * bound / s.bound, 3
        s.was, s.fell = min(bound, s.was * bound / s.bound), min(bound, s.fell * bound / s.bound)
    end
    s.bound = bound
    if s.limit > bound then s.limit, s.why = bound, 1 end
    if refused >= 2 and share > TOO_MANY then
        local limit = s.limit * (1 - min(MOST_DOWN, (share - TOO_MANY) / 2 + 0.01))
        s.was, s.fell, s.at, s.held, s.window, s.why = s.limit, s.limit - limit, now, now + HELD * tick, {}, 2
        s.limit = limit
    elseif room and room < 1 and now >= s.times.held and 2 * used >= s.limit then
        s.limit, s.why = s.limit * max(1 - MOST_DOWN, room), 4
        s.times.held = now + min(PROBE * tick, max(HELD * tick, tick + s.times.present))
    elseif share <= FEW and (binds or full) and s.limit < bound and not rests and not waits then
        -- The climb is that of CUBIC: fast towards the limit that was refused last, slowly near it, and then further.
        local limit = s.limit + 0.01 * bound
        if s.at > 0 then
            local x = ((now - s.at) / tick - BACK) / BACK
            limit = s.was + (x < 0 and s.fell or max(s.fell, 0.05 * bound)) * x * x * x - 0.01 * s.was
        end
        if room then
            -- No more than a tenth in the time of a call: only then it shows what it did.
            local most = s.limit * (1 + min(MOST_UP, (room - 1) / 2) * min(1, tick / s.times.present))
            limit = now < s.times.held and 0 or s.at > 0 and min(limit, most) or most
        elseif by_time and (s.times.ends > 0 or now < s.times.held) then
            limit = 0
        end
        if limit > s.limit then s.limit, s.why = limit, 3 end
    end
    s.limit = max(lowest, min(bound, s.limit))
    if s.limit >= ceiling then s.was, s.fell, s.at = 0, 0, 0 end
    if applied(s) ~= before then
        s.generation, s.share = s.generation + 1, floor(share * 10000)
    end
    s.steps, s.next = s.steps + 1, now + tick
    for name, pod in pairs(s.pods) do
        if now - pod[5] > HEARD * tick then
            s.pods[name] = nil
        elseif not waits then
            pod[1], pod[2], pod[3] = 0, 0, 0
        end
    end
    for name, pod in pairs(by_time and s.times.pods or {}) do
        if not counts(s.times, pod) then s.times.pods[name] = nil end
    end
end

local s = read(redis.call('GET', KEYS[1]))
-- The configured limit, or its floor, may be another one now.
s.limit = max(lowest, min(ceiling, s.limit))
local pod = s.pods[server]
if not pod and length(s.pods) < MOST_SERVERS then
    pod = { 0, 0, 0, 0, 0, 0, 0 }
    s.pods[server] = pod
end
if pod then
    for i = 1, 3 do pod[i] = min(LARGEST, pod[i] + tonumber(ARGV[i + 1])) end
    local number = tonumber(ARGV[5])
    if number > 0 then pod[4], pod[6] = number, now end
    pod[5] = now
    if tonumber(ARGV[3]) > 0 then pod[7] = now end
end
if took > 0 and by_time and (s.times.pods[server] or length(s.times.pods) < MOST_SERVERS) then
    s.times.pods[server] = { took, now }
end
if now >= s.next then step(s) end
redis.call('SET', KEYS[1], cmsgpack.pack(s), 'PX', 3600000)
local t = by_time and s.times or { base = 0, present = 0 }
return { applied(s), s.generation, s.steps, s.why, s.share, t.base, t.present }
