#!lua
-- Publish a configuration, or store one part of a configuration that is too large for one call.
--
-- Invariant: the head never goes back to an older (epoch, revision), and an older tenant record never
-- overwrites a newer one. A publisher writes only over exactly the head it has read, and only while
-- no newer publisher has begun to store its parts.
--
-- KEYS  1 head (hash), 2... buckets of tenants (hashes)
-- ARGV  1 epoch and 2 revision of the head that was read, both 0 when there was none
--       3 epoch and 4 revision of this configuration
--       5 hash and 6 text of the policy; both empty to store tenants only, before the last call
--       7 channel and 8 message that announce it
--       then for each bucket:
--         replace   1: the bucket gets exactly what follows, 0: the rest of it stays
--         count     of tenants, then for each: key and record; an empty record removes the tenant
-- Returns 1 when it was written; 0 when the head is a different one or a newer publisher is at work:
--         then read again

local seen_epoch, seen_revision = tonumber(ARGV[1]), tonumber(ARGV[2])
local epoch, revision = tonumber(ARGV[3]), tonumber(ARGV[4])

local function older(epoch_a, revision_a, epoch_b, revision_b)
    return epoch_a < epoch_b or (epoch_a == epoch_b and revision_a < revision_b)
end

local head = redis.pcall('HMGET', KEYS[1], 'epoch', 'revision', 'staged')
local damaged = head.err ~= nil
if damaged then head = {} end
local head_epoch = tonumber(string.match(head[1] or '', '^%d+$'))
local head_revision = tonumber(string.match(head[2] or '', '^%d+$'))
-- Half a head counts as none.
if not head_epoch or not head_revision then head_epoch, head_revision = 0, 0 end
if head_epoch ~= seen_epoch or head_revision ~= seen_revision then return 0 end
if older(epoch, revision, head_epoch, head_revision) then return 0 end

local staged_epoch, staged_revision = string.match(head[3] or '', '^(%d+) (%d+)$')
if staged_epoch and older(epoch, revision, tonumber(staged_epoch), tonumber(staged_revision)) then return 0 end

if damaged then redis.call('DEL', KEYS[1]) end

local cursor = 8
local function argument()
    cursor = cursor + 1
    return ARGV[cursor]
end

for i = 2, #KEYS do
    local bucket = KEYS[i]
    if argument() == '1' or redis.call('TYPE', bucket).ok ~= 'hash' then redis.call('DEL', bucket) end
    local kept = {}
    for _ = 1, tonumber(argument()) do
        local tenant, record = argument(), argument()
        if record == '' then
            redis.call('HDEL', bucket, tenant)
        else
            kept[#kept + 1] = tenant
            kept[#kept + 1] = record
        end
    end
    for from = 1, #kept, 1000 do
        redis.call('HSET', bucket, unpack(kept, from, math.min(from + 999, #kept)))
    end
end

if ARGV[6] == '' then
    redis.call('HSET', KEYS[1], 'staged', string.format('%d %d', epoch, revision))
    return 1
end

local time = redis.call('TIME')
redis.call('HSET', KEYS[1],
    'epoch', string.format('%d', epoch), 'revision', string.format('%d', revision),
    'hash', ARGV[5], 'policy', ARGV[6],
    'published_at_us', string.format('%d', time[1] * 1000000 + time[2]))
redis.call('HDEL', KEYS[1], 'staged')
redis.call('PUBLISH', ARGV[7], ARGV[8])
return 1
