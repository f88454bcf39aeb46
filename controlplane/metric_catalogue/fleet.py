"""The fleet: its pods, and what protects the calls to dependencies."""

from controlplane.metric_catalogue.metric import GATEWAY, WEB, Counter, Gauge, Panel
from fuseboard.contract.load import MAX_PRIORITIES
from fuseboard.contract.primitives import LOCK_EVENTS, ONCE_EVENTS

_PODS = "Pods"
_CALLS = "Protection of calls"
_LOCKS = "Locks and idempotency"

#: Dependencies whose protection has series, busiest first. One without a call in the last hour has none.
MOST_PROTECTED = 80

FLEET_SERVERS = Gauge(
    "fuseboard_fleet_servers",
    "Pods by state and mode, as last written.",
    by=(WEB,),
    labels=("environment", "state", "mode"),
    most=20,
    panel=Panel(
        row=_PODS,
        title="Pods by mode",
        promql='max by (environment, mode) (sum without (state) (fuseboard_fleet_servers{state!="gone"}))',
        legend="{{environment}} {{mode}}",
    ),
)
BREAKERS_HELD = Gauge(
    "fuseboard_breakers_held",
    "Breakers with an override.",
    by=(WEB,),
    labels=("environment", "mode"),
    most=5,
)
OVERRIDES_ENDING = Gauge(
    "fuseboard_overrides_ending",
    "Overrides that end within 5 minutes.",
    by=(WEB,),
    labels=("environment",),
)
SERVERS = Gauge(
    "fuseboard_servers", "Servers by state.", by=(GATEWAY,), labels=("environment", "state"), most=5
)
FROZEN = Gauge(
    "fuseboard_fleet_frozen",
    "1 while no server is called offline.",
    by=(GATEWAY,),
    labels=("environment",),
)
UNKNOWN_REVISIONS = Gauge(
    "fuseboard_fleet_unknown_revisions",
    "Pods that report a revision that Postgres never made.",
    by=(GATEWAY,),
    labels=("environment",),
)
PODS_BY_PRESSURE = Gauge(
    "fuseboard_fleet_pods_by_pressure",
    "Pods that report how busy they are, by level: normal, shed, or shed_hard.",
    by=(GATEWAY,),
    labels=("environment", "level"),
    most=3,
    panel=Panel(
        row=_PODS,
        title="Pods by pressure",
        promql="sum by (environment, level) (fuseboard_fleet_pods_by_pressure)",
        legend="{{environment}} {{level}}",
    ),
)
SHED_BY_PRIORITY = Gauge(
    "fuseboard_fleet_shed_per_second",
    "Requests that pods shed, by the priority of the tier. Of the 16 lowest priorities that pods report.",
    by=(GATEWAY,),
    labels=("environment", "priority"),
    most=MAX_PRIORITIES,
    panel=Panel(
        row=_PODS,
        title="Shed requests by priority",
        promql="sum by (environment, priority) (fuseboard_fleet_shed_per_second)",
        legend="{{environment}} {{priority}}",
    ),
)
PODS_UNREADY = Gauge(
    "fuseboard_fleet_pods_unready",
    "Pods that are unready because of pressure.",
    by=(GATEWAY,),
    labels=("environment",),
)
OBSERVES = Gauge(
    "fuseboard_fleet_protection_observes",
    "1 while a part of the protection decides and counts, but refuses nothing.",
    by=(GATEWAY,),
    labels=("environment", "part"),
    most=6,
)
OBSERVED_REQUESTS = Gauge(
    "fuseboard_fleet_observed_requests_per_second",
    "Requests that shedding would refuse if it did not only observe.",
    by=(GATEWAY,),
    labels=("environment",),
)

LOCKS = Counter(
    "fuseboard_fleet_locks_total",
    "Locks of pods by what became of them: acquired, and those of them after a wait (waited), taken by"
    " another process, lost, unavailable, unreleased, long_held.",
    by=(GATEWAY,),
    labels=("environment", "event"),
    most=len(LOCK_EVENTS),
    panel=Panel(
        row=_LOCKS,
        title="Locks that failed or were lost",
        promql="sum by (environment, event)"
        ' (increase(fuseboard_fleet_locks_total{event!~"acquired|waited"}[5m]))',
        legend="{{environment}} {{event}}",
    ),
)
LOCKS_HELD = Gauge(
    "fuseboard_fleet_locks_held",
    "Locks that pods hold.",
    by=(GATEWAY,),
    labels=("environment",),
)
LOCK_LONGEST = Gauge(
    "fuseboard_fleet_locks_longest_seconds",
    "For how long the lock has been held that is held longest.",
    by=(GATEWAY,),
    labels=("environment",),
    panel=Panel(
        row=_LOCKS,
        title="Lock that is held longest",
        promql="max by (environment) (fuseboard_fleet_locks_longest_seconds)",
        legend="{{environment}}",
    ),
)
ONCE = Counter(
    "fuseboard_fleet_once_total",
    "Requests with an Idempotency-Key, and blocks of agent.once, by what became of them: begun, replayed,"
    " running (409), mismatched (422), lost, unavailable, unsealed (no key opens the kept answer).",
    by=(GATEWAY,),
    labels=("environment", "event"),
    most=len(ONCE_EVENTS),
    panel=Panel(
        row=_LOCKS,
        title="Idempotency",
        promql="sum by (environment, event) (increase(fuseboard_fleet_once_total[5m]))",
        legend="{{environment}} {{event}}",
    ),
)

