#!lua
-- May these calls be made now? Decides override, breaker and every limit of one domain together.
--
-- Invariant: all or nothing. Everything is checked before anything is written. A refused call
-- consumes nothing, and a batch in which every call is refused leaves every readable key
-- unchanged, unless its limit has another rule now: then the key is rewritten once, with what counts.
-- A batch that arrives after `not_after` charges nothing.
--
-- KEYS  with a breaker: 1 override  2 breaker  3 cooldown, then the limits, then outcomes, evidence
--       and transitions. Without: 1 incarnation, if asked for, then the limits. Each limit once, in
--       the order in which the groups name them
-- ARGV  1 msgpack of one flat array (one argument with many numbers costs a tenth of many arguments):
--       not_after    store time in us after which nothing may be charged; 0 for no such time
--       token        prefix of permits and slots, unique to this batch; no spaces, no '='
--       guarded      1 for a dependency, which has a breaker; else 0, or 2 to check whether the store
--                    has lost its data: then the text of the incarnation last seen follows, 0 for none
--       only with a breaker:
--         probes       half-open permits that may exist at once
--         lease        us until a permit expires
--         open_max     us a breaker may stay open; a longer time in the key is garbage
--         slow_start   us in which the traffic grows back after the breaker has closed; 0 for at once
--         server       the asking pod, for the history
--         known        text of the breaker when this pod last saw it closed and unchanged; 0 for none
--         generation   in that text, or else the last one seen; 0 for none
--       rules        how many; then for each its number, chosen by the pod, and:
--         algorithm    1 sliding window  2 token bucket  3 fixed window  4 concurrency
--         limit        of calls (or of their cost) per window, or at once; at least 1. In a ramp, a part of it
--         window       us; fixed window: store time at which the period began; concurrency: us until
--                      a slot expires
--         size         sliding window: sub-buckets; bucket: burst, in a ramp a part of it; fixed window: end
--                      of the period
--         shadow       1: count, never refuse
--         lenient      1: what cannot be read counts as unspent; else as spent
--         whole        limit without a ramp: bounds what is stored
--         whole size   size without a ramp
--       groups       of like calls, most important first, to the end of the array; for each:
--         class count  groups of one class share what is scarce; the number of calls
--         n            then n times a limit that applies: 0 for the next key of a limit, or the number
--                      of an earlier one; the number of its rule; the cost of a call in it, which
--                      concurrency ignores
-- Returns msgpack of an array
--   verdict      0 admits  1 half-open: granted calls are probes  2 open  3 all probe permits taken
--                4 forced open  5 an override admits  6 too late  7 cooling down  8 slow start
--   generation   of the breaker; 0 without a breaker
--   wait         us until asking again can succeed, when the verdict refuses; else 0
--   now          store time in us
--   rest         text of the breaker, if it was read and is closed and unchanged; `lost` if this pod knew
--                one that is missing; text of an incarnation that is not the one last seen; else ''
--   figures      when there was enough for all: per limit, what is left. Otherwise:
--     per group    granted, the limit that refused the rest (0 none, -1 the breaker), its wait in us
--     per limit    left, calls a shadow limit would have refused, 1 if unreadable
-- Granted calls are numbered across the groups, in order. The token of call n is `token.n`.
--
-- Token bucket: GCRA in exact rational arithmetic. Four doubles us, fraction, limit, window hold the
-- theoretical arrival time us + fraction/limit. Spent calls survive a change of the limit.
-- Sliding window: a ring of size + 1 sub-buckets, the oldest counted in full, so that any window
-- is covered. Doubles width, head, sum, counts.... Fixed window: the text `began spent`.
-- Concurrency: a ZSET of tokens by their expiry. Incarnation: `new us` or `lost us`. A key keeps its name
-- when people change the algorithm, window or period of its limit: see other_rules.lua.
--
-- Lost data: a pod that remembers a breaker or an incarnation that is missing, or that was made
-- again since, marks it `lost`. For one window after that, a sliding window without a key counts
-- as spent: before the loss it may have held anything up to its limit.

local time = redis.call('TIME')
local now = time[1] * 1000000 + time[2]

-- insert decide

return cmsgpack.pack(decide(KEYS, cmsgpack.unpack(ARGV[1])))
