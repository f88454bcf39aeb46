"""Quotas of tenants and tiers, limits of vendors, and limits of callers without a tenant."""

from datetime import datetime
from typing import Unpack

from django.utils import timezone

from controlplane.audit.actor import Actor
from controlplane.editing.edits.edit_entity import EntityEdit, save_call, section_of
from controlplane.editing.rows.limit_checks import check_new_limit, given_columns
from controlplane.errors import InvalidEdit
from controlplane.policies.fields import Fields
from controlplane.policies.limit_fields import LimitOptions, QuotaOptions, SubjectLimitOptions

_callers = section_of("subject_limits")


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
    if expires_at is not None and timezone.is_naive(expires_at):
        raise InvalidEdit({"expires_at": ["Give the time zone."]})
    ends = {"expires_at": "" if expires_at is None else expires_at.isoformat()}
    typed = {"quotas": {quota: _given(quota, options, reason) | ends}}
    edit = EntityEdit(environment, "tenant", tenant, typed=typed, version=expected_version)
    return save_call(edit, reason=reason, actor=actor, action="tenant_quota.set")


def remove_tenant_quota(
    *, environment: str, tenant: str, quota: str, expected_version: int | None, reason: str, actor: Actor
) -> int:
    """Remove a tenant's own quota. The tier's quota with this name applies again."""
    edit = EntityEdit(environment, "tenant", tenant, removed=(quota,), version=expected_version)
    return save_call(edit, reason=reason, actor=actor, action="tenant_quota.removed")


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
    typed = {"quotas": {quota: _given(quota, options, reason)}}
    edit = EntityEdit(environment, "tier", tier, typed=typed, version=expected_version)
    return save_call(edit, reason=reason, actor=actor, action="tier_quota.set")


def remove_tier_quota(
    *, environment: str, tier: str, quota: str, expected_version: int | None, reason: str, actor: Actor
) -> int:
    edit = EntityEdit(environment, "tier", tier, removed=(quota,), version=expected_version)
    return save_call(edit, reason=reason, actor=actor, action="tier_quota.removed")


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
    typed = {"vendor_limits": {name: _given(name, options, reason)}}
    edit = EntityEdit(environment, "dependency", dependency, typed=typed, version=expected_version)
    return save_call(edit, reason=reason, actor=actor, action="vendor_limit.set")


def remove_vendor_limit(
    *, environment: str, dependency: str, name: str, expected_version: int | None, reason: str, actor: Actor
) -> int:
    edit = EntityEdit(environment, "dependency", dependency, removed=(name,), version=expected_version)
    return save_call(edit, reason=reason, actor=actor, action="vendor_limit.removed")


def set_subject_limit(
    *,
    environment: str,
    name: str,
    reason: str,
    actor: Actor,
    **options: Unpack[SubjectLimitOptions],
) -> int:
    """Limit requests without a tenant by ``per``, or all requests to a ``service`` together. By default
    each pod applies its local share while Redis is down.
    """
    typed = {"subject_limits": {name: _given(name, options, reason)}}
    edit = EntityEdit(environment, "environment", environment, typed=typed)
    return save_call(edit, reason=reason, actor=actor, action="subject_limit.set", audited=_callers)


def remove_subject_limit(*, environment: str, name: str, reason: str, actor: Actor) -> int:
    edit = EntityEdit(environment, "environment", environment, removed=(name,))
    return save_call(edit, reason=reason, actor=actor, action="subject_limit.removed", audited=_callers)


def _given(limit: str, options: LimitOptions, reason: str) -> Fields:
    given = given_columns(options)
    check_new_limit(limit, given, reason)
    return given
