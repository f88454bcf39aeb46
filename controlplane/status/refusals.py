"""Refusals by caller, rule, pod and reason: counts from the stored series, the rest from samples.

A count and an estimate are never mixed: a count is what pods counted, and ``None`` where nothing counts this
combination; an estimate is a share of the samples, with their number.
"""

from collections.abc import Collection, Sequence
from dataclasses import dataclass, fields, replace
from datetime import UTC, datetime, timedelta

from django.db.models import Count, Q, QuerySet, Sum

from controlplane.policies.models import Environment, Tenant
from controlplane.refusals.explain import BudgetLeft, Explanation, explain
from controlplane.refusals.models import RefusalSample
from controlplane.refusals.names import NO_TENANT
from controlplane.refusals.top_lists import Of
from controlplane.series.frames import spans_between
from controlplane.series.kinds import DEPENDENCY, FLEET, POD, RULE, TENANT, Kind
from controlplane.series.reading import read
from controlplane.usage.budgets import one_budget

#: Fields by which samples can be grouped.
DIMENSIONS = ("tenant", "rule", "endpoint", "server", "reason", "dependency")
#: A pod divides a limit by the most pods of this time: one that is down has its share still.
_BEFORE = timedelta(minutes=10)
#: Fields of a dependency's series: calls that were made, and those that were refused.
ENDED_CALLS = ("ok", "failures", "slow", "neutral")
REFUSED_CALLS = ("blocked", "over_limit", "refused_else")
#: Lines of one dimension, and those of them that are counted.
MAX_LINES, MAX_COUNTED = 50, 12


@dataclass(frozen=True, kw_only=True)
class Filter:
    """Empty for any."""

    tenant: str = ""
    rule: str = ""
    endpoint: str = ""
    server: str = ""
    reason: str = ""
    dependency: str = ""
    #: The tier that the tenants have now. The default tier includes callers that are not registered.
    tier: str = ""
    #: Only requests, or only calls to dependencies; ``None`` for both.
    of: Of | None = None

    @property
    def set(self) -> dict[str, str]:
        """The values that refusals must match, without ``of``."""
        names = [one.name for one in fields(self) if one.name != "of"]
        return {name: value for name in names if (value := getattr(self, name))}


@dataclass(frozen=True)
class CountedRefusals:
    """The sums of the measured part of a range."""

    refused: int
    asked: int | None
    known_s: int

    @property
    def refused_words(self) -> str:
        return f"{self.refused:,}"

    @property
    def asked_words(self) -> str:
        return f"{self.asked:,}" if self.asked is not None else ""


@dataclass(frozen=True, kw_only=True)
class Line:
    """One value of a dimension."""

    value: str
    samples: int
    #: All refusals in the samples that the filter finds.
    percent: float
    counted: CountedRefusals | None = None


@dataclass(frozen=True, kw_only=True)
class Breakdown:
    counted: CountedRefusals | None
    samples: int
    lines: dict[str, list[Line]]


def samples_of(environment: str, wanted: Filter, start: datetime, end: datetime) -> QuerySet[RefusalSample]:
    """The samples that the filter finds, newest first."""
    columns = wanted.set
    tier = columns.pop("tier", "")
    rows = RefusalSample.objects.filter(environment=environment, at__gte=start, at__lt=end, **columns)
    if wanted.of is not None:
        rows = rows.filter(dependency="") if wanted.of is Of.REQUESTS else rows.exclude(dependency="")
    if tier:
        rows = rows.filter(_of_tier(environment, tier))
    return rows.order_by("-at", "-id")


def _of_tier(environment: str, tier: str) -> Q:
    tenants = Tenant.objects.filter(environment=environment, deleted=False)
    found = Q(tenant__in=tenants.filter(tier__name=tier).values("key"))
    if Environment.objects.filter(pk=environment, default_tier__name=tier).exists():
        found |= ~Q(tenant__in=NO_TENANT) & ~Q(tenant__in=tenants.values("key"))
    return found


