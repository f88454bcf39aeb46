"""The content of the page of one tenant: its quotas, its parents, and the rollout of its last edit."""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from datetime import timedelta
from typing import Any

from django.utils import timezone

from controlplane.accounts.by_person import with_authors
from controlplane.alerts.rules.texts import allowed_alone
from controlplane.audit.action_words import action_words
from controlplane.audit.models import Entry
from controlplane.fleet.live import TOP_TENANTS, TenantFigures
from controlplane.phrases import window_words
from controlplane.policies.limits import QuotaColumns, columns_for
from controlplane.policies.models import Tenant, TenantQuota
from controlplane.policies.revision_rows import Change as Changed
from controlplane.status.facts import PodFacts
from controlplane.status.read_facts import change_of
from controlplane.usage.rollups import Counted, counted_by_rule
from controlplane.usage.what_if import DAYS
from dashboard.live.change_lines import ChangeLine, line_of
from dashboard.live.known import rates_known
from dashboard.words.labels import policy_words
from dashboard.words.rate_words import ends_words
from fuseboard.contract.limit_fields import QUOTAS
from fuseboard.contract.words import Algorithm

_ALGORITHMS = {
    "token_bucket": "token bucket",
    "sliding_window": "sliding window",
    "fixed_window": "calendar",
    "concurrency": "concurrency",
}
_ANNOUNCED = action_words("tenant_quota.ends_soon")
#: How many earlier changes the page lists.
_HISTORY = 8


@dataclass(frozen=True, kw_only=True)
class QuotaRow:
    name: str
    algorithm: str
    limit: int
    window_s: int
    burst: int
    failure_policy: str
    shadow: bool
    #: Every column, as it is stored.
    columns: Mapping[str, Any]
    #: Whether the quota is the tenant's own, not its tier's.
    own: bool
    #: The template that it follows, empty for none; and the values that override the template's.
    template: str
    differs: tuple[str, ...]
    #: Requests of the last seconds, per window; ``None`` where pods do not count them by quota.
    use: float | None
    #: The last seven days; ``None`` when the tenant was not among the busiest.
    week: Counted | None
    #: When a temporary quota ends, and what applies then; empty for a permanent one.
    ends: str = ""

    @property
    def window(self) -> str:
        return window_words(self.window_s)

    @property
    def dependency(self) -> str:
        return str(self.columns["dependency"])

    @property
    def is_bucket(self) -> bool:
        return bool(self.columns["algorithm"] == "token_bucket")

    @property
    def at_once(self) -> bool:
        """Whether it counts calls that run: their slots cannot be cleared."""
        return bool(self.columns["algorithm"] == "concurrency")

    @property
    def percent(self) -> float | None:
        """Use now, in percent of the limit."""
        return 100 * self.use / self.limit if self.use is not None and self.limit else None

    @property
    def per_s(self) -> float | None:
        """Requests per second that it allows; ``None`` if it is no rate of all requests."""
        counts_all = self.columns["measure"] == "calls" and not (
            self.columns["per"] or self.columns["endpoints"] or self.dependency
        )
        is_rate = self.columns["algorithm"] in (Algorithm.TOKEN_BUCKET, Algorithm.SLIDING_WINDOW)
        return self.limit / self.window_s if counts_all and is_rate and not self.shadow else None

    @property
    def over(self) -> bool:
        return self.use is not None and self.use > self.limit


@dataclass(frozen=True, kw_only=True)
class Rollout:
    revision: int
    applied: int
    live: int
    missing: tuple[str, ...]
    #: Pods of which it is not known.
    silent: int = 0
    #: Whether a gateway reports it. Otherwise, no pod is known to be live.
    heard: bool = True

    @property
    def done(self) -> bool:
        return self.heard and self.applied == self.live


def find_tenant(environment: str, key: str) -> Tenant | None:
    rows = Tenant.objects.filter(environment=environment, key=key, deleted=False)
    return rows.select_related("tier").prefetch_related("quotas", "tier__quotas").first()


def tenant_context(facts: PodFacts, key: str) -> dict[str, Any]:
    tenant = find_tenant(facts.environment, key)
    if tenant is None:
        return {"tenant": None}
    traffic = _traffic(facts, key)
    changes = history(facts.environment, key)
    quotas = [_of_all(quota, facts, traffic) for quota in quota_rows(tenant, _rates(facts, key, traffic))]
    return {
        "tenant": tenant,
        "traffic": traffic,
        "quotas": quotas,
        "first_quota": first_quota(quotas),
        "rollout": rollout(facts, tenant.changed_revision),
        "history": changes,
        # An announcement changes nothing.
        "last": next((change for change in changes if change.action != _ANNOUNCED), None),
        "allowed_alone": allowed_alone(facts.divisor),
    }


def first_quota(quotas: list[QuotaRow]) -> QuotaRow | None:
    """The quota that the page shows first: that of all requests which allows the fewest, or else any."""
    rates = [quota for quota in quotas if quota.per_s is not None]
    return min(rates, key=lambda quota: quota.per_s or 0.0, default=next(iter(quotas), None))


