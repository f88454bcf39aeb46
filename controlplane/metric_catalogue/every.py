"""All entries of the catalogue, in the order of the documents."""

from controlplane.metric_catalogue import alerts, edits, fleet, pods, processes, traffic
from controlplane.metric_catalogue.metric import Metric

#: Title of a section -> its entries.
SECTIONS: dict[str, tuple[Metric, ...]] = {
    title: tuple(value for value in vars(module).values() if isinstance(value, Metric))
    for title, module in (
        ("Decisions, breakers, and quotas", traffic),
        ("The fleet", fleet),
        ("Alerts", alerts),
        ("Configuration, edits and logins", edits),
        ("Processes", processes),
    )
} | {"Pods": pods.METRICS}
EVERY: tuple[Metric, ...] = tuple(metric for metrics in SECTIONS.values() for metric in metrics)
