"""Examples of what pods report about their load and their protection."""

_SLOTS = {"limit": 425, "active": 120, "queued": 0, "entered_per_s": 118.0, "full_per_s": 0.0}
LOAD = {
    "pressure": 0.82,
    "cause": "94 calls wait (limit 100)",
    "level": "shed",
    "cpu": 0.71,
    "throttled": 0.0,
    "memory": 0.48,
    "lag_ms": 3,
    "in_flight": 40,
    "waiting": 94,
    "p95_ms": 740,
    "late": 0.42,
    "errors_per_s": 0.0,
    "asks_unready": False,
    "unready": False,
    "unhealthy": [],
    "slots": 50,
    "slots_in_use": 38,
    "queued": 9,
    "calls_refused_per_s": 1.5,
    "retries_per_s": 0.5,
    "retries_no_budget_per_s": 0.0,
    "fallbacks_per_s": 1.5,
    "observed_per_s": 0.0,
    "observed_calls_per_s": 0.0,
}
CALLS = {
    "tiers": [{"tier": "critical", **_SLOTS, "timed_out_per_s": 0.0}],
    "callers": 17,
    "mean_ms": 310.0,
    "first_calls_per_s": 120.0,
    "retries_per_s": 1.5,
    "helped_per_s": 1.0,
    "no_budget_per_s": 0.0,
    "exhausted_per_s": 0.0,
    "fallbacks_per_s": 0.5,
    "fallback_failures_per_s": 0.0,
    "observed_per_s": 0.0,
}
PODS = {
    "by_level": {"normal": 16, "shed": 1, "shed_hard": 0},
    "unready": 0,
    "unhealthy": 1,
    "unhealthy_pods": [
        {"server": "shop-2", "because": ["CPU is at 95 %"], "spared": "sheds the lowest tiers"}
    ],
    "observed_per_s": 0.0,
    "observing": [
        {"part": "retry", "until": "2026-05-05T13:00:00Z", "by": "ada", "reason": "Watch for a day"}
    ],
}
