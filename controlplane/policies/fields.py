"""What the audit keeps of a thing: its fields, flat, so that two states compare field by field."""

from collections.abc import Iterable
from typing import Any

from controlplane.policies.limits import LimitColumns, columns_of
from controlplane.policies.models import BREAKER_RANGES, Dependency, Tenant, Tier

Fields = dict[str, Any]


def tenant_fields(tenant: Tenant) -> Fields:
    return {
        "tier": tenant.tier.name,
        "title": tenant.title,
        "suspended": tenant.suspended,
        **limit_fields("quotas", tenant.quotas.all()),
        "version": tenant.version,
    }


def tier_fields(tier: Tier) -> Fields:
    return {
        "title": tier.title,
        "priority": tier.priority,
        **limit_fields("quotas", tier.quotas.all()),
        "version": tier.version,
    }


def dependency_fields(dependency: Dependency) -> Fields:
    return {
        "title": dependency.title,
        "kind": dependency.kind,
        "owner": dependency.owner,
        "fallback_note": dependency.fallback_note,
        "timeout_ms": dependency.timeout_ms,
        "runbook": dependency.runbook_id,
        **{f"breaker.{column}": getattr(dependency, column) for column in BREAKER_RANGES},
        **limit_fields("vendor_limits", dependency.vendor_limits.all()),
        "version": dependency.version,
    }


def limit_fields(prefix: str, rows: Iterable[LimitColumns]) -> Fields:
    return {
        f"{prefix}.{row.name}.{column}": value
        for row in sorted(rows, key=lambda row: row.name)
        for column, value in columns_of(row).items()
    }