_OF_DEPENDENCY = ("environment", "dependency")

BULKHEAD_SLOTS = Gauge(
    "fuseboard_fleet_bulkhead_slots",
    "Bulkheads of all pods together: limit, active and queued calls.",
    by=(GATEWAY,),
    labels=(*_OF_DEPENDENCY, "tier", "kind"),
    most=9 * MOST_PROTECTED,
    panel=Panel(
        row=_CALLS,
        title="Slots in use",
        promql='sum by (environment, dependency) (fuseboard_fleet_bulkhead_slots{kind="active"})'
        ' / (sum by (environment, dependency) (fuseboard_fleet_bulkhead_slots{kind="limit"}) > 0)',
        legend="{{environment}} {{dependency}}",
    ),
)
BULKHEAD_REFUSED = Gauge(
    "fuseboard_fleet_bulkhead_refused_per_second",
    "Calls that bulkheads refused in the last 30 s: full, or timed_out in the queue.",
    by=(GATEWAY,),
    labels=(*_OF_DEPENDENCY, "tier", "reason"),
    most=6 * MOST_PROTECTED,
    panel=Panel(
        row=_CALLS,
        title="Calls that bulkheads refuse",
        promql="sum by (environment, dependency) (fuseboard_fleet_bulkhead_refused_per_second)",
        legend="{{environment}} {{dependency}}",
    ),
)
RETRIES = Gauge(
    "fuseboard_fleet_retries_per_second",
    "Retries of the last 30 s: retried, helped, no_budget, or exhausted.",
    by=(GATEWAY,),
    labels=(*_OF_DEPENDENCY, "verdict"),
    most=4 * MOST_PROTECTED,
    panel=Panel(
        row=_CALLS,
        title="Retries",
        promql="sum by (environment, verdict) (fuseboard_fleet_retries_per_second)",
        legend="{{environment}} {{verdict}}",
    ),
)
FALLBACKS = Gauge(
    "fuseboard_fleet_fallbacks_per_second",
    "Answers of fallbacks in the last 30 s: used, or failed.",
    by=(GATEWAY,),
    labels=(*_OF_DEPENDENCY, "outcome"),
    most=2 * MOST_PROTECTED,
)
RETRY_CAP = Gauge(
    "fuseboard_fleet_retry_cap",
    "Retries per 1,000 s that one pod may make besides its budget.",
    by=(GATEWAY,),
    labels=_OF_DEPENDENCY,
    most=200,
)
OBSERVED_CALLS = Gauge(
    "fuseboard_fleet_observed_calls_per_second",
    "Calls of the last 30 s that parts in observe mode would have refused.",
    by=(GATEWAY,),
    labels=_OF_DEPENDENCY,
    most=MOST_PROTECTED,
)
CALL_SECONDS = Gauge(
    "fuseboard_fleet_call_seconds",
    "Means over the pods: how long calls take (mean, p95), and wait for a slot (wait_p95).",
    by=(GATEWAY,),
    labels=(*_OF_DEPENDENCY, "kind"),
    most=3 * MOST_PROTECTED,
    panel=Panel(
        row=_CALLS,
        title="Time of calls, p95",
        promql='max by (environment, dependency) (fuseboard_fleet_call_seconds{kind="p95"})',
        legend="{{environment}} {{dependency}}",
    ),
)
ADAPTIVE_QUEUE = Gauge(
    "fuseboard_fleet_adaptive_queue",
    "Adaptive queues of all pods: places, and the calls that Little's law predicts in them.",
    by=(GATEWAY,),
    labels=(*_OF_DEPENDENCY, "kind"),
    most=2 * MOST_PROTECTED,
)
BULKHEAD_RECLAIMED = Gauge(
    "fuseboard_fleet_bulkhead_reclaimed",
    "Calls since the start of the pods that were never reported, and lost their slots.",
    by=(GATEWAY,),
    labels=_OF_DEPENDENCY,
    most=MOST_PROTECTED,
)
BULKHEAD_NESTED = Gauge(
    "fuseboard_fleet_bulkhead_nested",
    "Calls since the start of the pods that found no free slot while their own task had one.",
    by=(GATEWAY,),
    labels=_OF_DEPENDENCY,
    most=MOST_PROTECTED,
)
