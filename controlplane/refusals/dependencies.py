"""Limits and reasons that refuse the calls to a dependency, by samples of refusals."""

from collections.abc import Collection
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta

from django.db.models import Sum

from controlplane.refusals.models import RefusalSample
from fuseboard.contract.words import Reason

#: Older samples say nothing about now.
_RECENT = timedelta(minutes=2)
#: Reason -> its words beside the name of the limit.
_SHORT: dict[str, str] = {
    Reason.STORE_UNAVAILABLE: "without Redis",
    Reason.QUOTA: "spent",
    Reason.VENDOR_LIMIT: "spent",
    Reason.CONCURRENCY: "all slots in use",
    Reason.COOLING_DOWN: "it asked for a pause",
    Reason.LOCAL_RATE: "local rate of the pods spent",
}


@dataclass(frozen=True, kw_only=True)
class RefusedBy:
    #: The limit; empty for a refusal by something else.
    limit: str
    reason: str

    @property
    def words(self) -> str:
        """``limit per-day, without Redis``."""
        why = _SHORT.get(self.reason) or self.reason.replace("_", " ")
        return f"limit {self.limit}, {why}" if self.limit else why


def refused_by(environment: str, dependencies: Collection[str]) -> dict[str, RefusedBy]:
    """Return dependency -> what refused most of its calls in the last minutes, where that is known."""
    if not dependencies:
        return {}
    rows = RefusalSample.objects.filter(
        environment=environment, at__gte=datetime.now(UTC) - _RECENT, dependency__in=dependencies
    )
    groups = rows.values("dependency", "rule", "reason").annotate(refused=Sum("weight")).order_by("refused")
    # The last one of each dependency refused most.
    return {group["dependency"]: RefusedBy(limit=group["rule"], reason=group["reason"]) for group in groups}
