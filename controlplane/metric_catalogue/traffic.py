"""Decisions and calls of pods, as gateways receive them, and conclusions of the control plane."""

from controlplane.metric_catalogue.metric import (
    GATEWAY,
    WEB,
    WORKER,
    Counter,
    Gauge,
    Panel,
    per_environment,
)

_ROW = "Decisions"
_BREAKERS = "Breakers"
_BACKLOGS = "Backlogs"
_QUOTAS = "Quotas"
_REDIS = "Redis"

#: Tenants that have series of their own; all others are one series named ``other``.
TOP = 20
OTHER = "other"
#: Versions of the agent that have series of their own.
MAX_VERSIONS = 20
#: Dependencies that have series of a breaker and of calls.
MAX_DEPENDENCIES = 200
#: Backlogs that have series: those with a problem first, then the fullest.
MAX_BACKLOGS = 16

REQUESTS = per_environment(
    "fuseboard_fleet_requests_per_second",
    Gauge,
    "Requests that pods decided.",
    GATEWAY,
    panel=Panel(_ROW, "Requests"),
)
REFUSED = per_environment(
    "fuseboard_fleet_refused_per_second",
    Gauge,
    "Requests that pods refused, by reason: shed for pressure, others for a limit.",
    GATEWAY,
    {"reason": 20},
    panel=Panel(_ROW, "Refused requests"),
)
DECIDED_LOCALLY = per_environment(
    "fuseboard_fleet_decided_locally_per_second",
    Gauge,
    "Requests that pods decided locally.",
    GATEWAY,
    panel=Panel(_ROW, "Decided locally"),
)
REDIS_P99 = per_environment(
    "fuseboard_fleet_redis_p99_seconds",
    Gauge,
    "Response time of Redis as pods see it: 99 % of the answers of the last 9 s were faster.",
    GATEWAY,
    panel=Panel(_ROW, "Redis p99 as pods see it"),
)
REDIS_FAILED = per_environment(
    "fuseboard_fleet_redis_failures_per_second",
    Gauge,
    "Requests to Redis without an answer in time (timeout), or with an error.",
    GATEWAY,
    {"kind": 2},
    panel=Panel(_ROW, "Failed requests to Redis"),
)
REDIS_ASKED = per_environment(
    "fuseboard_fleet_redis_asked_per_second", Gauge, "Requests of pods to Redis.", GATEWAY
)
REDIS_PRIMARIES_DOWN = per_environment(
    "fuseboard_fleet_redis_primaries_down",
    Gauge,
    "Primaries of Redis that do not answer the gateway.",
    GATEWAY,
)
REDIS_UP = Gauge(
    "fuseboard_redis_up",
    "1 for a server of Redis that answered the worker within the last minute. One that is gone has 0 for 10"
    " minutes.",
    by=(WEB,),
    labels=("node", "role"),
    most=50,
)
REDIS_OPS = Gauge(
    "fuseboard_redis_ops_per_second",
    "Commands that a server of Redis executes, over 10 s.",
    by=(WEB,),
    labels=("node",),
    most=50,
    panel=Panel(_REDIS, "Commands of a server"),
)
REDIS_CAPACITY = Gauge(
    "fuseboard_redis_capacity_ops",
    "Commands per second that a server of Redis bears: FUSEBOARD_REDIS_CAPACITY_OPS, or as its CPU shows;"
    " missing if unknown. Of the 10 busiest servers.",
    by=(WEB,),
    labels=("node",),
    most=10,
)
REDIS_MEMORY = Gauge(
    "fuseboard_redis_memory_bytes",
    "Memory that a server of Redis uses.",
    by=(WEB,),
    labels=("node",),
    most=50,
    panel=Panel(_REDIS, "Memory of a server"),
)
REDIS_MEMORY_LIMIT = Gauge(
    "fuseboard_redis_memory_limit_bytes",
    "maxmemory of a server of Redis; missing without a limit.",
    by=(WEB,),
    labels=("node",),
    most=50,
)
REDIS_LAG = Gauge(
    "fuseboard_redis_replication_lag_seconds",
    "Since a replica last confirmed what it has, in whole seconds.",
    by=(WEB,),
    labels=("node",),
    most=50,
    panel=Panel(_REDIS, "Replication lag"),
)
UNLIMITED = per_environment(
    "fuseboard_unlimited", Gauge, "1 while no limit of an environment refuses anything.", WEB
)
HOT_KEYS = per_environment(
    "fuseboard_fleet_hot_keys",
    Gauge,
    "Tenants and quotas that are so busy that pods lease parts of them.",
    WEB,
)
CALLS = per_environment(
    "fuseboard_fleet_calls_per_second",
    Gauge,
    "Calls to a dependency by outcome: done (with failed and slow ones), failed, slow, refused.",
    GATEWAY,
    {"dependency": MAX_DEPENDENCIES, "outcome": 4},
    panel=Panel(_BREAKERS, "Failed calls", lines=("environment", "dependency"), only='outcome="failed"'),
)
TENANT_REQUESTS = per_environment(
    "fuseboard_tenant_requests_per_second",
    Gauge,
    "Requests of the 20 tenants that are refused most, or else ask most, and of all others together.",
    WEB,
    {"tenant": TOP + 1},
)
TENANT_REFUSED = per_environment(
    "fuseboard_tenant_refused_per_second",
    Gauge,
    "Refused requests of the same tenants.",
    WEB,
    {"tenant": TOP + 1},
    panel=Panel(_QUOTAS, "Tenants that are refused"),
)
QUOTA_USED = per_environment(
    "fuseboard_quota_used_ratio",
    Gauge,
    "Part of a quota or vendor limit of a calendar period that is spent, in its unit, of the 20 most spent. A"
    " budget has the state warn from its own warn_percent on.",
    WEB,
    {"tenant": TOP, "dependency": TOP, "quota": TOP, "unit": TOP, "state": 5},
    most=TOP,
    panel=Panel(
        _QUOTAS, "Spent of quotas and budgets", lines=("environment", "tenant", "dependency", "quota")
    ),
)
QUOTAS = per_environment(
    "fuseboard_quotas",
    Gauge,
    "Quotas and vendor limits of a calendar period by state: ok, warn, over (100 %), will_be_over, unknown.",
    WEB,
    {"state": 5},
)
BREAKER_STATE = per_environment(
    "fuseboard_breaker_state",
    Gauge,
    "0 closed, 1 open, 2 half-open, 3 forced open by an override; other overrides count as closed.",
    WEB,
    {"dependency": MAX_DEPENDENCIES},
    panel=Panel(_BREAKERS, "Breakers that are open (1), half-open (2) or forced open (3)", above_zero=True),
)
BREAKER_OPEN_RATIO = per_environment(
    "fuseboard_breaker_open_1h_ratio",
    Gauge,
    "Part of the last hour in which the breaker was open.",
    WEB,
    {"dependency": MAX_DEPENDENCIES},
    panel=Panel(_BREAKERS, "Part of the last hour open", above_zero=True),
)
BREAKER_TRANSITIONS = per_environment(
    "fuseboard_breaker_transitions_total",
    Counter,
    "Changes of breakers by the new state.",
    WORKER,
    {"dependency": MAX_DEPENDENCIES, "to": 3},
    panel=Panel(_BREAKERS, "Changes of breakers", above_zero=True),
)
BACKLOG_JOBS = per_environment(
    "fuseboard_backlog_jobs",
    Gauge,
    "Jobs of the 16 fullest backlogs by state: ready, delayed, leased, dead.",
    WEB,
    {"dependency": MAX_BACKLOGS, "state": 4},
    panel=Panel(_BACKLOGS, "Jobs in backlogs", above_zero=True),
)
BACKLOG_USED = per_environment(
    "fuseboard_backlog_used_ratio",
    Gauge,
    "Part of the bound of a backlog that is used, in jobs or bytes; at 1, jobs are refused.",
    WEB,
    {"dependency": MAX_BACKLOGS},
    panel=Panel(_BACKLOGS, "Used of backlogs"),
)
BACKLOG_WAIT = per_environment(
    "fuseboard_backlog_wait_seconds",
    Gauge,
    "How long the job that comes next has waited.",
    WEB,
    {"dependency": MAX_BACKLOGS},
    panel=Panel(_BACKLOGS, "Wait in backlogs"),
)
BACKLOG_UNTAKEN = per_environment(
    "fuseboard_backlog_untaken_seconds",
    Gauge,
    "For how long a job could be sent while no worker has a job or asks.",
    WEB,
    {"dependency": MAX_BACKLOGS},
)
CONFIG_LAG = per_environment(
    "fuseboard_config_lag_seconds",
    Gauge,
    "Age of the oldest edit that a live pod has not applied.",
    WEB,
    panel=Panel(_ROW, "Configuration lag"),
)
CONFIG_REJECTED = per_environment(
    "fuseboard_config_rejected_pods", Gauge, "Pods that rejected the configuration.", WEB
)
AGENT_VERSIONS = per_environment(
    "fuseboard_agent_versions",
    Gauge,
    "Pods by version of the agent; beyond 20 versions, other.",
    WEB,
    {"version": MAX_VERSIONS + 1},
)
TOKEN_EXPIRY = per_environment(
    "fuseboard_token_expiry_timestamp_seconds",
    Gauge,
    "When the next valid token of an environment expires: api or agent. Tokens for all environments have"
    " an empty environment.",
    WEB,
    {"kind": 2},
)
UNREADABLE_SECRETS = per_environment(
    "fuseboard_unreadable_secrets",
    Gauge,
    "Stored secrets that no accepted FUSEBOARD_SECRET_KEY decrypts: receiver, or second_factor, which counts"
    " people and is that of the main environment.",
    WEB,
    {"kind": 2},
)
CERTIFICATE_EXPIRY = Gauge(
    "fuseboard_certificate_expiry_timestamp_seconds", "When FUSEBOARD_TLS_CERT_FILE expires.", by=(WEB,)
)
