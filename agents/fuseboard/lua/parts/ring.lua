-- Inserted into decide.lua, before fast_path.lua, and into the other scripts before limits.lua: reads and moves a ring.

local floor, ceil = math.floor, math.ceil
local LARGEST = 9007199254740991

-- A ring is doubles: width, head, sum, counts... Returns nothing for garbage.
local function parse_ring(text)
    local length = #text / 8
    if length ~= floor(length) or length < 5 or length >= 1000 then return end
    local ring, sum = { struct.unpack('>' .. string.rep('d', length), text) }, 0
    ring[length + 1] = nil -- unpack also returns where it stopped
    for i = 4, length do sum = sum + ring[i] end
    local head = ring[2]
    -- Garbage does not add up, and neither does a count that is not a number.
    if sum == ring[3] and sum >= 0 and sum <= LARGEST and ring[1] >= 1 and head >= 0 and head <= LARGEST
        and head == floor(head) then
        return ring
    end
end

-- Moves the window on to the sub-bucket `index`. What has left the window does not count any more.
local function turn(ring, index)
    local size = #ring - 4
    for step = 1, math.min(index - ring[2], size + 1) do
        local slot = (ring[2] + step) % (size + 1) + 4
        ring[3] = ring[3] - ring[slot]
        ring[slot] = 0
    end
    -- When the clock steps back, the ring stays where it is.
    ring[2] = math.max(ring[2], index)
end

local function ring_text(ring)
    return struct.pack('>' .. string.rep('d', #ring), unpack(ring))
end
