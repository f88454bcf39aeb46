"""Rows that differ from what a new row gets, in the values whose default has changed since 0.1.0.

A new default never changes an existing row, so admins see these rows and decide.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import chain, islice
from typing import Any

from django.db.models import F, Q, QuerySet

from controlplane.policies.document import environment_of
from controlplane.policies.limits import BUDGET_POLICY, OPTIONAL, SUBJECT_DEFAULTS, VENDOR_DEFAULTS
from controlplane.policies.models import (
    BREAKER_PRESETS,
    Dependency,
    Environment,
    SubjectLimit,
    Template,
    TenantQuota,
    TierQuota,
    VendorLimit,
)
from controlplane.policies.template_starts import STARTS
from fuseboard.contract.words import Algorithm


@dataclass(frozen=True, kw_only=True)
class Differing:
    """One value of one row, and what a new row gets."""

    #: ``dependency``, ``template``, ``tier``, ``tenant``; ``environment`` for callers without a tenant.
    kind: str
    name: str
    #: Name of the limit; empty for the breaker and the bulkhead of a dependency, and for a template.
    limit: str = ""
    #: Always empty: of limits that follow a template, only the template is listed.
    template: str = ""
    field: str
    value: str
    new: str


@dataclass(frozen=True, kw_only=True)
class DifferingRows:
    count: int
    #: The first of them: dependencies and templates first, tenants last.
    rows: tuple[Differing, ...]


def differing_rows(environment: str, *, most: int) -> DifferingRows:
    row = environment_of(environment)
    limits = list(_limits(row))
    first = [*_breakers(row), *_bulkheads(row), *_templates(row)]
    # There may be a hundred thousand tenants: Postgres counts them.
    found = chain(first, chain.from_iterable(_differing(*each, most=most) for each in limits))
    return DifferingRows(
        count=len(first) + sum(rows.count() for _, rows, _ in limits),
        rows=tuple(islice(found, most)),
    )


def _breakers(environment: Environment) -> Iterator[Differing]:
    for row in Dependency.objects.filter(environment=environment).order_by("name"):
        new = Dependency(**BREAKER_PRESETS.get(row.kind, {}))
        changed = ["slow_percent"] if row.slow_percent != new.slow_percent else []
        if new.window_calls and not row.window_calls:
            changed.append("window_calls")
        for field in changed:
            value, usual = str(getattr(row, field)), str(getattr(new, field))
            yield Differing(kind="dependency", name=row.name, field=field, value=value, new=usual)


def divided_bulkheads(environment: str) -> list[str]:
    """The dependencies whose bulkhead gives a tier no more than its share, also if no other tier calls."""
    rows = Dependency.objects.filter(environment=environment, protection__has_key="bulkhead")
    # A key that is absent is neither true nor false, so that exclude() would leave the oldest rows out.
    divided = ~Q(protection__bulkhead__has_key="share_idle") | Q(protection__bulkhead__share_idle=False)
    return list(rows.filter(divided).order_by("name").values_list("name", flat=True))


def _bulkheads(environment: Environment) -> Iterator[Differing]:
    for name in divided_bulkheads(environment.slug):
        field = "protection.bulkhead.share_idle"
        yield Differing(kind="dependency", name=name, field=field, value="false", new="true")


def _limits(environment: Environment) -> Iterator[tuple[str, QuerySet[Any], str]]:
    """Kind, limits with another failure policy than a new one, and the policy of a new one.

    A limit that follows a template has no default: it gets the values of the template.
    """
    quota, vendor, subject = (
        str(defaults["failure_policy"]) for defaults in (OPTIONAL, VENDOR_DEFAULTS, SUBJECT_DEFAULTS)
    )
    vendors = VendorLimit.objects.filter(dependency__environment=environment)
    subjects = SubjectLimit.objects.filter(environment=environment)
    tiers = TierQuota.objects.filter(tier__environment=environment)
    tenants = TenantQuota.objects.filter(tenant__environment=environment, tenant__deleted=False)
    for kind, rows, owner, new in (
        ("dependency", vendors.all(), "dependency__name", vendor),
        ("environment", subjects.all(), "environment_id", subject),
        ("tier", tiers.all(), "tier__name", quota),
        ("tenant", tenants.all(), "tenant__key", quota),
    ):
        differing: QuerySet[Any] = rows.filter(template="").exclude(failure_policy=new)
        # A budget has the policy that the form of budgets gives it.
        differing = differing.exclude(algorithm=Algorithm.FIXED_WINDOW, failure_policy=BUDGET_POLICY)
        yield kind, differing.annotate(owner=F(owner)).order_by("owner", "name"), new


def _templates(environment: Environment) -> Iterator[Differing]:
    new = str(OPTIONAL["failure_policy"])
    for row in Template.objects.filter(environment=environment).exclude(failure_policy=new).order_by("name"):
        start = STARTS.get(row.name)
        if start is None or start.failure_policy != row.failure_policy:
            policy = row.failure_policy
            yield Differing(kind="template", name=row.name, field="failure_policy", value=policy, new=new)


def _differing(kind: str, rows: QuerySet[Any], new: str, *, most: int) -> Iterator[Differing]:
    # Not with a cursor: outside a transaction, Postgres would first copy all rows for it.
    for name, limit, policy in rows.values_list("owner", "name", "failure_policy")[:most]:
        yield Differing(kind=kind, name=name, limit=limit, field="failure_policy", value=policy, new=new)
