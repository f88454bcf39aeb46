from collections.abc import Sequence

from controlplane.editing.revise import Revision
from controlplane.editing.rows.first_version import first_version
from controlplane.policies.fields import Fields, limits_in
from controlplane.policies.history import Changed
from controlplane.spending.fields import full_price, read_start
from controlplane.spending.models import Model, Price


def write_models(revision: Revision, changes: Sequence[Changed]) -> None:
    """Write models and their prices. Nothing refers to a model, so their order does not matter."""
    rows = Model.objects.filter(environment_id=revision.environment)
    rows.filter(name__in=[change.name for change in changes if change.after is None]).delete()
    for change in changes:
        if change.after is not None:
            _put(revision, rows.filter(name=change.name).first(), change.name, change.after)


def _put(revision: Revision, row: Model | None, name: str, fields: Fields) -> None:
    if row is None:
        version = first_version(revision, "model", name)
        row = Model(environment_id=revision.environment, name=name, version=version)
    row.aliases, row.pool = fields["aliases"], fields["pool"]
    row.version += 1
    row.save()
    prices = {read_start(start): columns for start, columns in limits_in("prices", fields).items()}
    row.prices.exclude(starts_at__in=prices).delete()
    for starts_at, columns in prices.items():
        Price.objects.update_or_create(model=row, starts_at=starts_at, defaults=full_price(columns))
