"""The present configuration as flat fields, from which plans, rollbacks and bulk edits start."""

from collections.abc import Callable, Collection, Iterable
from typing import Any

from django.db.models import QuerySet

from controlplane.policies.document import environment_of
from controlplane.policies.fields import (
    Fields,
    dependency_fields,
    descriptor_fields,
    environment_fields,
    limit_fields,
    template_fields,
    tier_fields,
    without_version,
)
from controlplane.policies.limits import ALONE, columns_for
from controlplane.policies.models import Dependency, DescriptorFile, Template, Tenant, TenantQuota, Tier
from controlplane.spending.budget_fields import account_fields, budget_fields
from controlplane.spending.fields import model_fields
from controlplane.spending.models import Account, Budget, Model
from fuseboard.contract.limit_fields import QUOTAS

#: Kind and name.
EntityKey = tuple[str, str]
State = dict[EntityKey, Fields]

#: ``returns_to`` comes last, because it is a document and few rows have it.
_COLUMNS = ("name", *columns_for(QUOTAS), *ALONE, "expires_at", "returns_to")

#: With more names than this, all tenants are read, which is cheaper than a long list of names.
_FEW = 5_000

#: Kind -> its model and its fields, for the kinds whose names are slugs.
_NAMED: dict[str, tuple[type[Any], Callable[[Any], Fields]]] = {
    "template": (Template, template_fields),
    "tier": (Tier, tier_fields),
    "dependency": (Dependency, dependency_fields),
    "model": (Model, model_fields),
    "account": (Account, account_fields),
    "budget": (Budget, budget_fields),
    "descriptors": (DescriptorFile, descriptor_fields),
}


def read_state(environment: str, *, tenants: Collection[str] | None = None) -> State:
    """Return everything but the tenants, and the named tenants; all of them with ``None``.

    Raises ``NotFound`` for an unknown environment.
    """
    row = environment_of(environment)
    state: State = {("environment", environment): environment_fields(row)}
    for template in Template.objects.filter(environment=row):
        state["template", template.name] = without_version(template_fields(template))
    for tier in Tier.objects.filter(environment=row).prefetch_related("quotas"):
        state["tier", tier.name] = without_version(tier_fields(tier))
    for dependency in Dependency.objects.filter(environment=row).prefetch_related("vendor_limits"):
        state["dependency", dependency.name] = without_version(dependency_fields(dependency))
    state |= read_models(environment) | read_budgets(environment) | read_descriptors(environment)
    if tenants is None or tenants:
        state |= read_tenants(environment, tenants)
    return state


def read_models(environment: str) -> State:
    rows = Model.objects.filter(environment=environment).prefetch_related("prices")
    return {("model", row.name): without_version(model_fields(row)) for row in rows}


def read_budgets(environment: str) -> State:
    """Return accounts and budgets."""
    accounts = Account.objects.filter(environment=environment).order_by("name")
    budgets = Budget.objects.filter(environment=environment).order_by("name")
    return {("account", row.name): without_version(account_fields(row)) for row in accounts} | {
        ("budget", row.name): without_version(budget_fields(row)) for row in budgets
    }


def read_descriptors(environment: str) -> State:
    rows = DescriptorFile.objects.filter(environment=environment).order_by("name")
    return {("descriptors", row.name): without_version(descriptor_fields(row)) for row in rows}


def read_entity(environment: str, kind: str, name: str) -> Fields | None:
    """Return one thing; ``None`` if it does not exist."""
    if kind == "environment":
        return environment_fields(environment_of(environment))
    if kind == "tenant":
        return read_tenants(environment, {name}).get((kind, name))
    model, fields_of = _NAMED[kind]
    row = model._default_manager.filter(environment_id=environment, name=name).first()
    return None if row is None else without_version(fields_of(row))


