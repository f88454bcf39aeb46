"""Quotas of tenants and tiers, and limits of vendors."""

from datetime import datetime
from typing import Any, Unpack

from django.utils import timezone

from controlplane.audit.actor import Actor
from controlplane.editing.revise import revise
from controlplane.editing.rows.limit_checks import check_new_limit, wrong_end
from controlplane.editing.rows.limit_rows import given_columns, put_limit, remove_limit
from controlplane.editing.rows.versioned_rows import DependencyEdit, TenantEdit, TierEdit
from controlplane.policies.limit_fields import LimitOptions, QuotaOptions
from controlplane.policies.limits import VENDOR_DEFAULTS, columns_of
from controlplane.policies.models import TenantQuota, TierQuota
from controlplane.validation import Problems


def set_tenant_quota(
    *,
    environment: str,
    tenant: str,
    quota: str,
    expected_version: int | None,
    reason: str,
    actor: Actor,
    expires_at: datetime | None = None,
    **options: Unpack[QuotaOptions],
) -> int:
    """Give a tenant its own quota, which replaces the quota of its tier with the same name.

    A value that is left out stays as it is. In a new quota it comes from the tier's quota, except for
    the numbers. A quota with ``expires_at`` is temporary: after it the tenant's previous quota, or
    the tier's, applies again.
    """
    given = given_columns(options)
    _check_expiry(expires_at)
    check_new_limit(quota, given, reason)
    with revise(environment=environment, actor=actor, reason=reason) as revision:
        edit = TenantEdit(revision, tenant, expected_version)
        like = TierQuota.objects.filter(tier_id=edit.row.tier_id, name=quota).first()
        ending = _ending(edit.row.quotas.filter(name=quota).first(), expires_at)
        like_tier = columns_of(like) if like is not None else None
        put_limit(edit.row.quotas, quota, given | ending, environment=environment, like=like_tier)
        edit.finish("tenant_quota.set")
    return revision.number


def remove_tenant_quota(
    *, environment: str, tenant: str, quota: str, expected_version: int | None, reason: str, actor: Actor
) -> int:
    """Remove a tenant's own quota. The tier's quota with this name applies again."""
    _check_reason(reason)
    with revise(environment=environment, actor=actor, reason=reason) as revision:
        edit = TenantEdit(revision, tenant, expected_version)
        remove_limit(edit.row.quotas, quota)
        edit.finish("tenant_quota.removed")
    return revision.number


def set_tier_quota(
    *,
    environment: str,
    tier: str,
    quota: str,
    expected_version: int | None,
    reason: str,
    actor: Actor,
    **options: Unpack[QuotaOptions],
) -> int:
    """Set a quota for every tenant of the tier that does not override it. This is one write."""
    given = given_columns(options)
    check_new_limit(quota, given, reason)
    with revise(environment=environment, actor=actor, reason=reason) as revision:
        edit = TierEdit(revision, tier, expected_version)
        put_limit(edit.row.quotas, quota, given, environment=environment)
        edit.finish("tier_quota.set")
    return revision.number


def remove_tier_quota(
    *, environment: str, tier: str, quota: str, expected_version: int | None, reason: str, actor: Actor
) -> int:
    _check_reason(reason)
    with revise(environment=environment, actor=actor, reason=reason) as revision:
        edit = TierEdit(revision, tier, expected_version)
        remove_limit(edit.row.quotas, quota)
        edit.finish("tier_quota.removed")
    return revision.number


def set_vendor_limit(
    *,
    environment: str,
    dependency: str,
    name: str,
    expected_version: int | None,
    reason: str,
    actor: Actor,
    **options: Unpack[LimitOptions],
) -> int:
    """Set a limit of the vendor for the whole fleet. By default it is a strict, reserved one."""
    given = given_columns(options)
    check_new_limit(name, given, reason)
    with revise(environment=environment, actor=actor, reason=reason) as revision:
        edit = DependencyEdit(revision, dependency, expected_version)
        put_limit(edit.row.vendor_limits, name, given, environment=environment, like=VENDOR_DEFAULTS)
        edit.finish("vendor_limit.set")
    return revision.number


def remove_vendor_limit(
    *, environment: str, dependency: str, name: str, expected_version: int | None, reason: str, actor: Actor
) -> int:
    _check_reason(reason)
    with revise(environment=environment, actor=actor, reason=reason) as revision:
        edit = DependencyEdit(revision, dependency, expected_version)
        remove_limit(edit.row.vendor_limits, name)
        edit.finish("vendor_limit.removed")
    return revision.number


def _ending(now: TenantQuota | None, expires_at: datetime | None) -> dict[str, Any]:
    """Return the columns for the end of a tenant's quota, and for the quota that applies afterwards."""
    ending: dict[str, Any] = {"expires_at": expires_at, "returns_to": None, "announced_at": None}
    if expires_at is not None and now is not None:
        ending["returns_to"] = columns_of(now) if now.expires_at is None else now.returns_to
    return ending


def _check_expiry(expires_at: datetime | None) -> None:
    problems = Problems()
    if expires_at is not None and timezone.is_naive(expires_at):
        problems.add("expires_at", "Give the time zone.")
    elif expires_at is not None and (wrong := wrong_end(expires_at, timezone.now())):
        problems.add("expires_at", wrong)
    problems.settle()


def _check_reason(reason: object) -> None:
    problems = Problems()
    problems.reason(reason)
    problems.settle()
