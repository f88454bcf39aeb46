#!lua flags=no-writes
-- What some buckets of tenants hold, in one digest each, to be compared with what they should.
--
-- Invariant: reads only. Buckets and head are of one moment.
--
-- KEYS  1 head (hash), 2... buckets of tenants (hashes)
-- ARGV  none
-- Returns the head's epoch and revision as text, '' for what is missing, then for each bucket its
--         number of tenants and two sums over the SHA-1 of "tenant, zero byte, record": they do not
--         depend on an order, which Redis takes from its locale; '' for a bucket that is none

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
