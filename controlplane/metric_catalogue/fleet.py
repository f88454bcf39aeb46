"""The fleet: its pods, and what protects the calls to dependencies."""

from controlplane.metric_catalogue.metric import (
    GATEWAY,
    WEB,
    Counter,
    Gauge,
    Panel,
    per_environment,
)
from fuseboard.contract.load import MAX_PRIORITIES
from fuseboard.contract.primitives import LOCK_EVENTS, ONCE_EVENTS
from fuseboard.contract.sync import PERMIT_EVENTS

_PODS = "Pods"
_CALLS = "Protection of calls"
_LOCKS = "Locks and idempotency"

#: Dependencies whose protection has series, busiest first. One without a call in the last hour has none.
MAX_PROTECTED = 80

FLEET_SERVERS = per_environment(
    "fuseboard_fleet_servers",
    Gauge,
    "Pods by state and mode, as last written.",
    WEB,
    {"state": 5, "mode": 4},
    panel=Panel(
        _PODS,
        "Pods by mode",
        lines=("environment", "mode"),
        promql='max by (environment, mode) (sum without (state) (fuseboard_fleet_servers{state!="gone"}))',
    ),
)
BREAKERS_HELD = per_environment(
    "fuseboard_breakers_held",
    Gauge,
    "Breakers with an override.",
    WEB,
    {"mode": 3},
)
OVERRIDES_ENDING = per_environment(
    "fuseboard_overrides_ending", Gauge, "Overrides that end within 5 minutes.", WEB
)
SERVERS = per_environment(
    "fuseboard_servers",
    Gauge,
    "Servers by state.",
    GATEWAY,
    {"state": 5},
)
FROZEN = per_environment("fuseboard_fleet_frozen", Gauge, "1 while no server is called offline.", GATEWAY)
UNKNOWN_REVISIONS = per_environment(
    "fuseboard_fleet_unknown_revisions",
    Gauge,
    "Pods that report a revision that Postgres never made.",
    GATEWAY,
)
PODS_BY_PRESSURE = per_environment(
    "fuseboard_fleet_pods_by_pressure",
    Gauge,
    "Pods that report how busy they are, by level: normal, shed, or shed_hard.",
    GATEWAY,
    {"level": 3},
    panel=Panel(_PODS, "Pods by pressure"),
)
SHED_BY_PRIORITY = per_environment(
    "fuseboard_fleet_shed_per_second",
    Gauge,
    "Requests that pods shed, by the priority of the tier. Of the 16 lowest priorities that pods report.",
    GATEWAY,
    {"priority": MAX_PRIORITIES},
    panel=Panel(_PODS, "Shed requests by priority"),
)
PODS_UNREADY = per_environment(
    "fuseboard_fleet_pods_unready", Gauge, "Pods that are unready because of pressure.", GATEWAY
)
OBSERVES = per_environment(
    "fuseboard_fleet_protection_observes",
    Gauge,
    "1 while a part of the protection decides and counts, but refuses nothing.",
    GATEWAY,
    {"part": 6},
)
OBSERVED_REQUESTS = per_environment(
    "fuseboard_fleet_observed_requests_per_second",
    Gauge,
    "Requests that shedding would refuse if it were not in trial mode.",
    GATEWAY,
)

LOCKS = per_environment(
    "fuseboard_fleet_locks_total",
    Counter,
    "Locks of pods by what became of them: acquired, and those of them after a wait (waited), taken by"
    " another process, lost, unavailable, unreleased, long_held.",
    GATEWAY,
    {"event": len(LOCK_EVENTS)},
    panel=Panel(_LOCKS, "Locks that failed or were lost", only='event!~"acquired|waited"'),
)
LOCKS_HELD = per_environment("fuseboard_fleet_locks_held", Gauge, "Locks that pods hold.", GATEWAY)
LOCK_LONGEST = per_environment(
    "fuseboard_fleet_locks_longest_seconds",
    Gauge,
    "For how long the lock has been held that is held longest.",
    GATEWAY,
    panel=Panel(_LOCKS, "Lock that is held longest"),
)
ONCE = per_environment(
    "fuseboard_fleet_once_total",
    Counter,
    "Requests with an Idempotency-Key, and blocks of agent.once, by what became of them: begun, replayed,"
    " running (409), mismatched (422), lost, unavailable, unsealed (no key opens the kept answer).",
    GATEWAY,
    {"event": len(ONCE_EVENTS)},
    panel=Panel(_LOCKS, "Idempotency"),
)

