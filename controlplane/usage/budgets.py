"""Budgets: what is spent of budgets, and of quotas and vendor limits with a calendar period, read from Redis.

Redis has the exact number, in the unit of the limit and with settled costs. Rates of pods are calls, and
stored series start later than a month.
"""

from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Any

import redis
from django.db.models import Max

from controlplane.audit.models import Entry
from controlplane.phrases import percent
from controlplane.policies.models import Tenant, TenantQuota, TierQuota, VendorLimit
from controlplane.redis.read_many import ask_many, read_many
from controlplane.same_fields import made_from
from controlplane.series.kinds import DEPENDENCY, FLEET
from controlplane.series.models import MADE_UP, Entity, Writer
from controlplane.usage.budget_counters import (
    BudgetCounter,
    budget_counters,
    shared_counters,
    tenant_counters,
    tier_counters,
)
from fuseboard.contract import keys
from fuseboard.contract.calendar_period import period_around
from fuseboard.contract.words import Period

#: Quotas of tenants that are listed; those of tiers are listed for some tenants only.
MAX_BUDGETS = 2_000
WARN_PERCENT = 80
#: Before this part of a period is counted, a projection says nothing.
_TOO_EARLY = 0.02
_UNREAD = object()


@dataclass(frozen=True, kw_only=True)
class Budget:
    #: Empty for a limit of a dependency on all tenants together.
    tenant: str
    #: Empty for requests to the service itself.
    dependency: str
    name: str
    #: ``tenant``, ``tier``, ``vendor`` or ``budget``, and the name of the tier.
    source: str
    tier: str
    measure: str
    limit: int
    period: str
    time_zone: str
    shadow: bool
    #: In unix seconds.
    began: float
    ends: float
    #: ``None`` while Redis does not answer.
    spent: int | None
    #: Since when ``spent`` is counted, in unix seconds: ``began``, unless nothing counted then.
    since: float
    #: Spent at the end of the period if it continues like this; ``None`` if it is too early to say.
    projected: int | None
    #: Only of a ``budget``: its account, what happens when it is spent, and its name in the configuration.
    account: str = ""
    at_100: str = ""
    title: str = ""
    warn_percent: int = WARN_PERCENT

    @property
    def projected_from(self) -> float:
        """When enough is counted for a projection, in unix seconds."""
        return min(_projected_from(self.since, self.began, self.ends), self.ends)

    @property
    def percent(self) -> float | None:
        if self.spent is None:
            return None
        return 100 * self.spent / self.limit if self.limit else 100.0

    @property
    def gone_at(self) -> float | None:
        """When it is spent, if that goes on like this, in unix seconds; ``None`` if it lasts, or if it is too
        early to say.
        """
        if not self.projected or self.projected < self.limit:
            return None
        return self.since + self.limit * (self.ends - self.since) / self.projected

    @property
    def gone_after(self) -> float | None:
        """The part of its period after which it is spent; ``None`` as above."""
        return None if self.gone_at is None else (self.gone_at - self.began) / (self.ends - self.began)

    @property
    def percent_words(self) -> str:
        return percent((self.percent or 0) / 100)

    @property
    def state(self) -> str:
        """One of ``over``, ``warn``, ``will_be_over``, ``ok`` and ``unknown``."""
        if self.percent is None:
            return "unknown"
        if self.percent >= 100:
            return "over"
        if 0 < self.warn_percent <= self.percent:
            return "warn"
        return "will_be_over" if (self.projected or 0) > self.limit else "ok"


@dataclass(frozen=True, kw_only=True)
class Budgets:
    rows: list[Budget]
    #: Whether Redis answered.
    known: bool
    #: Whether there are more than ``MAX_BUDGETS``.
    cut: bool


@dataclass(frozen=True)
class _Counter:
    key: str
    tenant: str
    source: str
    tier: str
    row: Any
    #: The name of a budget in the configuration.
    title: str = ""

    @property
    def dependency(self) -> str:
        """Empty for requests to the service itself."""
        named = self.row.dependency
        return str(named.name if self.source == "vendor" else named)

    @property
    def named(self) -> tuple[str, str, str]:
        """Tenant, dependency and limit."""
        return self.tenant, self.dependency, self.row.name


def budgets(environment: str, busy: Collection[tuple[str, str]], *, now: float) -> Budgets:
    """The most spent first. ``busy``: tenants and quotas whose tier's budgets are listed too.

    Quotas that count each user or address separately have no one number, and are left out.
    """
    # Tenants last: theirs can be more than all that is listed, and must not push out the others.
    counters = [
        *_of_budgets(shared_counters(environment)),
        *_of_budgets(tier_counters(environment, {tenant for tenant, _ in busy})),
        *_of_vendors(environment),
        *_of_tiers(environment, busy),
        *_of_budgets(tenant_counters(environment, most=MAX_BUDGETS + 1)),
        *_of_tenants(environment),
    ]
    return _read(environment, counters, now)


