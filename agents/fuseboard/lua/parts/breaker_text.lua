-- Inserted into the scripts that read or write a breaker, by contract/scripts.py.
-- contract/breaker_state.py describes the text:
--   state generation until_us since_us attempt successes cause [token=expires_us ...]

local function whole(number)
    return string.format('%d', number)
end

-- The breaker in `text`, or nil when it is missing or unreadable.
local function read_breaker(text)
    if not text then return nil end
    local state, generation, till, since, attempt, successes, cause, permits =
        string.match(text, '^(%l[%l_]*) (%d+) (%d+) (%d+) (%d+) (%d+) (%S+)(.*)$')
    if state ~= 'closed' and state ~= 'open' and state ~= 'half_open' then return nil end
    local breaker = {
        state = state, generation = tonumber(generation), till = tonumber(till), since = tonumber(since),
        attempt = tonumber(attempt), successes = tonumber(successes), cause = cause, permits = {},
    }
    if permits ~= '' then
        -- There are at most 100. What follows is garbage.
        for token, expires in string.gmatch(string.sub(permits, 1, 20000), ' (%S+)=(%d+)') do
            breaker.permits[#breaker.permits + 1] = { token = token, expires = tonumber(expires) }
        end
    end
    return breaker
end

local function write_breaker(key, breaker)
    local parts = {
        breaker.state, whole(breaker.generation), whole(breaker.till), whole(breaker.since),
        whole(breaker.attempt), whole(breaker.successes), breaker.cause,
    }
    for _, permit in ipairs(breaker.permits) do
        parts[#parts + 1] = permit.token .. '=' .. whole(permit.expires)
    end
    redis.call('SET', key, table.concat(parts, ' '))
end

-- Every transition raises the generation above that of any permit, even when the key was lost in
-- between. The clock ensures that.
local function move(breaker, state, cause, till, now)
    breaker.state, breaker.cause, breaker.till, breaker.since = state, cause, till, now
    breaker.generation = math.max(breaker.generation + 1, now)
    breaker.successes, breaker.permits = 0, {}
end

-- The override in `text`: its mode and its end; nil when there is none.
local function read_override(text)
    if not text then return nil, 0 end
    local mode, expires = string.match(text, '^(%l[%l_]*) (%d+) %d+$')
    if not mode then return nil, 0 end
    return mode, tonumber(expires)
end

-- The last arguments are further fields: what was counted when the breaker tripped.
local function append_transition(key, from, breaker, actor, server, now, ...)
    -- A key of another type must not stop a breaker: the history matters least.
    if redis.pcall('XADD', key, 'MAXLEN', '~', '1000', '*', 'generation', whole(breaker.generation), 'from', from,
            'to', breaker.state, 'cause', breaker.cause, 'actor', actor, 'server', server,
            'at_us', whole(now), ...).err then
        redis.call('DEL', key)
    end
end
