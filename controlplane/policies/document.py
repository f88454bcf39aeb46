"""Rows -> the documents that pods decide by. A few queries each, however many rows there are."""

from collections import defaultdict
from collections.abc import Iterable
from datetime import UTC, datetime, timedelta
from typing import Any

import msgspec
from django.contrib.postgres.aggregates import StringAgg
from django.db import connection
from django.db.models import Exists, OuterRef, Q, QuerySet

from controlplane.errors import find
from controlplane.policies.descriptors import domain_of
from controlplane.policies.limits import LimitColumns, columns_for
from controlplane.policies.models import (
    BREAKER_RANGES,
    OPTIONAL_COLUMNS,
    Dependency,
    DescriptorFile,
    Environment,
    SubjectLimit,
    Tenant,
    TenantQuota,
    Tier,
    TierQuota,
    VendorLimit,
)
from controlplane.policies.protection import call_protection, pod_protection
from controlplane.spending.budget_fields import account_of, budget_of
from controlplane.spending.fields import model_of
from controlplane.spending.models import Account, Budget, Model
from fuseboard.contract import budgets as budget_contract
from fuseboard.contract import policy as contract
from fuseboard.contract.limit_fields import FIELDS, QUOTAS, Choice, Choices, Patterns
from fuseboard.contract.words import OverrideMode

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)


#: The fields whose values have another type in the document than in the row.
_TYPED = tuple(field for field in FIELDS if isinstance(field, Choice | Choices | Patterns))


def limit_of(row: LimitColumns) -> contract.Limit:
    values: dict[str, Any] = {name: getattr(row, name) for name in columns_for(row.whose)}
    for field in _TYPED:
        if field.name not in values:
            continue
        value = values[field.name]
        if isinstance(field, Choice):
            values[field.name] = field.words(value) if value else None
        else:
            values[field.name] = tuple(map(field.words, value) if isinstance(field, Choices) else value)
    return contract.Limit(name=row.name, window_ms=values.pop("window_s") * 1000, **values)


def policy_of(environment: Environment) -> contract.Policy:
    """Return everything but the tenants.

    An override stays in it until it is marked as ended, even after it expired, so that the document
    depends on the revision alone, not on the time. Pods apply the expiry themselves.
    """
    tiers = list(Tier.objects.filter(environment=environment).order_by("name"))
    quotas = _by_owner(TierQuota.objects.filter(tier__environment=environment).order_by("name"), "tier_id")
    names = {tier.pk: tier.name for tier in tiers}
    rows = SubjectLimit.objects.filter(environment=environment).order_by("name")
    of_callers = [limit_of(row) for row in rows]
    budgets = _budgets_by_owner(Budget.objects.filter(environment=environment, tenant=""))
    return contract.Policy(
        environment=environment.slug,
        default_tier=names.get(environment.default_tier_id, ""),
        subject_limits=tuple([limit for limit in of_callers if not limit.service]),
        service_limits=tuple([limit for limit in of_callers if limit.service]),
        tiers=tuple(
            contract.Tier(
                name=tier.name,
                priority=tier.priority,
                wait_ms=tier.wait_ms,
                quotas=tuple(quotas[tier.pk]),
                budgets=tuple(budgets["tier", tier.name]),
            )
            for tier in tiers
        ),
        dependencies=tuple(_dependencies(environment, budgets)),
        tuning=tuning_of(environment),
        protection=pod_protection(environment.protection),
        models=tuple(map(model_of, _models(environment))),
        accounts=tuple(
            account_of(row, budgets["account", row.name])
            for row in Account.objects.filter(environment=environment).order_by("name")
        ),
        descriptors=tuple(
            domain_of(row) for row in DescriptorFile.objects.filter(environment=environment).order_by("name")
        ),
    )


#: Kind and name of an owner -> its budgets.
_Budgets = dict[tuple[str, str], list[budget_contract.Budget]]


def _budgets_by_owner(rows: QuerySet[Budget]) -> _Budgets:
    found: _Budgets = defaultdict(list)
    for row in rows.order_by("name"):
        found[row.owner].append(budget_of(row))
    return found


def _models(environment: Environment) -> Iterable[Model]:
    return Model.objects.filter(environment=environment).order_by("name").prefetch_related("prices")


def tuning_of(environment: Environment) -> contract.Tuning:
    return msgspec.convert(environment.tuning, contract.Tuning)


def _dependencies(environment: Environment, budgets: _Budgets) -> Iterable[contract.Dependency]:
    limits = _by_owner(
        VendorLimit.objects.filter(dependency__environment=environment).order_by("name"), "dependency_id"
    )
    overrides = dict(_overrides(environment))
    for row in Dependency.objects.filter(environment=environment).order_by("name"):
        yield contract.Dependency(
            name=row.name,
            vendor_limits=tuple(limits[row.pk]),
            breaker=contract.BreakerPolicy(**{column: getattr(row, column) for column in BREAKER_RANGES}),
            timeout_ms=row.timeout_ms,
            wait_ms=row.wait_ms,
            **{column: getattr(row, column) for column in OPTIONAL_COLUMNS},
            protection=call_protection(row.protection),
            override=overrides.get(row.pk),
            reset_revision=row.reset_revision,
            budgets=tuple(budgets["dependency", row.name]),
        )


