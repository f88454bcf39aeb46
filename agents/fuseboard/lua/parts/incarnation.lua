-- Inserted into decide.lua, when the store is not the one this pod knows: new to the pod, or emptied.
-- Writes at once, even if every call is refused, so that the other pods notice.

rest = texts[1] and string.match(texts[1], '^%l+ %d+$')
if not rest then
    rest = (asked[4] == 0 and 'new ' or 'lost ') .. string.format('%d', now)
    redis.call('SET', KEYS[1], rest)
elseif asked[4] ~= 0 and string.sub(rest, 1, 4) == 'new ' then
    -- Made for a pod that did not know the earlier one.
    rest = 'lost ' .. string.sub(rest, 5)
    redis.call('SET', KEYS[1], rest)
end
