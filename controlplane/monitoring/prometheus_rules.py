"""``docs/monitoring/rules.yml``: alert rules for a Prometheus of your own.

A rule that the product has too takes its level, its times and its runbook from there, so that both say the
same. The others are about what the product cannot see itself, for example that no worker runs.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from controlplane.alerts.rules import RULES
from controlplane.alerts.thresholds import (
    FAILED_CHECKS_MANY,
    FAILED_CHECKS_SHARE,
    FAILED_CHECKS_SHARE_CRITICAL,
    LEAST_CHECKS_PER_S,
    LOCAL_PODS,
    LOCAL_SHARE,
    NOT_EVALUATED_S,
    P99_WARN_PART,
    REDIS_OPS_SHARE,
    REDIS_OPS_SHARE_CRITICAL,
    REFUSED_SHARE,
    REFUSED_SHARE_CRITICAL,
)
from controlplane.alerts.timings import Timing, timing_of
from controlplane.monitoring.yaml_text import yaml_text
from controlplane.status.servers import LAG_CRITICAL_S, LAG_WARN_S
from controlplane.usage.budgets import WARN_PERCENT
from fuseboard.contract.policy import Tuning

#: The command replaces it by the address of a dashboard.
EXAMPLE_URL = "https://fuseboard.example.com"
#: The oldest edit that is not published.
OUTBOX_S, OUTBOX_CRITICAL_S = 10, 60
EXPIRY_DAYS, EXPIRY_CRITICAL_DAYS = 21, 5
_DAY_S = 86_400

_RUNBOOKS = {rule.key: rule.runbook for rule in RULES}
_DEADLINE_S = Tuning().store_deadline_us / 1_000_000
_NOW = Timing(level=1, for_s=0, keep_s=0)


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


def _shares(of: str, among: str, most: float) -> str:
    return f"sum by (environment) ({of}) / (sum by (environment) ({among}) > 1) > {most:g}"


def _levels(
    rule: str, promql: str, text: str, *, warning: float, critical: float, **fields: Any
) -> Iterator[PrometheusRule]:
    """The rule at two thresholds; ``promql`` ends before the threshold."""
    for severity, most in (("critical", critical), ("warning", warning)):
        yield PrometheusRule(rule=rule, severity=severity, promql=f"{promql} {most:g}", text=text, **fields)


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
_SLOW = Timing(level=2, for_s=30, keep_s=60)

PROMETHEUS_RULES: tuple[PrometheusRule, ...] = (
    PrometheusRule(
        rule="429",
        severity="critical",
        promql=_shares(_REFUSED, _REQUESTS, REFUSED_SHARE_CRITICAL),
        text="{{ $value | humanizePercentage }} of the requests are refused " + _IN,
    ),
    PrometheusRule(
        rule="429",
        severity="warning",
        promql=_shares(_REFUSED, _REQUESTS, REFUSED_SHARE),
        text="{{ $value | humanizePercentage }} of the requests are refused " + _IN,
    ),
    PrometheusRule(
        rule="all-local",
        severity="critical",
        promql=f"{_LOCAL} == {_ALIVE} and {_ALIVE} > 0",
        text="Every pod decides without Redis " + _IN,
    ),
    *_levels(
        "check-errors",
        f"{_FAILED_CHECKS} >",
        "{{ $value | humanizePercentage }} of the questions to Redis fail " + _IN,
        warning=FAILED_CHECKS_SHARE,
        critical=FAILED_CHECKS_SHARE_CRITICAL,
    ),
    PrometheusRule(
        rule="check-failures",
        severity="critical",
        promql=f"{_FAILED_CHECKS} > {FAILED_CHECKS_MANY:g}",
        text="{{ $value | humanizePercentage }} of the questions to Redis fail " + _IN,
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
        warning=LAG_WARN_S,
        critical=LAG_CRITICAL_S,
    ),
    PrometheusRule(
        rule="local",
        severity="critical",
        promql=f"{_LOCAL} > {LOCAL_PODS} or {_LOCAL} > {LOCAL_SHARE:g} * {_ALIVE}",
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
        warning=_DEADLINE_S * P99_WARN_PART,
        critical=_DEADLINE_S,
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
    *_levels(
        "redis-ops",
        "max by (node) (fuseboard_redis_ops_per_second)"
        " / on () group_left () max(fuseboard_redis_capacity_ops) >",
        "Redis {{ $labels.node }} is at {{ $value | humanizePercentage }} of its capacity",
        warning=REDIS_OPS_SHARE,
        critical=REDIS_OPS_SHARE_CRITICAL,
    ),
    PrometheusRule(
        rule="rejected",
        severity="critical",
        promql="max by (environment) (fuseboard_config_rejected_pods) > 0",
        text="{{ $value }} pods rejected the configuration " + _IN,
    ),
    PrometheusRule(
        rule="shed",
        severity="warning",
        promql='sum by (environment) (fuseboard_fleet_refused_per_second{reason="shed"}) > 0',
        text="Pods shed {{ $value | humanize }} requests/s " + _IN,
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
        rule="bulkhead",
        severity="warning",
        promql="sum by (environment, dependency) (fuseboard_fleet_bulkhead_refused_per_second) > 0",
        text="The bulkhead refuses calls: " + _OF,
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
        warning=WARN_PERCENT / 100,
        critical=1,
        timing=Timing(level=1, for_s=60, keep_s=120),
        runbook="too-many-429s",
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
        timing=Timing(level=2, for_s=60, keep_s=60),
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
    *_levels(
        "outbox",
        "max(fuseboard_outbox_oldest_seconds) >",
        "An edit waits for its publication since {{ $value | humanizeDuration }}",
        warning=OUTBOX_S,
        critical=OUTBOX_CRITICAL_S,
        timing=_SLOW,
        runbook="configuration-lag",
    ),
    *_levels(
        "certificate",
        "min(fuseboard_certificate_expiry_timestamp_seconds) - time() <",
        "The certificate of web expires in {{ $value | humanizeDuration }}",
        warning=EXPIRY_DAYS * _DAY_S,
        critical=EXPIRY_CRITICAL_DAYS * _DAY_S,
        timing=_NOW,
        runbook="token-or-certificate-expires",
    ),
    *_levels(
        "token",
        "min by (environment, kind) (fuseboard_token_expiry_timestamp_seconds) - time() <",
        "An {{ $labels.kind }} token expires in {{ $value | humanizeDuration }} " + _IN,
        warning=EXPIRY_DAYS * _DAY_S,
        critical=EXPIRY_CRITICAL_DAYS * _DAY_S,
        timing=_NOW,
        runbook="token-or-certificate-expires",
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
    if times.for_s:
        made["for"] = f"{times.for_s:g}s"
    if times.keep_s:
        made["keep_firing_for"] = f"{times.keep_s:g}s"
    return made | {
        "labels": {"severity": rule.severity, "level": str(times.level), "rule": rule.rule},
        "annotations": {"summary": rule.text, "runbook_url": f"{EXAMPLE_URL}/runbooks/{runbook_of(rule)}"},
    }


def runbook_of(rule: PrometheusRule) -> str:
    return rule.runbook or _RUNBOOKS[rule.rule]
