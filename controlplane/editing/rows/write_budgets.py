from collections.abc import Sequence
from datetime import datetime

from controlplane.editing.revise import Revision
from controlplane.editing.rows.first_version import first_version
from controlplane.policies.fields import Fields
from controlplane.policies.history import Changed
from controlplane.policies.models import Tenant
from controlplane.spending.budget_fields import BUDGET_FIELDS
from controlplane.spending.budget_rows import Account, Budget


def write_accounts(revision: Revision, changes: Sequence[Changed]) -> None:
    rows = Account.objects.filter(environment_id=revision.environment)
    rows.filter(name__in=[change.name for change in changes if change.after is None]).delete()
    for change in changes:
        if change.after is not None:
            row = rows.filter(name=change.name).first() or Account(
                environment_id=revision.environment,
                name=change.name,
                version=first_version(revision, "account", change.name),
            )
            row.hosts, row.pools = change.after["hosts"], change.after["pools"]
            row.version += 1
            row.save()


def write_budgets(revision: Revision, changes: Sequence[Changed]) -> None:
    """Write budgets. The records of the tenants that have them change too, so pods fetch these again."""
    rows = Budget.objects.filter(environment_id=revision.environment)
    rows.filter(name__in=[change.name for change in changes if change.after is None]).delete()
    for change in changes:
        if change.after is not None:
            _put(revision, rows.filter(name=change.name).first(), change.name, change.after)
    owners = {
        (fields or {}).get("tenant", "") for change in changes for fields in (change.before, change.after)
    }
    Tenant.objects.filter(environment_id=revision.environment, key__in=owners - {""}, deleted=False).update(
        changed_revision=revision.number
    )


def _put(revision: Revision, row: Budget | None, name: str, fields: Fields) -> None:
    if row is None:
        version = first_version(revision, "budget", name)
        row = Budget(environment_id=revision.environment, name=name, version=version)
    for column in BUDGET_FIELDS:
        setattr(row, column, fields[column])
    row.raised_to = fields["raised_to"] or None
    row.raised_until = datetime.fromisoformat(fields["raised_until"]) if fields["raised_until"] else None
    row.version += 1
    row.save()