def _overrides(environment: Environment) -> Iterable[tuple[int, contract.Override]]:
    """Read overrides through their dependency. ``controlplane.breakers`` is a layer above this package."""
    columns = (
        "pk",
        *(f"overrides__{name}" for name in ("mode", "revision", "expires_at", "reason", "actor")),
    )
    current = Dependency.objects.filter(
        environment=environment, overrides__isnull=False, overrides__ended_at__isnull=True
    )
    for dependency, mode, revision, expires_at, reason, actor in current.values_list(*columns):
        yield (
            dependency,
            contract.Override(
                mode=OverrideMode(mode),
                revision=revision,
                expires_at_us=(expires_at - _EPOCH) // timedelta(microseconds=1),
                reason=reason,
                actor=actor,
            ),
        )


def tenant_records(environment: str, *, since: int = -1) -> dict[str, contract.TenantRecord | None]:
    """Return the tenants changed after revision ``since``. A removed tenant is ``None``.

    The time must not depend on the planner's statistics. After an import into a small table, Postgres
    still expects few rows, and would read all tenants again for each tenant that it joins. So each query
    reads one table, except those that read whole tables.
    """
    if since < 0:
        return _all_tenants(environment)
    return _records(
        environment, Tenant.objects.filter(environment_id=environment, changed_revision__gt=since)
    )


def _all_tenants(environment: str) -> dict[str, contract.TenantRecord | None]:
    with connection.cursor() as cursor:
        # Whole tables are joined by hashing. For the rest of the transaction, which ``take_snapshot`` opens.
        cursor.execute("SELECT set_config('enable_nestloop', 'off', true)")
    tenants = Tenant.objects.filter(environment_id=environment)
    own = Exists(TenantQuota.objects.filter(tenant=OuterRef("pk"))) | Exists(
        Budget.objects.filter(environment=environment, tenant=OuterRef("key"))
    )
    return _alike(environment, tenants.filter(~own, deleted=False)) | _records(
        environment, tenants.filter(Q(deleted=True) | own)
    )


def _records(environment: str, chosen: QuerySet[Tenant]) -> dict[str, contract.TenantRecord | None]:
    rows = list(chosen.values_list("pk", "key", "tier__name", "suspended", "parent", "deleted"))
    quotas = _quotas_of([pk for pk, *_, deleted in rows if not deleted])
    parents = _Parents(environment, {parent for *_, parent, deleted in rows if not deleted})
    budgets = _budgets_by_owner(
        Budget.objects.filter(environment=environment, tenant__in=[key for _, key, *_ in rows])
    )
    return {
        key: None
        if deleted
        else contract.TenantRecord(
            tier=tier,
            suspended=suspended,
            quotas=tuple(quotas.get(pk, ())),
            parents=parents.of(parent),
            budgets=tuple(budgets["tenant", key]),
        )
        for pk, key, tier, suspended, parent, deleted in rows
    }


def _alike(environment: str, plain: QuerySet[Tenant]) -> dict[str, contract.TenantRecord | None]:
    """Return tenants without own quotas. Nearly all are such, so Postgres groups them by tier."""
    # A subject has no control characters, so this one can separate two.
    grouped = plain.values_list("tier__name", "suspended", "parent").order_by()
    groups = list(grouped.annotate(names=StringAgg("key", delimiter="\x1f")))
    parents = _Parents(environment, {parent for _, _, parent, _ in groups})
    found: dict[str, contract.TenantRecord | None] = {}
    for tier, suspended, parent, names in groups:
        record = contract.TenantRecord(tier=tier, suspended=suspended, parents=parents.of(parent))
        found.update(dict.fromkeys(names.split("\x1f"), record))
    return found


class _Parents:
    """The parents of tenants, and the parents of these."""

    def __init__(self, environment: str, parents: set[str]) -> None:
        parents = parents - {""}
        above = Tenant.objects.filter(environment=environment, key__in=parents, deleted=False)
        self._above = dict(above.values_list("key", "parent")) if parents else {}

    def of(self, parent: str) -> tuple[str, ...]:
        """Return the parents of a tenant that belongs to ``parent``, topmost first."""
        return tuple(name for name in (self._above.get(parent, ""), parent) if name)


def environment_of(slug: str) -> Environment:
    return find(Environment.objects.all(), "environment", pk=slug)


def _quotas_of(tenants: list[int]) -> dict[int, list[contract.Limit]]:
    """Convert quotas. Most are alike, so each kind is converted once, which is ten times as fast."""
    found: dict[int, list[contract.Limit]] = defaultdict(list)
    if not tenants:
        return found
    made: dict[tuple[Any, ...], contract.Limit] = {}
    names = ("name", *columns_for(QUOTAS))
    rows = TenantQuota.objects.filter(tenant_id__in=tenants).order_by("name")
    for tenant, *values in rows.values_list("tenant_id", *names).iterator(10_000):
        key = tuple(tuple(value) if isinstance(value, list) else value for value in values)
        limit = made.get(key)
        if limit is None:
            limit = made[key] = limit_of(TenantQuota(**dict(zip(names, values, strict=True))))
        found[tenant].append(limit)
    return found


def _by_owner(rows: Iterable[LimitColumns], owner: str) -> dict[int, list[contract.Limit]]:
    found: dict[int, list[contract.Limit]] = defaultdict(list)
    for row in rows:
        found[getattr(row, owner)].append(limit_of(row))
    return found