PERMITS = per_environment(
    "fuseboard_fleet_permits_total",
    Counter,
    "Permits that sidecars gave to other processes: issued, and without a report, ended after their time"
    " (expired), or ended because newer ones needed their room (displaced).",
    GATEWAY,
    {"event": len(PERMIT_EVENTS)},
    panel=Panel(_LOCKS, "Permits without a report", only='event!="issued"'),
)
PERMITS_UNREPORTED = per_environment(
    "fuseboard_fleet_permits_unreported_ratio",
    Gauge,
    "The largest share of the permits of one sidecar that ended without a report in the last 10 minutes; 0"
    " for fewer than 20.",
    GATEWAY,
)

BULKHEAD_SLOTS = per_environment(
    "fuseboard_fleet_bulkhead_slots",
    Gauge,
    "Bulkheads of all pods together: limit, active and queued calls.",
    GATEWAY,
    {"dependency": MAX_PROTECTED, "tier": 3, "kind": 3},
    panel=Panel(
        _CALLS,
        "Slots in use",
        lines=("environment", "dependency"),
        promql='sum by (environment, dependency) (fuseboard_fleet_bulkhead_slots{kind="active"})'
        ' / (sum by (environment, dependency) (fuseboard_fleet_bulkhead_slots{kind="limit"}) > 0)',
    ),
)
BULKHEAD_REFUSED = per_environment(
    "fuseboard_fleet_bulkhead_refused_per_second",
    Gauge,
    "Calls that bulkheads refused in the last 30 s: full, or timed_out in the queue.",
    GATEWAY,
    {"dependency": MAX_PROTECTED, "tier": 3, "reason": 2},
    panel=Panel(_CALLS, "Calls that bulkheads refuse", lines=("environment", "dependency")),
)
RETRIES = per_environment(
    "fuseboard_fleet_retries_per_second",
    Gauge,
    "Retries of the last 30 s: retried, helped, no_budget, or exhausted.",
    GATEWAY,
    {"dependency": MAX_PROTECTED, "verdict": 4},
    panel=Panel(_CALLS, "Retries", lines=("environment", "verdict")),
)
FALLBACKS = per_environment(
    "fuseboard_fleet_fallbacks_per_second",
    Gauge,
    "Answers of fallbacks in the last 30 s: used, or failed.",
    GATEWAY,
    {"dependency": MAX_PROTECTED, "outcome": 2},
)
RETRY_CAP = per_environment(
    "fuseboard_fleet_retry_cap",
    Gauge,
    "Retries per 1,000 s that one pod may make besides its budget.",
    GATEWAY,
    {"dependency": 200},
)
OBSERVED_CALLS = per_environment(
    "fuseboard_fleet_observed_calls_per_second",
    Gauge,
    "Calls of the last 30 s that parts in observe mode would have refused.",
    GATEWAY,
    {"dependency": MAX_PROTECTED},
)
CALL_SECONDS = per_environment(
    "fuseboard_fleet_call_seconds",
    Gauge,
    "Means over the pods: how long calls take (mean, p95), and wait for a slot (wait_p95).",
    GATEWAY,
    {"dependency": MAX_PROTECTED, "kind": 3},
    panel=Panel(_CALLS, "Time of calls, p95", lines=("environment", "dependency"), only='kind="p95"'),
)
ADAPTIVE_QUEUE = per_environment(
    "fuseboard_fleet_adaptive_queue",
    Gauge,
    "Adaptive queues of all pods: places, and the calls that Little's law predicts in them.",
    GATEWAY,
    {"dependency": MAX_PROTECTED, "kind": 2},
)
BULKHEAD_RECLAIMED = per_environment(
    "fuseboard_fleet_bulkhead_reclaimed",
    Gauge,
    "Calls since the start of the pods that were never reported, and lost their slots.",
    GATEWAY,
    {"dependency": MAX_PROTECTED},
)
BULKHEAD_NESTED = per_environment(
    "fuseboard_fleet_bulkhead_nested",
    Gauge,
    "Calls since the start of the pods that found no free slot while their own task had one.",
    GATEWAY,
    {"dependency": MAX_PROTECTED},
)