def use_of_budget(environment: str, title: str, busy: Collection[tuple[str, str]], *, now: float) -> Budgets:
    """Read the use of one budget. Each tenant of a tier spends its own: those of ``busy`` are listed."""
    found = budget_counters(environment, {tenant for tenant, _ in busy}, most=1, name=title)
    return _read(environment, list(_of_budgets(found)), now)


def _read(environment: str, counters: list[_Counter], now: float) -> Budgets:
    chosen = counters[:MAX_BUDGETS]
    texts = _texts([counter.key for counter in chosen])
    lives = _lives_ms(texts or {}, chosen, now)
    counted = _counted_since(environment)
    cleared = _cleared(environment, now)
    rows = [
        _budget(
            one,
            _UNREAD if texts is None else texts[one.key],
            now,
            lives_ms=lives.get(one.key, 0),
            since=max(counted.get(one.dependency, 0.0), cleared.get(one.named, 0.0)),
        )
        for one in chosen
    ]
    rows.sort(key=lambda row: (-(row.percent or 0.0), row.tenant, row.dependency, row.name))
    return Budgets(rows=rows, known=texts is not None, cut=len(counters) > MAX_BUDGETS)


def one_budget(environment: str, title: str, tenant: str, *, now: float) -> Budget | None:
    """A budget by its name in the configuration; of a tier, as ``tenant`` spends it. ``None`` without one."""
    found = budget_counters(environment, [tenant], most=1, name=title)
    one = next(iter(_of_budgets(found)), None)
    if one is None:
        return None
    texts = _texts([one.key])
    lives = _lives_ms(texts or {}, [one], now)
    return _budget(one, _UNREAD if texts is None else texts[one.key], now, lives_ms=lives.get(one.key, 0))


def _counted_since(environment: str) -> dict[str, float]:
    """Dependency -> since when its calls are counted; "" -> since when any request is.

    Before it, no pod was there, so the average of the whole period would be too low.
    """
    made_up = Writer.objects.filter(environment=environment, gateway=MADE_UP)
    until = made_up.aggregate(newest=Max("started_at"))["newest"]
    first = 0.0 if until is None else until.timestamp()
    rows = Entity.objects.filter(environment=environment, kind__in=(FLEET.number, DEPENDENCY.number), sub="")
    return {name: max(first, at.timestamp()) for name, at in rows.values_list("name", "first_at")}


def _of_budgets(found: Iterable[BudgetCounter]) -> Iterable[_Counter]:
    for one in found:
        yield _Counter(one.key, one.tenant, "budget", one.tier, one.columns, one.row.name)


def _cleared(environment: str, now: float) -> dict[tuple[str, str, str], float]:
    """Tenant, dependency and limit -> when an operator last cleared the counter, within a month."""
    since = datetime.fromtimestamp(now, UTC) - timedelta(days=31)
    rows = Entry.objects.filter(environment=environment, action="counter.cleared", at__gte=since)
    found = {}
    for kind, name, after, at in rows.order_by("at").values_list("target_kind", "target_name", "after", "at"):
        of = after or {}
        tenant = name if kind == "tenant" else ""
        # That of an account has its name in the limit.
        dependency = of.get("dependency", "") if tenant else name if kind == "dependency" else ""
        found[tenant, dependency, of.get("limit", "")] = at.timestamp()
    return found


def _of_tenants(environment: str) -> Iterable[_Counter]:
    rows = TenantQuota.objects.filter(
        tenant__environment=environment, tenant__deleted=False, per=[], algorithm="fixed_window"
    )
    found = list(rows.select_related("tenant", "tenant__tier").order_by("pk")[: MAX_BUDGETS + 1])
    yield from _quotas(environment, [(row.tenant, row, "tenant") for row in found])


def _of_tiers(environment: str, busy: Collection[tuple[str, str]]) -> Iterable[_Counter]:
    rows = Tenant.objects.filter(
        environment=environment, deleted=False, key__in={tenant for tenant, _ in busy}
    )
    tenants = list(rows.select_related("tier").prefetch_related("quotas"))
    of_tier: dict[int, list[TierQuota]] = {}
    wanted = TierQuota.objects.filter(
        tier__in={tenant.tier_id for tenant in tenants}, per=[], algorithm="fixed_window"
    )
    for quota in wanted.order_by("name"):
        of_tier.setdefault(quota.tier_id, []).append(quota)
    found = []
    for tenant in tenants:
        own = {quota.name for quota in tenant.quotas.all()}
        found += [
            (tenant, quota, "tier") for quota in of_tier.get(tenant.tier_id, []) if quota.name not in own
        ]
    yield from _quotas(environment, found)


