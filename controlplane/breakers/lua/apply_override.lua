#!lua
-- Override a dependency's breaker, end the override, or reset the breaker.
-- docs/breakers.md has the table of all states.
--
-- Invariant: an older revision never undoes a newer one, and a repetition changes nothing. Whatever
-- the keys contain before, afterwards they can be read and decide calls.
--
-- KEYS  1 override  2 breaker  3 outcomes  4 evidence  5 transitions  6 cooldown  7 cooldown claim;
--       see fuseboard.contract.keys
-- ARGV  1 what        forced_open, forced_closed, metrics_only, disabled, end or reset
--       2 revision    of the override or the reset; to end an override, any later revision
--       3 expires     store time in us at which an override ends; 0 for end and reset
--       4 actor       for the history
-- Returns 1 and the breaker's generation when something changed; 0 and 0 when Redis has this
--         already, has a newer revision, or the override has expired
--
-- An ended override leaves `none 0 revision` for a day. It reads as no override, and prevents a late
-- message from restoring the override.

local time = redis.call('TIME')
local now = time[1] * 1000000 + time[2]
local what, revision, expires, actor = ARGV[1], tonumber(ARGV[2]), tonumber(ARGV[3]), ARGV[4]
local ending = what == 'end' or what == 'reset'

-- MGET returns nothing for a key of another type.
local texts = redis.call('MGET', KEYS[1], KEYS[2])

local held, held_until, held_revision = string.match(texts[1] or '', '^(%l[%l_]*) (%d+) (%d+)$')
held_until, held_revision = tonumber(held_until or 0), tonumber(held_revision or 0)
if held == 'none' then held = nil end

if held_revision > revision then return { 0, 0 } end
if held_revision == revision and what ~= 'end' then
    if what == 'reset' or (held == what and held_until == expires) then return { 0, 0 } end
end
if what == 'end' and not held then return { 0, 0 } end
if not ending and expires <= now then return { 0, 0 } end

-- A number that none of our scripts wrote could make string.format fail.
local function sane(...)
    for _, number in ipairs({ ... }) do
        if not number or number > 9007199254740991 then return false end
    end
    return true
end

local pattern = '^(%l[%l_]*) (%d+) (%d+) (%d+) (%d+) (%d+) (%S+)'
local state, generation, till, since, attempt, successes, cause = string.match(texts[2] or '', pattern)
generation, till, since = tonumber(generation), tonumber(till), tonumber(since)
attempt, successes = tonumber(attempt), tonumber(successes)
if not sane(generation, till, since, attempt, successes)
    or (state ~= 'closed' and state ~= 'open' and state ~= 'half_open') then
    state, generation, till, since, attempt, cause = 'missing', 0, 0, now, 0, 'new'
end

local function write_breaker(to, ends, from_when, attempts, why)
    redis.call('SET', KEYS[2], string.format('%s %d %d %d %d 0 %s', to, generation, ends, from_when, attempts, why))
end

-- A transition raises the generation: results of earlier calls no longer count.
local function move(to, ends, why, recorded)
    generation = math.max(generation + 1, now)
    write_breaker(to, ends, now, 0, why)
    local added = redis.pcall('XADD', KEYS[5], 'MAXLEN', '~', '1000', '*',
        'generation', string.format('%d', generation), 'from', state, 'to', to, 'cause', recorded,
        'actor', actor, 'server', '', 'at_us', string.format('%d', now))
    -- A key that is not a stream costs the history, never the override.
    if type(added) == 'table' and added.err then redis.call('DEL', KEYS[5]) end
end

local function forget()
    redis.call('DEL', KEYS[3], KEYS[4])
end

if ending then
    redis.call('SET', KEYS[1], string.format('none 0 %d', revision), 'PX', '86400000')
else
    redis.call('SET', KEYS[1], string.format('%s %d %d', what, expires, revision))
end

if what == 'reset' then
    forget()
    redis.call('DEL', KEYS[6], KEYS[7])
    move('closed', 0, 'reset', 'reset')
elseif what == 'forced_open' then
    -- Open until the override expires, so that the breaker probes then.
    move('open', expires, 'forced', what)
elseif not ending then
    forget()
    move('closed', 0, 'forced', what)
elseif held == 'forced_open' then
    -- Probing may start at once, unless the breaker changed after the override expired.
    if state == 'open' and cause == 'forced' and till > now then
        write_breaker('open', now, since, attempt, cause)
    end
elseif held_until > now or generation < held_until then
    -- Unless the first call after the expiry did this: admitted failures must not trip the breaker.
    if held ~= 'metrics_only' then forget() end
    move('closed', 0, 'override_ended', 'override_ended')
end
return { 1, generation }
