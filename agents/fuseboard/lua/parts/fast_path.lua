-- Inserted into decide.lua: the fast path. For nearly every question there is enough for all. Then
-- nothing has to be split or refused, and groups do not matter. Buckets and rings in their usual form
-- are changed in place, without a table for each, which halves the time of the whole script. Only a ring
-- whose window moves on is a table for a moment. Anything unusual (new rings, calendar quotas, slots,
-- another rule, garbage, not enough) is left unchanged for the general way that follows.
--
-- It repeats limits.lua. Keep these in step:
--   here                                          there
--   `#text == 32`, `us < now`, `of_limit`         read_bucket: layout, idle bucket, changed limit
--   `TYPE` of a bucket without a text             read_limit: a key of another type
--   length of a ring, `width`, `head`, `sum`      read_ring: layout, current sub-bucket, `turn`
--   `left`                                        room, for a cost of 1, after spending
--   `slot`, `a + more`, `b + more`                spend and write_limit, for a ring
--   `sum`, `a + floor(sum / limit)`               spend, for a bucket
--   `PX`                                          write_limit: expiry
--   `asked[j]`, `asked[j + 1]`, `asked[j + 2]`    fair_split.lua: place, rule and cost in a group
-- The models in tests/agents/models/ compare both ways with an exact oracle.

if admitting and not slots and not part then
    local unpack_struct, pack_struct = struct.unpack, struct.pack
    -- By number of the limit: the place of its rule, the wanted amount, and two numbers of its state:
    -- time and fraction of a bucket, or sum and newest count of a ring.
    local n, rule, wanted, first, second, figures = 0, {}, {}, {}, {}, {}
    local at, usual = groups_at, true
    while usual and asked[at] do
        local count, last = asked[at + 1], at + 3 * asked[at + 2]
        -- The general way refuses a number of limits below 0.
        usual = last >= at
        for j = at + 3, last, 3 do
            local place = asked[j]
            if place > 0 then
                wanted[place] = wanted[place] + count * asked[j + 2]
            else
                n = n + 1
                local r, text = rules[asked[j + 1]], texts[before_limits + n]
                local algorithm, limit = asked[r], asked[r + 1]
                local known = false
                if algorithm == 2 then
                    local us, fraction, of_limit, of_window = now, 0, limit, asked[r + 2]
                    if text then
                        if #text == 32 then us, fraction, of_limit, of_window = unpack_struct('>dddd', text) end
                    elseif asked[r + 5] == 0 and redis.call('TYPE', KEYS[before_limits + n]).ok ~= 'none' then
                        us = -1
                    end
                    known = us >= 0 and fraction >= 0 and fraction < limit and of_limit == limit
                        and of_window == asked[r + 2] and (not text or #text == 32)
                    if us < now then us, fraction = now, 0 end
                    first[n], second[n] = us, fraction
                elseif algorithm == 1 and text and #text == 8 * asked[r + 3] + 32 then
                    local width, head, sum = unpack_struct('>ddd', text)
                    local size, index = asked[r + 3], floor(now / width)
                    local usual_width = width == ceil(asked[r + 2] / size)
                    -- The first question in a sub-bucket. Of a tenant that asks rarely, nearly every one is.
                    local ring = usual_width and head < index and parse_ring(text)
                    if ring then
                        turn(ring, index)
                        text, head, sum = ring_text(ring), index, ring[3]
                        texts[before_limits + n] = text
                    end
                    if usual_width and head == index and sum >= 0 then
                        first[n], second[n] = sum, unpack_struct('>d', text, 25 + 8 * (head % (size + 1)))
                        known = second[n] >= 0 and second[n] <= sum
                    end
                end
                if not known then usual = false break end
                rule[n], wanted[n] = r, count * asked[j + 2]
            end
        end
        at = last + 3
    end
    local i = 1
    while usual and i <= n do
        local r = rule[i]
        local limit, window, left = asked[r + 1], asked[r + 2]
        if asked[r] == 1 then
            left = limit - first[i] - wanted[i]
        else
            left = floor((asked[r + 3] * window - (first[i] - now) * limit - second[i]) / window) - wanted[i]
        end
        figures[i], usual, i = left, left >= 0, i + 1
    end
    if usual then
        for place = 1, n do
            local r, a, b, more = rule[place], first[place], second[place], wanted[place]
            if asked[r] == 1 then
                local text, size = texts[before_limits + place], asked[r + 3]
                local width, head = unpack_struct('>dd', text)
                local slot = 24 + 8 * (head % (size + 1))
                text = string.sub(text, 1, 16) .. pack_struct('>d', a + more) .. string.sub(text, 25, slot)
                    .. pack_struct('>d', b + more) .. string.sub(text, slot + 9)
                redis.call('SET', KEYS[before_limits + place], text, 'PX', ceil(width * (size + 2) / 1000))
            else
                local limit, window = asked[r + 1], asked[r + 2]
                local sum = b + more * window
                a = a + floor(sum / limit)
                redis.call('SET', KEYS[before_limits + place], pack_struct('>dddd', a, sum % limit, limit, window),
                    'PX', ceil((a - now) / 1000) + 1)
            end
        end
        if write_guard then write_guard() end
        return { verdict, generation, 0, now, rest, figures }
    end
end
