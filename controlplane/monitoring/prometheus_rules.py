"""``docs/monitoring/rules.yml``: alert rules for a Prometheus of your own.

The row of a rule has its query, its thresholds, its level, its times and its runbook. The file has the
defaults, because it is not of one environment: see ``controlplane.alerts.rules.settings``. The other rules
are about what the product cannot see itself, for example that no worker runs.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from controlplane.alerts.rules.every import RULES
from controlplane.alerts.rules.rule import PrometheusQuery, Rule, Timing
from controlplane.alerts.rules.thresholds import NOT_EVALUATED_S
from controlplane.monitoring.yaml_text import yaml_text

#: The command replaces it by the address of a dashboard.
EXAMPLE_URL = "https://fuseboard.example.com"


@dataclass(frozen=True, kw_only=True)
class PrometheusRule:
    #: Its place in the file.
    place: int
    #: The key of the product's rule, if it has one.
    rule: str
    severity: str
    promql: str
    text: str
    timing: Timing
    runbook: str

    @property
    def alert(self) -> str:
        words = self.rule.replace("-", " ").title().replace(" ", "")
        return f"Fuseboard{words}{self.severity.title()}"


def _levels(rule: Rule[Any], query: PrometheusQuery) -> Iterator[PrometheusRule]:
    """A rule of the product at each of its severities."""
    for severity in rule.severities:
        if severity not in query.severities:
            continue
        promql, threshold = query.promql, rule.threshold.of(severity)
        if severity == "warning" and query.warning:
            promql = query.warning
        elif threshold is not None:
            promql = f"{promql} {threshold * query.scale:.10g}"
        if query.or_critical and severity == "critical":
            promql = f"{promql} or {query.or_critical}"
        yield PrometheusRule(
            place=query.place,
            rule=rule.key,
            severity=severity,
            promql=promql,
            text=query.summary,
            timing=rule.timing,
            runbook=rule.runbook,
        )


#: Rules about what the product cannot see itself.
_OUTSIDE = (
    PrometheusRule(
        place=350,
        rule="web-away",
        severity="critical",
        promql="absent(fuseboard_postgres_up)",
        text="No web process answers",
        timing=Timing(level=2, fires_after_s=60, resolves_after_s=60),
        runbook="web-away",
    ),
    PrometheusRule(
        place=380,
        rule="beat-away",
        severity="critical",
        promql='time() - max(fuseboard_task_last_success_timestamp_seconds{task="alerts.evaluate"})'
        f" > {NOT_EVALUATED_S:g}",
        text="A worker answers, but has not checked the alert rules for {{ $value | humanizeDuration }}:"
        " beat is down",
        timing=Timing(level=2, fires_after_s=15, resolves_after_s=30),
        runbook="worker-away",
    ),
)
_OF_PRODUCT = (one for rule in RULES if rule.prometheus for one in _levels(rule, rule.prometheus))
PROMETHEUS_RULES = tuple(sorted((*_OF_PRODUCT, *_OUTSIDE), key=lambda rule: rule.place))


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
    times = rule.timing
    made: dict[str, Any] = {"alert": rule.alert, "expr": rule.promql}
    if times.fires_after_s:
        made["for"] = f"{times.fires_after_s:g}s"
    if times.resolves_after_s:
        made["keep_firing_for"] = f"{times.resolves_after_s:g}s"
    return made | {
        "labels": {"severity": rule.severity, "level": str(times.level), "rule": rule.rule},
        "annotations": {"summary": rule.text, "runbook_url": f"{EXAMPLE_URL}/runbooks/{rule.runbook}"},
    }
