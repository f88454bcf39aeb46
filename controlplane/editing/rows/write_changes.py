"""Writes many changed things with a few statements.

The order keeps every reference valid: things that others refer to are created first and removed last.
"""

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from django.utils import timezone

from controlplane.editing.revise import Revision
from controlplane.editing.rows.first_version import first_version
from controlplane.editing.rows.write_named import write_rows
from controlplane.editing.rows.write_spending import write_accounts, write_budgets, write_models
from controlplane.editing.rows.write_tenants import write_tenants
from controlplane.errors import InvalidEdit
from controlplane.policies.document import environment_of
from controlplane.policies.fields import Fields, limits_in
from controlplane.policies.history import Changed, Progress
from controlplane.policies.limits import VALUES, LimitColumns, full_columns, set_columns
from controlplane.policies.models import (
    BREAKER_RANGES,
    OPTIONAL_COLUMNS,
    Dependency,
    DescriptorFile,
    Environment,
    SubjectLimit,
    Template,
    Tenant,
    Tier,
    TierQuota,
    VendorLimit,
)
from controlplane.policies.protection import Document, flat_protection, protection_in
from controlplane.policies.runbook_texts import runbook_row
from controlplane.spending.budget_fields import without_ended_raise

_KINDS = (
    *("template", "tier", "dependency", "environment", "model", "account", "tenant", "budget"),
    "descriptors",
)


def write_changes(
    revision: Revision, changes: Sequence[Changed], *, progress: Progress | None = None
) -> None:
    """Write every changed thing as it is after the change, and add the changes to the revision.

    ``before`` must be the present state in the database, and ``after`` must be checked. A raise of a budget
    that is over is left out. Raises ``InvalidEdit`` for a removed thing that is still in use.
    """
    by_kind: dict[str, list[Changed]] = {kind: [] for kind in _KINDS}
    changes = _without_ended_raises(changes)
    for change in changes:
        by_kind[change.kind].append(change)
    _put_templates(revision, by_kind["template"])
    for change in by_kind["tier"]:
        if change.after is not None:
            _put_tier(revision, change.name, change.after)
    for change in by_kind["dependency"]:
        if change.after is not None:
            _put_dependency(revision, change.name, change.after)
    for change in by_kind["environment"]:
        _put_environment(revision, change.after or {})
    write_models(revision, by_kind["model"])
    write_accounts(revision, by_kind["account"])
    write_tenants(revision, by_kind["tenant"], progress=progress)
    write_budgets(revision, by_kind["budget"])
    write_rows(revision, "descriptors", DescriptorFile, by_kind["descriptors"], lambda fields: fields)
    _remove_tiers(revision, [change.name for change in by_kind["tier"] if change.after is None])
    _remove_dependencies(revision, [change.name for change in by_kind["dependency"] if change.after is None])
    revision.changes.extend(changes)


def _without_ended_raises(changes: Sequence[Changed]) -> Sequence[Changed]:
    at = timezone.now()
    return [
        replace(change, after=without_ended_raise(change.after, at))
        if change.kind == "budget" and change.after
        else change
        for change in changes
    ]


def _put_templates(revision: Revision, changes: Sequence[Changed]) -> None:
    """Write templates. Limits refer to them by name only, so their order does not matter."""
    rows = Template.objects.filter(environment_id=revision.environment)
    rows.filter(name__in=[change.name for change in changes if change.after is None]).delete()
    for name, fields in ((change.name, change.after) for change in changes if change.after is not None):
        row = rows.filter(name=name).first()
        row = row or Template(environment_id=revision.environment, name=name, version=revision.number - 1)
        for column, value in full_columns(fields).items():
            if column in VALUES or column == "title":
                setattr(row, column, value)
        row.version += 1
        row.save()


