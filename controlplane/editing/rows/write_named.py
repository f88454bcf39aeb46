"""Writes rows that have a name and a version, with a few statements for any number of them."""

from collections.abc import Callable, Sequence
from typing import Any

from controlplane.editing.revise import Revision
from controlplane.editing.rows.first_version import first_versions
from controlplane.policies.fields import Fields
from controlplane.policies.history import ROWS_PER_STATEMENT, Changed


def write_rows(
    revision: Revision,
    kind: str,
    model: type[Any],
    changes: Sequence[Changed],
    columns_of: Callable[[Fields], Fields],
) -> None:
    rows = model._default_manager.filter(environment_id=revision.environment)
    removed = [change.name for change in changes if change.after is None]
    if removed:
        rows.filter(name__in=removed).delete()
    put = {change.name: columns_of(change.after) for change in changes if change.after is not None}
    if not put:
        return
    versions = dict(rows.filter(name__in=list(put)).values_list("name", "version"))
    versions |= first_versions(revision, kind, put.keys() - versions.keys())
    model._default_manager.bulk_create(
        [
            model(environment_id=revision.environment, name=name, version=versions[name] + 1, **columns)
            for name, columns in put.items()
        ],
        batch_size=ROWS_PER_STATEMENT,
        update_conflicts=True,
        unique_fields=["environment", "name"],
        update_fields=["version", *next(iter(put.values()))],
    )
