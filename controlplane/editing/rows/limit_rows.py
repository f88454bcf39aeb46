"""Merging what an edit gives into one limit, and writing its row."""

from collections.abc import Mapping
from typing import Any

from django.db.models import Manager

from controlplane.editing.rows.limit_checks import check_row
from controlplane.errors import InvalidEdit, NotFound
from controlplane.policies.limit_fields import LimitValues
from controlplane.policies.limits import (
    ALONE,
    OPTIONAL,
    columns_of,
    followed,
    own_columns,
    plain_columns,
    set_columns,
)
from controlplane.policies.models import Template
from controlplane.validation import Problems
from fuseboard.contract.limit_fields import FIELDS, Choices, Patterns
from fuseboard.contract.words import Algorithm


def given_columns(options: LimitValues) -> dict[str, Any]:
    """Return column -> new value, for the values that are given."""
    given = {name: value for name, value in options.items() if value is not None}
    algorithm = given.get("algorithm")
    if algorithm is not None and algorithm != Algorithm.FIXED_WINDOW:
        given.setdefault("period", "")
    return given


def put_limit(
    rows: Manager[Any],
    name: str,
    given: Mapping[str, Any],
    *,
    environment: str,
    like: Mapping[str, Any] | None = None,
) -> None:
    """Change the limit of that name, or create it. A new one takes from ``like`` what is not given."""
    row = rows.filter(name=name).first()
    present = columns_of(row) if row is not None else {}
    if row is None:
        row = rows.model(name=name, **{rows.field.name: rows.instance})  # type: ignore[attr-defined]
    given = dict(given) | _lists(given)
    usual = {name: value for name, value in (like or {}).items() if name in OPTIONAL}
    columns = given_over(present, given, usual=usual, template=_template(environment, present, given))
    set_columns(row, columns)
    check_row(row, environment)
    row.save()


def given_over(
    present: Mapping[str, Any],
    given: Mapping[str, Any],
    *,
    usual: Mapping[str, Any],
    template: Mapping[str, Any] | None,
) -> dict[str, Any]:
    """Return the columns of a limit after an edit. A limit that is not ``present`` starts from ``usual``.

    ``template`` has the columns of the template that it follows after the edit. Raises
    ``InvalidEdit`` when a needed value is missing.
    """
    columns = {**(present or usual), **given}
    if template is None:
        problems = Problems()
        for needed in ("limit", "window_s"):
            if needed not in columns:
                problems.add(needed, "A new limit needs this.")
        problems.settle()
        return plain_columns(columns | ALONE)
    kept = () if given.get("template") else present.get("own", ())
    return followed({**columns, "own": own_columns([*kept, *given])}, template)


def remove_limit(rows: Manager[Any], name: str) -> None:
    removed, _ = rows.filter(name=name).delete()
    if not removed:
        raise NotFound("quota", name)


def _lists(given: Mapping[str, Any]) -> dict[str, list[str]]:
    """Return the given lists in the form that rows have: words in the order of their enumeration."""
    lists: dict[str, list[str]] = {}
    for field in FIELDS:
        if isinstance(field, Choices) and field.name in given:
            lists[field.name] = [word.value for word in field.words if word in given[field.name]]
        elif isinstance(field, Patterns) and field.name in given:
            lists[field.name] = list(given[field.name])
    return lists


def _template(
    environment: str, present: Mapping[str, Any], given: Mapping[str, Any]
) -> dict[str, Any] | None:
    name = given.get("template", present.get("template", ""))
    if not name:
        return None
    row = Template.objects.filter(environment_id=environment, name=name).first()
    if row is None:
        raise InvalidEdit({"template": [f"There is no template {name!r}."]})
    return columns_of(row)
