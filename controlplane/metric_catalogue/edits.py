"""Edits, their publication and repair, schedules, approvals, and logins."""

from controlplane.metric_catalogue.metric import WEB, WORKER, Counter, Gauge, Panel, per_environment

_ROW = "Configuration"
_BOTH = (WEB, WORKER)

REVISION = per_environment("fuseboard_revision", Gauge, "The newest revision.", WEB)
OUTBOX_WAITING = Gauge(
    "fuseboard_outbox_waiting",
    "Edits that are not published yet.",
    by=(WEB,),
    panel=Panel(_ROW, "Edits that wait"),
)
OUTBOX_OLDEST = Gauge(
    "fuseboard_outbox_oldest_seconds", "Age of the oldest edit that is not published yet.", by=(WEB,)
)
PUBLISHED = Counter("fuseboard_published_total", "Configurations written to Redis.", by=_BOTH)
PUBLISH_FAILURES = Counter(
    "fuseboard_publish_failures_total", "Publications that were left to the sweep.", by=_BOTH
)
REFRESHES = Counter(
    "fuseboard_config_refreshes_total",
    "Times that the configuration was sent again to pods that lag: ok, or failed.",
    by=_BOTH,
    labels=("result",),
    most=2,
)
ENFORCE_FAILURES = Counter(
    "fuseboard_enforce_failures_total", "Overrides and resets left to the reconciler.", by=_BOTH
)
REPAIRS = Counter(
    "fuseboard_reconcile_repairs_total",
    "Differences found and repaired in Redis.",
    by=_BOTH,
    labels=("what",),
    most=4,
    panel=Panel(_ROW, "Differences repaired in Redis"),
)
SCRIPTS_BLOCKED = Counter(
    "fuseboard_redis_scripts_blocked_total",
    "Scripts that blocked Redis, by whether they could be killed.",
    by=_BOTH,
    labels=("outcome",),
    most=2,
)
REDIS_NOT_READY = Counter(
    "fuseboard_redis_not_ready_total",
    "Rounds in which a server of Redis could not be asked for endless scripts, or be given functions.",
    by=_BOTH,
)
SCHEDULES_APPLIED = Counter(
    "fuseboard_schedules_applied_total", "Scheduled changes that were applied.", by=_BOTH
)
SCHEDULES_FAILED = Counter(
    "fuseboard_schedules_failed_total", "Scheduled changes that could not be applied.", by=_BOTH
)
SCHEDULES_STOOD_IN = Counter(
    "fuseboard_schedules_stood_in_total", "Times the web process did what the worker had not done.", by=(WEB,)
)
CHANGE_REQUESTS = per_environment(
    "fuseboard_change_requests",
    Gauge,
    "Change requests that wait for approval or application.",
    WEB,
    {"state": 3},
)
CHANGE_REQUESTS_OPENED = Counter(
    "fuseboard_change_requests_opened_total", "Edits that became change requests.", by=_BOTH
)
CHANGE_REQUESTS_ENDED = Counter(
    "fuseboard_change_requests_ended_total",
    "Change requests by outcome.",
    by=_BOTH,
    labels=("state",),
    most=5,
)
APPROVALS_REFUSED = Counter(
    "fuseboard_approvals_refused_total",
    "Approvals by a person who does not count as another one.",
    by=_BOTH,
    labels=("reason",),
    most=5,
)
DEPRECATED_USE = Counter(
    "fuseboard_deprecated_use_total",
    "Uses of deprecated names of the API.",
    by=_BOTH,
    labels=("name",),
    most=50,
)
LOGINS = Gauge("fuseboard_logins", "Sessions of people.", by=(WEB,))
WRONG_CODES = Counter(
    "fuseboard_wrong_codes_total",
    "Wrong codes of second factors, typed after a correct password or in a session.",
    by=_BOTH,
)
PROVIDER_LOGINS_FAILED = Counter(
    "fuseboard_provider_logins_failed_total",
    "Logins for which the answer of the identity provider was refused.",
    by=_BOTH,
)
TOKENS_REFUSED = Counter(
    "fuseboard_api_tokens_refused_total",
    "Requests with a valid API token that was refused or limited because of its owner.",
    by=_BOTH,
    labels=("reason",),
    most=5,
)
