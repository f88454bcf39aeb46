"""Ends temporary quotas. The tenant's permanent quota, or the tier's, applies again."""

from contextlib import suppress
from typing import Any

from django.utils import timezone

from controlplane.audit.actor import FUSEBOARD
from controlplane.editing.revise import Revision, revise
from controlplane.editing.rows.limit_checks import check_together
from controlplane.editing.rows.write_changes import write_changes
from controlplane.policies.fields import Fields, replace_limit
from controlplane.policies.history import Changed
from controlplane.policies.limits import ALONE, columns_of, followed, full_columns, plain_columns
from controlplane.policies.models import Dependency, Template, TenantQuota
from controlplane.policies.state import read_tenants
from controlplane.validation import Problems

#: The most quotas that end with one revision.
_AT_ONCE = 1_000


def expire_quotas() -> list[tuple[str, str, str]]:
    """End the quotas that have expired. Return environment, tenant and quota of each."""
    expired: list[tuple[str, str, str]] = []
    over = TenantQuota.objects.filter(expires_at__lte=timezone.now(), tenant__deleted=False)
    for environment in sorted(set(over.values_list("tenant__environment_id", flat=True))):
        with (
            suppress(_AlreadyEnded),
            revise(
                environment=environment, actor=FUSEBOARD, reason="The quota expired.", needs_approval=False
            ) as revision,
        ):
            # Read under the revision's lock: an earlier edit may have ended them or made them permanent.
            due = over.filter(tenant__environment=environment).select_related("tenant").order_by("pk")
            rows = list(due[:_AT_ONCE])
            if not rows:
                # Another process was faster. This rolls back the revision taken above.
                raise _AlreadyEnded
            _end(revision, rows)
            expired += [(environment, row.tenant.key, row.name) for row in rows]
    return expired


class _AlreadyEnded(Exception):
    pass


def _end(revision: Revision, rows: list[TenantQuota]) -> None:
    state = read_tenants(revision.environment, {row.tenant.key for row in rows})
    before = dict(state)
    for row in rows:
        thing = ("tenant", row.tenant.key)
        lasting = lasting_columns(revision.environment, row.returns_to)
        state[thing] = replace_limit("quotas", row.name, state[thing], lasting)
    changes = [
        Changed("tenant", key, fields, state["tenant", key]) for (_, key), fields in sorted(before.items())
    ]
    for change in changes:
        revision.audit_change("tenant_quota.expired", change)
    write_changes(revision, changes)


def lasting_columns(environment: str, columns: dict[str, Any] | None) -> Fields | None:
    """Return the columns that apply again, or ``None`` if they are no longer valid and the tier's apply."""
    if columns is None:
        return None
    columns = _of_today(environment, columns)
    problems = Problems()
    full = full_columns(columns)
    check_together(problems, full, subject=False)
    names = Dependency.objects.filter(environment_id=environment, name=full["dependency"])
    if problems.errors or (full["dependency"] and not names.exists()):
        return None
    return dict(columns)


def _of_today(environment: str, columns: dict[str, Any]) -> dict[str, Any]:
    """Return the columns with the present values of their template. If it was removed, keep their values."""
    if not (name := columns.get("template")):
        return columns
    template = Template.objects.filter(environment_id=environment, name=name).first()
    if template is None:
        return plain_columns(columns | ALONE)
    return followed(columns, columns_of(template))