#: Kind -> what reads all things that a thing of this kind is checked with.
_TOGETHER: dict[str, Callable[[str], State]] = {
    "model": read_models,
    "account": read_budgets,
    "budget": read_budgets,
    "descriptors": read_descriptors,
}


def read_referable(environment: str, *, tiers: Collection[str], kind: str = "") -> State:
    """Return what an edit of one thing can refer to: templates and these tiers with their fields.

    Other tiers, and dependencies, have no fields, because an edit refers to them by name only. An edit of a
    model also reads the other models, whose aliases it may not repeat. One of an account or a budget
    reads all of both, and one of a domain all domains, which are bounded together.
    """
    read = _TOGETHER.get(kind)
    state: State = read(environment) if read is not None else {}
    for named, (model, fields_of) in _NAMED.items():
        rows = model._default_manager.filter(environment_id=environment)
        if named in _TOGETHER:
            continue
        if named == "template":
            state |= {(named, row.name): without_version(fields_of(row)) for row in rows}
        else:
            state |= {(named, name): {} for name in rows.values_list("name", flat=True)}
    for tier in tiers:
        if (fields := read_entity(environment, "tier", tier)) is not None:
            state["tier", tier] = fields
    return state


def read_tenants(environment: str, names: Collection[str] | None) -> State:
    rows = Tenant.objects.filter(environment_id=environment, deleted=False)
    if names is not None and len(names) <= _FEW:
        rows = rows.filter(key__in=list(names))
    quotas = _quota_fields(TenantQuota.objects.filter(tenant__in=rows))
    wanted = None if names is None or len(names) <= _FEW else set(names)
    found = rows.values_list("pk", "key", "tier__name", "title", "suspended", "parent")
    return {
        ("tenant", key): {
            "tier": tier,
            "title": title,
            "suspended": suspended,
            **({"parent": parent} if parent else {}),
            **quotas.get(pk, {}),
        }
        for pk, key, tier, title, suspended, parent in found.iterator(chunk_size=10_000)
        if wanted is None or key in wanted
    }


def _quota_fields(rows: QuerySet[TenantQuota]) -> dict[int, Fields]:
    """Return tenant -> flat fields of its quotas. Most are alike, so each kind is converted once."""
    found: dict[int, Fields] = {}
    made: dict[tuple[Any, ...], Fields] = {}
    for tenant, *values in rows.order_by("name").values_list("tenant_id", *_COLUMNS).iterator(10_000):
        key = tuple(tuple(value) if isinstance(value, list) else value for value in values)
        hashable = values[-1] is None
        fields = made.get(key) if hashable else None
        if fields is None:
            row = TenantQuota(**dict(zip(_COLUMNS, values, strict=True)))
            fields = limit_fields("quotas", [row])
            if hashable:
                made[key] = fields
        found[tenant] = {**found[tenant], **fields} if tenant in found else fields
    return found


def parents_of(environment: str, names: Collection[str]) -> dict[str, str]:
    """Return tenant -> its parent, empty for none, for the registered tenants."""
    if not names:
        return {}
    rows = Tenant.objects.filter(environment_id=environment, key__in=list(names), deleted=False)
    return dict(rows.values_list("key", "parent"))


def tenants_following(environment: str, templates: Collection[str]) -> set[str]:
    """Return the keys of tenants with an own quota that follows one of these templates."""
    if not templates:
        return set()
    # No join: right after a table was filled, the statistics of Postgres make a join take minutes.
    quotas = TenantQuota.objects.filter(template__in=list(templates))
    owners = set(quotas.values_list("tenant_id", flat=True).iterator(chunk_size=10_000))
    rows = Tenant.objects.filter(environment_id=environment, deleted=False)
    if len(owners) <= _FEW:
        rows = rows.filter(pk__in=owners)
    return {key for pk, key in rows.values_list("pk", "key").iterator(chunk_size=10_000) if pk in owners}


def names_of(state: Iterable[EntityKey], kind: str) -> set[str]:
    return {name for found, name in state if found == kind}
