"""A dependency whose limits are to follow the time of its calls, and cannot."""

from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from controlplane.policies.document import environment_of, tuning_of
from controlplane.policies.fields import limits_in
from controlplane.policies.history import Changed
from controlplane.policies.models import Dependency
from fuseboard.contract.words import Algorithm

FLOOR = "vendor_floor_percent"


def latency_advice(fields: Mapping[str, Any], floor_percent: int) -> Iterator[str]:
    """Yield what is missing, from the fields of the dependency as a revision stores them."""
    percent = fields.get("latency_rise_percent", 0)
    if not percent:
        return
    slots = [
        name
        for name, limit in limits_in("vendor_limits", dict(fields)).items()
        if limit["algorithm"] == Algorithm.CONCURRENCY and not limit["shadow"]
    ]
    if not slots:
        yield (
            f"calls may take {percent:,} % longer, and no limit falls after that: the dependency has no limit"
            " of calls at once. Add one with the algorithm concurrency."
        )
    if not floor_percent:
        yield (
            f"calls may take {percent:,} % longer, and no limit falls after that: no limit follows in this"
            f" environment. Set {FLOOR} in its settings."
        )


def advice_about_latency(row: Dependency, fields: Mapping[str, Any]) -> list[str]:
    """Warnings about a dependency as it is configured. ``fields``: those of the row."""
    # Most dependencies need no question about their environment.
    if not row.latency_rise_percent:
        return []
    return [*latency_advice(fields, tuning_of(row.environment).vendor_floor_percent)]


def latency_advice_after(environment: str, changes: Iterable[Changed]) -> list[tuple[str, str]]:
    """Return dependencies and warnings about those that are created or changed, after all changes."""
    changes = list(changes)
    found = [
        one for one in changes if one.kind == "dependency" and (one.after or {}).get("latency_rise_percent")
    ]
    if not found:
        return []
    floor_percent = tuning_of(environment_of(environment)).vendor_floor_percent
    for change in changes:
        if change.kind == "environment" and change.after is not None:
            floor_percent = change.after.get(f"tuning.{FLOOR}", 0)
    return [(one.name, text) for one in found for text in latency_advice(one.after or {}, floor_percent)]
