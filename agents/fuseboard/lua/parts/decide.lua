-- Inserted into admit.lua and backlog_take.lua: decides override, breaker and limits of one domain. What it
-- takes and returns is in the header of admit.lua, as a table. With `strict`, nothing is granted after the
-- first class that did not get all it asked for.

local function decide(KEYS, asked, strict)
local not_after, token, guarded = asked[1], asked[2], asked[3] == 1
if not_after > 0 and now > not_after then return { 6, 0, 0, now, '', {} } end

-- Read everything for the decision in one command. MGET returns nil for a key of another type.
local texts = redis.call('MGET', unpack(KEYS, 1, guarded and #KEYS - 3 or #KEYS))
local before_limits = guarded and 3 or asked[3] / 2
-- Where each rule begins, by its number, and where the groups begin.
local rules, groups_at = {}, guarded and 12 or 5 + before_limits
for _ = 1, asked[groups_at - 1] do
    rules[asked[groups_at]] = groups_at + 1
    groups_at = groups_at + 9
end

local ADMITS, PROBES, OPEN, PROBE_BUSY, FORCED_OPEN, BYPASS, LATE = 0, 1, 2, 3, 4, 5, 6
local COOLING_DOWN, SLOW_START = 7, 8
local min, max = math.min, math.max

-- 1. Override and breaker. `slots` is the number of free probe permits, `soonest` when the next one
-- expires. While the traffic grows back, `part` of the calls may be made.
local verdict, wait, generation, lease = ADMITS, 0, 0, asked[5]
local rest, lost_since, breaker, slots, soonest, part, write_guard = ''
if before_limits == 1 and texts[1] ~= asked[4] then
    -- insert incarnation
elseif guarded then
    if texts[2] == asked[9] and not texts[1] and not texts[3] then
        generation = asked[10]
    else
        -- insert breaker
    end
end
local admitting = verdict == ADMITS or verdict == PROBES or verdict == BYPASS

-- 2. The limits, on the fast path: nearly always there is enough for all.
-- insert ring
-- insert fast_path

-- 3. The limits in general, and which calls may be made.
-- insert limits
-- insert fair_split
end
