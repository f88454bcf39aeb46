"""Quotas of tenants and tiers, limits of vendors."""

from typing import Any

from django.db.models import Manager

from controlplane.audit.actor import Actor
from controlplane.policies.edits.rows import DependencyEdit, TenantEdit, TierEdit
from controlplane.policies.errors import NotFound
from controlplane.policies.limits import MAX_WINDOW_S, LimitColumns
from controlplane.policies.models import TierQuota
from controlplane.policies.validation import Problems
from controlplane.publishing.revisions import revise
from fuseboard.contract.words import MAX_LIMIT, Algorithm, FailurePolicy


def set_tenant_quota(
    *,
    environment: str,
    tenant: str,
    quota: str,
    limit: int,
    window_s: int,
    burst: int,
    expected_version: int | None,
    reason: str,
    actor: Actor,
    algorithm: Algorithm | None = None,
    failure_policy: FailurePolicy | None = None,
    shadow: bool | None = None,
) -> int:
    """Give a tenant a quota of its own, in place of its tier's quota of that name.

    What is left out stays as it is, or is taken from the tier's quota.
    """
    given = _given(limit, window_s, burst, algorithm, failure_policy, shadow)
    _check(quota, given, reason)
    with revise(environment=environment, actor=actor, reason=reason) as revision:
        edit = TenantEdit(revision, tenant, expected_version)
        like = TierQuota.objects.filter(tier_id=edit.row.tier_id, name=quota).first()
        _put(edit.row.quotas, quota, given, like=like)
        edit.finish("tenant_quota.set")
    return revision.number


def remove_tenant_quota(
    *, environment: str, tenant: str, quota: str, expected_version: int | None, reason: str, actor: Actor
) -> int:
    """Let the tier's quota of that name apply again."""
    _check_reason(reason)
    with revise(environment=environment, actor=actor, reason=reason) as revision:
        edit = TenantEdit(revision, tenant, expected_version)
        _remove(edit.row.quotas, quota)
        edit.finish("tenant_quota.removed")
    return revision.number


def set_tier_quota(
    *,
    environment: str,
    tier: str,
    quota: str,
    limit: int,
    window_s: int,
    burst: int,
    expected_version: int | None,
    reason: str,
    actor: Actor,
    algorithm: Algorithm | None = None,
    failure_policy: FailurePolicy | None = None,
    shadow: bool | None = None,
) -> int:
    """Set a quota of every tenant of the tier that has none of its own by that name: one write."""
    given = _given(limit, window_s, burst, algorithm, failure_policy, shadow)
    _check(quota, given, reason)
    with revise(environment=environment, actor=actor, reason=reason) as revision:
        edit = TierEdit(revision, tier, expected_version)
        _put(edit.row.quotas, quota, given)
        edit.finish("tier_quota.set")
    return revision.number


def remove_tier_quota(
    *, environment: str, tier: str, quota: str, expected_version: int | None, reason: str, actor: Actor
) -> int:
    _check_reason(reason)
    with revise(environment=environment, actor=actor, reason=reason) as revision:
        edit = TierEdit(revision, tier, expected_version)
        _remove(edit.row.quotas, quota)
        edit.finish("tier_quota.removed")
    return revision.number


def set_vendor_limit(
    *,
    environment: str,
    dependency: str,
    name: str,
    limit: int,
    window_s: int,
    burst: int = 1,
    expected_version: int | None,
    reason: str,
    actor: Actor,
    algorithm: Algorithm = Algorithm.SLIDING_WINDOW,
    failure_policy: FailurePolicy = FailurePolicy.RESERVED,
    shadow: bool = False,
) -> int:
    """Set what the vendor lets the whole fleet do; strict unless said otherwise."""
    given = _given(limit, window_s, burst, algorithm, failure_policy, shadow)
    _check(name, given, reason)
    with revise(environment=environment, actor=actor, reason=reason) as revision:
        edit = DependencyEdit(revision, dependency, expected_version)
        _put(edit.row.vendor_limits, name, given)
        edit.finish("vendor_limit.set")
    return revision.number


def remove_vendor_limit(
    *, environment: str, dependency: str, name: str, expected_version: int | None, reason: str, actor: Actor
) -> int:
    _check_reason(reason)
    with revise(environment=environment, actor=actor, reason=reason) as revision:
        edit = DependencyEdit(revision, dependency, expected_version)
        _remove(edit.row.vendor_limits, name)
        edit.finish("vendor_limit.removed")
    return revision.number


def check_limit(problems: Problems, name: object, given: dict[str, Any], *, prefix: str = "") -> None:
    """The name and columns of one limit; left out columns are ``None``."""
    problems.slug(f"{prefix}quota", name)
    problems.whole(f"{prefix}limit", given["limit"], 0, MAX_LIMIT)
    problems.whole(f"{prefix}window_s", given["window_s"], 1, MAX_WINDOW_S)
    problems.whole(f"{prefix}burst", given["burst"], 1, MAX_LIMIT)
    if given["algorithm"] is not None:
        problems.choice(f"{prefix}algorithm", given["algorithm"], Algorithm)
    if given["failure_policy"] is not None:
        problems.choice(f"{prefix}failure_policy", given["failure_policy"], FailurePolicy)
    if given["shadow"] is not None:
        problems.flag(f"{prefix}shadow", given["shadow"])


def _given(
    limit: int,
    window_s: int,
    burst: int,
    algorithm: Algorithm | None,
    failure_policy: FailurePolicy | None,
    shadow: bool | None,
) -> dict[str, Any]:
    return {
        "limit": limit,
        "window_s": window_s,
        "burst": burst,
        "algorithm": algorithm,
        "failure_policy": failure_policy,
        "shadow": shadow,
    }


def _check(name: object, given: dict[str, Any], reason: object) -> None:
    problems = Problems()
    check_limit(problems, name, given)
    problems.reason(reason)
    problems.settle()


def _check_reason(reason: object) -> None:
    problems = Problems()
    problems.reason(reason)
    problems.settle()


def _put(rows: Manager[Any], name: str, given: dict[str, Any], *, like: LimitColumns | None = None) -> None:
    row = rows.filter(name=name).first()
    if row is None:
        row = rows.model(name=name, **{rows.field.name: rows.instance})  # type: ignore[attr-defined]
        for column in ("algorithm", "failure_policy", "shadow"):
            setattr(row, column, getattr(like or row, column))
    for column, value in given.items():
        if value is not None:
            setattr(row, column, value)
    if row.algorithm == Algorithm.SLIDING_WINDOW and row.burst != 1:
        problems = Problems()
        problems.add("burst", "A sliding window has no burst: enter 1.")
        problems.settle()
    row.save()


def _remove(rows: Manager[Any], name: str) -> None:
    removed, _ = rows.filter(name=name).delete()
    if not removed:
        raise NotFound("quota", name)
