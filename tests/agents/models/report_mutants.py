"""Bugs in ``report.lua``."""

from tests.agents.models.mutant import Mutant

REPORT_MUTANTS = [
    Mutant(
        "probes survive a transition",
        "report",
        "breaker.successes, breaker.permits = 0, {}",
        "breaker.permits = {}",
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
        "a call that runs on loses its permit",
        "report",
        "if permit.expires > now then permit.expires = now + renewed end",
        "table.remove(breaker.permits, at)",
    ),
    Mutant(
        "a permit that has expired is renewed",
        "report",
        "if permit.expires > now then permit.expires = now + renewed end",
        "permit.expires = now + renewed",
    ),
    Mutant(
        "a permit is not renewed",
        "report",
        "permit.expires = now + renewed end",
        "end",
    ),
    Mutant(
        "a call that runs on is a success",
        "report",
        "if renewed >= 1000 then",
        "if renewed >= 1000 then breaker.successes = breaker.successes + 1",
    ),
    Mutant(
        "a success does not end a row of failures",
        "report",
        "ring[2] = (ok > 0) and tail or ring[2] + tail",
        "ring[2] = ring[2] + tail",
    ),
    Mutant(
        "a slow success ends a row of failures",
        "report",
        "ring[2] = (ok > 0) and tail",
        "ring[2] = (ok + slow > 0) and tail",
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
    Mutant(
        "a window of calls is the whole window",
        "report",
        "if calls >= window_calls then break end",
        "",
    ),
    Mutant(
        "a window of calls wants one more",
        "report",
        "if calls >= window_calls then break end",
        "if calls > window_calls then break end",
    ),
    Mutant(
        "a window of calls begins with the oldest",
        "report",
        "local i = ((ring[1] - back) % window) * 3 + 3",
        "local i = ((ring[1] + 1 + back) % window) * 3 + 3",
    ),
    Mutant(
        "a window of calls is always the newest second",
        "report",
        "if calls >= window_calls then break end",
        "if window_calls < math.huge then break end",
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
        "a shorter wish replaces a longer",
        "report",
        "if now + cooldown > standing or standing > now + 3600000000 then",
        "if true then",
    ),
]