def breakdown(
    environment: str,
    wanted: Filter,
    start: datetime,
    end: datetime,
    *,
    dimensions: Sequence[str] = DIMENSIONS,
    count_lines: bool = True,
) -> Breakdown:
    """``count_lines`` also reads the counters of each line, whose sums can differ from that of all."""
    rows = samples_of(environment, wanted, start, end).order_by()
    whole = rows.aggregate(number=Count("id"), weight=Sum("weight"))

    def counted(filtered: Filter) -> CountedRefusals | None:
        return counted_refusals(environment, filtered, start, end)

    lines = {}
    for dimension in dimensions:
        groups = rows.values(dimension).annotate(number=Count("id"), part=Sum("weight")).order_by("-part")
        lines[dimension] = [
            Line(
                value=group[dimension],
                samples=group["number"],
                percent=100 * group["part"] / whole["weight"],
                counted=counted(replace(wanted, **{dimension: group[dimension]}))
                # An empty value would mean any.
                if count_lines and group[dimension] and at < MAX_COUNTED
                else None,
            )
            for at, group in enumerate(groups[:MAX_LINES])
        ]
    return Breakdown(counted=counted(wanted), samples=whole["number"], lines=lines)


def explained(text: str, environments: Collection[str], now: datetime, *, tenant: str = "") -> Explanation:
    """The meaning of a token, with the number of pods then. Raises ``NotOurToken`` or ``ExpiredToken``."""
    found = explain(text, environments, now, tenant=tenant)
    spans = spans_between(found.environment, found.at - _BEFORE, found.at)
    pods = max((span.heard for span in spans.values()), default=0) or None
    return replace(found, pods=pods, left=_left(found, now))


def _left(found: Explanation, now: datetime) -> BudgetLeft | None:
    """The budget that refused, as it is now."""
    rule = found.rule
    if rule is None or rule.kind != "budget":
        return None
    of = one_budget(found.environment, rule.limit, rule.owner or found.tenant.name, now=now.timestamp())
    if of is None:
        return None
    ends = datetime.fromtimestamp(of.ends, UTC)
    return BudgetLeft(measure=of.measure, amount=of.limit, spent=of.spent, ends=ends)


def counted_refusals(
    environment: str, wanted: Filter, start: datetime, end: datetime
) -> CountedRefusals | None:
    """The counts of pods; ``None`` if nothing counts this combination, or nothing is stored of it."""
    series = _series(wanted)
    if series is None:
        return None
    kind, name, sub, asked, refused = series
    found = read(environment, kind, name, sub, fields=(*asked, *refused), start=start, end=end)
    known_s = sum(found.known_s)
    if not known_s or found.total(refused[0]) is None:
        return None
    sums = [sum(found.total(column) or 0 for column in columns) for columns in (refused, asked)]
    if kind is DEPENDENCY:
        # Refused calls are not among those that ended.
        return CountedRefusals(sums[0], sums[0] + sums[1], known_s)
    return CountedRefusals(sums[0], None if found.total(asked[0]) is None else sums[1], known_s)


#: Kind, name and second name of a series; what was asked, and what was refused.
_Series = tuple[Kind, str, str, Sequence[str], Sequence[str]]


def _series(wanted: Filter) -> _Series | None:
    which, refused = wanted.set, ("refused",)
    if wanted.of is not Of.REQUESTS and set(which) == {"dependency"}:
        return DEPENDENCY, wanted.dependency, "", ENDED_CALLS, REFUSED_CALLS
    if wanted.of is Of.CALLS:
        return None
    if not which:
        return FLEET, "", "", ("requests",), refused
    if set(which) == {"tenant"}:
        return TENANT, wanted.tenant, "", ("asked",), refused
    if "rule" in which and set(which) <= {"tenant", "rule"}:
        return RULE, wanted.tenant, wanted.rule, ("asked",), refused
    if set(which) == {"server"}:
        return POD, wanted.server, "", ("requests",), refused
    return None
