"""``docs/monitoring/alertmanager.example.yml`` and ``prometheus.example.yml``."""

from collections.abc import Iterator
from functools import partial
from itertools import groupby
from typing import Any

from controlplane.alerts.rules.every import RULE_OF_KEY
from controlplane.alerts.state.causes import EXPLAINS
from controlplane.monitoring.prometheus_rules import PROMETHEUS_RULES
from controlplane.monitoring.yaml_text import yaml_text

#: Where each level goes: replace them by receivers of your own.
HOOKS = "https://hooks.example.com"
#: Level -> the wait for more alerts of the same cause, and the time until a reminder.
_WAITS = {3: ("0s", "15m"), 2: ("15s", "1h"), 1: ("1m", "12h")}


def alertmanager_example() -> str:
    routes = [
        {
            "matchers": [f'level="{level}"'],
            "receiver": f"level-{level}",
            "group_wait": wait,
            "repeat_interval": again,
        }
        for level, (wait, again) in _WAITS.items()
    ]
    watchdog = {
        "matchers": ['alertname="Watchdog"'],
        "receiver": "watchdog",
        "group_wait": "0s",
        "group_interval": "1m",
        "repeat_interval": "1m",
    }
    names = [*(f"level-{level}" for level in _WAITS), "watchdog"]
    return yaml_text(
        {
            "route": {
                "receiver": "level-2",
                "group_by": ["environment", "rule"],
                "group_interval": "1m",
                "routes": [watchdog, *routes],
            },
            "inhibit_rules": [_worse_hides_better(), *_causes()],
            "receivers": [
                {
                    "name": name,
                    "webhook_configs": [{"url": f"{HOOKS}/{name}", "send_resolved": name != "watchdog"}],
                }
                for name in names
            ],
        }
    )


def _worse_hides_better() -> dict[str, Any]:
    """A critical alert hides the warning of the same rule about the same thing.

    Labels that both lack are equal for Alertmanager: without ``ours``, it would hide alerts of others.
    """
    ours = 'alertname=~"Fuseboard.+"'
    return {
        "source_matchers": ['severity="critical"', ours],
        "target_matchers": ['severity="warning"', ours],
        "equal": ["rule", "environment", "dependency", "tenant", "quota", "kind", "node"],
    }


def _causes() -> Iterator[dict[str, Any]]:
    """An alert never hides one of a higher level or severity, as in ``controlplane.alerts.state.causes``."""
    levels = {rule.rule: rule.timing.level for rule in PROMETHEUS_RULES}
    for cause in sorted(EXPLAINS.keys() & levels.keys()):
        severities = {rule.severity for rule in PROMETHEUS_RULES if rule.rule == cause}
        explained = [rule for rule in EXPLAINS[cause] if rule in levels]
        for same, rules in groupby(sorted(explained, key=partial(_same, cause)), key=partial(_same, cause)):
            hidden = [f'rule=~"{"|".join(rules)}"', f'level=~"[1-{levels[cause]}]"']
            equal = {"equal": same} if same else {}
            if "critical" in severities:
                source = [f'rule="{cause}"', 'severity="critical"']
                yield {"source_matchers": source, "target_matchers": hidden, **equal}
            if "warning" in severities:
                source = [f'rule="{cause}"', 'severity="warning"']
                yield {
                    "source_matchers": source,
                    "target_matchers": [*hidden, 'severity="warning"'],
                    **equal,
                }


def _same(cause: str, effect: str) -> list[str]:
    """Labels that must be equal: those that both have. A server, or a process, is one of all environments."""
    if not (has_environment(cause) and has_environment(effect)):
        return []
    return ["environment", "dependency"] if RULE_OF_KEY[cause].of_dependency else ["environment"]


def has_environment(rule: str) -> bool:
    """Whether each alert of this rule is about one environment."""
    return all("by (environment" in one.promql for one in PROMETHEUS_RULES if one.rule == rule)


def prometheus_example() -> str:
    """How to read the processes."""
    ports = {"web": 8000, "gateway": 8001, "worker": 9101}
    return yaml_text(
        {
            "global": {"scrape_interval": "15s", "evaluation_interval": "15s"},
            "rule_files": ["rules.yml"],
            "alerting": {"alertmanagers": [{"static_configs": [{"targets": ["127.0.0.1:9093"]}]}]},
            "scrape_configs": [
                {
                    "job_name": f"fuseboard-{process}",
                    "authorization": {"credentials_file": "metrics_token"},
                    "static_configs": [{"targets": [f"127.0.0.1:{port}"]}],
                }
                for process, port in ports.items()
            ]
            # Services that mount the metrics of their agent, where they like.
            + [{"job_name": "fuseboard-pod", "static_configs": [{"targets": ["127.0.0.1:8080"]}]}],
        }
    )
