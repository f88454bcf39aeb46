"""``docs/monitoring/rules.yml``: alert rules for a Prometheus of your own.

A rule that the product has too takes its thresholds, its level, its times and its runbook from there: the
defaults, because a file is not of one environment. See ``controlplane.alerts.rules.settings``. The others are
about what the product cannot see itself, for example that no worker runs.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from controlplane.alerts.rules.every import RULE_OF_KEY, timing_of
from controlplane.alerts.rules.rule import SEVERITIES, Timing
from controlplane.alerts.rules.thresholds import (
    LEAST_CHECKS_PER_S,
    LEAST_REFUSED_PER_S,
    LOCAL_SHARE,
    NOT_EVALUATED_S,
)
from controlplane.monitoring.yaml_text import yaml_text
from controlplane.status.locks import LEAST_ATTEMPTS
from controlplane.status.watched import MOST_MEMORY_SHARE, MOST_OPS_SHARE, MOST_REPLICATION_LAG_S
from fuseboard.contract.policy import Tuning

#: The command replaces it by the address of a dashboard.
EXAMPLE_URL = "https://fuseboard.example.com"
_DAY_S = 86_400

_DEADLINE_S = Tuning().store_deadline_us / 1_000_000


@dataclass(frozen=True, kw_only=True)
class PrometheusRule:
    #: The key of the product's rule, if it has one.
    rule: str
    severity: str
    promql: str
    #: May use labels, as ``{{ $labels.environment }}``.
    text: str
    #: Of a rule that the product has not.
    timing: Timing | None = None
    runbook: str = ""

    @property
    def alert(self) -> str:
        words = self.rule.replace("-", " ").title().replace(" ", "")
        return f"Fuseboard{words}{self.severity.title()}"

    @property
    def times(self) -> Timing:
        return self.timing or timing_of(self.rule)


def _share(of: str, among: str) -> str:
    return f"sum by (environment) ({of}) / (sum by (environment) ({among}) > 1)"


def _levels(rule: str, promql: str, text: str, *, times: float = 1) -> Iterator[PrometheusRule]:
    """The rule at each of its thresholds; ``promql`` ends before the threshold, which is multiplied."""
    threshold = RULE_OF_KEY[rule].threshold
    for severity in SEVERITIES:
        if (most := threshold.of(severity)) is not None:
            yield PrometheusRule(
                rule=rule, severity=severity, promql=f"{promql} {most * times:.10g}", text=text
            )


_IN = "in {{ $labels.environment }}"
_OF = "{{ $labels.dependency }} " + _IN
_LIVE = 'state=~"online|late"'
_LOCAL = f'max by (environment) (sum without (state) (fuseboard_fleet_servers{{mode="local",{_LIVE}}}))'
_ALIVE = f"max by (environment) (sum without (state, mode) (fuseboard_fleet_servers{{{_LIVE}}}))"
#: Silent pods as well: those that are left must not speak for them.
_PRESENT = 'max by (environment) (sum without (state, mode) (fuseboard_fleet_servers{state!="gone"}))'
_FAILED_CHECKS = (
    "sum by (environment) (fuseboard_fleet_redis_failures_per_second)"
    f" / (sum by (environment) (fuseboard_fleet_redis_asked_per_second) >= {LEAST_CHECKS_PER_S:g})"
)
_REFUSED, _REQUESTS = "fuseboard_fleet_refused_per_second", "fuseboard_fleet_requests_per_second"


def _locks(locks: str, once: str) -> str:
    """Locks, and claims of work that must not be done twice, with these events, in 10 minutes."""
    return (
        f'(sum by (environment) (increase(fuseboard_fleet_locks_total{{event=~"{locks}"}}[10m]))'
        f' + sum by (environment) (increase(fuseboard_fleet_once_total{{event=~"{once}"}}[10m])))'
    )


_FAILED_LOCKS = (
    f"{_locks('unavailable', 'unavailable')}"
    f" / ({_locks('acquired|unavailable', 'begun|unavailable')} >= {LEAST_ATTEMPTS})"
)

_JOBS = "fuseboard_backlog_jobs"
_SHED = 'fuseboard_fleet_refused_per_second{reason="shed"}'
_ADAPTIVE, _SLOTS = "fuseboard_fleet_adaptive_queue", "fuseboard_fleet_bulkhead_slots"

_ILL = (
    "min by (node) (fuseboard_redis_up) == 0"
    f" or max by (node) (fuseboard_redis_replication_lag_seconds) > {MOST_REPLICATION_LAG_S:g}"
    " or max by (node) (fuseboard_redis_memory_bytes / fuseboard_redis_memory_limit_bytes)"
    f" > {MOST_MEMORY_SHARE:g}"
)
_USED = "max by (node) (fuseboard_redis_ops_per_second) / max by (node) (fuseboard_redis_capacity_ops) >"
_DEGRADED = f"{_ILL} or {_USED} {MOST_OPS_SHARE:g}"

_CALLS = "sum by (environment, dependency) (fuseboard_fleet_calls_per_second"
_CALLS_REFUSED = f'{_CALLS}{{outcome="refused"}})'
_CALLS_ASKED = f'{_CALLS}{{outcome=~"done|refused"}})'
_BREAKER_REFUSES = "max by (environment, dependency) (fuseboard_breaker_state) > 0"

_LOCAL_PODS = RULE_OF_KEY["local"].threshold.critical

PROMETHEUS_RULES: tuple[PrometheusRule, ...] = (
    *_levels(
        "429",
        f"{_share(_REFUSED, _REQUESTS)} >",
        "{{ $value | humanizePercentage }} of the requests are refused " + _IN,
    ),
    PrometheusRule(
        rule="all-local",
        severity="critical",
        promql=f"{_LOCAL} == {_ALIVE} and {_ALIVE} > 0",
        text="Every pod decides without Redis " + _IN,
    ),
    *_levels(
        "all-refused",
        f"({_CALLS_REFUSED} / {_CALLS_ASKED} and {_CALLS_REFUSED} >= {LEAST_REFUSED_PER_S:g}"
        f" unless {_BREAKER_REFUSES}) >",
        "Nearly every call to a dependency is refused, and its breaker is not the cause: " + _OF,
    ),
    *_levels(
        "check-errors",
        f"{_FAILED_CHECKS} >",
        "{{ $value | humanizePercentage }} of the questions to Redis fail " + _IN,
    ),
    *_levels(
        "check-failures",
        f"{_FAILED_CHECKS} >",
        "{{ $value | humanizePercentage }} of the questions to Redis fail " + _IN,
    ),
    PrometheusRule(
        rule="frozen",
        severity="warning",
        promql="max by (environment) (fuseboard_fleet_frozen) == 1",
        text="Many pods went silent at once " + _IN,
    ),
    *_levels(
        "lag",
        "max by (environment) (fuseboard_config_lag_seconds) >",
        "Pods have not applied an edit since {{ $value | humanizeDuration }} " + _IN,
    ),
    PrometheusRule(
        rule="local",
        severity="critical",
        promql=f"{_LOCAL} > {_LOCAL_PODS:g} or {_LOCAL} > {LOCAL_SHARE:g} * {_ALIVE}",
        text="{{ $value }} pods decide without Redis " + _IN,
    ),
    PrometheusRule(
        rule="local",
        severity="warning",
        promql=f"{_LOCAL} > 0",
        text="{{ $value }} pods decide without Redis " + _IN,
    ),
    PrometheusRule(
        rule="open",
        severity="critical",
        promql="max by (environment, dependency) (fuseboard_breaker_state) == 1",
        text="The breaker is open: " + _OF,
    ),
    *_levels(
        "open-share",
        "max by (environment, dependency) (fuseboard_breaker_open_1h_ratio) >",
        "The breaker was open for {{ $value | humanizePercentage }} of the last hour: " + _OF,
    ),
    PrometheusRule(
        rule="hot-key",
        severity="warning",
        promql="sum by (environment) (fuseboard_fleet_hot_keys) > 0",
        text="{{ $value }} quotas are hot keys " + _IN,
    ),
    PrometheusRule(
        rule="override",
        severity="warning",
        promql="max by (environment)"
        ' (sum without (mode) (fuseboard_breakers_held{mode=~"forced_closed|metrics_only|disabled"})) > 0',
        text="{{ $value }} breakers cannot open during their override " + _IN,
    ),
    *_levels(
        "p99",
        "max by (environment) (fuseboard_fleet_redis_p99_seconds) >",
        "Redis p99 is {{ $value | humanizeDuration }} " + _IN,
        times=_DEADLINE_S,
    ),
    PrometheusRule(
        rule="pressure",
        severity="warning",
        promql='sum by (environment) (fuseboard_fleet_pods_by_pressure{level!="normal"}) > 0',
        text="{{ $value }} pods are under pressure " + _IN,
    ),
    PrometheusRule(
        rule="redis-down",
        severity="critical",
        promql=f"max by (environment) (fuseboard_fleet_redis_primaries_down) > 0 and"
        f" ({_LOCAL} >= 2 or {_LOCAL} == {_PRESENT} and {_LOCAL} > 0)",
        text="{{ $value }} primaries of Redis give no answer " + _IN,
    ),
    PrometheusRule(
        rule="redis-node",
        severity="warning",
        promql=_ILL,
        text="Redis {{ $labels.node }} gives no answer, is far behind its primary, or has little memory left",
    ),
    *_levels(
        "redis-ops",
        _USED,
        "Redis {{ $labels.node }} is at {{ $value | humanizePercentage }} of its capacity",
    ),
    PrometheusRule(
        rule="rejected",
        severity="critical",
        promql="max by (environment) (fuseboard_config_rejected_pods) > 0",
        text="{{ $value }} pods rejected the configuration " + _IN,
    ),
    *_levels(
        "shed",
        f"{_share(_SHED, _REQUESTS)} >",
        "Pods shed {{ $value | humanizePercentage }} of the requests " + _IN,
    ),
    PrometheusRule(
        rule="silent",
        severity="warning",
        promql="max by (environment)"
        ' (sum without (state, mode) (fuseboard_fleet_servers{state=~"unknown|offline"})) > 0',
        text="{{ $value }} pods send no heartbeats " + _IN,
    ),
    PrometheusRule(
        rule="unlimited",
        severity="critical",
        promql="max by (environment) (fuseboard_unlimited) == 1",
        text="No limit refuses anything " + _IN,
    ),
    PrometheusRule(
        rule="unknown-revision",
        severity="critical",
        promql="sum by (environment) (fuseboard_fleet_unknown_revisions) > 0",
        text="{{ $value }} pods report a revision that Postgres never made " + _IN,
    ),
    PrometheusRule(
        rule="writes-refused",
        severity="warning",
        promql="sum by (environment) (increase(fuseboard_gateway_writes_refused_total[10m])) > 0",
        text="Postgres refuses values that a gateway writes " + _IN,
    ),
    *_levels(
        "backlog-dead",
        f'max by (environment, dependency) ({_JOBS}{{state="dead"}}) >',
        "{{ $value }} jobs of the backlog are dead: " + _OF,
    ),
    *_levels(
        "backlog-full",
        "max by (environment, dependency) (fuseboard_backlog_used_ratio) >",
        "The backlog is {{ $value | humanizePercentage }} full: " + _OF,
    ),
    *_levels(
        "backlog-untaken",
        "max by (environment, dependency) (fuseboard_backlog_untaken_seconds) >",
        "No worker takes jobs for {{ $value | humanizeDuration }}: " + _OF,
    ),
    *_levels(
        "lock-failures",
        f"{_FAILED_LOCKS} >",
        "{{ $value | humanizePercentage }} of locks fail " + _IN,
    ),
    *_levels(
        "lock-held",
        "max by (environment) (fuseboard_fleet_locks_longest_seconds) >",
        "A lock is in use for {{ $value | humanizeDuration }} " + _IN,
    ),
    *_levels(
        "lock-lost",
        f"{_locks('lost', 'lost')} >",
        "{{ $value }} locks were lost " + _IN,
    ),
    PrometheusRule(
        rule="bulkhead",
        severity="warning",
        promql="sum by (environment, dependency) (fuseboard_fleet_bulkhead_refused_per_second) > 0",
        text="The bulkhead refuses calls: " + _OF,
    ),
    *_levels(
        "bulkhead-queue",
        f'sum by (environment, dependency) ({_SLOTS}{{kind="queued"}})'
        f' / (sum by (environment, dependency) ({_ADAPTIVE}{{kind="places"}}) > 0) >',
        "The queue is {{ $value | humanizePercentage }} full: " + _OF,
    ),
    PrometheusRule(
        rule="retry-budget",
        severity="warning",
        promql="sum by (environment, dependency)"
        ' (fuseboard_fleet_retries_per_second{verdict="no_budget"}) > 0',
        text="The retry budget is spent: " + _OF,
    ),
    *_levels(
        "quota",
        "max by (environment, tenant, dependency, quota) (fuseboard_quota_used_ratio) >=",
        "{{ $value | humanizePercentage }} is spent of {{ $labels.quota }}"
        " of {{ $labels.tenant }}{{ $labels.dependency }} " + _IN,
    ),
    PrometheusRule(
        rule="postgres-down",
        severity="critical",
        promql="max(fuseboard_postgres_up) == 0",
        text="Postgres does not answer",
    ),
    PrometheusRule(
        rule="web-away",
        severity="critical",
        promql="absent(fuseboard_postgres_up)",
        text="No web process answers",
        timing=Timing(level=2, fires_after_s=60, resolves_after_s=60),
        runbook="web-away",
    ),
    PrometheusRule(
        rule="gateway-away",
        severity="critical",
        promql="absent(fuseboard_gateway_configuration_age_seconds)",
        text="No gateway answers",
    ),
    PrometheusRule(
        rule="worker-away",
        severity="critical",
        promql="time() - max by (environment) (fuseboard_alerts_evaluated_timestamp_seconds)"
        f" > {NOT_EVALUATED_S:g}",
        text="No worker has checked the alert rules for {{ $value | humanizeDuration }} " + _IN,
    ),
    PrometheusRule(
        rule="beat-away",
        severity="critical",
        promql='time() - max(fuseboard_task_last_success_timestamp_seconds{task="alerts.evaluate"})'
        f" > {NOT_EVALUATED_S:g}",
        text="A worker answers, but has not checked the alert rules for {{ $value | humanizeDuration }}:"
        " beat is down",
        timing=Timing(level=2, fires_after_s=15, resolves_after_s=30),
        runbook="worker-away",
    ),
    *_levels(
        "outbox",
        "max(fuseboard_outbox_oldest_seconds) >",
        "An edit waits for its publication since {{ $value | humanizeDuration }}",
    ),
    *_levels(
        "audit-export",
        "max by (target) (fuseboard_audit_export_oldest_seconds) >",
        "The export of the audit to the {{ $labels.target }} waits since {{ $value | humanizeDuration }}",
    ),
    *_levels(
        "redis-nodes",
        f"count({_DEGRADED}) >",
        "{{ $value }} servers of Redis are degraded",
    ),
    *_levels(
        "certificate",
        "min(fuseboard_certificate_expiry_timestamp_seconds) - time() <",
        "The certificate of web expires in {{ $value | humanizeDuration }}",
        times=_DAY_S,
    ),
    *_levels(
        "token",
        "min by (environment, kind) (fuseboard_token_expiry_timestamp_seconds) - time() <",
        "An {{ $labels.kind }} token expires in {{ $value | humanizeDuration }} " + _IN,
        times=_DAY_S,
    ),
)


def prometheus_rules() -> str:
    watchdog = {
        "alert": "Watchdog",
        "expr": "vector(1)",
        "labels": {"severity": "none", "rule": "watchdog"},
        "annotations": {"summary": "Always fires: a service outside calls a person when it stays away"},
    }
    rules = [_rule(rule) for rule in PROMETHEUS_RULES]
    return yaml_text({"groups": [{"name": "fuseboard", "rules": [*rules, watchdog]}]})


def _rule(rule: PrometheusRule) -> dict[str, Any]:
    times = rule.times
    made: dict[str, Any] = {"alert": rule.alert, "expr": rule.promql}
    if times.fires_after_s:
        made["for"] = f"{times.fires_after_s:g}s"
    if times.resolves_after_s:
        made["keep_firing_for"] = f"{times.resolves_after_s:g}s"
    return made | {
        "labels": {"severity": rule.severity, "level": str(times.level), "rule": rule.rule},
        "annotations": {"summary": rule.text, "runbook_url": f"{EXAMPLE_URL}/runbooks/{runbook_of(rule)}"},
    }


def runbook_of(rule: PrometheusRule) -> str:
    return rule.runbook or RULE_OF_KEY[rule.rule].runbook
