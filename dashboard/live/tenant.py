"""What only the page of one tenant shows: its quotas, and how far its last edit has come."""

from dataclasses import dataclass
from typing import Any

from controlplane.audit.models import Entry
from controlplane.fleet.live import TenantFigures
from controlplane.policies.limits import LimitColumns
from controlplane.policies.models import Tenant
from dashboard.live.facts import Change
from dashboard.live.overview import Live
from dashboard.live.reading import change_of
from dashboard.words import policy_words
from fuseboard.contract.words import FailurePolicy

_ALGORITHMS = {
    "token_bucket": "token bucket",
    "sliding_window": "sliding window",
    "fixed_window": "calendar",
    "concurrency": "at once",
}


@dataclass(frozen=True, kw_only=True)
class QuotaRow:
    name: str
    algorithm: str
    limit: int
    window_s: int
    burst: int
    failure_policy: str
    shadow: bool
    #: Whether servers spend a part of it without Redis, and how much; -1 for the fleet's usual.
    reserved: bool
    reserved_percent: int
    #: Whether the tenant has it of its own, instead of its tier.
    own: bool
    #: Requests of the last seconds, per window; ``None`` where servers do not count them by quota.
    use: float | None

    @property
    def window(self) -> str:
        return window_words(self.window_s)

    @property
    def over(self) -> bool:
        return self.use is not None and self.use > self.limit

    @property
    def buckets(self) -> bool:
        return self.algorithm == "token bucket"


@dataclass(frozen=True, kw_only=True)
class Rollout:
    revision: int
    applied: int
    live: int
    missing: tuple[str, ...]

    @property
    def done(self) -> bool:
        return self.applied == self.live


def window_words(seconds: int) -> str:
    """1 to "s", 60 to "min", 90 to "90 s"."""
    for unit, word in ((86_400, "day"), (3600, "h"), (60, "min"), (1, "s")):
        if seconds % unit == 0:
            count = seconds // unit
            return word if count == 1 else f"{count} {word}"
    return f"{seconds} s"


def find_tenant(environment: str, key: str) -> Tenant | None:
    rows = Tenant.objects.filter(environment=environment, key=key, deleted=False)
    return rows.select_related("tier").prefetch_related("quotas", "tier__quotas").first()


def tenant_context(live: Live, key: str) -> dict[str, Any]:
    tenant = find_tenant(live.facts.environment, key)
    if tenant is None:
        return {"tenant": None}
    figures = live.facts.figures.tenants
    traffic = next((row for row in figures if row.tenant == key), TenantFigures(key, 0.0, 0.0))
    changes = history(live.facts.environment, key)
    return {
        "tenant": tenant,
        "traffic": traffic,
        "quotas": quota_rows(tenant, traffic.requests_per_s),
        "rollout": rollout(live, tenant.changed_revision),
        "history": changes,
        "last": changes[0] if changes else None,
    }


def quota_rows(tenant: Tenant, requests_per_s: float) -> list[QuotaRow]:
    """The tenant's own quotas in place of its tier's of the same name."""
    own: dict[str, LimitColumns] = {quota.name: quota for quota in tenant.quotas.all()}
    of_tier: dict[str, LimitColumns] = {quota.name: quota for quota in tenant.tier.quotas.all()}
    return [
        QuotaRow(
            name=name,
            algorithm=_ALGORITHMS.get(quota.algorithm, quota.algorithm),
            limit=quota.limit,
            window_s=quota.window_s,
            burst=quota.burst,
            failure_policy=policy_words(quota.failure_policy),
            shadow=quota.shadow,
            reserved=quota.failure_policy == FailurePolicy.RESERVED,
            reserved_percent=quota.reserved_percent,
            own=name in own,
            use=requests_per_s * quota.window_s if name == "requests" else None,
        )
        for name, quota in sorted({**of_tier, **own}.items())
    ]


def rollout(live: Live, revision: int) -> Rollout:
    servers = live.facts.live_servers
    head = (live.facts.epoch, revision)
    missing = tuple(server.name for server in servers if (server.epoch, server.revision) < head)
    return Rollout(revision=revision, applied=len(servers) - len(missing), live=len(servers), missing=missing)


def history(environment: str, key: str) -> list[Change]:
    rows = Entry.objects.filter(environment=environment, target_name=key, target_kind__startswith="tenant")
    return [change_of(row) for row in rows.order_by("-id")[:8]]