def _put_tier(revision: Revision, name: str, fields: Fields) -> None:
    row = Tier.objects.filter(environment_id=revision.environment, name=name).first()
    row = row or Tier(
        environment_id=revision.environment, name=name, version=first_version(revision, "tier", name)
    )
    row.title, row.priority = fields["title"], fields["priority"]
    row.wait_ms = fields.get("wait_ms", 0)
    row.version += 1
    row.save()
    _replace_limits(TierQuota, {"tier": row}, limits_in("quotas", fields))


def _put_dependency(revision: Revision, name: str, fields: Fields) -> None:
    row = Dependency.objects.filter(environment_id=revision.environment, name=name).first()
    first = first_version(revision, "dependency", name)
    row = row or Dependency(environment_id=revision.environment, name=name, version=first)
    for column in ("title", "kind", "owner", "fallback_note", "timeout_ms"):
        setattr(row, column, fields[column])
    for column in ("wait_ms", *OPTIONAL_COLUMNS):
        setattr(row, column, fields.get(column, 0))
    row.protection = _protection(row.protection, fields)
    for column in BREAKER_RANGES:
        if f"breaker.{column}" in fields:
            setattr(row, column, fields[f"breaker.{column}"])
    row.window_calls = fields.get("breaker.window_calls", 0)
    row.runbook = runbook_row(fields.get("runbook") or "")
    row.version += 1
    row.save()
    _replace_limits(VendorLimit, {"dependency": row}, limits_in("vendor_limits", fields))


def _put_environment(revision: Revision, fields: Fields) -> None:
    row = environment_of(revision.environment)
    row.default_tier = Tier.objects.get(environment_id=revision.environment, name=fields["default_tier"])
    row.tuning = {
        field.partition(".")[2]: value for field, value in fields.items() if field.startswith("tuning.")
    }
    row.protection = _protection(row.protection, fields)
    row.save(update_fields=["default_tier", "tuning", "protection"])
    _replace_limits(SubjectLimit, {"environment": row}, limits_in("subject_limits", fields))


def _protection(stored: Document, fields: Fields) -> Document:
    """The stored document unless the edit changes it: flat fields have no place for a part without values."""
    after = protection_in(fields)
    return stored if flat_protection(stored) == flat_protection(after) else after


def _replace_limits(model: type[LimitColumns], owner: dict[str, Any], limits: dict[str, Fields]) -> None:
    rows = model._default_manager.filter(**owner)
    rows.exclude(name__in=limits).delete()
    kept = {row.name: row for row in rows}
    for name, fields in limits.items():
        row = kept.get(name) or model(name=name, **owner)
        set_columns(row, fields)
        row.save()


def _remove_tiers(revision: Revision, names: list[str]) -> None:
    if not names:
        return
    rows = Tier.objects.filter(environment_id=revision.environment, name__in=names)
    # Tenants that were removed earlier still refer to their tier.
    default = Environment.objects.get(pk=revision.environment).default_tier_id
    users = Tenant.objects.filter(tier__in=rows, deleted=False)
    if used := users.select_related("tier").first():
        raise InvalidEdit({"tiers": [f"Tier {used.tier.name} still has tenants, such as {used.key}."]})
    if rows.filter(pk=default).exists():
        raise InvalidEdit({"tiers": ["The default tier cannot be removed: choose another one first."]})
    Tenant.objects.filter(tier__in=rows, deleted=True).update(tier_id=default)
    rows.delete()


def _remove_dependencies(revision: Revision, names: list[str]) -> None:
    if not names:
        return
    rows = Dependency.objects.filter(environment_id=revision.environment, name__in=names)
    overridden = rows.filter(overrides__isnull=False, overrides__ended_at__isnull=True)
    if current := overridden.first():
        message = f"The breaker of {current.name} has an override: end the override first."
        raise InvalidEdit({"dependencies": [message]})
    for row in rows.filter(overrides__isnull=False).distinct():
        row.overrides.all().delete()  # the audit keeps them
    rows.delete()
