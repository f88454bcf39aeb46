"""``docs/metrics.md``."""

from controlplane.metric_catalogue.every import EVERY, SECTIONS
from controlplane.metric_catalogue.metric import GATEWAY, POD, WEB, WORKER, Metric

_HEAD = """# Metrics

`python manage.py write_monitoring` writes this page from `controlplane/metric_catalogue`.
[Deployment](deployment.md#monitoring) says who may read `/metrics`.

A label is an environment, a dependency, or a fixed word. *Series* is what one process exports at most of
an environment with 100,000 tenants and 200 dependencies. In all, web exports at most {web:,}, a worker
{worker:,}, a gateway {gateway:,}, and a process of your service {pod:,}, if it
[exports its figures](integration.md#metrics-for-prometheus).

If several processes export a metric, add counters and rates over them, as in `sum without (instance) (...)`,
and take the highest of what web exports about the whole fleet, as in `max without (instance) (...)`.
"""


def metrics_page() -> str:
    parts = [_HEAD.format(**{process: most_series(process) for process in (WEB, WORKER, GATEWAY, POD)})]
    for title, metrics in SECTIONS.items():
        rows = "\n".join(_row(metric) for metric in metrics)
        parts.append(f"## {title}\n\n{_COLUMNS}\n{rows}\n")
    return "\n".join(parts)


def most_series(process: str) -> int:
    """Series of our own that one process exports at most."""
    return sum(metric.most for metric in EVERY if process in metric.by)


_COLUMNS = "| metric | type | labels | by | series | meaning |\n|---|---|---|---|---|---|"


def _row(metric: Metric) -> str:
    labels = ", ".join(f"`{label}`" for label in metric.labels)
    return (
        f"| `{metric.name}` | {metric.type} | {labels} | {', '.join(metric.by)} | {metric.most:,} "
        f"| {metric.help} |"
    )