def _quotas(environment: str, found: list[tuple[Tenant, Any, str]]) -> Iterable[_Counter]:
    parents = {tenant.parent for tenant, *_ in found} - {""}
    rows = Tenant.objects.filter(environment=environment, key__in=parents, deleted=False)
    above = dict(rows.values_list("key", "parent"))
    for tenant, quota, source in found:
        if quota.dependency:
            key = keys.dependency_quota(environment, quota.dependency, tenant.key, quota.name)
        elif tenant.parent in above:
            root = above[tenant.parent] or tenant.parent
            key = keys.member_quota(environment, root, tenant.key, quota.name)
        else:
            key = keys.tenant_quota(environment, tenant.key, quota.name)
        yield _Counter(key, tenant.key, source, tenant.tier.name, quota)


def _of_vendors(environment: str) -> Iterable[_Counter]:
    rows = VendorLimit.objects.filter(
        dependency__environment=environment, per=[], algorithm="fixed_window"
    ).select_related("dependency")
    for row in rows.order_by("pk")[:MAX_BUDGETS]:
        yield _Counter(keys.vendor_limit(environment, row.dependency.name, row.name), "", "vendor", "", row)


def _texts(names: list[str]) -> dict[str, Any] | None:
    """Key -> what Redis has, or an error; ``None`` when no server of Redis answers."""
    try:
        return read_many(names)
    except redis.RedisError:
        return None


def _lives_ms(texts: Mapping[str, Any], counters: Iterable[_Counter], now: float) -> dict[str, int]:
    """Key -> for how long it lives, of counters that began before the present period of their limit."""
    older = []
    for one in counters:
        began_us, _ = _period(one.row, now)
        found = _counted(texts.get(one.key))
        if found is not None and found[0] < began_us:
            older.append(one.key)
    try:
        answers = ask_many(older, lambda pipeline, key: pipeline.pttl(key))
    except redis.RedisError:
        return {}
    return {key: answer for key, answer in answers.items() if isinstance(answer, int) and answer > 0}


def _period(row: Any, now: float) -> tuple[int, int]:
    return period_around(int(now * 1_000_000), Period(row.period), row.time_zone)


def _budget(counter: _Counter, text: Any, now: float, *, lives_ms: int = 0, since: float = 0.0) -> Budget:
    row = counter.row
    began_us, ends_us = _period(row, now)
    # The text does not say when its period ends. Its key lives one second longer, as limits.lua has it.
    old_end_us = int(now * 1_000_000) + lives_ms * 1_000 - 1_500_000
    spent = None if text is _UNREAD else _spent(text, began_us, ends_us, old_end_us if lives_ms else 0)
    began, ends = began_us / 1_000_000, ends_us / 1_000_000
    since = min(max(began, since), now)
    early = now < _projected_from(since, began, ends)
    own = counter.title != ""
    return made_from(
        Budget,
        row,
        tenant=counter.tenant,
        dependency=counter.dependency,
        account=row.account if own else "",
        at_100=row.at_100 if own else "",
        title=counter.title,
        warn_percent=row.warn_percent if own else WARN_PERCENT,
        source=counter.source,
        tier=counter.tier,
        began=began,
        ends=ends,
        spent=spent,
        since=since,
        # Continued from the time that is counted, which may be the end of the period only.
        projected=None if spent is None or early else round(spent + spent / (now - since) * (ends - now)),
    )


def _projected_from(since: float, began: float, ends: float) -> float:
    return since + _TOO_EARLY * (ends - began)


def _spent(text: Any, began_us: int, ends_us: int, old_end_us: int = 0) -> int | None:
    """The spent part of a budget. After people changed the period, it is as the next decision counts it.

    That of another algorithm is unknown until then.
    """
    if text is None:
        return 0
    found = _counted(text)
    if found is None:
        return None
    began, spent = found
    return spent if began < ends_us and (began >= began_us or old_end_us > began_us) else 0


def _counted(text: Any) -> tuple[int, int] | None:
    """Read a value of ``limits.lua``: the beginning of a period, and what is spent of it."""
    parts = text.split(" ") if isinstance(text, str) else []
    if len(parts) != 2 or not all(part.isdecimal() for part in parts):
        return None
    return int(parts[0]), int(parts[1])
