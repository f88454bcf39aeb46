"""The limits of one vendor, and all that is known of them: for the page of the dependency, and the API."""

from collections.abc import Collection, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from statistics import median_low

from controlplane.fleet.stated_limits import PodSeen, agreed, applied, seen_limits
from controlplane.policies.document import environment_of, tuning_of
from controlplane.policies.limits import LimitColumns
from controlplane.policies.models import Dependency, VendorLimit
from controlplane.suggestions.edits import present_suggestions
from controlplane.suggestions.models import Suggestion
from controlplane.suggestions.spent_limits import spent_limits
from fuseboard.contract.words import Algorithm


@dataclass(frozen=True, kw_only=True)
class LearnedLimit:
    """One limit of a vendor."""

    name: str
    measure: str
    algorithm: str
    window_s: int
    configured: int
    #: 1 unless it is a token bucket.
    burst: int
    #: The number that pods apply instead; ``None`` for none.
    followed: int | None
    #: Spent in the counter of the fleet; ``None`` if it cannot be read.
    spent: int | None
    #: The number of the vendor on which pods agree, how many do, of those that have recorded any.
    stated: int | None
    stated_by: int
    stated_of: int
    answers: int
    since: datetime | None
    #: The vendor stated last that this is left.
    left: int | None
    #: Charged here in the last 10 minutes because the vendor had less left: spent by others.
    others: int

    @property
    def applied(self) -> int:
        return self.configured if self.followed is None else self.followed

    @property
    def share(self) -> float | None:
        return self.spent / self.applied if self.spent is not None and self.applied else None

    @property
    def is_slots(self) -> bool:
        return self.algorithm == Algorithm.CONCURRENCY

    @property
    def can_follow(self) -> bool:
        """Budgets of calendar periods keep their number."""
        return self.algorithm != Algorithm.FIXED_WINDOW


@dataclass(frozen=True, kw_only=True)
class Learned:
    dependency: str
    #: How far limits follow their vendor, in percent of the configured number; 0 for not at all.
    floor_percent: int
    #: Calls of the last 10 minutes, those that the vendor refused because of a limit, and those that our
    #: limits refused.
    sent: int
    refused: int
    blocked: int
    limits: Sequence[LearnedLimit]
    suggestions: Sequence[Suggestion]


def read_learned(environment: str, dependency: str) -> Learned:
    """Raises ``NotFound`` for an unknown environment. An unknown dependency has no limits."""
    row = environment_of(environment)
    slug = row.slug
    found = Dependency.objects.filter(environment=row, name=dependency)
    rows = list(VendorLimit.objects.filter(dependency__in=found).order_by("name"))
    seen = seen_limits(slug, dependency)
    spent = spent_limits(slug, dependency, rows)
    # Each row of a pod has the figures of all its calls to the dependency.
    pods = {one.pod: one for reported in seen.values() for one in reported}.values()
    return Learned(
        dependency=dependency,
        floor_percent=tuning_of(row).vendor_floor_percent,
        sent=sum(one.sent for one in pods),
        refused=sum(min(one.refused, one.sent) for one in pods),
        blocked=sum(one.blocked for one in pods),
        limits=[_limit(limit, seen.get((dependency, limit.name), ()), spent) for limit in rows],
        suggestions=present_suggestions(slug, dependency),
    )


def _limit(limit: LimitColumns, pods: Collection[PodSeen], spent: dict[str, int]) -> LearnedLimit:
    stated, followed = agreed(pods), applied(pods)
    left = [one.left for one in pods if one.left is not None and stated and one.said == stated.number]
    return LearnedLimit(
        name=limit.name,
        measure=limit.measure,
        algorithm=limit.algorithm,
        window_s=limit.window_s,
        configured=limit.limit,
        burst=limit.burst,
        followed=followed if 0 < followed < limit.limit else None,
        spent=spent.get(limit.name),
        stated=stated.number if stated else None,
        stated_by=stated.pods if stated else 0,
        stated_of=stated.of if stated else 0,
        answers=stated.answers if stated else 0,
        since=datetime.fromtimestamp(stated.since, UTC) if stated and stated.since else None,
        left=median_low(left) if left else None,
        others=sum(one.others for one in pods),
    )
