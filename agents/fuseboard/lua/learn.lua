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
-- KEYS  learned
-- ARGV  1 server   the reporting pod
--       2 asked    calls that it wanted to make since its last report
--       3 sent     calls that it made
--       4 refused  calls that the vendor refused because of a limit
--       5 stated   the vendor's own number for the limit, 0 for unknown
--       6 ceiling  the configured limit
--       7 floor    the lowest limit, at least 1
--       8 tick     us
-- Returns integers: followed, generation (rises when followed changes), steps so far, the cause of the last change
--       (0 none  1 stated by the vendor  2 refusals  3 room again), share of refusals in that step in 1/10,000

local time = redis.call('TIME')
local now = time[1] * 1000000 + time[2]

local floor, min, max = math.floor, math.min, math.max
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

local server, ceiling = ARGV[1], tonumber(ARGV[6])
local lowest, tick = min(ceiling, tonumber(ARGV[7])), tonumber(ARGV[8])

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

-- Every field is checked, so that no text in the key can raise an error or leave the bounds.
local function read(text)
    local good, s = pcall(cmsgpack.unpack, text or '')
    good = good and type(s) == 'table' and type(s.pods) == 'table' and type(s.window) == 'table'
    -- A long text must not keep Redis busy.
    good = good and #s.window <= WINDOW and length(s.pods) <= MOST_SERVERS
    for _, name in ipairs(NUMBERS) do good = good and is_number(s[name]) end
    if not good then
        return {
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

-- Whether the limit binds, calls that were made and refused in this tick, and whether they wait for other reports.
local function count(s)
    local names, all, several = {}, 0, 0
    for name, pod in pairs(s.pods) do
        if pod[7] > 0 and now - pod[7] <= WINDOW * tick then several = several + 1 end
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
    return binds, sent, refused, #names == 1 and several > 1
end

local function step(s)
    local before, bound = s.limit, max(lowest, min(ceiling, stated(s)))
    local binds, sent, refused, waits = count(s)
    -- After a fall, calls that were made before it are still answered: they must not count again.
    local rests = now < s.held
    waits = waits and not rests
    if not rests and not waits then table.insert(s.window, { sent, refused }) end
    while #s.window > WINDOW do table.remove(s.window, 1) end
    sent, refused = 0, 0
    for _, one in ipairs(s.window) do sent, refused = sent + one[1], refused + one[2] end
    local share = sent > 0 and refused / sent or 0
    if bound > s.bound and s.bound > 0 and s.bound < ceiling then
        -- The vendor has raised it.
        s.limit, s.why = s.limit * bound / s.bound, 3
    end
    s.bound = bound
    if s.limit > bound then s.limit, s.why = bound, 1 end
    if refused >= 2 and share > TOO_MANY then
        local limit = s.limit * (1 - min(MOST_DOWN, (share - TOO_MANY) / 2 + 0.01))
        s.was, s.fell, s.at, s.held, s.window, s.why = s.limit, s.limit - limit, now, now + HELD * tick, {}, 2
        s.limit = limit
    elseif share <= FEW and binds and s.limit < bound and not rests and not waits then
        -- The climb is that of CUBIC: fast towards the limit that was refused last, slowly near it, and then further.
        local limit = s.limit + 0.01 * bound
        if s.at > 0 then
            local x = ((now - s.at) / tick - BACK) / BACK
            limit = s.was + (x < 0 and s.fell or max(s.fell, 0.05 * bound)) * x * x * x - 0.01 * s.was
        end
        if limit > s.limit then s.limit, s.why = limit, 3 end
    end
    s.limit = max(lowest, min(bound, s.limit))
    if s.limit >= ceiling then s.was, s.fell, s.at = 0, 0, 0 end
    if floor(s.limit) ~= floor(before) then
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
if now >= s.next then step(s) end
redis.call('SET', KEYS[1], cmsgpack.pack(s), 'PX', 3600000)
return { floor(s.limit), s.generation, s.steps, s.why, s.share }
