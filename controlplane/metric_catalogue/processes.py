"""Work of the processes: requests of web, tasks of the worker, heartbeats and writes of the gateway."""

from controlplane.metric_catalogue.metric import (
    GATEWAY,
    WEB,
    WORKER,
    Counter,
    Gauge,
    Histogram,
    Panel,
    per_environment,
)

_ROW = "Processes"

WEB_REQUESTS = Counter(
    "fuseboard_web_requests_total",
    "Requests by route and status.",
    by=(WEB,),
    labels=("route", "status"),
    most=1_400,
    panel=Panel(_ROW, "Requests to web", lines=("status",), per_second=True),
)
WEB_SECONDS = Histogram(
    "fuseboard_web_request_seconds",
    "Time to answer a request.",
    by=(WEB,),
    labels=("route",),
    most=2_400,
    # Few edges: there is a series of each for every route.
    buckets=(0.01, 0.05, 0.1, 0.25, 0.5, 1, 5),
    panel=Panel(_ROW, "Time to answer a request, p99", lines=()),
)
POSTGRES_UP = Gauge("fuseboard_postgres_up", "1 while Postgres answers.", by=(WEB,))
TASKS = Counter(
    "fuseboard_tasks_total",
    "Tasks that a worker has run, by outcome.",
    by=(WORKER,),
    labels=("task", "state"),
    most=100,
    panel=Panel(_ROW, "Tasks of the worker", lines=("state",), per_second=True),
)
TASK_SECONDS = Histogram(
    "fuseboard_task_seconds",
    "Time to run a task.",
    by=(WORKER,),
    labels=("task",),
    most=440,
    buckets=(0.005, 0.01, 0.05, 0.1, 0.5, 1, 5, 20),
)
TASK_LAST_SUCCESS = Gauge(
    "fuseboard_task_last_success_timestamp_seconds",
    "When a task last succeeded.",
    by=(WORKER,),
    labels=("task",),
    most=40,
)
GATEWAY_ANSWERS = Counter(
    "fuseboard_gateway_answers_total",
    "Answers by status.",
    by=(GATEWAY,),
    labels=("status",),
    most=20,
    panel=Panel(_ROW, "Answers of gateways", per_second=True),
)
GATEWAY_SYNC_SECONDS = Histogram(
    "fuseboard_gateway_sync_seconds",
    "Time from a sync's headers to its answer.",
    by=(GATEWAY,),
    most=14,
    panel=Panel(_ROW, "Time to answer a heartbeat, p99"),
)
METRICS_BY_AGENT_TOKEN = Counter(
    "fuseboard_gateway_metrics_by_agent_token_total", "Answers to /metrics for an agent token.", by=(GATEWAY,)
)
FLUSHES = Counter("fuseboard_gateway_flushes_total", "Batches written to Postgres.", by=(GATEWAY,))
FLUSH_FAILURES = Counter(
    "fuseboard_gateway_flush_failures_total", "Batches that Postgres did not take.", by=(GATEWAY,)
)
ROWS_FLUSHED = Counter(
    "fuseboard_gateway_rows_flushed_total", "Rows of servers written to Postgres.", by=(GATEWAY,)
)
SERIES_SPANS = Counter(
    "fuseboard_gateway_series_spans_total", "Spans of 10 s written to the history.", by=(GATEWAY,)
)
SERIES_FAILURES = Counter(
    "fuseboard_gateway_series_failures_total",
    "Writings of the history that Postgres did not take.",
    by=(GATEWAY,),
)
SERIES_REFUSED = Counter(
    "fuseboard_gateway_series_refused_total",
    "Values left out of the history, because there are too many names.",
    by=(GATEWAY,),
)
REFUSAL_SAMPLES = Counter(
    "fuseboard_gateway_refusal_samples_total", "Samples of refusals taken from pods.", by=(GATEWAY,)
)
REFUSAL_SAMPLES_LEFT_OUT = Counter(
    "fuseboard_gateway_refusal_samples_left_out_total",
    "Samples of refusals left out, because there were too many.",
    by=(GATEWAY,),
)
SERIES_LEFT_OUT = Counter(
    "fuseboard_gateway_series_left_out_total",
    "Differences left out of the history, because another gateway may have counted them.",
    by=(GATEWAY,),
)
FAILED_CALLS_LEFT_OUT = Counter(
    "fuseboard_gateway_failed_calls_left_out_total",
    "Reports of failed calls left out, because there are too many dependencies.",
    by=(GATEWAY,),
)
DESCRIPTORS_LEFT_OUT = Counter(
    "fuseboard_gateway_descriptors_left_out_total",
    "Descriptors of Envoy in no figure: too many keys or domains, or a rule that is not configured.",
    by=(GATEWAY,),
)
RELOAD_FAILURES = Counter(
    "fuseboard_gateway_reload_failures_total", "Readings of the configuration that failed.", by=(GATEWAY,)
)
GATEWAY_REVISION = per_environment("fuseboard_gateway_revision", Gauge, "The revision being served.", GATEWAY)
POLICIES_SENT = per_environment(
    "fuseboard_gateway_policies_sent_total", Counter, "Answers that carried the policy document.", GATEWAY
)
CONFIGURATION_AGE = Gauge(
    "fuseboard_gateway_configuration_age_seconds", "Since Postgres was last read.", by=(GATEWAY,)
)
STALE_BEATS = per_environment(
    "fuseboard_gateway_stale_beats_total", Counter, "Beats that came too late to count.", GATEWAY
)
PODS_DROPPED = per_environment(
    "fuseboard_gateway_pods_dropped_total",
    Counter,
    "Pods that made room for a new pod, because the fleet was full.",
    GATEWAY,
)
NEW_PODS_REFUSED = per_environment(
    "fuseboard_gateway_new_pods_refused_total",
    Counter,
    "Heartbeats of pods with a new name that a token's limit refused.",
    GATEWAY,
)
WRITES_REFUSED = per_environment(
    "fuseboard_gateway_writes_refused_total",
    Counter,
    "Values that Postgres refused, and that the gateway dropped; without an environment if it concerns all.",
    GATEWAY,
    {"what": 11},
)
KEPT_BYTES = per_environment(
    "fuseboard_gateway_kept_bytes", Gauge, "What is kept of heartbeats, by its estimated memory.", GATEWAY
)
BEATS_CUT = per_environment(
    "fuseboard_gateway_beats_cut_total",
    Counter,
    "Heartbeats of which the pod, or the gateway, left something out.",
    GATEWAY,
)
UNREADY_GRANTED = per_environment(
    "fuseboard_gateway_unready_granted_total",
    Counter,
    "Times a pod under pressure was allowed to be unready.",
    GATEWAY,
)
UNREADY_REFUSED = per_environment(
    "fuseboard_gateway_unready_refused_total",
    Counter,
    "Heartbeats that asked to be unready while enough pods of the service were.",
    GATEWAY,
)
POD_LEVEL_CHANGES = per_environment(
    "fuseboard_gateway_pod_level_changes_total",
    Counter,
    "Changes of what pods shed, by the new level: normal, shed, or shed_hard.",
    GATEWAY,
    {"level": 3},
)
RETRY_CAP_CHANGES = per_environment(
    "fuseboard_gateway_retry_cap_changes_total", Counter, "Changes of retry caps that the log has.", GATEWAY
)
