"""Bugs in what a pod that ramps up does to the counters of whole limits."""

from tests.agents.models.mutant import Mutant

RAMP_MUTANTS = [
    Mutant(
        "a ramp cuts what a bucket owes",
        "admit",
        "local most = math.max(limit.whole_size, limit.whole) * limit.window",
        "local most = math.max(limit.size, limit.limit) * limit.window",
    ),
    Mutant(
        "a ramp cuts what a bucket owes beyond its burst",
        "admit",
        "local most = math.max(limit.whole_size, limit.whole) * limit.window",
        "local most = limit.whole_size * limit.window",
    ),
    Mutant(
        "a ramp cuts what a call has cost",
        "settle",
        "local most = math.max(limit.whole_size, limit.whole)\n",
        "local most = math.max(limit.size, limit.limit)\n",
    ),
    Mutant(
        "a ramp spends a part of a window that is lost",
        "admit",
        "{ math.min(now, limit.lost_since), limit.whole }",
        "{ math.min(now, limit.lost_since), limit.limit }",
    ),
    Mutant(
        "a ramp spends a part of a window that cannot be read",
        "admit",
        "or { now, unreadable(limit, limit.whole) }",
        "or { now, unreadable(limit, limit.limit) }",
    ),
    Mutant(
        "a ramp spends a part of a bucket that cannot be read",
        "admit",
        "local full = ceil(limit.whole_size * limit.window / limit.limit)",
        "local full = ceil(limit.size * limit.window / limit.limit)",
    ),
    Mutant(
        "a ramp spends a part of a period that cannot be read",
        "admit",
        "limit.count = unreadable(limit, limit.whole)",
        "limit.count = unreadable(limit, limit.limit)",
    ),
    Mutant(
        "a call that is refused in a ramp waits as if it never ended",
        "admit",
        "if limit.limit < limit.whole then wait",
        "if false then wait",
    ),
    Mutant(
        "a call that is larger than its part in a ramp waits for nothing",
        "admit",
        "local due = cost > limit.size and",
        "local due = false and",
    ),
]
