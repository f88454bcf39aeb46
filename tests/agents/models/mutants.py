# ruff: noqa: E501 - the text of a script is quoted as it stands
"""Bugs that somebody could write tomorrow: each is one edit of a script, and must be noticed."""

from dataclasses import dataclass


@dataclass(frozen=True)
class Mutant:
    name: str
    script: str
    old: str
    new: str


MUTANTS = [
    Mutant(
        "the oldest sub-bucket is forgotten",
        "admit",
        "for step = 1, math.min(passed, size + 1) do",
        "for step = 1, math.min(passed + 1, size + 1) do",
    ),
    Mutant(
        "the ring turns back with the clock", "admit", "ring[2] = math.max(ring[2], index)", "ring[2] = index"
    ),
    Mutant(
        "a full window admits one more",
        "admit",
        "floor((limit.limit - limit.ring[3]) / cost)",
        "floor((limit.limit + 1 - limit.ring[3]) / cost)",
    ),
    Mutant(
        "the cost is not counted",
        "admit",
        "if counted > 0 then spend(limit, counted * group.costs[j]) end",
        "if counted > 0 then spend(limit, counted) end",
    ),
    Mutant(
        "only the limit that refuses is spent",
        "admit",
        "    for j, limit in ipairs(group.limits) do\n        local counted = calls",
        "    for j, limit in ipairs({ group.limits[1] }) do\n        local counted = calls",
    ),
    Mutant(
        "a refused call is charged",
        "admit",
        "if limit.spent or limit.repaired then write_limit(limit) end\nend\nif write_guard",
        "write_limit(limit)\nend\nif write_guard",
    ),
    Mutant(
        "the fraction of a microsecond is lost",
        "admit",
        "limit.fraction = sum % limit.limit",
        "limit.fraction = 0",
    ),
    Mutant(
        "an idle bucket saves up more than its burst",
        "admit",
        "elseif us < now then\n        us, fraction = now, 0",
        "elseif us < now - 100000000 then\n        us, fraction = now, 0",
    ),
    Mutant(
        "the wait is one window too long",
        "admit",
        "return (index + limit.size + 1) * ring[1] - now",
        "return (index + limit.size + 2) * ring[1] - now",
    ),
    Mutant(
        "what was spent is forgotten when the limit changes",
        "admit",
        "us, fraction = now + ceil((us - now) * old_limit / old_window * limit.window / limit.limit), 0",
        "us, fraction = now, 0",
    ),
    Mutant("an unreadable limit is an empty one", "admit", "return limit.lenient and 0 or full", "return 0"),
    Mutant(
        "an unreadable limit never heals",
        "admit",
        "if limit.spent or limit.repaired then write_limit(limit) end\nend\nif write_guard",
        "if limit.spent then write_limit(limit) end\nend\nif write_guard",
    ),
    Mutant(
        "a limit never expires",
        "admit",
        "redis.call('SET', limit.key, text, 'PX', math.max(1, ceil((limit.us - now) / 1000) + 1))",
        "redis.call('SET', limit.key, text)",
    ),
    Mutant("a late batch is charged", "admit", "if not_after > 0 and now > not_after then", "if false then"),
    Mutant(
        "a shadow limit refuses",
        "admit",
        "if not limit.shadow then most = min(most, room(limit, group.costs[j])) end",
        "most = min(most, room(limit, group.costs[j]))",
    ),
    Mutant("any number of probes", "admit", "slots = probes - #live", "slots = probes"),
    Mutant(
        "a lease never ends",
        "admit",
        "if permit.expires > now and permit.expires <= now + lease then",
        "if true then",
    ),
    Mutant(
        "a lease of any length is believed",
        "admit",
        "if permit.expires > now and permit.expires <= now + lease then",
        "if permit.expires > now then",
    ),
    Mutant(
        "an open time of any length is believed",
        "admit",
        "if now < breaker.till and breaker.till <= now + longest then",
        "if now < breaker.till then",
    ),
    Mutant(
        "open for ever",
        "admit",
        "            before = 'open'\n            move(breaker, 'half_open', 'open_time_over', 0, now)",
        "            verdict, wait = OPEN, 1",
    ),
    Mutant(
        "the generation only counts up",
        "admit",
        "breaker.generation = math.max(breaker.generation + 1, now)",
        "breaker.generation = breaker.generation + 1",
    ),
    Mutant(
        "probes survive a transition",
        "report",
        "breaker.successes, breaker.permits = 0, {}",
        "breaker.permits = {}",
    ),
    Mutant(
        "a hold that ended is ignored",
        "admit",
        "if mode and mode ~= 'forced_open' and breaker.generation < expires then",
        "if false then",
    ),
    Mutant("an override outlives its expiry", "admit", "if mode and expires > now then", "if mode then"),
    Mutant(
        "a half-open breaker admits everybody",
        "admit",
        "local most = slots or group.need",
        "local most = group.need",
    ),
    Mutant(
        "old generations are believed",
        "report",
        "if not breaker or breaker.generation ~= generation then",
        "if not breaker then",
    ),
    Mutant(
        "an expired permit still counts",
        "report",
        "local outcome = permit.expires > now and ARGV[i + 1] or '0'",
        "local outcome = ARGV[i + 1]",
    ),
    Mutant("a permit counts each time it is reported", "report", "table.remove(breaker.permits, at)", ""),
    Mutant(
        "one good probe is enough",
        "report",
        "if breaker.successes >= successes_needed then",
        "if breaker.successes >= 1 then",
    ),
    Mutant(
        "a failed probe is only not a success",
        "report",
        "                if outcome == '2' then",
        "                if false then",
    ),
    Mutant(
        "a success does not end a row of failures",
        "report",
        "ring[2] = (ok + slow > 0) and tail or ring[2] + tail",
        "ring[2] = ring[2] + tail",
    ),
    Mutant(
        "one server can trip it for all",
        "report",
        "if with_failures < math.min(minimum_servers, with_outcomes) then",
        "if false then",
    ),
    Mutant(
        "a lone server can never trip it",
        "report",
        "if with_failures < math.min(minimum_servers, with_outcomes) then",
        "if with_failures < minimum_servers then",
    ),
    Mutant(
        "one call is enough for a ratio",
        "report",
        "elseif calls >= minimum_calls and failures * 100",
        "elseif calls >= 1 and failures * 100",
    ),
    Mutant(
        "the window does not slide",
        "report",
        "for step = 1, math.min(math.max(0, second - ring[1]), window) do",
        "for step = 1, 0 do",
    ),
    Mutant("it never backs off", "report", "breaker.attempt = breaker.attempt + 1", ""),
    Mutant(
        "it backs off without end",
        "report",
        "local length = math.min(open_max, open_first",
        "local length = math.max(0, open_first",
    ),
    Mutant("an override lets it trip", "report", "if overridden then return answer(WOULD_TRIP) end", ""),
    Mutant(
        "evidence of the time before counts",
        "report",
        "redis.call('DEL', KEYS[4], KEYS[5])\n    append",
        "append",
    ),
    Mutant(
        "a shadow limit is spent beyond itself",
        "admit",
        "counted = min(calls, max(0, room(limit, group.costs[j])))",
        "counted = calls",
    ),
    Mutant(
        "first come takes all",
        "admit",
        "shares[i] = share(groups[i], contenders)",
        "shares[i] = groups[i].need",
    ),
    Mutant(
        "importance does not count",
        "admit",
        "while groups[last + 1] and groups[last + 1].class == groups[position].class do",
        "while groups[last + 1] do",
    ),
    Mutant(
        "a lease of a slot never ends",
        "admit",
        "redis.pcall('ZCOUNT', limit.key, '(' .. string.format('%d', now), '+inf')",
        "redis.pcall('ZCOUNT', limit.key, '-inf', '+inf')",
    ),
    Mutant(
        "a calendar quota is never given back",
        "admit",
        "limit.count = tonumber(began) == limit.window and tonumber(spent) or 0",
        "limit.count = tonumber(spent)",
    ),
    Mutant(
        "any period will do",
        "admit",
        "limit.outside = now < limit.window or now >= limit.size",
        "limit.outside = false",
    ),
    Mutant(
        "a vendor's wish is ignored", "admit", "if cool and cool > now and", "if false and cool > now and"
    ),
    Mutant(
        "a wish beyond reason is obeyed",
        "admit",
        "cool > now and cool <= now + 3600000000 and",
        "cool > now and",
    ),
    Mutant(
        "everybody comes back at once",
        "admit",
        "part = 0.1 + 0.9 * max(0, now - breaker.since) / slow_start",
        "part = nil",
    ),
    Mutant(
        "a shorter wish replaces a longer",
        "report",
        "if now + cooldown > standing or standing > now + 3600000000 then",
        "if true then",
    ),
    Mutant(
        "a refund goes to the newest bucket",
        "settle",
        "local index = math.floor(at / ring[1])",
        "local index = ring[2]",
    ),
    Mutant(
        "a refund gives more than was spent",
        "settle",
        "local given = math.min(amount, ring[slot])",
        "local given = amount",
    ),
    Mutant(
        "the real cost is capped at the estimate",
        "settle",
        "            spend(limit, amount)",
        "            spend(limit, 0)",
    ),
    Mutant("a freed slot stays taken", "settle", "redis.pcall('ZREM', key, token)", ""),
    Mutant(
        "the cost is forgotten when there is plenty",
        "admit",
        "rule[n], wanted[n] = r, count * asked[j + 2]",
        "rule[n], wanted[n] = r, count",
    ),
    Mutant(
        "a counter that several ask for counts the first alone",
        "admit",
        "wanted[place] = wanted[place] + count * asked[j + 2]",
        "wanted[place] = wanted[place]",
    ),
    Mutant(
        "what is asked last is not counted",
        "admit",
        "figures[i], usual, i = left, left >= 0, i + 1",
        "figures[i], usual, i = left, left + wanted[i] > 0, i + 1",
    ),
    Mutant(
        "the fraction of a microsecond is lost when there is plenty",
        "admit",
        "pack_struct('>dddd', a, sum % limit, limit, window)",
        "pack_struct('>dddd', a, 0, limit, window)",
    ),
    Mutant(
        "an idle bucket saves up when there is plenty",
        "admit",
        "if us < now then us, fraction = now, 0 end",
        "",
    ),
    Mutant(
        "the new limit is applied to what was counted under the old one",
        "admit",
        "known = us >= 0 and fraction >= 0 and fraction < limit and of_limit == limit\n                        and",
        "known = us >= 0 and fraction >= 0 and",
    ),
    Mutant(
        "a counter of another type is an empty one",
        "admit",
        "redis.call('TYPE', KEYS[before_limits + n]).ok ~= 'none'",
        "false",
    ),
    Mutant(
        "the ring stands still while there is plenty",
        "admit",
        "and head == floor(now / width) and",
        "and",
    ),
    Mutant(
        "the newest sub-bucket is not counted when there is plenty",
        "admit",
        "pack_struct('>d', b + more)",
        "pack_struct('>d', b)",
    ),
    Mutant(
        "a hold is not looked at while the breaker rests",
        "admit",
        "if texts[2] == asked[9] and not texts[1] and not texts[3] then",
        "if texts[2] == asked[9] and not texts[3] then",
    ),
    Mutant(
        "a vendor's wish is not looked at while the breaker rests",
        "admit",
        "if texts[2] == asked[9] and not texts[1] and not texts[3] then",
        "if texts[2] == asked[9] and not texts[1] then",
    ),
    Mutant(
        "a breaker that lets traffic grow back rests",
        "admit",
        "if verdict == ADMITS and not texts[1] and not texts[3] and not before and not part then rest = texts[2] end",
        "if verdict == ADMITS and not texts[1] and not texts[3] and not before then rest = texts[2] end",
    ),
    Mutant("a breaker that was lost is a new one", "admit", "asked[10] > 0 and 'lost' or 'new'", "'new'"),
    Mutant(
        "a store that was lost is a new one",
        "admit",
        "(asked[4] == 0 and 'new ' or 'lost ')",
        "'new '",
    ),
    Mutant(
        "nobody corrects who knew nothing of the breaker",
        "admit",
        "elseif breaker.cause == 'new' and asked[10] > 0 and breaker.generation ~= asked[10] then",
        "elseif false then",
    ),
    Mutant(
        "nobody corrects who knew nothing of the store",
        "admit",
        "elseif asked[4] ~= 0 and string.sub(rest, 1, 4) == 'new ' then",
        "elseif false then",
    ),
    Mutant(
        "what was lost counts as unspent",
        "admit",
        "elseif limit.lost_since and now < limit.lost_since + limit.window and not limit.lenient then",
        "elseif false then",
    ),
    Mutant(
        "the window of a loss begins with each question",
        "admit",
        "placed, limit.repaired = limit.limit, math.min(index, floor(limit.lost_since / width)), true",
        "placed, limit.repaired = limit.limit, index, true",
    ),
    Mutant(
        "a loss in which everybody is refused is forgotten",
        "admit",
        "if write_guard and (granted_total > 0 or lost_since) then",
        "if write_guard and granted_total > 0 then",
    ),
    Mutant("garbage that does not add up is believed", "admit", "if sum ~= stored[3] or not", "if not"),
]
