"""All entries of the catalogue, in the order of the documents."""

from controlplane.metric_catalogue import alerts, edits, fleet, processes, traffic
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
}
EVERY: tuple[Metric, ...] = tuple(metric for metrics in SECTIONS.values() for metric in metrics)
