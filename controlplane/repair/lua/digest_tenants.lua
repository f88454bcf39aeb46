#!lua flags=no-writes
-- Compute one digest for each of some buckets of tenants, for a comparison with Postgres.
--
-- Invariant: reads only. Buckets and head are read at the same moment.
--
-- KEYS  1 head (hash), 2... buckets of tenants (hashes)
-- ARGV  none
-- Returns the head's epoch and revision as text, '' for a missing one, then for each bucket its
--         number of tenants and two sums over the SHA-1 of "tenant, zero byte, record", which do not
--         depend on the order of the tenants; '' for a key of another type

local LANE = 2 ^ 48

local head = redis.pcall('HMGET', KEYS[1], 'epoch', 'revision')
if head.err then head = {} end
local found = { head[1] or '', head[2] or '' }

for i = 2, #KEYS do
    local fields = redis.pcall('HGETALL', KEYS[i])
    if fields.err then
        found[#found + 1] = ''
    else
        local a, b = 0, 0
        for at = 1, #fields, 2 do
            local digest = redis.sha1hex(fields[at] .. '\0' .. fields[at + 1])
            a = (a + tonumber(string.sub(digest, 1, 12), 16)) % LANE
            b = (b + tonumber(string.sub(digest, 13, 24), 16)) % LANE
        end
        found[#found + 1] = string.format('%d %d %d', #fields / 2, a, b)
    end
end
return found
