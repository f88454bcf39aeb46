"""The flat fields of a thing, for the audit and for comparing two states field by field."""

import sys
from collections.abc import Iterable
from typing import Any

from controlplane.policies.limits import LimitColumns, columns_of
from controlplane.policies.models import (
    BREAKER_RANGES,
    OPTIONAL_COLUMNS,
    Dependency,
    DescriptorFile,
    Environment,
    Template,
    Tier,
)
from controlplane.policies.protection import flat_protection

Fields = dict[str, Any]


def environment_fields(environment: Environment) -> Fields:
    """Return the fields that belong to no tier, tenant or dependency."""
    return {
        "default_tier": environment.default_tier.name,
        **{f"tuning.{field}": value for field, value in environment.tuning.items()},
        **flat_protection(environment.protection),
        **limit_fields("subject_limits", environment.subject_limits.all()),
    }


def tier_fields(tier: Tier) -> Fields:
    return {
        "title": tier.title,
        "priority": tier.priority,
        **_wait(tier.wait_ms),
        **limit_fields("quotas", tier.quotas.all()),
        "version": tier.version,
    }


def template_fields(template: Template) -> Fields:
    return {"title": template.title, **columns_of(template), "version": template.version}


def dependency_fields(dependency: Dependency) -> Fields:
    return {
        "title": dependency.title,
        "kind": dependency.kind,
        "owner": dependency.owner,
        "fallback_note": dependency.fallback_note,
        "timeout_ms": dependency.timeout_ms,
        **_wait(dependency.wait_ms),
        **{column: value for column in OPTIONAL_COLUMNS if (value := getattr(dependency, column))},
        "runbook": dependency.runbook_id,
        **breaker_fields(dependency),
        **flat_protection(dependency.protection),
        **limit_fields("vendor_limits", dependency.vendor_limits.all()),
        "version": dependency.version,
    }


def descriptor_fields(row: DescriptorFile) -> Fields:
    return {"file": row.file, "version": row.version}


def breaker_fields(dependency: Dependency) -> Fields:
    """Return the policy of the breaker. A window by calls is left out if it is off, as in older history."""
    fields = {f"breaker.{column}": getattr(dependency, column) for column in BREAKER_RANGES}
    if not dependency.window_calls:
        del fields["breaker.window_calls"]
    return fields


def _wait(wait_ms: int) -> Fields:
    """Left out if it is 0, as in the history from before the field existed."""
    return {"wait_ms": wait_ms} if wait_ms else {}


def limit_fields(prefix: str, rows: Iterable[LimitColumns]) -> Fields:
    return {
        # Interned, because a hundred thousand tenants have the same few names.
        sys.intern(f"{prefix}.{row.name}.{column}"): value
        for row in sorted(rows, key=lambda row: row.name)
        for column, value in [*columns_of(row).items(), *_ending(row)]
    }


def _ending(row: LimitColumns) -> Iterable[tuple[str, Any]]:
    """Yield the end of a temporary quota, and the quota that applies afterwards."""
    expires_at = getattr(row, "expires_at", None)
    if expires_at is not None:
        yield "expires_at", expires_at.isoformat()
        if (returns_to := getattr(row, "returns_to", None)) is not None:
            yield "returns_to", returns_to


def limits_in(prefix: str, fields: Fields) -> dict[str, Fields]:
    """Return name of the limit -> its columns. This reverses ``limit_fields``."""
    found: dict[str, Fields] = {}
    for field, value in fields.items():
        head, _, rest = field.partition(".")
        if head == prefix:
            name, _, column = rest.rpartition(".")
            found.setdefault(name, {})[column] = value
    return found


def replace_limit(prefix: str, name: str, fields: Fields, columns: Fields | None) -> Fields:
    """Return the fields with these columns of one limit; without the limit for ``None``."""
    place = f"{prefix}.{name}"
    rest = {field: value for field, value in fields.items() if field.rpartition(".")[0] != place}
    return rest | {f"{place}.{column}": value for column, value in (columns or {}).items()}


def without_version(fields: Fields) -> Fields:
    """Return the fields of the configuration. A version belongs to a row."""
    return {field: value for field, value in fields.items() if field != "version"}


def different(before: Fields | None, after: Fields | None) -> dict[str, tuple[Any, Any]]:
    """Return field -> values before and after, for the fields that differ. Versions do not count."""
    old, new = before or {}, after or {}
    return {
        field: (old.get(field), new.get(field))
        for field in sorted(old.keys() | new.keys())
        if old.get(field) != new.get(field) and field != "version"
    }
