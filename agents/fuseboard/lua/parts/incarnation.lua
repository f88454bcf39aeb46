-- Inserted into admit.lua, when the store is not the one this server knows: new to it, or empty
-- again. Written at once, refused or not: the others must hear of it.

rest = texts[1] and string.match(texts[1], '^%l+ %d+$')
if not rest then
    rest = (asked[4] == 0 and 'new ' or 'lost ') .. string.format('%d', now)
    redis.call('SET', KEYS[1], rest)
elseif asked[4] ~= 0 and string.sub(rest, 1, 4) == 'new ' then
    -- Made by somebody who knew nothing of the one before.
    rest = 'lost ' .. string.sub(rest, 5)
    redis.call('SET', KEYS[1], rest)
end
