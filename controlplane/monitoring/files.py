"""Every file that is made here: its path, and its text."""

from collections.abc import Callable, Mapping
from types import MappingProxyType

from controlplane.monitoring.alertmanager import alertmanager_example, prometheus_example
from controlplane.monitoring.grafana import grafana_dashboard
from controlplane.monitoring.metrics_page import metrics_page
from controlplane.monitoring.prometheus_rules import prometheus_rules

FOLDER = "docs/monitoring/"
FILES: Mapping[str, Callable[[], str]] = MappingProxyType(
    {
        "docs/metrics.md": metrics_page,
        f"{FOLDER}rules.yml": prometheus_rules,
        f"{FOLDER}alertmanager.example.yml": alertmanager_example,
        f"{FOLDER}prometheus.example.yml": prometheus_example,
        f"{FOLDER}grafana/fuseboard.json": grafana_dashboard,
    }
)