def _traffic(facts: PodFacts, key: str) -> TenantFigures | None:
    """The rates of a tenant; ``None`` if it is not among the busiest, which alone are listed."""
    listed = facts.figures.tenants
    idle = TenantFigures(key, 0.0, 0.0) if len(listed) < TOP_TENANTS else None
    return next((row for row in listed if row.tenant == key), idle)


def _rates(facts: PodFacts, key: str, traffic: TenantFigures | None) -> dict[str, float]:
    """Name of a quota -> requests per second that it binds, where they are counted now."""
    if not rates_known(facts):
        return {}
    by_rule = {row.rule: row.asked_per_s for row in facts.figures.rules if row.tenant == key}
    # Pods of an older release do not report it.
    return ({"requests": traffic.requests_per_s} if traffic else {}) | by_rule


def _of_all(quota: QuotaRow, facts: PodFacts, traffic: TenantFigures | None) -> QuotaRow:
    """A quota of all requests uses the rate of the tile: counters of limits begin at other moments."""
    if traffic is None or quota.per_s is None or not rates_known(facts):
        return quota
    return replace(quota, use=traffic.requests_per_s * quota.window_s)


def quota_rows(tenant: Tenant, rates: dict[str, float]) -> list[QuotaRow]:
    """The tenant's own quotas, in place of its tier's with the same name."""
    since = timezone.now() - timedelta(days=DAYS)
    weeks = counted_by_rule(tenant.environment_id, tenant.key, since=since)
    own: dict[str, QuotaColumns] = {quota.name: quota for quota in tenant.quotas.all()}
    of_tier: dict[str, QuotaColumns] = {quota.name: quota for quota in tenant.tier.quotas.all()}
    return [
        QuotaRow(
            name=name,
            algorithm=_ALGORITHMS.get(quota.algorithm, quota.algorithm),
            limit=quota.limit,
            window_s=quota.window_s,
            burst=quota.burst,
            failure_policy=policy_words(quota.failure_policy),
            shadow=quota.shadow,
            columns={column: getattr(quota, column) for column in columns_for(QUOTAS)},
            own=name in own,
            template=quota.template,
            differs=tuple(quota.own),
            use=rates[name] * quota.window_s if name in rates else None,
            week=weeks.get(name),
            ends=_ends(quota),
        )
        for name, quota in sorted({**of_tier, **own}.items())
    ]


def _ends(quota: QuotaColumns) -> str:
    if not isinstance(quota, TenantQuota) or quota.expires_at is None:
        return ""
    return ends_words({"expires_at": quota.expires_at.isoformat(), "returns_to": quota.returns_to})


def rollout(facts: PodFacts, revision: int) -> Rollout:
    servers = facts.live_servers
    head = (facts.epoch, revision)
    missing = tuple(server.name for server in servers if (server.epoch, server.revision) < head)
    return Rollout(
        revision=revision,
        applied=len(servers) - len(missing),
        live=len(servers),
        missing=missing,
        silent=sum(not (server.live or server.state == "gone") for server in facts.servers),
        heard=facts.current,
    )


def history(environment: str, key: str) -> list[ChangeLine]:
    """Changes to this tenant, alone or together with others: by a plan, a rollback or a bulk edit."""
    rows = Entry.objects.filter(environment=environment, target_name=key, target_kind__startswith="tenant")
    entries = list(with_authors(rows).order_by("-id")[:_HISTORY])
    alone = {entry.revision for entry in entries}
    together = Changed.objects.filter(kind="tenant", name=key, revision__environment=environment)
    together = with_authors(together.select_related("revision"), "revision__")
    together = together.order_by("-revision")[:_HISTORY]
    entries += [_entry_of(change) for change in together if change.revision.number not in alone]
    entries.sort(key=lambda entry: entry.at, reverse=True)
    return [line_of(change_of(entry)) for entry in entries[:_HISTORY]]


def _entry_of(change: Changed) -> Entry:
    """The audit entry as if only this tenant had changed."""
    made = change.revision
    entry = Entry(
        at=made.at,
        actor=made.actor,
        role=made.role,
        origin=made.origin,
        action=made.action,
        target_kind="tenant",
        target_name=change.name,
        before=change.before,
        after=change.after,
        reason=made.reason,
        revision=made.number,
    )
    entry.by_person = change.by_person
    return entry


@dataclass(frozen=True, kw_only=True)
class Parent:
    tenant: Tenant
    quotas: list[QuotaRow]


def parents(tenant: Tenant) -> list[Parent]:
    """The nearest parent first."""
    found: list[Parent] = []
    above = _above(tenant)
    while above is not None and above.key not in {parent.tenant.key for parent in found}:
        found.append(Parent(tenant=above, quotas=quota_rows(above, {})))
        above = _above(above)
    return found


def members(tenant: Tenant) -> int:
    rows = Tenant.objects.filter(environment=tenant.environment_id, parent=tenant.key, deleted=False)
    return rows.count()


def _above(tenant: Tenant) -> Tenant | None:
    return find_tenant(tenant.environment_id, tenant.parent) if tenant.parent else None
