-- Inserted into decide.lua, for when there is not enough for all, or when no call may be made: decides
-- which calls are granted, and what refuses the others.

-- Known if the breaker was read. Otherwise the text of the breaker or the incarnation says it.
if before_limits == 1 then
    lost_since = string.match(rest ~= '' and rest or texts[1], '^lost (%d+)$')
elseif guarded and not lost_since then
    lost_since = string.match(texts[2] or '', '^closed %d+ %d+ (%d+) %d+ %d+ lost')
end
lost_since = tonumber(lost_since)

-- An agent asks for less. Without these bounds, one question could occupy the server for minutes. The rounds
-- are those of one class: each round takes a part of what is left, so that even huge limits need fewer.
local MAX_GROUPS, MAX_PAIRS, MAX_TOKENS, MAX_ROUNDS = 1000, 20000, 100000, 100
local limits, groups, at, pairs_asked = {}, {}, groups_at, 0
while asked[at] do
    pairs_asked = pairs_asked + asked[at + 2]
    local bounded = asked[at + 2] >= 0 and #groups < MAX_GROUPS and pairs_asked <= MAX_PAIRS
    assert(bounded, 'too many groups, or too many limits')
    local count, last = asked[at + 1], at + 3 * asked[at + 2]
    local group = {
        class = asked[at], count = count, need = admitting and count or 0, granted = 0, blocked = 0, wait = 0,
        limits = {}, costs = {}, first = 0,
    }
    if part then
        -- The digits of the clock decide which calls pass: evenly, and the same in a replay.
        local passing = floor(count * part + (now % 1000) / 1000)
        if passing < group.need then
            group.need, group.blocked, group.wait, verdict = passing, -1, 100000, SLOW_START
        end
    end
    if not admitting then group.blocked, group.wait = -1, wait end
    for j = at + 3, last, 3 do
        local limit = limits[asked[j]]
        if not limit then
            local place = #limits + 1
            limit = new_limit(KEYS[before_limits + place], asked, rules[asked[j + 1]])
            limits[place] = limit
            if admitting then
                limit.lost_since = lost_since
                read_limit(limit, texts[before_limits + place])
                if limit.outside then return { LATE, 0, 0, now, '', {} } end
            end
        end
        group.limits[#group.limits + 1], group.costs[#group.costs + 1] = limit, asked[j + 2]
    end
    groups[#groups + 1] = group
    at = last + 3
end

-- Grant class by class. Within a class, grant in rounds, with equal parts of what is scarce. Spends
-- from the copies that were read above.
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

-- The number of groups that still want calls. Each limit gets the number of groups that want it.
local function count_contenders(first, last)
    local contenders = 0
    for i = first, last do
        for _, limit in ipairs(groups[i].limits) do limit.contenders = 0 end
    end
    for i = first, last do
        if groups[i].need > 0 and fits(groups[i]) > 0 then
            contenders = contenders + 1
            for _, limit in ipairs(groups[i].limits) do limit.contenders = limit.contenders + 1 end
        end
    end
    return contenders
end

-- A part of what is left at the start of the round; at least one call, in order of arrival.
local function share(group, contenders)
    local most = slots and floor(slots / max(1, contenders)) or group.need
    for j, limit in ipairs(group.limits) do
        if not limit.shadow and limit.contenders > 1 then
            most = min(most, floor(room(limit, group.costs[j]) / limit.contenders))
        end
    end
    return max(1, most)
end

local position, complete = 1, true
while admitting and complete and position <= #groups do
    local last, rounds = position, 0
    while groups[last + 1] and groups[last + 1].class == groups[position].class do last = last + 1 end
    repeat
        local contenders, progress = count_contenders(position, last), false
        local shares = {}
        for i = position, last do shares[i] = share(groups[i], contenders) end
        for i = position, last do
            local calls = min(groups[i].need, shares[i], fits(groups[i]))
            if calls > 0 then
                grant(groups[i], calls)
                progress = true
            end
        end
        rounds = rounds + 1
        assert(rounds <= MAX_ROUNDS, 'too many rounds')
    until not progress
    -- Otherwise cheap calls would overtake an expensive one for ever.
    for i = position, strict and last or 0 do complete = complete and groups[i].granted == groups[i].count end
    position = last + 1
end

local figures, granted_total = {}, 0
for _, group in ipairs(groups) do
    if group.need > 0 then
        if slots and slots <= 0 then
            group.blocked, group.wait = -1, (soonest or now + lease) - now
        else
            -- Several limits may have nothing left: the one whose wait is longest refuses. A group that only
            -- waits for the one before it lacks nothing itself.
            local least, scarcest = group.need, nil
            for j, limit in ipairs(group.limits) do
                local left = limit.shadow and group.need or max(0, room(limit, group.costs[j]))
                if left < least then least, scarcest = left, nil end
                if left == least and left < group.need then
                    local longest = wait_for(limit, group.costs[j])
                    if not scarcest or longest > group.wait then scarcest, group.wait = limit, longest end
                end
            end
            for index, limit in ipairs(limits) do
                if limit == scarcest then group.blocked = index break end
            end
        end
    end
    group.first = granted_total + 1
    granted_total = granted_total + group.granted
end
for _, group in ipairs(groups) do
    figures[#figures + 1] = group.granted
    figures[#figures + 1] = group.blocked
    figures[#figures + 1] = group.wait
end
for _, limit in ipairs(limits) do
    figures[#figures + 1] = admitting and max(0, room(limit, 1)) or 0
    figures[#figures + 1] = limit.refused or 0
    figures[#figures + 1] = limit.unreadable or 0
end

local tokens = verdict == PROBES and granted_total or 0
for _, group in ipairs(groups) do
    for j, limit in ipairs(group.limits) do
        if limit.tokens then tokens = tokens + group.granted * group.costs[j] end
    end
end
assert(tokens <= MAX_TOKENS, 'too many slots or permits')

-- Write. A repaired limit is written even when nothing was granted. Otherwise it would stay broken.
for _, group in ipairs(groups) do
    for j, limit in ipairs(group.limits) do
        if limit.tokens then
            for n = group.first, group.first + group.granted - 1 do
                -- A call occupies as many slots as it costs. Whoever frees them knows their names.
                limit.tokens[#limit.tokens + 1] = token .. '.' .. n
                for i = 2, group.costs[j] do
                    limit.tokens[#limit.tokens + 1] = token .. '.' .. n .. '.' .. string.format('%d', i)
                end
            end
        end
    end
end
for _, limit in ipairs(limits) do
    if limit.spent or limit.repaired then write_limit(limit) end
end
if write_guard and (granted_total > 0 or lost_since) then
    if verdict == PROBES then
        for i = 1, granted_total do
            breaker.permits[#breaker.permits + 1] = { token = token .. '.' .. i, expires = now + lease }
        end
    end
    write_guard()
end
return { verdict, generation, wait, now, rest, figures }
