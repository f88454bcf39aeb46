"""Rows that differ from what a new row gets, in the values whose default has changed since 0.1.0.

A new default never changes an existing row, so admins see these rows and decide.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import chain, islice
from typing import Any

from django.db.models import F, QuerySet

from controlplane.policies.document import environment_of
from controlplane.policies.limits import OPTIONAL, SUBJECT_DEFAULTS, VENDOR_DEFAULTS
from controlplane.policies.models import (
    BREAKER_PRESETS,
    Dependency,
    Environment,
    SubjectLimit,
    TenantQuota,
    TierQuota,
    VendorLimit,
)


@dataclass(frozen=True, kw_only=True)
class Differing:
    """One value of one row, and what a new row gets."""

    #: ``dependency``, ``tier``, ``tenant``; ``environment`` for callers without a tenant.
    kind: str
    name: str
    #: Name of the limit; empty for the breaker of a dependency.
    limit: str
    #: The template that the limit follows; empty for none.
    template: str
    field: str
    value: str
    new: str


@dataclass(frozen=True, kw_only=True)
class DifferingRows:
    count: int
    #: The first of them: dependencies first, tenants last.
    rows: tuple[Differing, ...]


def differing_rows(environment: str, *, most: int) -> DifferingRows:
    row = environment_of(environment)
    limits = list(_limits(row))
    breakers = list(_breakers(row))
    # There may be a hundred thousand tenants: Postgres counts them.
    found = chain(breakers, chain.from_iterable(_differing(*each) for each in limits))
    return DifferingRows(
        count=len(breakers) + sum(rows.count() for _, rows, _ in limits),
        rows=tuple(islice(found, most)),
    )


def _breakers(environment: Environment) -> Iterator[Differing]:
    for row in Dependency.objects.filter(environment=environment).order_by("name"):
        new = Dependency(**BREAKER_PRESETS.get(row.kind, {})).slow_percent
        if row.slow_percent != new:
            yield Differing(
                kind="dependency",
                name=row.name,
                limit="",
                template="",
                field="slow_percent",
                value=str(row.slow_percent),
                new=str(new),
            )


def _limits(environment: Environment) -> Iterator[tuple[str, QuerySet[Any], str]]:
    """Kind, limits with another failure policy than a new one, and the policy of a new one."""
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
        differing: QuerySet[Any] = rows.exclude(failure_policy=new)
        yield kind, differing.annotate(owner=F(owner)).order_by("owner", "name"), new


def _differing(kind: str, rows: QuerySet[Any], new: str) -> Iterator[Differing]:
    # Read as far as the caller goes, a chunk at a time.
    for name, limit, template, policy in rows.values_list(
        "owner", "name", "template", "failure_policy"
    ).iterator(500):
        yield Differing(
            kind=kind,
            name=name,
            limit=limit,
            template=template,
            field="failure_policy",
            value=policy,
            new=new,
        )
