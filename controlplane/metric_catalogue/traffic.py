"""What pods decide and call, as gateways hear it, and what the control plane concludes from it."""

from controlplane.metric_catalogue.metric import GATEWAY, WEB, WORKER, Counter, Gauge, Panel

_ROW = "Decisions"
_BREAKERS = "Breakers"
_BACKLOGS = "Backlogs"
_QUOTAS = "Quotas"
_REDIS = "Redis"

#: Tenants that have series of their own; all others are one series named ``other``.
TOP = 20
OTHER = "other"
#: Versions of the agent that have series of their own.
MOST_VERSIONS = 20
#: Dependencies that have series of a breaker and of calls.
MOST_DEPENDENCIES = 200
#: Backlogs that have series: those with a problem first, then the fullest.
MOST_BACKLOGS = 16

REQUESTS = Gauge(
    "fuseboard_fleet_requests_per_second",
    "Requests that pods decided.",
    by=(GATEWAY,),
    labels=("environment",),
    panel=Panel(
        row=_ROW,
        title="Requests",
        promql="sum by (environment) (fuseboard_fleet_requests_per_second)",
        legend="{{environment}}",
    ),
)
REFUSED = Gauge(
    "fuseboard_fleet_refused_per_second",
    "Requests that pods refused, by reason: shed for pressure, others for a limit.",
    by=(GATEWAY,),
    labels=("environment", "reason"),
    most=20,
    panel=Panel(
        row=_ROW,
        title="Refused requests",
        promql="sum by (environment, reason) (fuseboard_fleet_refused_per_second)",
        legend="{{environment}} {{reason}}",
    ),
)
DECIDED_LOCALLY = Gauge(
    "fuseboard_fleet_decided_locally_per_second",
    "Requests that pods decided without Redis.",
    by=(GATEWAY,),
    labels=("environment",),
    panel=Panel(
        row=_ROW,
        title="Decided without Redis",
        promql="sum by (environment) (fuseboard_fleet_decided_locally_per_second)",
        legend="{{environment}}",
    ),
)
REDIS_P99 = Gauge(
    "fuseboard_fleet_redis_p99_seconds",
    "Response time of Redis as pods see it: 99 % of the answers of the last 9 s were faster.",
    by=(GATEWAY,),
    labels=("environment",),
    panel=Panel(
        row=_ROW,
        title="Redis p99 as pods see it",
        promql="max by (environment) (fuseboard_fleet_redis_p99_seconds)",
        legend="{{environment}}",
    ),
)
REDIS_FAILED = Gauge(
    "fuseboard_fleet_redis_failures_per_second",
    "Questions to Redis without an answer in time (timeout), or with an error.",
    by=(GATEWAY,),
    labels=("environment", "kind"),
    most=2,
    panel=Panel(
        row=_ROW,
        title="Failed questions to Redis",
        promql="sum by (environment, kind) (fuseboard_fleet_redis_failures_per_second)",
        legend="{{environment}} {{kind}}",
    ),
)
REDIS_ASKED = Gauge(
    "fuseboard_fleet_redis_asked_per_second",
    "Questions of pods to Redis.",
    by=(GATEWAY,),
    labels=("environment",),
)
REDIS_PRIMARIES_DOWN = Gauge(
    "fuseboard_fleet_redis_primaries_down",
    "Primaries of Redis that do not answer the gateway.",
    by=(GATEWAY,),
    labels=("environment",),
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
    panel=Panel(
        row=_REDIS,
        title="Commands of a server",
        promql="max by (node) (fuseboard_redis_ops_per_second)",
        legend="{{node}}",
    ),
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
    panel=Panel(
        row=_REDIS,
        title="Memory of a server",
        promql="max by (node) (fuseboard_redis_memory_bytes)",
        legend="{{node}}",
    ),
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
    panel=Panel(
        row=_REDIS,
        title="Replication lag",
        promql="max by (node) (fuseboard_redis_replication_lag_seconds)",
        legend="{{node}}",
    ),
)
UNLIMITED = Gauge(
    "fuseboard_unlimited",
    "1 while no limit of an environment refuses anything.",
    by=(WEB,),
    labels=("environment",),
)
HOT_KEYS = Gauge(
    "fuseboard_fleet_hot_keys",
    "Tenants and quotas that are so busy that pods lease parts of them.",
    by=(WEB,),
    labels=("environment",),
)
CALLS = Gauge(
    "fuseboard_fleet_calls_per_second",
    "Calls to a dependency by outcome: done (with failed and slow ones), failed, slow, refused.",
    by=(GATEWAY,),
    labels=("environment", "dependency", "outcome"),
    most=4 * MOST_DEPENDENCIES,
    panel=Panel(
        row=_BREAKERS,
        title="Failed calls",
        promql='sum by (environment, dependency) (fuseboard_fleet_calls_per_second{outcome="failed"})',
        legend="{{environment}} {{dependency}}",
    ),
)
TENANT_REQUESTS = Gauge(
    "fuseboard_tenant_requests_per_second",
    "Requests of the 20 tenants that are refused most, or else ask most, and of all others together.",
    by=(WEB,),
    labels=("environment", "tenant"),
    most=TOP + 1,
)
TENANT_REFUSED = Gauge(
    "fuseboard_tenant_refused_per_second",
    "Refused requests of the same tenants.",
    by=(WEB,),
    labels=("environment", "tenant"),
    most=TOP + 1,
    panel=Panel(
        row=_QUOTAS,
        title="Tenants that are refused",
        promql="max by (environment, tenant) (fuseboard_tenant_refused_per_second)",
        legend="{{environment}} {{tenant}}",
    ),
)
QUOTA_USED = Gauge(
    "fuseboard_quota_used_ratio",
    "Part of a quota or vendor limit of a calendar period that is spent, in its unit, of the 20 most spent.",
    by=(WEB,),
    labels=("environment", "tenant", "dependency", "quota", "unit"),
    most=TOP,
    panel=Panel(
        row=_QUOTAS,
        title="Spent of quotas and budgets",
        promql="max by (environment, tenant, dependency, quota) (fuseboard_quota_used_ratio)",
        legend="{{environment}} {{tenant}} {{dependency}} {{quota}}",
    ),
)
QUOTAS = Gauge(
    "fuseboard_quotas",
    "Quotas and vendor limits of a calendar period by state: ok, warn (80 %), over (100 %), will_be_over,"
    " unknown.",
    by=(WEB,),
    labels=("environment", "state"),
    most=5,
)
BREAKER_STATE = Gauge(
    "fuseboard_breaker_state",
    "0 closed, 1 open, 2 half-open, 3 forced open by an override; other overrides count as closed.",
    by=(WEB,),
    labels=("environment", "dependency"),
    most=MOST_DEPENDENCIES,
    panel=Panel(
        row=_BREAKERS,
        title="Breakers that are open (1), half-open (2) or forced open (3)",
        promql="max by (environment, dependency) (fuseboard_breaker_state) > 0",
        legend="{{environment}} {{dependency}}",
    ),
)
BREAKER_OPEN_RATIO = Gauge(
    "fuseboard_breaker_open_1h_ratio",
    "Part of the last hour in which the breaker was open.",
    by=(WEB,),
    labels=("environment", "dependency"),
    most=MOST_DEPENDENCIES,
    panel=Panel(
        row=_BREAKERS,
        title="Part of the last hour open",
        promql="max by (environment, dependency) (fuseboard_breaker_open_1h_ratio) > 0",
        legend="{{environment}} {{dependency}}",
    ),
)
BREAKER_TRANSITIONS = Counter(
    "fuseboard_breaker_transitions_total",
    "Changes of breakers by the new state.",
    by=(WORKER,),
    labels=("environment", "dependency", "to"),
    most=3 * MOST_DEPENDENCIES,
    panel=Panel(
        row=_BREAKERS,
        title="Changes of breakers",
        promql="sum by (environment, dependency, to) (increase(fuseboard_breaker_transitions_total[5m])) > 0",
        legend="{{environment}} {{dependency}} {{to}}",
    ),
)
BACKLOG_JOBS = Gauge(
    "fuseboard_backlog_jobs",
    "Jobs of the 16 fullest backlogs by state: ready, delayed, leased, dead.",
    by=(WEB,),
    labels=("environment", "dependency", "state"),
    most=4 * MOST_BACKLOGS,
    panel=Panel(
        row=_BACKLOGS,
        title="Jobs in backlogs",
        promql="max by (environment, dependency, state) (fuseboard_backlog_jobs) > 0",
        legend="{{environment}} {{dependency}} {{state}}",
    ),
)
BACKLOG_USED = Gauge(
    "fuseboard_backlog_used_ratio",
    "Part of the bound of a backlog that is used, in jobs or bytes; at 1, jobs are refused.",
    by=(WEB,),
    labels=("environment", "dependency"),
    most=MOST_BACKLOGS,
    panel=Panel(
        row=_BACKLOGS,
        title="Used of backlogs",
        promql="max by (environment, dependency) (fuseboard_backlog_used_ratio)",
        legend="{{environment}} {{dependency}}",
    ),
)
BACKLOG_WAIT = Gauge(
    "fuseboard_backlog_wait_seconds",
    "How long the job that comes next has waited.",
    by=(WEB,),
    labels=("environment", "dependency"),
    most=MOST_BACKLOGS,
    panel=Panel(
        row=_BACKLOGS,
        title="Wait in backlogs",
        promql="max by (environment, dependency) (fuseboard_backlog_wait_seconds)",
        legend="{{environment}} {{dependency}}",
    ),
)
BACKLOG_UNTAKEN = Gauge(
    "fuseboard_backlog_untaken_seconds",
    "For how long a job could be sent while no worker has a job or asks.",
    by=(WEB,),
    labels=("environment", "dependency"),
    most=MOST_BACKLOGS,
)
CONFIG_LAG = Gauge(
    "fuseboard_config_lag_seconds",
    "Age of the oldest edit that a live pod has not applied.",
    by=(WEB,),
    labels=("environment",),
    panel=Panel(
        row=_ROW,
        title="Configuration lag",
        promql="max by (environment) (fuseboard_config_lag_seconds)",
        legend="{{environment}}",
    ),
)
CONFIG_REJECTED = Gauge(
    "fuseboard_config_rejected_pods",
    "Pods that rejected the configuration.",
    by=(WEB,),
    labels=("environment",),
)
AGENT_VERSIONS = Gauge(
    "fuseboard_agent_versions",
    "Pods by version of the agent; beyond 20 versions, other.",
    by=(WEB,),
    labels=("environment", "version"),
    most=MOST_VERSIONS + 1,
)
TOKEN_EXPIRY = Gauge(
    "fuseboard_token_expiry_timestamp_seconds",
    "When the next valid token of an environment expires: api or agent. Tokens for all environments have"
    " an empty environment.",
    by=(WEB,),
    labels=("environment", "kind"),
    most=3,
)
CERTIFICATE_EXPIRY = Gauge(
    "fuseboard_certificate_expiry_timestamp_seconds",
    "When FUSEBOARD_TLS_CERT_FILE expires.",
    by=(WEB,),
)
