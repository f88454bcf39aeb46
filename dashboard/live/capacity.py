"""The content of the pages of bulkheads, retries and rate limits: who is near a limit, worst first."""

from dataclasses import dataclass
from typing import Any

from controlplane.fleet.call_figures import CallFigures
from controlplane.fleet.live import RuleFigures
from controlplane.policies.limits import columns_for
from controlplane.policies.models import Tenant
from controlplane.status.facts import Facts
from dashboard.words.rate_words import rate_words
from fuseboard.contract.limit_fields import QUOTAS
from fuseboard.contract.limits import HOT_PER_S

#: A limit is near when this part of it is used.
NEAR = 0.8
#: The longest window whose use follows from the rate of the last seconds.
_SHORT_S = 60
#: Keys that the page of hot keys lists.
MAX_HOT = 50


@dataclass(frozen=True, kw_only=True)
class BulkheadRow(CallFigures):
    dependency: str

    @property
    def refuses(self) -> bool:
        return self.refused_per_s > 0

    @property
    def near(self) -> bool:
        """Whether one tier has hardly a free slot."""
        return any(tier.limit and tier.active >= NEAR * tier.limit for tier in self.tiers)


@dataclass(frozen=True, kw_only=True)
class RetryRow(CallFigures):
    dependency: str
    #: The most attempts of the fleet, as a factor of its first calls; ``None`` while retries are off.
    budget: float | None

    @property
    def load(self) -> float | None:
        """Calls that the vendor gets for each first call; ``None`` without calls."""
        if not self.first_calls_per_s:
            return None
        return 1 + self.retries_per_s / self.first_calls_per_s

    @property
    def hot(self) -> bool:
        return self.no_budget_per_s > 0 or (self.load or 1) > (self.budget or 1)


@dataclass(frozen=True, kw_only=True)
class LimitRow(RuleFigures):
    """One quota of one busy tenant."""

    #: The rate in words; empty if the limit is not known any more.
    limit: str
    #: Use per window, and the limit. ``None`` for places and for long windows.
    use: float | None
    most: int | None
    #: Above how many requests per second of the fleet, or of one pod, pods lease calls; ``None`` for never.
    leases_above: str | None

    @property
    def leased_percent(self) -> float:
        return min(100.0, 100 * self.leased_per_s / self.asked_per_s) if self.asked_per_s else 0.0

    @property
    def share(self) -> float | None:
        return self.use / self.most if self.use is not None and self.most else None

    @property
    def near(self) -> bool:
        return (self.share or 0) >= NEAR

    @property
    def nearness(self) -> str:
        """The words after the figures of its use."""
        return ", over the limit" if (self.share or 0) > 1 else ", near the limit" if self.near else ""

    @property
    def hot(self) -> bool:
        return self.refused_per_s >= 0.05


def bulkhead_rows(facts: Facts) -> list[BulkheadRow]:
    found = [
        BulkheadRow(**vars(calls) | {"tiers": calls.every_tier}, dependency=name)
        for name, calls in facts.figures.protection.items()
        if calls.tiers
    ]
    return sorted(found, key=lambda row: (not row.refuses, not row.near, row.dependency))


def retry_rows(facts: Facts) -> list[RetryRow]:
    protected = {each.name: each.protection for each in facts.dependencies}
    found = [
        RetryRow(**vars(calls), dependency=name, budget=_budget(protected.get(name, {})))
        for name, calls in facts.figures.protection.items()
    ]
    return sorted(found, key=lambda row: (not row.hot, -row.retries_per_s, row.dependency))


def _budget(protection: dict[str, Any]) -> float | None:
    retry = protection.get("retry")
    return retry["load_factor_percent"] / 100 if retry else None


def limit_rows(facts: Facts) -> list[LimitRow]:
    """Quotas of the busiest tenants, those that refuse first, then those near their limit."""
    rules = [rule for rule in facts.figures.rules if rule.tenant]
    limits = _limits(facts.environment, {rule.tenant for rule in rules})
    found = [_limit_row(rule, limits.get((rule.tenant, rule.rule))) for rule in rules]
    return sorted(found, key=lambda row: (-row.refused_per_s, -(row.share or 0), row.tenant, row.rule))


def _limit_row(rule: RuleFigures, columns: dict[str, Any] | None) -> LimitRow:
    # The rate of now says nothing about what is used of an hour, a day, or a month.
    counts = (
        columns is not None
        and columns["algorithm"] != "concurrency"
        and not columns["period"]
        and columns["window_s"] <= _SHORT_S
    )
    return LimitRow(
        **vars(rule),
        limit=rate_words(columns) if columns else "",
        use=rule.asked_per_s * columns["window_s"] if columns and counts else None,
        most=columns["limit"] if columns else None,
        leases_above=_leases_above(columns),
    )


def hot_rows(facts: Facts) -> list[LimitRow]:
    """The rows of limits, those that are asked for most first."""
    rows = limit_rows(facts)
    return sorted(rows, key=lambda row: (-row.asked_per_s, row.tenant, row.rule))[:MAX_HOT]


def _leases_above(columns: dict[str, Any] | None) -> str | None:
    if columns is None or columns["algorithm"] == "concurrency" or columns["shadow"]:
        return None
    if columns["lease_above"]:
        return f"{columns['lease_above']:,}/s of one pod"
    return None if columns["algorithm"] == "sliding_window" else f"{HOT_PER_S:,}/s of the fleet"


def _limits(environment: str, tenants: set[str]) -> dict[tuple[str, str], dict[str, Any]]:
    """Return tenant and quota -> its columns, for a few tenants."""
    if not tenants:
        return {}
    rows = Tenant.objects.filter(environment_id=environment, key__in=list(tenants), deleted=False)
    return {
        (row.key, quota.name): {column: getattr(quota, column) for column in columns_for(QUOTAS)}
        for row in rows.select_related("tier").prefetch_related("quotas", "tier__quotas")
        # The tenant's own replace those of its tier with the same name.
        for quota in (*row.tier.quotas.all(), *row.quotas.all())
    }
