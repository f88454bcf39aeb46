"""Writes models with their prices, accounts and budgets, with a few statements for any number of them."""

from collections.abc import Mapping, Sequence
from datetime import datetime

from controlplane.editing.revise import Revision
from controlplane.editing.rows.write_named import write_rows
from controlplane.policies.fields import Fields, limits_in
from controlplane.policies.history import ROWS_PER_STATEMENT, Changed
from controlplane.policies.models import Tenant
from controlplane.spending.budget_fields import BUDGET_FIELDS, NEW_ACCOUNT
from controlplane.spending.budget_rows import Account, Budget
from controlplane.spending.fields import COLUMNS, full_price, read_start
from controlplane.spending.models import Model, Price


def write_models(revision: Revision, changes: Sequence[Changed]) -> None:
    write_rows(
        revision, "model", Model, changes, lambda fields: {name: fields[name] for name in ("aliases", "pool")}
    )
    prices = {
        change.name: limits_in("prices", change.after) for change in changes if change.after is not None
    }
    if prices:
        _write_prices(revision.environment, prices)


def _write_prices(environment: str, prices: Mapping[str, Mapping[str, Fields]]) -> None:
    """Replace the prices of these models. A price that stays keeps its row."""
    rows = Model.objects.filter(environment_id=environment, name__in=list(prices))
    numbers = dict(rows.values_list("name", "pk"))
    put = {
        (numbers[name], read_start(start)): full_price(columns)
        for name, starts in prices.items()
        for start, columns in starts.items()
    }
    known = Price.objects.filter(model__in=numbers.values()).values_list("pk", "model", "starts_at")
    removed = [number for number, *key in known if tuple(key) not in put]
    if removed:
        Price.objects.filter(pk__in=removed).delete()
    Price.objects.bulk_create(
        [Price(model_id=model, starts_at=at, **columns) for (model, at), columns in put.items()],
        batch_size=ROWS_PER_STATEMENT,
        update_conflicts=True,
        unique_fields=["model", "starts_at"],
        update_fields=COLUMNS,
    )


def write_accounts(revision: Revision, changes: Sequence[Changed]) -> None:
    write_rows(
        revision, "account", Account, changes, lambda fields: {name: fields[name] for name in NEW_ACCOUNT}
    )


def write_budgets(revision: Revision, changes: Sequence[Changed]) -> None:
    """Write budgets. The records of the tenants that have them change too, so pods fetch these again."""
    write_rows(revision, "budget", Budget, changes, _columns)
    owners = {
        (fields or {}).get("tenant", "") for change in changes for fields in (change.before, change.after)
    }
    if tenants := owners - {""}:
        rows = Tenant.objects.filter(environment_id=revision.environment, key__in=tenants, deleted=False)
        rows.update(changed_revision=revision.number)


def _columns(fields: Fields) -> Fields:
    ends = fields["raised_until"]
    raised = {
        "raised_to": fields["raised_to"] or None,
        "raised_until": datetime.fromisoformat(ends) if ends else None,
    }
    return {column: fields[column] for column in BUDGET_FIELDS} | raised
